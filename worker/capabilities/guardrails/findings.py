"""The findings of guardrails, as `state.smart.guardrail_result` shows them, and what the model must not read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from ...state.agent_state import AgentState
from ...state.conversation.messages import DEFAULT, Message
from ...state.parts.list_part import ListPart
from ...state.parts.state_part import PartItem, PartScope, PartValue, StatePart
from ...state.values.canonical import canonical_digest
from ...state.values.field_types import Count, Text
from ...state.values.frozen import FrozenDict

REMOVED: Final = "[Removed: a guardrail has blocked this message.]"


class GuardrailPhase(StrEnum):
    """The two sides that a guardrail judges.

    Attributes:
        REQUEST: Messages that the model is about to read for the first time: those of the user, and results of tools.
        RESPONSE: An answer of the model.
    """

    REQUEST = "request"
    RESPONSE = "response"


class Disposition(StrEnum):
    """The consequence of a finding.

    Attributes:
        BLOCK: The execution ends. A request is not sent to the model; a response is replaced by a notice.
        WARN: An incident is recorded, and nothing else happens.
        ALLOW: Nothing happens.
    """

    BLOCK = "block"
    WARN = "warn"
    ALLOW = "allow"


class GuardrailIncident(PartItem):
    """A rule that found something.

    Attributes:
        guardrail, rule: Their names.
        disposition: What followed, after `on_violation`.
        reason: Why, in a sentence; at most 400 characters.
        details: What the rule says besides.
        step: The number of the step.
        message_index: The place of the message in the conversation; None for a response.
        original: The text of a response that was replaced; None otherwise.
    """

    guardrail: Text
    rule: Text
    phase: GuardrailPhase
    disposition: Disposition
    reason: Text = ""
    details: FrozenDict = FrozenDict()
    step: Count
    message_index: Count | None = None
    original: Text | None = None


class GuardrailEvent(PartValue):
    """A rule of a guardrail has found something; the fields are those of its `GuardrailIncident`."""

    type: Literal["guardrail"] = "guardrail"
    phase: GuardrailPhase
    guardrail: Text
    rule: Text
    disposition: Disposition
    reason: Text = ""
    details: FrozenDict = FrozenDict()


class GuardrailIncidents(ListPart[GuardrailIncident]):
    """The incidents of the execution, in order."""

    part_name = "guardrail_incidents"


class JudgedMessages(StatePart):
    """How far the conversation is judged, and which messages the model never reads.

    Attributes:
        generation: The generation of the conversation that the indexes belong to.
        upto: Messages before this index are judged; 0 before the first judgement.
        blocked: The places of the messages that are blocked.
        hidden: Digests of these, by which they are known again where all messages were replaced since.
    """

    part_name = "guardrail_judged"
    scope = PartScope.SESSION
    generation: Count = 0
    upto: Count = 0
    blocked: tuple[Count, ...] = ()
    hidden: tuple[Text, ...] = ()

    @classmethod
    def of(cls, state: AgentState) -> JudgedMessages:
        """That of a state; one that has judged nothing where all messages were replaced since."""
        part, generation = state.part(cls), state.store.section(DEFAULT).generation
        return part if part.generation == generation else cls(generation=generation, hidden=part.hidden)

    def with_blocked(self, index: int, message: Message) -> JudgedMessages:
        """The same with one more message that is blocked."""
        return self.replace(blocked=(*self.blocked, index), hidden=(*self.hidden, _digest(message)))


@dataclass(frozen=True, slots=True)
class GuardrailResult:
    """The findings of all guardrails in the execution.

    Attributes:
        ok: Nothing was blocked.
    """

    ok: bool
    incidents: tuple[GuardrailIncident, ...] = ()

    @classmethod
    def of(cls, state: AgentState) -> GuardrailResult:
        """The result for a state."""
        incidents = tuple(state.part(GuardrailIncidents))
        return cls(all(each.disposition is not Disposition.BLOCK for each in incidents), incidents)


def blocked_messages(state: AgentState) -> tuple[Message, ...]:
    """The messages that the model must not read, as they are stored."""
    blocked = JudgedMessages.of(state).blocked
    return tuple(state.store.section(DEFAULT).messages[index] for index in blocked)


def without_blocked(state: AgentState, messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages, with a notice in place of the text of each that is blocked."""
    blocked = {*JudgedMessages.of(state).hidden, *map(_digest, blocked_messages(state))}
    if not blocked:
        return tuple(messages)
    return tuple(each.with_content(REMOVED) if _digest(each) in blocked else each for each in messages)


def _digest(message: Message) -> str:
    """A key that stays the same when a message is shown as a handle: of a result's execution, or else of its text."""
    execution = message.metadata.get("tool_execution_id")
    return canonical_digest([message.role, execution if isinstance(execution, str) else message.content])
