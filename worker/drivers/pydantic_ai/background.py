"""Background responses of OpenAI: begun, received or attached to, collected later, cancelled and deleted.

Where OpenAI's client has a background response, pydantic-ai has a *suspended* one: a plain value, which another worker
continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_core import from_json

from ...errors import CeleryAgentsError, JobEnded
from ...redaction import redact
from ..protocol import InferenceRequest, JobOrder
from .failures import as_driver_error, while_known
from .models import Target, client_of
from .streaming import EmittedText

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model

    from .driver import Question

_FIRST_POLL_SECONDS: Final = 0.2
_POLL_SECONDS: Final = 2.0
"""Between two looks for an answer that is received at once, and not streamed: the first, doubled up to the longest."""
_BROKEN: Final = frozenset({"failed", "cancelled"})
"""Statuses of responses that have ended without an answer."""


def dump_response(response: ModelResponse) -> Any:
    """Write what is known of a response as JSON, without what it has answered so far."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    details = {**(response.provider_details or {}), "background": True}
    known = replace(response, parts=[], state="suspended", provider_details=details)
    return ModelMessagesTypeAdapter.dump_python([known], mode="json")[0]


def load_response(known: Any) -> ModelResponse:
    """The response that `dump_response` gave."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    return cast("ModelResponse", ModelMessagesTypeAdapter.validate_python([known])[0])


async def create_response(question: Question, order: JobOrder) -> ModelResponse:
    """Create a background response that is sold with a window; it is stored, so that it is there as long as that."""
    sent = question.sent
    settings: Any = {**(sent.settings or {}), "openai_background": True, "openai_store": True}
    options = {"completion_window": order.window, "continuation_id": order.chain}
    settings["extra_body"] = {**settings.get("extra_body", {}), "background_options": options}
    return await question.model.request(sent.messages, settings, sent.parameters)


async def ask_in_background(
    question: Question, request: InferenceRequest, text: EmittedText | None, keep: Callable[[ModelResponse], object]
) -> ModelResponse:
    """Begin an answer in the background, or attach to one that was begun; and receive it to its end.

    Args:
        keep: Takes the response as soon as its id is known; it may block.
    Raises:
        JobEnded: There will be no answer.
        Exception: What the provider's client raises; whoever asks again attaches.
    """
    model, sent = question.model, question.sent
    messages, settings = sent_in_background(sent.messages, sent.settings, request.attach)
    if text is None:
        response = await model.request(messages, settings, sent.parameters)
        if request.attach is None:
            await asyncio.to_thread(keep, response)
    else:
        async with model.request_stream(messages, settings, sent.parameters) as stream:
            await text.emit_all(keeping(stream, stream.get, keep) if request.attach is None else stream)
            response = stream.get()
    pause = _FIRST_POLL_SECONDS
    while response.state == "suspended":
        await asyncio.sleep(pause)
        pause = min(2 * pause, _POLL_SECONDS)
        response = await model.request([response], settings, sent.parameters)
    return _whole(response)


def sent_in_background(messages: Any, settings: Any, attach: str | None) -> tuple[Any, Any]:
    """Messages and settings that begin an answer in the background, or attach to the one of this handle."""
    given: Any = messages if attach is None else [load_response(from_json(attach)["job"])]
    asked: dict[str, Any] = {**(settings or {}), "openai_background": True}
    return given, asked


async def keeping(
    events: AsyncIterable[Any], now: Callable[[], ModelResponse], keep: Callable[[ModelResponse], object]
) -> AsyncIterator[Any]:
    """The events of a stream; the response as it is `now` is kept before the first of them is passed on.

    It is kept with a place in its stream: OpenAI refuses to stream an answer that was begun without a stream.
    """
    is_kept = False
    async for event in events:
        if not is_kept:
            is_kept = True
            await asyncio.to_thread(keep, _from_first_event(now()))
        yield event


def _from_first_event(response: ModelResponse) -> ModelResponse:
    """The response, for whoever attaches to read its stream from the beginning."""
    return replace(response, provider_details={**(response.provider_details or {}), "last_sequence_number": 0})


async def retrieve_response(question: Question, known: Any) -> ModelResponse | None:
    """The answer of a response; None while there is none."""
    sent, response = question.sent, load_response(known)
    with while_known("the answer"):
        response = await question.model.request([response], sent.settings, sent.parameters)
    return None if response.state == "suspended" else _whole(response)


def _whole(response: ModelResponse) -> ModelResponse:
    if (status := _ended_status(response)) in _BROKEN:
        raise JobEnded(status, f"the provider says that the answer is {status}")
    return response


async def cancel_response(model: Model, response: ModelResponse) -> ModelResponse | None:
    """Cancel a response; the answer that it had given before all the same. None: it had given none."""
    await model.cancel_suspended_response(response)
    ended = await _retrieve(model, response)
    return None if _ended_status(ended) in _BROKEN else ended


async def delete_response(model: Model, response: ModelResponse) -> None:
    """Delete what the provider keeps of a response."""
    await client_of(model).responses.delete(response.provider_response_id)


async def is_suspended(model: Model, response: ModelResponse) -> bool:
    """Whether a response has no answer yet."""
    return (await _retrieve(model, response)).state == "suspended"


async def _retrieve(model: Model, response: ModelResponse) -> ModelResponse:
    from pydantic_ai.models import ModelRequestParameters

    with while_known("the answer"):
        return await model.request([response], None, ModelRequestParameters())


def _ended_status(response: ModelResponse) -> str:
    return str((response.provider_details or {}).get("finish_reason"))


def translate(error: Exception, target: Target) -> CeleryAgentsError:
    """Translate whatever asking for an answer raised that was begun before."""
    from pydantic_ai.exceptions import ModelAPIError, ModelConnectionError, ModelHTTPError

    is_said = isinstance(error, ModelAPIError) and not isinstance(error, (ModelHTTPError, ModelConnectionError))
    if is_said and error.__cause__ is None:  # of a response that has failed, where the request for it has not
        return JobEnded("failed", f"the provider says that the answer is failed: {redact(str(error))}")
    return as_driver_error(error, target.model, asked=True)
