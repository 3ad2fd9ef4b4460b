"""`Termination` ends an execution when a condition holds. Conditions are combined by `&`, `|` and `~`.

A condition is a function of the state and the time alone and keeps nothing itself. What it must remember of earlier
steps, `Termination` keeps in the state.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, NamedTuple, cast

from ..capability import Capability
from ..errors import ConfigurationError, InvalidInput
from ..guards import PROCEED, Guard, GuardView, StopWith, Verdict
from ..hooks import Hook, HookContext, HookPoint
from ..run_state.parts import RecordedExecutions
from ..run_state.reason import RunReason
from ..run_state.run_state import RunState
from ..state.agent_state import AgentState
from ..state.execution.execution import ExecutionState
from ..state.execution.steps import AgentStep
from ..state.execution.tool_calls import ToolOutcome
from ..state.parts.state_part import StatePart
from ..state.values.field_types import Count, Text, is_number, utcnow
from .numbers import check_share, check_whole
from .terminal_tools import check_tool_names

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
class _Combined(Condition):
    conditions: tuple[Condition, ...]

    def __init__(self, *conditions: Condition) -> None:
        checked = tuple(_check_condition(type(self).__name__, each) for each in conditions)
        object.__setattr__(self, "conditions", checked)

    def leaves(self) -> tuple[Condition, ...]:
        """The conditions that it is combined of."""
        return tuple(leaf for each in self.conditions for leaf in each.leaves())

    def _join_names(self, word: str) -> str:
        return f"({f' {word} '.join(each.name for each in self.conditions)})"


class AnyOf(_Combined):
    """Holds where one of the conditions does; the first that holds gives the reason. Without conditions it never holds.

    Attributes:
        conditions: Asked in this order, until one holds.
    """

    def check(self, state: AgentState, now: datetime | None = None) -> ConditionResult:
        """The answer of the first condition that holds."""
        moment = now or utcnow()
        results = (each.check(state, moment) for each in self.conditions)
        return next((result for result in results if result.stop), GO_ON)

    @property
    def name(self) -> str:
        """The names, joined by OR."""
        return self._join_names("OR")


class AllOf(_Combined):
    """Holds where all conditions do. Without conditions it always holds.

    The texts of all are joined; of their reasons the most authoritative one counts, whatever their order.

    Attributes:
        conditions: Asked in this order, until one does not hold.
    """

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
        return self._join_names("AND")


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


class _Single(Condition):
    """A condition about one fact, with a reason of its own."""

    words: ClassVar[str]
    reason: ClassVar[RunReason]

    @abstractmethod
    def holds(self, state: AgentState, now: datetime | None) -> bool:
        """Tell whether a state fulfils the condition, at a time (UTC; None: now)."""

    def check(self, state: AgentState, now: datetime | None = None) -> ConditionResult:
        """Look at the state; see the class."""
        return ConditionResult(True, self.name, self.reason) if self.holds(state, now) else GO_ON

    @property
    def name(self) -> str:
        """The name, with what the condition asks for."""
        return self.words.format(self)


@dataclass(frozen=True)
class MaxIterations(_Single):
    """Holds after `limit` iterations, which `state.run.iteration` counts.

    Attributes:
        limit: Iterations, from 0; 0 ends the execution before its first model call.
    """

    limit: int = DEFAULT_MAX_ITERATIONS
    words = "max_iterations"
    reason = RunReason.MAX_ITERATIONS

    def __post_init__(self) -> None:
        check_whole("MaxIterations(limit)", self.limit)

    def holds(self, state: AgentState, now: datetime | None) -> bool:
        return state.run.iteration >= self.limit


@dataclass(frozen=True)
class TokenLimit(_Single):
    """Holds when `limit` tokens are used, prompt and completion together (`state.run.total_tokens_used`).

    Attributes:
        limit: Tokens, from 0. None: the budget's limit of tokens; it never holds where that is None, too.
    """

    limit: int | None = None
    words = "token_budget"
    reason = RunReason.TOKEN_BUDGET

    def __post_init__(self) -> None:
        if self.limit is not None:
            check_whole("TokenLimit(limit)", self.limit)

    def holds(self, state: AgentState, now: datetime | None) -> bool:
        limit = state.run.token_budget if self.limit is None else self.limit
        return limit is not None and state.run.total_tokens_used >= limit


@dataclass(frozen=True)
class TimeLimit(_Single):
    """Holds when so much time has passed since the execution started, without the time it waited for people.

    It is looked at between steps; the budget's `max_seconds` also interrupts a step.

    Attributes:
        limit: A timedelta, or seconds, from 0.
    """

    limit: timedelta | float
    words = "time_budget"
    reason = RunReason.TIME_BUDGET

    def __post_init__(self) -> None:
        seconds: Any = self._seconds
        if not is_number(seconds) or seconds < 0:
            raise ConfigurationError(f"TimeLimit(limit)={self.limit!r:.60}: give a timedelta or seconds, from 0")

    def holds(self, state: AgentState, now: datetime | None) -> bool:
        elapsed = state.execution.elapsed_seconds(now) if state.execution is not None else 0.0
        return elapsed >= self._seconds

    @property
    def _seconds(self) -> float:
        return self.limit.total_seconds() if isinstance(self.limit, timedelta) else self.limit


@dataclass(frozen=True)
class TextMention(_Single):
    """Holds when the last text that the model wrote in this execution has this text in it.

    Attributes:
        text: The text, at least one character.
        case_sensitive: Whether capitals matter.
    """

    text: str
    case_sensitive: bool = False
    words = "text_mention:{0.text}"
    reason = RunReason.COMPLETE

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"TextMention(text)={self.text!r:.60}: give at least one character")

    def holds(self, state: AgentState, now: datetime | None) -> bool:
        return last_text_mentions(state, self)

    def is_in(self, text: str) -> bool:
        """Tell whether a text mentions it."""
        return self.text in text if self.case_sensitive else self.text.casefold() in text.casefold()


@dataclass(frozen=True)
class ToolCalled(_Single):
    """Holds when this tool has been called with success in this execution.

    Attributes:
        tool: Name of a tool of the agent.
    """

    tool: str
    words = "tool_called:{0.tool}"
    reason = RunReason.TERMINAL_TOOL

    def __post_init__(self) -> None:
        if not isinstance(self.tool, str) or not self.tool:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"ToolCalled(tool)={self.tool!r:.60}: give the name of a tool")

    def holds(self, state: AgentState, now: datetime | None) -> bool:
        return has_called(state, self.tool)


@dataclass(frozen=True)
class ConfidenceMet(_Single):
    """Holds when `state.run.confidence` is enough; without `Reflexion`, something else has to set it.

    Attributes:
        threshold: From 0 to 1. None: `state.run.confidence_threshold`.
    """

    threshold: float | None = None
    words = "confidence_met"
    reason = RunReason.CONFIDENCE_MET

    def __post_init__(self) -> None:
        if self.threshold is not None:
            check_share("ConfidenceMet(threshold)", self.threshold)

    def holds(self, state: AgentState, now: datetime | None) -> bool:
        threshold = state.run.confidence_threshold if self.threshold is None else self.threshold
        return state.run.confidence >= threshold


@dataclass(frozen=True)
class NoToolCalls(_Single):
    """Holds when the last step of this execution called no tool.

    A final answer ends an execution anyway, as completed; this one is about executions that a hook continues, and about
    combinations.
    """

    words = "no_tools"
    reason = RunReason.NO_TOOLS

    def holds(self, state: AgentState, now: datetime | None) -> bool:
        step = state.current_step_or_last
        return step is not None and not step.has_tool_calls()


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
            return ConditionResult(True, "custom") if answer else GO_ON
        pair: tuple[Any, ...] = cast("tuple[Any, ...]", answer) if isinstance(answer, tuple) else ()
        if len(pair) == 2 and isinstance(pair[0], bool) and isinstance(pair[1], str | None):
            text = pair[1] or "custom"
            return ConditionResult(True, text, RunReason.named(text) or RunReason.COMPLETE) if pair[0] else GO_ON
        raise InvalidInput(
            self.name, _kind(cast("object", answer)), "answer True or False, or a pair of that and a reason."
        )

    @property
    def name(self) -> str:
        """The name, with that of the function."""
        return f"custom:{getattr(self.function, '__name__', type(self.function).__name__)}"


def _kind(value: object) -> type:
    return type(value)


def _check_condition(where: str, condition: object) -> Condition:
    if not isinstance(condition, Condition):
        raise ConfigurationError(f"{where}: {condition!r:.60} is no condition; give MaxIterations(20) and the like")
    return condition


_SOURCE: Final = "Termination"
_LAST: Final = -90  # after the hooks whose changes a condition may read


@dataclass(frozen=True)
class Termination(Capability):
    """Ends an execution before a step, or after it, when the condition holds.

    Reasons that are a success (`complete`, `terminal_tool`, `confidence_met`) complete the execution, the others stop
    it. A condition that raises, or answers something else, fails it with that error.

    Attributes:
        condition: Conditions are combined by `&`, `|` and `~`: `MaxIterations(20) | ToolCalled("submit")`.
    """

    condition: Condition

    def __post_init__(self) -> None:
        _check_condition("Termination", self.condition)

    @property
    def _tools(self) -> tuple[str, ...]:
        return tuple(leaf.tool for leaf in self.condition.leaves() if isinstance(leaf, ToolCalled))

    @property
    def _mentions(self) -> tuple[TextMention, ...]:
        return tuple(leaf for leaf in self.condition.leaves() if isinstance(leaf, TextMention))

    def check_tools(self, names: Collection[str]) -> None:
        """Refuse an agent that lacks a tool which the condition waits for."""
        check_tool_names(_SOURCE, self._tools, names)

    def parts(self) -> Sequence[Any]:
        """The memory of earlier steps that the condition needs."""
        return (ObservedSteps,)

    def hooks(self) -> Sequence[Hook]:
        """Remembers what a step called and said, where the condition asks for that."""
        if not (self._tools or self._mentions):
            return ()
        return (Hook(HookPoint.AFTER_STEP, self._observe, priority=_LAST, name=_SOURCE),)

    def guards(self) -> Sequence[Guard]:
        """Asks the condition."""
        return (self,)

    def check(self, view: GuardView) -> Verdict:
        """Stop where the condition holds."""
        result = self.condition.check(view.state, view.now)
        return StopWith((result.reason.signal(result.text, _SOURCE),)) if result.stop else PROCEED

    def _observe(self, context: HookContext) -> HookContext | None:
        state = observe(context.state, self._tools, self._mentions)
        return None if state is context.state else context.changed(state=state)


# --- memory of earlier steps -----------------------------------------------------------------------------------

# No check walks over all steps. Those that `ObservedSteps` does not cover are looked at themselves: steps of a worker
# without the capability, and of a state that was not observed.


class ObservedSteps(StatePart):
    """Tools called and texts said by the steps up to a number.

    Attributes:
        step: The number of the last step that is covered.
        retries: Retries of the execution so far; steps before the last retry no longer count.
        asked: The tools and texts that are covered, as `tool:<name>` and `text:<s or i>:<text>`.
        called: The covered tools that were called with success.
        mentioned: The covered texts that the last text has in it.
    """

    part_name = "run_observed_steps"
    step: Count = 0
    retries: Count = 0
    asked: tuple[Text, ...] = ()
    called: tuple[Text, ...] = ()
    mentioned: tuple[Text, ...] = ()


def observe(state: AgentState, tools: Collection[str], mentions: Sequence[TextMention]) -> AgentState:
    """The state with what its steps say about these tools and texts; the same state where it says that already."""
    if state.execution is None:
        return state
    asked = tuple(sorted({*map(_tool_key, tools), *map(_mention_key, mentions)}))
    latest = state.current_step_or_last
    observed = ObservedSteps(
        step=latest.number if latest is not None else 0,
        retries=state.execution.retries,
        asked=asked,
        called=tuple(sorted({name for name in tools if has_called(state, name)})),
        mentioned=tuple(sorted({_mention_key(each) for each in mentions if last_text_mentions(state, each)})),
    )
    return state if state.part(ObservedSteps) == observed else state.with_part(observed, now=state.updated_at)


def has_called(state: AgentState, tool: str) -> bool:
    """Tell whether a tool was called with success since the execution started, or was retried."""
    if any(each.execution.tool_call.name == tool for each in state.part(RecordedExecutions)):
        return True
    observed = _find_observed(state, _tool_key(tool))
    if tool in observed.called:
        return True
    return any(_calls(step, tool) for step in _later_steps(state, observed.step))


def last_text_mentions(state: AgentState, mention: TextMention) -> bool:
    """Tell whether the last text since the execution started, or was retried, has a text in it."""
    observed = _find_observed(state, _mention_key(mention))
    for step in _later_steps(state, observed.step):
        text = step.output_text
        if text.strip():
            return mention.is_in(text)
    return _mention_key(mention) in observed.mentioned


def _find_observed(state: AgentState, key: str) -> ObservedSteps:
    """The memory of a key; nothing where it does not cover the key."""
    observed, execution = state.part(ObservedSteps), state.execution
    if execution is not None and key in observed.asked and observed.retries == execution.retries:
        return observed
    return ObservedSteps(step=_steps_that_count_no_longer(execution))


def _steps_that_count_no_longer(execution: ExecutionState | None) -> int:
    if execution is None or not execution.steps_before_retry:
        return 0
    return execution.step_executions[execution.steps_before_retry - 1].step.number


def _later_steps(state: AgentState, covered: int) -> Iterator[AgentStep]:
    """The steps behind a number, the newest first."""
    execution = state.execution
    if execution is None:
        return
    if execution.current_step is not None and execution.current_step.number > covered:
        yield execution.current_step
    for each in reversed(execution.step_executions):
        if each.step.number <= covered:
            return
        yield each.step


def _calls(step: AgentStep, tool: str) -> bool:
    return any(each.outcome is ToolOutcome.OK and each.tool_call.name == tool for each in step.tool_executions)


def _tool_key(tool: str) -> str:
    return f"tool:{tool}"


def _mention_key(mention: TextMention) -> str:
    return f"text:{'s' if mention.case_sensitive else 'i'}:{mention.text}"
