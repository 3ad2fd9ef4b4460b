"""`state.smart` and `SmartState`: the state under the names of Cognipeer's agent SDK."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, get_args

from ...run_state.run_state import AroundAgentState
from ...state.agent_state import AgentState
from ...state.conversation.messages import DEFAULT, Message
from ...state.execution.requests import RequestKind, RequestSummary
from ...state.execution.tool_calls import ToolExecution
from ...state.values.frozen import FrozenDict
from ..guardrails.findings import GuardrailEvent, GuardrailResult
from .compacted import Compaction, Summaries, SummarizationEvent, SummaryRecord
from .memory_facts import FactStatus, Memory, MemoryFact
from .planning import Plan, PlanEvent
from .reflection import ReflectionEvent, ReflectionRecord, Reflections

SmartEvent = PlanEvent | ReflectionEvent | SummarizationEvent | GuardrailEvent
"""The events of the smart capabilities, as their data are in an event `capability` of the session's stream."""

_KINDS: Final[Mapping[str, type[SmartEvent]]] = MappingProxyType(
    {kind.model_fields["type"].default: kind for kind in get_args(SmartEvent)}
)
_ASK_USER = "ask_user_question"


@dataclass(frozen=True, slots=True)
class SmartView:
    """The fields of `SmartState`. A field of a capability that the agent lacks is empty, or None.

    Attributes:
        state: The state that is shown.
    """

    state: AgentState

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole conversation in order; compaction takes nothing out of it."""
        return self.state.store.section(DEFAULT).messages

    @property
    def tool_history(self) -> tuple[ToolExecution, ...]:
        """Every tool call of the execution, in order, archived or not."""
        steps = self.state.execution.all_steps if self.state.execution else ()
        return tuple(each for step in steps for each in step.tool_executions)

    @property
    def tool_history_archived(self) -> tuple[ToolExecution, ...]:
        """The calls of the execution whose results the model sees as handles, or in a summary."""
        archived = self.archived_ids
        return tuple(each for each in self.tool_history if str(each.id) in archived)

    @property
    def archived_ids(self) -> frozenset[str]:
        """The ids of all tool executions of the session whose results are archived; `get_tool_response` takes them."""
        part = self.state.part(Compaction)
        section = self.state.store.section(DEFAULT)
        if part.generation != section.generation:
            return frozenset()
        return frozenset(_execution_ids(section.messages[: max(part.archived, part.covered)]))

    @property
    def summaries(self) -> tuple[str, ...]:
        """The texts of the summaries, in order."""
        return tuple(each.text for each in self.summary_records)

    @property
    def summary_records(self) -> tuple[SummaryRecord, ...]:
        """The summaries, in order."""
        return tuple(self.state.part(Summaries))

    @property
    def memory_facts(self) -> tuple[MemoryFact, ...]:
        """The facts that are remembered and still hold."""
        return tuple(each for each in self.state.part(Memory).facts if each.status is FactStatus.ACTIVE)

    @property
    def plan(self) -> Plan | None:
        """The plan; None before the first one."""
        plan = self.state.part(Plan)
        return plan if plan.version else None

    @property
    def plan_version(self) -> int | None:
        """The version of the plan; None before the first one."""
        return self.state.part(Plan).version or None

    @property
    def reflections(self) -> tuple[ReflectionRecord, ...]:
        """The notes that the model has made about its work, in order."""
        return tuple(self.state.part(Reflections))

    @property
    def guardrail_result(self) -> GuardrailResult:
        """The findings of all guardrails in the execution."""
        return GuardrailResult.of(self.state)

    @property
    def pending_approvals(self) -> tuple[RequestSummary, ...]:
        """The approvals that the execution waits for; `tasks.client.pending` has them with their arguments."""
        return tuple(each for each in self._waiting_for if each.kind is RequestKind.APPROVAL)

    @property
    def pending_user_questions(self) -> tuple[RequestSummary, ...]:
        """The questions that the execution waits for; `tasks.client.pending` has them with their options."""
        return tuple(each for each in self._waiting_for if each.tool == _ASK_USER)

    @property
    def ctx(self) -> FrozenDict:
        """The values of the application: the metadata of the session."""
        return self.state.metadata

    @property
    def _waiting_for(self) -> Sequence[RequestSummary]:
        return self.state.execution.waiting_for if self.state.execution is not None else ()


class SmartState(AroundAgentState, SmartView):
    """The state of a long task, under the names of Cognipeer's SDK. Immutable; capabilities fill its other fields."""

    __slots__ = ()

    def __init__(self, *, messages: Iterable[Message] = (), ctx: Mapping[str, Any] | None = None) -> None:
        """Begin a state.

        Args:
            messages: The conversation so far.
            ctx: JSON of the application: the metadata of the session.
        Raises:
            InvalidInput: A value does not fit; the error names the field.
        """
        state = AgentState.fresh(metadata=dict(ctx or {}))
        super().__init__(state.with_messages_added(tuple(messages)))


def _execution_ids(messages: Sequence[Message]) -> list[str]:
    return [str(each.metadata["tool_execution_id"]) for each in messages if "tool_execution_id" in each.metadata]


def smart_event(data: Mapping[str, Any]) -> SmartEvent | None:
    """Read the data of an event `capability`; None for those of other capabilities.

    Raises:
        pydantic.ValidationError: The data do not fit their type.
    """
    kind = _KINDS.get(str(data.get("type")))
    return None if kind is None else kind.from_dict(dict(data))
