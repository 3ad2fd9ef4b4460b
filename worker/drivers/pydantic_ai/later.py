"""Answers within a completion window: OpenAI's background responses, and batches of OpenAI and Anthropic.

What is known of a job is pydantic-ai's own value as JSON: a suspended response, or a `Batch`. It holds no key.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json, to_json

from ...errors import ConfigurationError, DriverError, JobEnded
from ...state.conversation.context import LLMConfig
from ..answers import answer_too_large
from ..protocol import CreatedJob, InferenceRequest, JobOrder
from ..windows import WINDOWS, attaches, windows_of
from .background import clean_response, create_response, dump_response, load_response, retrieve_response, translate
from .batches import GONE, batch_answer, clean_batch, create_batch, dump_batch, find_batch, load_batch
from .models import ModelClients, Target
from .received import receive
from .response_limit import response_limit, tell_used
from .sent_requests import describe_sent

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models.batch import Batch

    from .driver import Question

_AROUND_AN_ANSWER: Final = 2
"""How many times longer than its answer what a provider sends may be: a batch is a text of lines."""
_CLEANING_SECONDS: Final = 60.0
_BACKGROUND: Final = "background"
"""The window of an answer that is received at once."""


class AnswersWithinWindow(ABC):
    """The verbs of a driver whose provider answers later; see `AnswersLater`."""

    name: str
    _target: Target
    _clients: ModelClients

    @abstractmethod
    async def _question(self, target: Target, request: InferenceRequest) -> Question: ...

    @abstractmethod
    def _raw(self, response: ModelResponse, question: Question, target: Target, factor: float = 1.0) -> bytes: ...

    @abstractmethod
    def _cost(self, response: ModelResponse, target: Target, factor: float = 1.0) -> float | None: ...

    def check_window(self, window: str, settings: LLMConfig | None = None) -> None:
        """Refuse what the provider does not sell; see `AnswersLater.check_window`."""
        target = self._target.overridden_by(settings)
        sold = windows_of(target.model, target.base_url)
        if window not in sold:
            what = f"it has {', '.join(map(repr, sold))}" if sold else "it has none"
            raise ConfigurationError(f"completion_window {window!r}: {target.model} is not sold with it; {what}")

    def check_background(self) -> None:
        """Refuse a model whose answers nobody can attach to.

        Raises:
            ConfigurationError: It is none of OpenAI's responses.
        """
        if not attaches(self._target.model, self._target.base_url):
            raise ConfigurationError(f"background=True: {self._target.model} is no model of OpenAI's responses")

    def can_find(self, window: str) -> bool:
        """Background responses are in no list; batches are."""
        return WINDOWS[window].is_batch

    async def create_job(self, request: InferenceRequest, order: JobOrder) -> CreatedJob:
        """Create a job; see `AnswersLater.create_job`."""
        target = self._target.overridden_by(request.settings)
        async with _asking(target, request):
            self.check_window(order.window, request.settings)
            question = await self._question(target, request)
            if request.tell is not None:
                request.tell(describe_sent(question.model, question.sent, with_messages=False))
            if WINDOWS[order.window].is_batch:
                return _created_batch(await create_batch(question, order), target, order)
            response = await create_response(question, order)
            return created(response, target, order.window, order.key)

    async def find_job(self, request: InferenceRequest, order: JobOrder) -> CreatedJob | None:
        """Look for a batch by its key; see `AnswersLater.find_job`."""
        target = self._target.overridden_by(request.settings)
        async with _asking(target, request):
            batch = await find_batch(await self._question(target, request), order)
            return None if batch is None else _created_batch(batch, target, order)

    async def collect_job(self, request: InferenceRequest, handle: str) -> bytes | None:
        """Ask for the answer of a job; see `AnswersLater.collect_job`."""
        known = from_json(handle)
        target, window = Target(known["model"], known["base_url"]), WINDOWS[known["window"]]
        async with _asking(target, request):
            question = await self._question(target, request)
            if window.is_batch:
                response = await batch_answer(question, load_batch(known["job"]), known["key"])
            else:
                response = await retrieve_response(question, known["job"])
            if response is None:
                return None
            tell_used(response.usage)
            raw = self._raw(receive(response, question.sent.parameters), question, target, window.factor)
            if len(raw) > request.max_answer_bytes:
                raise answer_too_large(target.model, request.max_answer_bytes)
            return raw

    async def clean_job(self, handle: str, *, is_open: bool) -> float | None:
        """Cancel a job and delete what the provider keeps; see `AnswersLater.clean_job`."""
        known = from_json(handle)
        target, window = Target(known["model"], known["base_url"]), WINDOWS.get(known["window"])
        try:
            async with asyncio.timeout(_CLEANING_SECONDS):
                model = await self._clients.get(target)
                if window is not None and window.is_batch:
                    await clean_batch(model, load_batch(known["job"]), is_open=is_open)
                    return None
                answered = await clean_response(model, load_response(known["job"]), is_open=is_open)
                factor = 1.0 if window is None else window.factor
                return self._cost(answered, target, factor) if answered is not None else 0.0
        except Exception as error:  # noqa: BLE001 - clients raise anything; all of it is translated
            failure = translate(error, target)
        if isinstance(failure, JobEnded) or (isinstance(failure, DriverError) and failure.status == GONE):
            return None
        raise failure


@contextlib.asynccontextmanager
async def _asking(target: Target, request: InferenceRequest) -> AsyncGenerator[None]:
    """Translate what asking a provider raises, and bound its time and what it sends."""
    limit = None
    try:
        async with asyncio.timeout(request.timeout):
            with response_limit(request.max_answer_bytes * _AROUND_AN_ANSWER, request.observe) as limit:
                yield
        return
    except Exception as error:  # noqa: BLE001 - clients raise anything; all of it is translated
        failure = translate(error, target)
        if limit is not None and limit.exceeded:
            failure = answer_too_large(target.model, request.max_answer_bytes)
    # Raised here and not above: the provider's exception, which holds its body, must not become the context.
    raise failure


def _handle(target: Target, window: str, key: str, job: Any) -> str:
    known = {"model": target.model, "base_url": target.base_url, "window": window, "key": key, "job": job}
    return to_json(known).decode()


def _created_batch(batch: Batch, target: Target, order: JobOrder) -> CreatedJob:
    return CreatedJob(batch.id, _handle(target, order.window, order.key, dump_batch(batch)))


def created(response: ModelResponse, target: Target, window: str = _BACKGROUND, key: str = "") -> CreatedJob:
    """The job of a background response."""
    if response.provider_response_id is None:
        raise DriverError("api_error", f"{target.model} gave no id of a background response", transient=True)
    return CreatedJob(response.provider_response_id, _handle(target, window, key, dump_response(response)))
