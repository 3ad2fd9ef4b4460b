"""Bounds the bytes of a provider's HTTP response, so that a huge one never gets into memory.

The limit belongs to one request: it is set in the request's context, where the hook of the HTTP client reads it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

# A compressed byte can become a thousand: what a server compresses without being asked gets a smaller limit.
_COMPRESSED_SHARE: Final = 16


@dataclass(slots=True)
class ResponseLimit:
    """The limit of one request.

    Attributes:
        max_bytes: Most bytes of the response's body.
        exceeded: The response had more, and the rest was not read.
    """

    max_bytes: int
    exceeded: bool = False


class _ResponseTooLarge(Exception):
    """Ends the reading of a response; the HTTP client and the provider's library may wrap it."""


_limit: Final[ContextVar[ResponseLimit | None]] = ContextVar("celery_agents_response_limit", default=None)


@contextlib.contextmanager
def response_limit(max_bytes: int) -> Generator[ResponseLimit]:
    """Limit the responses to requests that begin in this block, where their client has `limit_responses`."""
    limit = ResponseLimit(max_bytes)
    token = _limit.set(limit)
    try:
        yield limit
    finally:
        _limit.reset(token)


def limit_responses(client: Any) -> bool:
    """Let an httpx client observe the limit of the request's context.

    Args:
        client: An `httpx.AsyncClient` or `httpx2.AsyncClient`; anything else is left alone.
    Returns:
        False: It has no hooks. The size of the answer is checked only after it was read.
    """
    if not isinstance(getattr(client, "event_hooks", None), dict):
        return False
    hooks: dict[str, Any] = client.event_hooks
    client.event_hooks = {**hooks, "response": [*hooks.get("response", ()), _limit_response]}
    client.headers["Accept-Encoding"] = "identity"
    return True


async def _limit_response(response: Any) -> None:
    limit = _limit.get()
    if limit is None:
        return
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
