"""Answers within a completion window for agents of pydantic-ai: a run of the agent asks, another one takes the answer.

A job is created in a run that is given up in its request. Its answer is looked for without a run; once it is there, a
run is made again whose model gives it, so that the agent's own rules check it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json, to_json

from ..drivers.protocol import CreatedJob, InferenceRequest, JobOrder
from ..drivers.pydantic_ai.background import translate
from ..drivers.pydantic_ai.batches import BATCHES
from ..drivers.pydantic_ai.driver import Question
from ..drivers.pydantic_ai.job_handles import check_sold, clean, collect, create, find, handle_of, is_there
from ..drivers.pydantic_ai.later import begun
from ..drivers.pydantic_ai.models import ModelClients, Target, has_responses, unwrapped
from ..drivers.pydantic_ai.response_limit import response_limit
from ..drivers.windows import WINDOWS
from ..errors import ConfigurationError
from ..known_secrets import redact_known_json
from ..state.conversation.context import LLMConfig
from ..state.execution.inference import InferenceResponse
from .begun import BegunCall, begun_call
from .usages import price_of

if TYPE_CHECKING:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model

    from .durability import CeleryDurability

COST: Final = "cost"
"""The entry of an answer with its price."""


class RunGivenUp(BaseException):
    """The run has asked, and its answer comes later: no error of the model's, which hooks of the agent could mend."""


@dataclass
class LaterCall:
    """The request of a run that is answered later.

    Attributes:
        agent: Whose request it is; agents that its hooks run ask at once.
        order: The job that is created or looked for. None: an answer is taken.
        is_search: The job is looked for, and not created.
        known: The job whose answer is taken.
        created: The job that was created or found.
        answer: What the run has made of the answer, as it is journaled.
    """

    agent: Any
    order: JobOrder | None = None
    is_search: bool = False
    known: Mapping[str, Any] | None = None
    created: CreatedJob | None = None
    answer: dict[str, Any] | None = None

    async def take(self, question: Question) -> Model:
        """Create or find the job of a request; or take its answer, and give the model that answers with it.

        Raises:
            RunGivenUp: The job was created, or looked for.
            JobEnded: There is no answer, and will be none.
        """
        if self.order is None:
            assert self.known is not None
            answer = await collect(question, self.known)
            if answer is None:  # it was there a moment ago
                raise RunGivenUp
            return _answered(question.model, answer)
        self.created = await (find if self.is_search else create)(question, self.order, {})
        raise RunGivenUp


later_call: Final[ContextVar[LaterCall | None]] = ContextVar("later_call", default=None)
"""The call that the running request of an agent is; None for one that is answered at once."""


class LaterAnswers(ABC):
    """The verbs of a driver of an agent whose provider answers later; see `AnswersLater`."""

    name: str
    _agent: Agent[Any, Any]
    _options: CeleryDurability
    _clients: ModelClients

    @abstractmethod
    async def infer(self, request: InferenceRequest) -> bytes:
        """Ask once; see `Driver.infer`."""

    @abstractmethod
    async def _ask_once(self, request: InferenceRequest) -> dict[str, Any]:
        """Make a run of the agent up to its first answer, and give that as it is journaled."""

    @abstractmethod
    def _target_of_session(self, config: LLMConfig) -> Target: ...

    def check_window(self, window: str, settings: LLMConfig | None = None) -> None:
        """Refuse what the agent's model is not sold with; see `AnswersLater.check_window`."""
        sold = windows_of_model(self._agent.model)
        if settings is not None and settings.model is not None:
            sold = Target(settings.model, settings.base_url).windows
        check_sold(window, sold, self.name)

    def check_background(self) -> None:
        """Refuse a model whose answers nobody can attach to; see `Agent.background`."""
        if "2h" not in windows_of_model(self._agent.model):
            raise ConfigurationError(f"background=True: {self.name} is no model of OpenAI's responses")

    @contextmanager
    def _in_background(self, request: InferenceRequest) -> Generator[None]:
        """Let the agent's run begin its answer in the background, or attach to one, where the request wants that."""
        kept = request.keep
        if kept is None:
            yield
            return

        def keep(response: ModelResponse) -> None:
            kept(self._with_place(begun(response, {}), request))

        token = begun_call.set(BegunCall(self._agent, request, keep))
        try:
            yield
        finally:
            begun_call.reset(token)

    def can_find(self, window: str) -> bool:
        """Batches are in a list; see `AnswersLater.can_find`."""
        return WINDOWS[window].is_batch

    async def create_job(self, request: InferenceRequest, order: JobOrder) -> CreatedJob:
        """Create a job in a run of the agent; see `AnswersLater.create_job`."""
        call = await self._call_later(request, LaterCall(self._agent, order=order))
        # A run that asks no model goes on from what an earlier answer has left: that is taken with the next look.
        return self._with_place(
            call.created or CreatedJob(order.key, handle_of(order.window, order.key, None, {})), request
        )

    async def find_job(self, request: InferenceRequest, order: JobOrder) -> CreatedJob | None:
        """Look for a batch; see `AnswersLater.find_job`."""
        call = await self._call_later(request, LaterCall(self._agent, order=order, is_search=True))
        return None if call.created is None else self._with_place(call.created, request)

    async def collect_job(self, request: InferenceRequest, handle: str) -> bytes | None:
        """Take the answer of a job in a run of the agent; see `AnswersLater.collect_job`."""
        known = from_json(handle)
        if known["job"] is None:
            return await self.infer(request)
        try:
            async with asyncio.timeout(request.timeout):
                if not await is_there(await self._model_at(known), known):
                    return None
        except Exception as error:  # noqa: BLE001 - clients raise anything; all of it is translated
            failure = translate(error, Target(self.name))
        else:
            call = await self._call_later(request, LaterCall(self._agent, known=known))
            return None if call.answer is None else as_json(call.answer)
        raise failure

    async def clean_job(self, handle: str, *, is_open: bool) -> InferenceResponse | None:
        """Cancel a job or delete what the provider keeps; see `AnswersLater.clean_job`."""
        known = from_json(handle)
        if known["job"] is None:
            return InferenceResponse(cost=0.0)

        def cost(answered: ModelResponse, share: float) -> float | None:
            full = price_of(answered, self._agent.model, self._options.price)
            return None if full is None else full * share

        return await clean(self._model_at(known), known, Target(self.name), cost, is_open=is_open)

    async def _call_later(self, request: InferenceRequest, call: LaterCall) -> LaterCall:
        """Make a run whose request is this call, and give the call as it was left."""
        token = later_call.set(call)
        try:
            async with asyncio.timeout(request.timeout):
                with response_limit(request.max_answer_bytes * 2, request.observe, request.tell):
                    call.answer = await self._ask_once(replace(request, emit=None))
            if call.known is not None and call.answer[COST] is not None:
                call.answer[COST] *= WINDOWS[call.known["window"]].factor
        except RunGivenUp:
            return call
        except Exception as error:  # noqa: BLE001 - the agent's own code
            if call.created is not None:  # the run has made another error of its being given up
                return call
            raise translate(error, Target(self.name)) from None
        finally:
            later_call.reset(token)
        return call

    def _with_place(self, created: CreatedJob, request: InferenceRequest) -> CreatedJob:
        """The job with the model of its session, where that has one of its own."""
        config = request.settings
        if config is None or (config.model is None and config.base_url is None):
            return created
        target = self._target_of_session(config)
        known = {**from_json(created.handle), "model": target.model, "base_url": target.base_url}
        return CreatedJob(created.id, to_json(known).decode())

    async def _model_at(self, known: Mapping[str, Any]) -> Any:
        """The model that was asked for a job."""
        if "model" in known:
            return await self._clients.get(Target(known["model"], known["base_url"]))
        model: Any = self._agent.model
        return await self._clients.get(Target(model)) if isinstance(model, str) else unwrapped(model)


def _answered(model: Model, response: ModelResponse) -> Model:
    return _kind_of_answered()(model, response)


@cache
def _kind_of_answered() -> Any:
    from pydantic_ai.models.wrapper import WrapperModel

    class Answered(WrapperModel):
        """A model that has answered."""

        def __init__(self, wrapped: Model, response: ModelResponse) -> None:
            super().__init__(wrapped)
            self._response = response

        async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> ModelResponse:
            del messages, model_settings, model_request_parameters
            return self._response

    return Answered


def as_json(kept: dict[str, Any]) -> bytes:
    """An answer as JSON, without secrets of this process: the agent's own code words rejections and outputs."""
    return redact_known_json(to_json(kept).decode()).encode()


def windows_of_model(model: Any) -> Sequence[str]:
    """The windows with which a model of pydantic-ai is sold."""
    if isinstance(model, str) or model is None:
        return Target(model).windows if model else ()
    responses = ("2h", "8h") if has_responses(model) else ()
    model = unwrapped(model)
    has_batches = model.system in BATCHES and model.batch_max_requests is not None
    return (*responses, *(("24h",) if has_batches else ()))
