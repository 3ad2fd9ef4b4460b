"""`Planning`: gives the model the tool `manage_todo_list`, and keeps the plan in the state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from ...capability import Capability
from ...hooks import Hook, HookContext, HookPoint
from ...state.agent_state import AgentState
from ...state.conversation.messages import Message
from ...state.execution.tool_calls import ToolCall, ToolOutcome
from ...state.parts.state_part import PartScope, PartValue, StatePart
from ...state.values.field_types import Count, Text, UtcDatetime
from ...tools.arguments import InvalidArguments
from ...tools.context import ToolContext
from ...tools.definition import tool
from ...tools.protocol import Tool
from .step_events import new_step

MANAGE_TODO_LIST: Final = "manage_todo_list"
MAX_PLAN_STEPS: Final = 100
MAX_EVIDENCE_CHARS: Final = 300
MAX_TEXT_CHARS: Final = 2_000
MAX_PLAN_BYTES: Final = 24_000
"""Bytes of all steps together as JSON; the result of each call has the whole plan."""

_TEXTS: Final = ("title", "description", "step", "owner", "exit_criteria")

_DESCRIPTION: Final = (
    "Keep the plan of the task. 'write' replaces the whole plan, with ids 1 to n in order and a status for each step; "
    "'update' changes the given fields of the steps with these ids; 'read' returns the plan. At most one step may be "
    "in-progress. Mark a step in-progress before you work on it, and completed, with evidence, right after. With "
    "expected_version the change is refused when the plan has another version."
)
Status = Literal["not-started", "in-progress", "completed", "blocked"]
Operation = Literal["read", "write", "update"]


class PlanStatus(StrEnum):
    """How far a step of a plan is."""

    NOT_STARTED = "not-started"
    IN_PROGRESS = "in-progress"
    COMPLETED = "completed"
    BLOCKED = "blocked"


class PlanStepRecord(PartValue):
    """One step of a plan.

    Attributes:
        id: From 1, in the order of the plan.
        step: The step in a sentence.
        owner: `agent`, `user`, `tool`, or any other name.
        exit_criteria: The condition under which the step is done.
        evidence: Why it counts as done; at most 300 characters. None: none given.
    """

    id: Count
    step: Text
    owner: Text = "agent"
    exit_criteria: Text = ""
    evidence: Text | None = None
    status: PlanStatus = PlanStatus.NOT_STARTED
    title: Text | None = None
    description: Text | None = None


class Plan(StatePart):
    """The plan of the session.

    Attributes:
        version: Counts the changes; 0 before the first plan.
        last_updated: The time of the last change (UTC); None before the first plan.
    """

    part_name = "smart_plan"
    scope = PartScope.SESSION
    version: Count = 0
    steps: tuple[PlanStepRecord, ...] = ()
    last_updated: UtcDatetime | None = None

    @property
    def adherence_score(self) -> float:
        """The share of completed steps, with two decimals; 1 for an empty plan."""
        if not self.steps:
            return 1.0
        return round(sum(each.status is PlanStatus.COMPLETED for each in self.steps) / len(self.steps), 2)


class PlanEvent(PartValue):
    """The model has read or changed the plan.

    Attributes:
        source: `manage_todo_list`, or `system`.
        todo_list: The plan after it; the durable plan is `state.smart.plan`.
    """

    type: Literal["plan"] = "plan"
    source: Literal["manage_todo_list", "system"] = "manage_todo_list"
    operation: Operation | None = None
    todo_list: tuple[PlanStepRecord, ...] = ()
    version: Count | None = None
    adherence_score: Annotated[float, Field(ge=0, le=1)] | None = None


class PlanItem(BaseModel):
    """One step as the model writes it; in an update, only what changes."""

    model_config = ConfigDict(extra="forbid")

    id: Annotated[int, Field(description="From 1, in order.")]
    status: Status | None = None
    title: str | None = None
    description: str | None = None
    step: Annotated[str | None, Field(description="The step in a sentence; the title where left out.")] = None
    owner: Annotated[str | None, Field(description="agent, user, tool or another name.")] = None
    exit_criteria: Annotated[str | None, Field(description="When the step is done.")] = None
    evidence: Annotated[str | None, Field(description="Why it is done, in at most 300 characters.")] = None


class PlanRefused(Exception):
    """A change of the plan breaks a rule; the text is written for the model."""


@dataclass(frozen=True)
class Planning(Capability):
    """Lets the model keep a plan: the tool `manage_todo_list`, the part behind `state.smart.plan`, an event per call.

    Calls of one answer count one after another, in the order of the answer. A call that breaks a rule changes nothing,
    and the model reads which rule it was.

    Attributes:
        is_shown: The model reads the present plan behind the conversation in each step.
    """

    is_shown: bool = True

    def tools(self) -> Sequence[Tool | Callable[..., Any]]:
        """The one tool `manage_todo_list`."""
        return (MANAGE,)

    def parts(self) -> Sequence[Any]:
        """The plan."""
        return (Plan,)

    def hooks(self) -> Sequence[Hook]:
        """Puts the changes of a step into the state."""
        return (Hook(HookPoint.AFTER_STEP, self._keep_changes, name="Planning"),)

    def events(self, before: AgentState, after: AgentState) -> Sequence[Mapping[str, Any]]:
        """One event for each call that succeeded."""
        step = new_step(before, after)
        if step is None:
            return ()
        values = (
            _read_success(each.value) for each in step.tool_executions if _is_plan_call(each.tool_call, each.outcome)
        )
        return [_event_of(value) for value in values if value is not None]

    def compile(self, state: AgentState, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Put the plan behind the conversation, where there is one."""
        plan = state.part(Plan)
        if not self.is_shown or not plan.steps:
            return messages
        return (*messages, Message.system(_describe(plan)))

    def _keep_changes(self, context: HookContext) -> HookContext | None:
        step = context.state.current_step
        if step is None:
            return None
        calls = [each.tool_call for each in step.tool_executions if _is_plan_call(each.tool_call, each.outcome)]
        before = context.state.part(Plan)
        after = apply_calls(before, calls)
        if after is before:
            return None
        now = context.state.updated_at
        return context.changed(state=context.state.with_part(after.replace(last_updated=now), now=now))


def manage(
    ctx: ToolContext,
    operation: Operation,
    todo_list: Annotated[list[PlanItem] | None, Field(description="Needed to write and to update.")] = None,
    expected_version: Annotated[int | None, Field(description="The version that the change is made for.")] = None,
) -> dict[str, Any]:
    """Read, write or update the plan."""
    stored = ctx.state.part(Plan) if ctx.state is not None else Plan()
    before = apply_calls(stored, ctx.calls[: ctx.index])
    try:
        after = change_plan(before, operation, todo_list, expected_version)
    except PlanRefused as refused:
        score = before.adherence_score
        return {"status": "error", "error": str(refused), "version": before.version, "adherence_score": score}
    return {
        "status": "ok",
        "operation": operation,
        "version": after.version,
        "adherence_score": after.adherence_score,
        "todo_list": [_show_step(each) for each in after.steps],
    }


MANAGE: Final = tool(effect="pure", name=MANAGE_TODO_LIST, description=_DESCRIPTION)(manage)


def apply_calls(plan: Plan, calls: Iterable[ToolCall]) -> Plan:
    """The plan after these calls; the same one where none changes it. Calls that break a rule count for nothing."""
    for call in calls:
        if call.name != MANAGE_TODO_LIST:
            continue
        try:
            bound = MANAGE.bind(call.args)
            plan = change_plan(plan, bound["operation"], bound["todo_list"], bound["expected_version"])
        except (InvalidArguments, PlanRefused):
            continue
    return plan


def change_plan(
    plan: Plan, operation: Operation, items: Sequence[PlanItem] | None, expected_version: int | None
) -> Plan:
    """The plan after one operation; the same one after a read.

    Raises:
        PlanRefused: The change breaks a rule.
    """
    if operation == "read":
        return plan
    if items is None:
        raise PlanRefused(f"to {operation} the plan, give todo_list")
    if expected_version is not None and expected_version != plan.version:
        raise PlanRefused(f"the plan has version {plan.version}, not {expected_version}; read it and change it again")
    _check_items(items)
    steps = _write_steps(items) if operation == "write" else _update_steps(plan, items)
    in_progress = [str(each.id) for each in steps if each.status is PlanStatus.IN_PROGRESS]
    if len(in_progress) > 1:
        raise PlanRefused(f"steps {', '.join(in_progress)} would be in-progress; only one may be")
    size = sum(len(each.to_json()) for each in steps)
    if size > MAX_PLAN_BYTES:
        raise PlanRefused(f"the plan would have {size} bytes; it may have {MAX_PLAN_BYTES}, so write shorter texts")
    return plan.replace(version=plan.version + 1, steps=steps)


def _check_items(items: Sequence[PlanItem]) -> None:
    ids = [each.id for each in items]
    if len(ids) > MAX_PLAN_STEPS:
        raise PlanRefused(f"{len(ids)} steps are too many; a plan has at most {MAX_PLAN_STEPS}")
    if len(set(ids)) < len(ids):
        raise PlanRefused(f"an id stands twice: {', '.join(map(str, ids))}")
    for each in items:
        if each.evidence is not None and len(each.evidence) > MAX_EVIDENCE_CHARS:
            raise PlanRefused(f"the evidence of step {each.id} is longer than {MAX_EVIDENCE_CHARS} characters")
        for name in _TEXTS:
            if len(getattr(each, name) or "") > MAX_TEXT_CHARS:
                raise PlanRefused(f"{name} of step {each.id} is longer than {MAX_TEXT_CHARS} characters")


def _write_steps(items: Sequence[PlanItem]) -> tuple[PlanStepRecord, ...]:
    ids = [each.id for each in items]
    if ids != list(range(1, len(ids) + 1)):
        raise PlanRefused(f"the ids must be 1 to {len(ids)} in order, not {', '.join(map(str, ids))}")
    return tuple(map(_new_step, items))


def _new_step(item: PlanItem) -> PlanStepRecord:
    if item.status is None:
        raise PlanRefused(f"step {item.id} needs a status")
    text = item.step or item.title or item.description
    if not text:
        raise PlanRefused(f"step {item.id} needs a title, a step or a description")
    description = item.description or text
    return PlanStepRecord(
        id=item.id,
        step=text,
        owner=item.owner or "agent",
        exit_criteria=item.exit_criteria or description,
        evidence=item.evidence,
        status=PlanStatus(item.status),
        title=item.title or text,
        description=description,
    )


def _update_steps(plan: Plan, items: Sequence[PlanItem]) -> tuple[PlanStepRecord, ...]:
    if not plan.version:
        raise PlanRefused("there is no plan yet; write one")
    by_id = {each.id: each for each in plan.steps}
    for item in items:
        if item.id not in by_id:
            raise PlanRefused(f"there is no step {item.id}; the plan has {len(plan.steps)} steps")
        given = item.model_dump(exclude_none=True)
        if item.status is not None:
            given["status"] = PlanStatus(item.status)
        by_id[item.id] = by_id[item.id].replace(**given)
    return tuple(by_id.values())


def _show_step(step: PlanStepRecord) -> dict[str, Any]:
    """A step as the model and watchers read it, without what is None."""
    return {name: value for name, value in step.to_dict().items() if value is not None}


def _describe(plan: Plan) -> str:
    lines = [f"{each.id}. [{each.status}] {each.step}" for each in plan.steps]
    return "\n".join([f"Your plan, version {plan.version} (manage_todo_list changes it):", *lines])


def _is_plan_call(call: ToolCall, outcome: ToolOutcome) -> bool:
    return call.name == MANAGE_TODO_LIST and outcome is ToolOutcome.OK


def _read_success(value: Any) -> Mapping[str, Any] | None:
    """The result of a call that succeeded; None for one that broke a rule."""
    if not isinstance(value, Mapping):
        return None
    result = cast("Mapping[str, Any]", value)
    return result if result.get("status") == "ok" else None


def _event_of(result: Mapping[str, Any]) -> Mapping[str, Any]:
    event = PlanEvent(
        operation=result["operation"],
        todo_list=tuple(PlanStepRecord.from_dict(dict(each)) for each in result["todo_list"]),
        version=result["version"],
        adherence_score=result["adherence_score"],
    )
    return event.to_dict()
