"""Bounds the bytes of a provider's HTTP response, so that a huge one never gets into memory, and observes its headers.

The limit belongs to one request: it is set in the request's context, where the hook of the HTTP client reads it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ...flow.values import ProviderFacts
from ..protocol import SentRequest
from .provider_facts import facts_of_headers

if TYPE_CHECKING:
    from pydantic_ai.usage import RequestUsage

# A compressed byte can become a thousand: what a server compresses without being asked gets a smaller limit.
_COMPRESSED_SHARE: Final = 16


@dataclass(slots=True)
class ResponseLimit:
    """The limit of one request.

    Attributes:
        max_bytes: Most bytes of the response's body.
        observe: Takes what the headers of a response tell about the provider's limits; None where it is not asked for.
        tell: Takes the request that is sent; None where it is not asked for.
        exceeded: The response had more, and the rest was not read.
    """

    max_bytes: int
    observe: Callable[[ProviderFacts], None] | None = None
    tell: Callable[[SentRequest], None] | None = None
    exceeded: bool = False


class _ResponseTooLarge(Exception):
    """Ends the reading of a response; the HTTP client and the provider's library may wrap it."""


# Where clients of providers keep the HTTP client, from the client or the provider on.
_HTTP_CLIENTS: Final = (
    "_own_http_client",
    "client",
    "client._client",
    "client._api_client._async_httpx_client",
    "client.sdk_configuration.async_client",
    "client._client_wrapper.httpx_client.httpx_client",
)

_limit: Final[ContextVar[ResponseLimit | None]] = ContextVar("celery_agents_response_limit", default=None)


@contextlib.contextmanager
def response_limit(
    max_bytes: int,
    observe: Callable[[ProviderFacts], None] | None = None,
    tell: Callable[[SentRequest], None] | None = None,
) -> Generator[ResponseLimit]:
    """Limit the responses to requests that begin in this block, where their client has `limit_responses`."""
    limit = ResponseLimit(max_bytes, observe, tell)
    token = _limit.set(limit)
    try:
        yield limit
    finally:
        _limit.reset(token)


def tell_used(usage: RequestUsage) -> None:
    """Tell the tokens of an answer to what observes the running request."""
    limit = _limit.get()
    if limit is not None and limit.observe is not None:
        read, written = usage.input_tokens, usage.output_tokens
        limit.observe(ProviderFacts(used={"input_tokens": read, "output_tokens": written, "tokens": read + written}))


def teller() -> Callable[[SentRequest], None] | None:
    """The function that takes what the running request sends; None where nothing asks for it."""
    limit = _limit.get()
    return None if limit is None else limit.tell


def limit_responses(client: Any, *, uncompressed: bool = True) -> bool:
    """Let an httpx client observe the limit of the request's context.

    Args:
        client: An `httpx.AsyncClient` or `httpx2.AsyncClient`; anything else is left alone.
        uncompressed: Ask for answers that are not compressed.
    Returns:
        False: It has no hooks. The size of the answer is checked only after it was read.
    """
    hooks: Any = getattr(client, "event_hooks", None)
    if not isinstance(hooks, dict):
        return False
    known: dict[str, list[Any]] = hooks  # pyright: ignore[reportUnknownVariableType]
    if _limit_response not in known.get("response", ()):
        client.event_hooks = {
            **known,
            "request": [*known.get("request", ()), _refuse_again],
            "response": [*known.get("response", ()), _limit_response],
        }
        if uncompressed:
            client.headers["Accept-Encoding"] = "identity"
    return True


def is_limited() -> bool:
    """Whether the running request is one of a step, and no other run of the same agent in this process."""
    return _limit.get() is not None


def limit_model(model: Any) -> None:
    """Let the HTTP clients of a model that the application has made observe the limit of the request's context.

    Their own headers stay, since others may use them.
    """
    for each in (*getattr(model, "models", ()), *filter(None, [getattr(model, "wrapped", None)])):
        limit_model(each)
    provider = getattr(model, "provider", None) or getattr(model, "_provider", None)
    for path in _HTTP_CLIENTS if provider is not None else ():
        found: Any = provider
        for name in path.split("."):
            found = getattr(found, name, None)
        limit_responses(found, uncompressed=False)


async def _refuse_again(_: Any) -> None:
    """Refuse that a client asks again, of itself, for what was too large."""
    limit = _limit.get()
    if limit is not None and limit.exceeded:
        raise _ResponseTooLarge


async def _limit_response(response: Any) -> None:
    limit = _limit.get()
    if limit is None:
        return
    if limit.observe is not None:
        limit.observe(facts_of_headers(response.status_code, response.headers))
    encoding = response.headers.get("content-encoding", "identity")
    most = limit.max_bytes if encoding == "identity" else limit.max_bytes // _COMPRESSED_SHARE
    announced = response.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > most:
        limit.exceeded = True
        raise _ResponseTooLarge
    # The client checks that a stream is one of its own library: httpx, or its successor httpx2.
    library = import_module(type(response).__module__.partition(".")[0])
    response.stream = _limited_stream(library.AsyncByteStream, response.stream, limit, most)


def _limited_stream(base: type[Any], stream: Any, limit: ResponseLimit, most: int) -> Any:
    class LimitedStream(base):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in stream:
                size += len(chunk)
                if size > most:
                    limit.exceeded = True
                    raise _ResponseTooLarge
                yield chunk

        async def aclose(self) -> None:
            await stream.aclose()

    return LimitedStream()
