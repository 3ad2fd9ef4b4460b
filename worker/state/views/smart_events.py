"""Events of the smart capabilities, as their data stand in an event `capability` of the session's stream."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field

from ..parts.state_part import PartValue
from ..values.field_types import Count, Text
from ..values.frozen import FrozenDict
from .guardrail_parts import Disposition, GuardrailPhase
from .smart_parts import Cadence, PlanStepRecord, ReflectionUsage

Operation = Literal["read", "write", "update"]


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


class ReflectionEvent(PartValue):
    """The model has made a note about its work; the fields are those of its `ReflectionRecord`."""

    type: Literal["reflection"] = "reflection"
    id: Text
    turn: Count
    text: Text
    trigger: Cadence | None = None
    duration_ms: Count | None = None
    usage: ReflectionUsage | None = None
    tool_call_ids: tuple[Text, ...] = ()


class SummarizationEvent(PartValue):
    """The beginning of the conversation was compacted.

    Attributes:
        archived: Tool results before this index are shown as handles.
        covered: Messages before this index are represented by the summary.
        summary_id: The new summary; None where only tool results were archived.
    """

    type: Literal["summarization"] = "summarization"
    archived: Count
    covered: Count
    summary_id: Text | None = None


class GuardrailEvent(PartValue):
    """A rule of a guardrail has found something; the fields are those of its `GuardrailIncident`."""

    type: Literal["guardrail"] = "guardrail"
    phase: GuardrailPhase
    guardrail: Text
    rule: Text
    disposition: Disposition
    reason: Text = ""
    details: FrozenDict = FrozenDict()


SmartEvent = PlanEvent | ReflectionEvent | SummarizationEvent | GuardrailEvent

_KINDS: Final[Mapping[str, type[SmartEvent]]] = MappingProxyType(
    {kind.model_fields["type"].default: kind for kind in get_args(SmartEvent)}
)


def smart_event(data: Mapping[str, Any]) -> SmartEvent | None:
    """Read the data of an event `capability`; None for those of other capabilities.

    Raises:
        pydantic.ValidationError: The data do not fit their type.
    """
    kind = _KINDS.get(str(data.get("type")))
    return None if kind is None else kind.from_dict(dict(data))
