"""Finds the values that a save must keep of the state that it replaces, so that earlier states can be read later.

Lists only grow, and each step record holds what its step has used and which messages it has seen. So little else has to
be kept: the values that differ from what `past_states` derives from the next state and the records. Nothing is kept
where nothing changes.

| name | value |
|---|---|
| a field of the state or the context | as JSON |
| `metadata/<key>`, `part/<name>`, `xpart/<name>` | as JSON; `xpart` is a part of the execution |
| `section/<name>`, `list/<name>` | generation and length |
| `messages/<name>/<generation>`, `items/<name>/<generation>` | the content of a list that was replaced |
| `execution.<field>` | as JSON |
| `execution`, `committed` | an execution that another one follows; `committed`: as its last step has committed it |
| `outputs` | for each step, where its messages were, before the steps were written again |

An empty value means: there was none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

from pydantic_core import to_json

from ..agent_state import AgentState
from ..execution.execution import ExecutionState
from ..execution.status import ExecutionStatus
from ..execution.steps import StepExecution
from ..execution.usage import InferenceUsage
from ..parts.storage import PartList, StoredParts

ABSENT: Final = b""
STATE_FIELDS: Final = (
    "schema_version",
    "agent_id",
    "parent_agent_id",
    "created_at",
    "execution_count",
    "llm_config",
)
CONTEXT_FIELDS: Final = ("system_prompt", "response_format")
_NOT_COMPARED: Final = frozenset({"execution_id", "number", "step_executions", "parts"})
EXECUTION_FIELDS: Final = tuple(name for name in ExecutionState.model_fields if name not in _NOT_COMPARED)
_DERIVED: Final = frozenset(
    {
        *("usage", "cost"),  # from the records; the others: see `committed_fields`
        *("status", "completed_at", "waiting_since", "waiting_for", "current_step", "current_step_started_at"),
        *("step_count", "continuation"),
    }
)
_CARRIED: Final = tuple(name for name in EXECUTION_FIELDS if name not in _DERIVED)

Old = Iterator[tuple[str, bytes]]
Values = Callable[[Any], tuple[Any, ...]]

# Each commit compares these, and nearly always all are equal: a getter reads them in one call.
_state_values: Final[Values] = attrgetter(*STATE_FIELDS)
_context_values: Final[Values] = attrgetter(*CONTEXT_FIELDS)
_carried_values: Final[Values] = attrgetter(*_CARRIED)


class Position(NamedTuple):
    """A committed step: the number of its execution within the session, and its number within the execution.

    Step 0 stands for the time before the first step.
    """

    execution: int
    step: int


def position_of(state: AgentState) -> Position:
    """The last committed step of a state; (0, 0) without an execution."""
    execution = state.execution
    return Position(0, 0) if execution is None else Position(execution.number, len(execution.step_executions))


def continues(before: AgentState, after: AgentState) -> bool:
    """Whether a state is the next one of the same history: at most one more step, or a later execution.

    A session that is cleared, or replaced from outside by another one, begins a new history.
    """
    one, other = before.execution, after.execution
    if other is None:
        return False
    if one is None:
        return not other.step_executions
    if one.execution_id != other.execution_id:
        return not other.step_executions and (other.number > one.number or not one.step_executions)
    return 0 <= len(other.step_executions) - len(one.step_executions) <= 1


def old_values(before: AgentState, after: AgentState, *, is_committed: bool) -> dict[str, bytes]:
    """The values of `before` that nothing else tells, by name.

    Args:
        after: It continues `before`.
        is_committed: `before` is exactly as its last step has committed it; nothing was saved since.
    """
    stepped = _step_between(before, after)
    if position_of(before) <= (1, 0):  # no step was committed; the first one has seen messages all the same
        return {name: value for name, value in _of_sections(before, after, stepped) if name.startswith("messages/")}
    return dict(
        chain(
            _of_fields(before, after, is_committed=is_committed),
            _of_mapping("metadata", before.context.metadata, after.context.metadata),
            _of_mapping("part", _values(before.parts), _values(after.parts)),
            _of_execution(before.execution, after.execution, stepped, is_committed=is_committed),
            _of_sections(before, after, stepped),
            _of_lists(before, after),
        )
    )


def committed_fields(steps: int, last: StepExecution) -> Mapping[str, Any]:
    """The fields of an execution that follow from its steps and their last record, as a rule, at its commit."""
    return {
        "status": ExecutionStatus.IN_PROGRESS,
        "completed_at": None,
        "waiting_since": None,
        "waiting_for": (),
        "current_step": None,
        "current_step_started_at": None,
        "step_count": steps,
        "continuation": last.continuation,
    }


def usage_before(usage: InferenceUsage, record: StepExecution) -> InferenceUsage:
    """Compute the usage before a step, if the step's answer is all that it has used."""
    return usage.without(record.step.inference_response.usage)


def cost_before(cost: float | None, record: StepExecution) -> float | None:
    """Compute the dollars before a step, if the step's answer is all that it has cost."""
    own = record.step.inference_response.cost
    if own is None or cost is None:
        return cost
    return max(0.0, cost - own) if record.step.number > 1 else None


def _step_between(before: AgentState, after: AgentState) -> StepExecution | None:
    """The record of the step that `after` has and `before` has not."""
    one, other = before.execution, after.execution
    if one is None or other is None or one.execution_id != other.execution_id:
        return None
    return other.step_executions[-1] if len(one.step_executions) < len(other.step_executions) else None


def _is_same_execution(before: AgentState, after: AgentState) -> bool:
    one, other = before.execution, after.execution
    return one is not None and other is not None and one.execution_id == other.execution_id


def _of_fields(before: AgentState, after: AgentState, *, is_committed: bool) -> Old:
    yield from _of_values(STATE_FIELDS, _state_values(before), _state_values(after))
    yield from _of_values(CONTEXT_FIELDS, _context_values(before.context), _context_values(after.context))
    records = before.execution.step_executions if before.execution is not None else ()
    if is_committed and records and before.updated_at != records[-1].completed_at:
        yield "updated_at", to_json(before.updated_at)


def _of_values(names: Sequence[str], before: tuple[Any, ...], after: tuple[Any, ...], prefix: str = "") -> Old:
    if before == after:
        return
    for name, value, following in zip(names, before, after, strict=True):
        if value != following:
            yield prefix + name, to_json(value)


def _of_mapping(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Old:
    if before is after:
        return
    for name, value in before.items():
        # Compared as JSON: 1 is not True.
        if name not in after or (after[name] is not value and to_json(after[name]) != to_json(value)):
            yield f"{kind}/{name}", to_json(value)
    for name in after:
        if name not in before:
            yield f"{kind}/{name}", ABSENT


def _values(parts: StoredParts | None) -> Mapping[str, Any]:
    return parts.values if parts is not None else {}


def _of_execution(
    one: ExecutionState | None, other: ExecutionState | None, stepped: StepExecution | None, *, is_committed: bool
) -> Old:
    if one is None or other is None or not one.step_executions:
        return
    if one.execution_id != other.execution_id:
        yield ("committed" if is_committed else "execution"), _whole(one)
        return
    yield from _of_mapping("xpart", _values(one.parts), _values(other.parts))
    if one.steps_generation != other.steps_generation:
        yield "outputs", to_json([each.step.outputs for each in one.step_executions])
    yield from _of_values(_CARRIED, _carried_values(one), _carried_values(other), "execution.")
    for name, value in _expected(one, other, stepped, is_committed=is_committed).items():
        found = getattr(one, name)
        if found is not value and found != value:
            yield f"execution.{name}", to_json(found)


def _whole(execution: ExecutionState) -> bytes:
    """An execution without its steps and without the items of its lists."""
    parts = execution.parts
    kept = None if parts is None else StoredParts(values=parts.values)
    return execution.with_steps_read((), execution.current_step).with_parts(kept).to_json()


def _expected(
    one: ExecutionState, other: ExecutionState, stepped: StepExecution | None, *, is_committed: bool
) -> dict[str, Any]:
    """The values of the fields of `one` that a reader derives from `other` and the records."""
    usage, cost = other.usage, other.cost
    if stepped is not None:
        usage, cost = usage_before(usage, stepped), cost_before(cost, stepped)
    used = {"usage": usage, "cost": cost}
    records = one.step_executions
    return {**used, **committed_fields(len(records), records[-1])} if is_committed else used


def _of_sections(before: AgentState, after: AgentState, stepped: StepExecution | None) -> Old:
    old, new, has_steps = before.store.sections, after.store, position_of(before).step > 0
    seen = new.extents if stepped is None else stepped.step.inputs
    is_last = not _is_same_execution(before, after)
    for name, section in old.items():
        if has_steps and (is_last or section.extent != seen.get(name)):
            yield f"section/{name}", to_json(section.extent)
        following = new.sections.get(name)
        if following is None or following.generation != section.generation:
            yield f"messages/{name}/{section.generation}", to_json([each.to_dict() for each in section.messages])
    for name in seen:
        if has_steps and name not in old:
            yield f"section/{name}", ABSENT


def _of_lists(before: AgentState, after: AgentState) -> Old:
    old, new = before.part_lists, after.part_lists
    for name, items in old.items():
        following = new.get(name)
        grows = following is not None and _grows(name, before, after, items, following)
        if not grows or following is None or len(items.items) != len(following.items):
            yield f"list/{name}", to_json((items.generation, len(items.items)))
        if not grows:
            yield f"items/{name}/{items.generation}", to_json([item.decode() for item in items.items])
    for name in new:
        if name not in old:
            yield f"list/{name}", ABSENT


def _grows(name: str, before: AgentState, after: AgentState, one: PartList, other: PartList) -> bool:
    """Whether a list is the beginning of another: of the same generation, and execution where it belongs to one."""
    is_of_session = name in _lists(before.parts) and name in _lists(after.parts)
    return one.generation == other.generation and (is_of_session or _is_same_execution(before, after))


def _lists(parts: StoredParts | None) -> Mapping[str, PartList]:
    return parts.lists if parts is not None else {}
