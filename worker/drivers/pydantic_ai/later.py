"""Answers within a completion window: OpenAI's background responses, and batches.

What is known of a job is pydantic-ai's own value as JSON: a suspended response, or a `Batch`. It holds no key.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final

from pydantic_core import from_json

from ...errors import ConfigurationError
from ...flow.values import BACKGROUND
from ...state.conversation.context import LLMConfig
from ...state.execution.inference import InferenceResponse
from ..answers import answer_too_large
from ..protocol import CreatedJob, InferenceRequest, JobOrder
from ..windows import WINDOWS
from .background import translate
from .job_handles import Place, check_sold, clean, collect, create, find, response_job
from .models import ModelClients, Target
from .received import receive
from .response_limit import response_limit, tell_used
from .sent_requests import describe_sent

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

    from .driver import Question

_BY_COMPLETIONS: Final = (
    "base_url or OPENAI_BASE_URL is not OpenAI's own, so {} is asked by chat completions, which are answered at once; "
    "write openai-responses:… if that server has OpenAI's responses"
)

_AROUND_AN_ANSWER: Final = 2
"""How many times longer than its answer what a provider sends may be: a batch is a text of lines."""


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
        if target.is_compatible:
            raise ConfigurationError(f"completion_window {window!r}: {_BY_COMPLETIONS.format(target.model)}")
        check_sold(window, target.windows, target.model)

    def check_background(self) -> None:
        """Refuse a model whose answers nobody can attach to.

        Raises:
            ConfigurationError: It is none of OpenAI's responses.
        """
        if self._target.is_compatible:
            raise ConfigurationError(f"background=True: {_BY_COMPLETIONS.format(self._target.model)}")
        if "2h" not in self._target.windows:
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
            return await create(question, order, place_of(target))

    async def find_job(self, request: InferenceRequest, order: JobOrder) -> CreatedJob | None:
        """Look for a batch by its key; see `AnswersLater.find_job`."""
        target = self._target.overridden_by(request.settings)
        async with _asking(target, request):
            return await find(await self._question(target, request), order, place_of(target))

    async def collect_job(self, request: InferenceRequest, handle: str) -> bytes | None:
        """Ask for the answer of a job; see `AnswersLater.collect_job`."""
        known = from_json(handle)
        target, window = Target(known["model"], known["base_url"]), WINDOWS[known["window"]]
        async with _asking(target, request):
            question = await self._question(target, request)
            response = await collect(question, known)
            if response is None:
                return None
            tell_used(response.usage)
            raw = self._raw(receive(response, question.sent.parameters), question, target, window.factor)
            if len(raw) > request.max_answer_bytes:
                raise answer_too_large(target.model, request.max_answer_bytes)
            return raw

    async def clean_job(self, handle: str, *, is_open: bool) -> InferenceResponse | None:
        """Cancel a job or delete what the provider keeps; see `AnswersLater.clean_job`."""
        known = from_json(handle)
        target = Target(known["model"], known["base_url"])

        def cost(answered: ModelResponse, share: float) -> float | None:
            return self._cost(answered, target, share)

        return await clean(self._clients.get(target), known, target, cost, is_open=is_open)


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


def place_of(target: Target) -> Place:
    """The entries of a handle by which another worker asks the same model."""
    return {"model": target.model, "base_url": target.base_url}


def begun(response: ModelResponse, place: Place) -> CreatedJob:
    """The job of an answer that is received at once."""
    return response_job(response, BACKGROUND, "", place)
