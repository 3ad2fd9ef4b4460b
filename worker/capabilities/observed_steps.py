"""Memory of earlier steps for conditions, so that no check walks over all of them.

`ObservedSteps` says of the steps up to a number what the conditions of an agent ask about. Steps that it does not cover
are looked at themselves: those of a worker without the capability, and those of a state that nobody has observed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from ..state.agent_state import AgentState
from ..state.execution.execution import ExecutionState
from ..state.execution.steps import AgentStep
from ..state.execution.tool_calls import ToolOutcome
from ..state.parts.state_part import StatePart
from ..state.values.field_types import Count, Text
from ..state.views.run_parts import RecordedExecutions


class Mention(Protocol):
    """A text that is looked for."""

    @property
    def text(self) -> str:
        """The text."""
        ...

    @property
    def case_sensitive(self) -> bool:
        """Whether capitals matter."""
        ...

    def is_in(self, text: str) -> bool:
        """Tell whether a text has it."""
        ...


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


def observe(state: AgentState, tools: Collection[str], mentions: Sequence[Mention]) -> AgentState:
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


def last_text_mentions(state: AgentState, mention: Mention) -> bool:
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
    retries = execution.retries if execution is not None else 0
    if key in observed.asked and observed.retries == retries:
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


def _mention_key(mention: Mention) -> str:
    return f"text:{'s' if mention.case_sensitive else 'i'}:{mention.text}"
