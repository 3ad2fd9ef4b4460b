"""Conditions of `Termination`: when an execution has to end, combined by `&`, `|` and `~`.

A condition is a function of the state and the time alone and keeps nothing itself. What it must remember of earlier
steps, `Termination` keeps in the state.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import isfinite
from typing import Any, Final, NamedTuple, cast

from ..errors import ConfigurationError, InvalidInput
from ..run_state import RunState
from ..state.agent_state import AgentState
from ..state.values.field_types import utcnow
from ..state.views.run_reason import RunReason
from .observed_steps import has_called, last_text_mentions
from .reflexion import check_share

DEFAULT_MAX_ITERATIONS: Final = 20
ALL_CONDITIONS_MET: Final = "all_conditions_met"


class ConditionResult(NamedTuple):
    """The answer of a condition.

    Attributes:
        stop: Whether the execution has to end.
        text: The reason in the words of the condition, as `tool_called:submit`; empty where it goes on.
        reason: The reason of the closed set.
    """

    stop: bool
    text: str = ""
    reason: RunReason = RunReason.COMPLETE


GO_ON: Final = ConditionResult(False)


class Condition(ABC):
    """Decides whether an execution has to end."""

    @abstractmethod
    def check(self, state: AgentState, now: datetime | None = None) -> ConditionResult:
        """Decide about a state.

        Args:
            now: The time to count to (UTC). None: now.
        """

    @property
    @abstractmethod
    def name(self) -> str:
        """The condition in words."""

    def leaves(self) -> tuple[Condition, ...]:
        """The conditions that it is combined of; itself where it is not combined."""
        return (self,)

    def __and__(self, other: Condition) -> AllOf:
        return AllOf(self, _check_condition("&", other))

    def __or__(self, other: Condition) -> AnyOf:
        return AnyOf(self, _check_condition("|", other))

    def __invert__(self) -> Not:
        return Not(self)


# --- combined conditions --------------------------------------------------------------------------------------


@dataclass(frozen=True, init=False)
class AnyOf(Condition):
    """Holds where one of the conditions does; the first that holds gives the reason. Without conditions it never holds.

    Attributes:
        conditions: Asked in this order, until one holds.
    """

    conditions: tuple[Condition, ...]

    def __init__(self, *conditions: Condition) -> None:
        object.__setattr__(self, "conditions", tuple(_check_condition("AnyOf", each) for each in conditions))

    def check(self, state: AgentState, now: datetime | None = None) -> ConditionResult:
        """The answer of the first condition that holds."""
        moment = now or utcnow()
        results = (each.check(state, moment) for each in self.conditions)
        return next((result for result in results if result.stop), GO_ON)

    @property
    def name(self) -> str:
        """The names, joined by OR."""
        return f"({' OR '.join(each.name for each in self.conditions)})"

    def leaves(self) -> tuple[Condition, ...]:
        """The conditions that it is combined of."""
        return tuple(leaf for each in self.conditions for leaf in each.leaves())


@dataclass(frozen=True, init=False)
class AllOf(Condition):
    """Holds where all conditions do. Without conditions it always holds.

    The texts of all are joined; of their reasons the most authoritative one counts, whatever their order.

    Attributes:
        conditions: Asked in this order, until one does not hold.
    """

    conditions: tuple[Condition, ...]

    def __init__(self, *conditions: Condition) -> None:
        object.__setattr__(self, "conditions", tuple(_check_condition("AllOf", each) for each in conditions))

    def check(self, state: AgentState, now: datetime | None = None) -> ConditionResult:
        """The joined answers of all conditions."""
        moment = now or utcnow()
        results: list[ConditionResult] = []
        for each in self.conditions:
            results.append(each.check(state, moment))
            if not results[-1].stop:
                return GO_ON
        if not results:
            return ConditionResult(True, ALL_CONDITIONS_MET)
        strongest = min((result.reason for result in results), key=lambda reason: reason.rank)
        return ConditionResult(True, " AND ".join(result.text for result in results), strongest)

    @property
    def name(self) -> str:
        """The names, joined by AND."""
        return f"({' AND '.join(each.name for each in self.conditions)})"

    def leaves(self) -> tuple[Condition, ...]:
        """The conditions that it is combined of."""
        return tuple(leaf for each in self.conditions for leaf in each.leaves())


@dataclass(frozen=True)
class Not(Condition):
    """Holds where the condition does not; its reason is `complete`.

    Attributes:
        condition: The condition that must not hold.
    """

    condition: Condition

    def __post_init__(self) -> None:
        _check_condition("~", self.condition)

    def check(self, state: AgentState, now: datetime | None = None) -> ConditionResult:
        """The opposite answer."""
        return GO_ON if self.condition.check(state, now).stop else ConditionResult(True, self.name)

    @property
    def name(self) -> str:
        """The name behind NOT."""
        return f"NOT {self.condition.name}"

    def leaves(self) -> tuple[Condition, ...]:
        """The conditions that it is combined of."""
        return self.condition.leaves()


# --- conditions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaxIterations(Condition):
    """Holds after `limit` iterations.

    Attributes:
        limit: Iterations, from 0; 0 ends the execution before its first model call.
    """

    limit: int = DEFAULT_MAX_ITERATIONS

    def __post_init__(self) -> None:
        _check_count("MaxIterations(limit)", self.limit)

    def check(self, state: AgentState, now: datetime | None = None) -> ConditionResult:
        """Compare with `state.run.iteration`."""
        del now
        return _result(state.run.iteration >= self.limit, self.name, RunReason.MAX_ITERATIONS)

    @property
    def name(self) -> str:
        """The name."""
        return "max_iterations"


@dataclass(frozen=True)
class TokenLimit(Condition):
    """Holds when `limit` tokens are used, prompt and completion together.

    Attributes:
        limit: Tokens, from 0. None: the budget's limit of tokens; it never holds where that is None, too.
    """

    limit: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None:
            _check_count("TokenLimit(limit)", self.limit)

    def check(self, state: AgentState, now: datetime | None = None) -> ConditionResult:
        """Compare with `state.run.total_tokens_used`."""
        del now
        limit = state.run.token_budget if self.limit is None else self.limit
        is_reached = limit is not None and state.run.total_tokens_used >= limit
        return _result(is_reached, self.name, RunReason.TOKEN_BUDGET)

    @property
    def name(self) -> str:
        """The name."""
        return "token_budget"


@dataclass(frozen=True)
class TimeLimit(Condition):
    """Holds when so much time has passed since the execution started, without the time it waited for people.

    It is looked at between steps; the budget's `max_seconds` also interrupts a step.

    Attributes:
        limit: A timedelta, or seconds, from 0.
    """

    limit: timedelta | float

    def __post_init__(self) -> None:
        seconds: Any = self.limit.total_seconds() if isinstance(self.limit, timedelta) else self.limit
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not isfinite(seconds) or seconds < 0:
            raise ConfigurationError(f"TimeLimit(limit)={self.limit!r:.60}: give a timedelta or seconds, from 0")

    def check(self, state: AgentState, now: datetime | None = None) -> ConditionResult:
        """Compare with the execution's own clock, which goes on in any worker."""
        seconds = self.limit.total_seconds() if isinstance(self.limit, timedelta) else self.limit
        elapsed = state.execution.elapsed_seconds(now) if state.execution is not None else 0.0
        return _result(elapsed >= seconds, self.name, RunReason.TIME_BUDGET)

    @property
    def name(self) -> str:
        """The name."""
        return "time_budget"


@dataclass(frozen=True)
class TextMention(Condition):
    """Holds when the last text that the model wrote in this execution has this text in it.

    Attributes:
        text: The text, at least one character.
        case_sensitive: Whether capitals matter.
    """

    text: str
    case_sensitive: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"TextMention(text)={self.text!r:.60}: give at least one character")

    def check(self, state: AgentState, now: datetime | None = None) -> ConditionResult:
        """Look into the last step that has a text."""
        del now
        return _result(last_text_mentions(state, self), self.name, RunReason.COMPLETE)

    def is_in(self, text: str) -> bool:
        """Tell whether a text mentions it."""
        return self.text in text if self.case_sensitive else self.text.casefold() in text.casefold()

    @property
    def name(self) -> str:
        """The name, with the text."""
        return f"text_mention:{self.text}"


@dataclass(frozen=True)
class ToolCalled(Condition):
    """Holds when this tool has been called with success in this execution.

    Attributes:
        tool: Name of a tool of the agent.
    """

    tool: str

    def __post_init__(self) -> None:
        if not isinstance(self.tool, str) or not self.tool:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"ToolCalled(tool)={self.tool!r:.60}: give the name of a tool")

    def check(self, state: AgentState, now: datetime | None = None) -> ConditionResult:
        """Look for a call in the execution's steps."""
        del now
        return _result(has_called(state, self.tool), self.name, RunReason.TERMINAL_TOOL)

    @property
    def name(self) -> str:
        """The name, with the tool."""
        return f"tool_called:{self.tool}"


@dataclass(frozen=True)
class ConfidenceMet(Condition):
    """Holds when the confidence is enough; without `Reflexion`, something else has to set it.

    Attributes:
        threshold: From 0 to 1. None: `state.run.confidence_threshold`.
    """

    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None:
            check_share("ConfidenceMet(threshold)", self.threshold)

    def check(self, state: AgentState, now: datetime | None = None) -> ConditionResult:
        """Compare with `state.run.confidence`."""
        del now
        threshold = state.run.confidence_threshold if self.threshold is None else self.threshold
        return _result(state.run.confidence >= threshold, self.name, RunReason.CONFIDENCE_MET)

    @property
    def name(self) -> str:
        """The name."""
        return "confidence_met"


@dataclass(frozen=True)
class NoToolCalls(Condition):
    """Holds when the last step of this execution called no tool.

    A final answer ends an execution anyway, as completed; this one is about executions that a hook continues, and about
    combinations.
    """

    def check(self, state: AgentState, now: datetime | None = None) -> ConditionResult:
        """Look at the last step."""
        del now
        step = state.current_step_or_last
        return _result(step is not None and not step.has_tool_calls(), self.name, RunReason.NO_TOOLS)

    @property
    def name(self) -> str:
        """The name."""
        return "no_tools"


@dataclass(frozen=True)
class CustomCondition(Condition):
    """Holds when a function of the state says so.

    Attributes:
        function: Takes a `RunState`; answers True or False, or a pair of that and a reason. A reason of the closed set
            counts as that reason, any other text as `complete`. It is called again when a step runs again, and must
            change nothing.
    """

    function: Callable[[RunState], object]

    def __post_init__(self) -> None:
        if not callable(self.function) or inspect.iscoroutinefunction(self.function):
            raise ConfigurationError(f"CustomCondition: {self.function!r:.60} must be a plain function of the state")

    def check(self, state: AgentState, now: datetime | None = None) -> ConditionResult:
        """Ask the function.

        Raises:
            InvalidInput: It answered something else.
            Exception: Any exception of the function.
        """
        del now
        answer: Any = self.function(RunState.of(state))
        if isinstance(answer, bool):
            return _result(answer, "custom", RunReason.COMPLETE)
        pair: tuple[Any, ...] = cast("tuple[Any, ...]", answer) if isinstance(answer, tuple) else ()
        if len(pair) == 2 and isinstance(pair[0], bool) and isinstance(pair[1], str | None):
            text = pair[1] or "custom"
            return _result(pair[0], text, RunReason.named(text) or RunReason.COMPLETE)
        raise InvalidInput(
            self.name, _kind(cast("object", answer)), "answer True or False, or a pair of that and a reason."
        )

    @property
    def name(self) -> str:
        """The name, with that of the function."""
        return f"custom:{getattr(self.function, '__name__', type(self.function).__name__)}"


def _result(stop: bool, text: str, reason: RunReason) -> ConditionResult:
    return ConditionResult(True, text, reason) if stop else GO_ON


def _kind(value: object) -> type:
    return type(value)


def _check_condition(where: str, condition: object) -> Condition:
    if not isinstance(condition, Condition):
        raise ConfigurationError(f"{where}: {condition!r:.60} is no condition; give MaxIterations(20) and the like")
    return condition


def _check_count(field: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigurationError(f"{field}={value!r:.60}: give a whole number, from 0")
