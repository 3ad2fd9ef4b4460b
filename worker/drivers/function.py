"""A function, or a list of answers, in the place of a model."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias, cast

from ..errors import CeleryAgentsError, ConfigurationError, DriverError
from ..redaction import describe_exception
from ..state.agent_state import AgentState
from ..state.conversation.context import LLMConfig
from ..state.execution.inference import InferenceResponse
from ..tools.stop import StopExecution
from .answers import Answer, raw_answer, read_response
from .protocol import InferenceRequest

AnswerFunction: TypeAlias = "Callable[[AgentState], Answer | Awaitable[Answer]]"
ScriptedAnswer: TypeAlias = "Answer | Exception | Callable[[AgentState], Answer]"
"""An answer, an error to raise, or a function of the state that gives the answer."""


class LocalDriver:
    """The base of drivers that send no request; their answers are journaled as they are."""

    def parse(self, raw: bytes) -> InferenceResponse:
        """Read the answer; see `Driver.parse`."""
        return read_response(raw)

    def check(self) -> None:
        """Nothing can be missing."""

    def knows_price(self, settings: LLMConfig | None = None) -> bool:
        """Yes: an answer without a cost counts as 0."""
        return True

    async def aclose(self) -> None:
        """Nothing is open."""


class FunctionDriver(LocalDriver):
    """Answers with what a function of the state returns; plain or async. For tests, rules, and models of your own.

    A `TimeoutError` or `ConnectionError` of the function counts as transient; other exceptions end the execution.
    """

    def __init__(self, function: AnswerFunction, name: str | None = None) -> None:
        """Take a function.

        Args:
            function: `function(state)`; returns an `Answer`.
            name: What people read; the function's name when None.

        Raises:
            ConfigurationError: It cannot be called.
        """
        if not callable(function):
            raise ConfigurationError(f"FunctionDriver: {function!r:.80} is not a function of the state")
        self._function = function
        self.name: str = name or getattr(function, "__name__", type(function).__name__)
        self.is_async = _is_async(function)

    def infer(self, request: InferenceRequest) -> bytes | Awaitable[bytes]:
        """Call the function once; see `Driver.infer`."""
        if self.is_async:
            return self._infer_async(request)
        answer = _call_function(cast("Callable[[AgentState], Answer]", self._function), request.state)
        return raw_answer(answer, request, self.name)

    async def _infer_async(self, request: InferenceRequest) -> bytes:
        try:
            answer = await cast("Awaitable[Answer]", self._function(request.state))
        except (CeleryAgentsError, StopExecution):
            raise
        except (Exception, SystemExit) as error:  # an exit would end the event loop, and all async work with it
            raise _as_driver_error(error) from error
        return raw_answer(answer, request, self.name)


class ScriptedDriver(LocalDriver):
    """Gives the answers of a list, one a step.

    Which one is decided by the number of the step and nothing else, so that another worker, a second attempt and a
    reload get the same answer. Every execution begins at the first.
    """

    is_async = False

    def __init__(
        self,
        answers: Iterable[ScriptedAnswer],
        *,
        repeat_last: bool = False,
        name: str = "scripted",
        auxiliary: Mapping[str, ScriptedAnswer] | None = None,
    ) -> None:
        """Take the answers.

        Args:
            answers: One for each step, in order.
            repeat_last: After the last one give it again; otherwise a further step fails.
            name: What people read.
            auxiliary: Answers to auxiliary calls, by their key.

        Raises:
            ConfigurationError: There are none.
        """
        self._answers = tuple(answers)
        if not self._answers:
            raise ConfigurationError("ScriptedDriver: the list of answers is empty; give one for each step")
        self._repeat_last = repeat_last
        self._auxiliary = dict(auxiliary or {})
        self.name = name

    def infer(self, request: InferenceRequest) -> bytes:
        """Give the answer of this step; see `Driver.infer`."""
        answer = self._auxiliary_answer(request.purpose) if request.purpose else self._answer(request.step)
        if isinstance(answer, Exception):
            raise _as_driver_error(answer) from answer.__cause__
        given = _call_function(answer, request.state) if callable(answer) else answer
        return raw_answer(given, request, self.name)

    def _auxiliary_answer(self, key: str) -> ScriptedAnswer:
        if key in self._auxiliary:
            return self._auxiliary[key]
        message = f"The script has no answer to the auxiliary call {key!r}; add it to auxiliary=."
        raise DriverError("script_exhausted", message, transient=False)

    def _answer(self, step: int) -> ScriptedAnswer:
        if step <= len(self._answers):
            return self._answers[step - 1]
        if self._repeat_last:
            return self._answers[-1]
        raise DriverError(
            "script_exhausted",
            f"The script has {len(self._answers)} answers and this is step {step}; add one, or set repeat_last=True.",
            transient=False,
        )


def _call_function(function: Callable[[AgentState], Answer], state: AgentState) -> Answer:
    """Call a plain function of the state; its exceptions become errors of this package."""
    try:
        return function(state)
    except (CeleryAgentsError, StopExecution):
        raise
    except (Exception, SystemExit) as error:  # an exit of the function's is none of the worker's
        raise _as_driver_error(error) from error


def _as_driver_error(error: Exception | SystemExit) -> CeleryAgentsError | StopExecution:
    """The error of a driver's own function, as one of this package: with its text, without its secrets."""
    if isinstance(error, CeleryAgentsError | StopExecution):
        return error
    described = describe_exception(error)
    transient = isinstance(error, (TimeoutError, ConnectionError))
    return DriverError(described.kind, described.message, transient=transient)


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
