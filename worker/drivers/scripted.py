"""A list of answers in the place of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from ..errors import ConfigurationError, DriverError
from ..state.agent_state import AgentState
from .answers import Answer, raw_answer
from .function import LocalDriver, as_driver_error, call_function
from .protocol import InferenceRequest

ScriptedAnswer: TypeAlias = "Answer | Exception | Callable[[AgentState], Answer]"
"""An answer, an error to raise, or a function of the state that gives the answer."""


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
            raise as_driver_error(answer) from answer.__cause__
        given = call_function(answer, request.state) if callable(answer) else answer
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
