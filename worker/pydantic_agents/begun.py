"""Answers of agents of pydantic-ai that are begun in the background of their provider; the next worker attaches.

The agent's run asks a model that begins its answer, or attaches to one, in place of the agent's own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from ..drivers.protocol import InferenceRequest
from ..drivers.pydantic_ai.acceptable import AcceptableRequest
from ..drivers.pydantic_ai.background import ask_in_background, keeping, sent_in_background
from ..drivers.pydantic_ai.driver import Question
from ..drivers.pydantic_ai.models import has_responses

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model, StreamedResponse


@dataclass
class BegunCall:
    """The request of a run whose answer is begun in the background, or attached to.

    Attributes:
        agent: Whose request it is; agents that its hooks run ask as usual.
        keep: Takes the response as soon as its id is known.
        stream: What its text comes from; None before there is one.
        attaches: Whether the model that is asked has answers to attach to.
    """

    agent: Any
    request: InferenceRequest
    keep: Callable[[ModelResponse], None]
    stream: StreamedResponse | None = None
    attaches: bool = False

    def model_of(self, model: Model) -> Model:
        """The model that asks so."""
        self.attaches = has_responses(model)  # a session may have chosen another one
        return _kind_of_attaching()(model, self) if self.attaches else model

    def keeping(self, events: AsyncIterable[Any]) -> AsyncIterable[Any]:
        """The events of the run's stream. Before the first of them, a response that was begun by it is kept."""
        return keeping(events, self._now, self.keep) if self.attaches and self.request.attach is None else events

    def _now(self) -> ModelResponse:
        assert self.stream is not None
        return self.stream.get()


begun_call: Final[ContextVar[BegunCall | None]] = ContextVar("begun_call", default=None)
"""The call that the running request of an agent is; None for one that is answered as usual."""


@cache
def _kind_of_attaching() -> Any:
    from pydantic_ai.models.wrapper import WrapperModel

    class Attaching(WrapperModel):
        """A model that begins its answer in the background, or attaches to it."""

        def __init__(self, wrapped: Model, call: BegunCall) -> None:
            super().__init__(wrapped)
            self._call = call

        async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> ModelResponse:
            sent = AcceptableRequest(messages, model_settings, model_request_parameters)
            question = Question(self.wrapped, sent, None)
            return await ask_in_background(question, self._call.request, None, self._call.keep)

        @asynccontextmanager
        async def request_stream(
            self, messages: Any, model_settings: Any, model_request_parameters: Any, run_context: Any = None
        ) -> AsyncGenerator[Any]:
            messages, settings = sent_in_background(messages, model_settings, self._call.request.attach)
            asked = (messages, settings, model_request_parameters, run_context)
            async with self.wrapped.request_stream(*asked) as self._call.stream:
                yield self._call.stream

        async def cancel_suspended_response(self, response: ModelResponse) -> None:
            """Leave the answer at its provider where its stream breaks: whoever runs the step again attaches to it."""

    return Attaching
