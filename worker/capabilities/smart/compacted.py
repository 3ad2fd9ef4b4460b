"""The conversation as the model sees it after compaction: pinned messages, the summary, and the rest with handles.

Everything here follows from the state alone. No message is taken out of the session: the part `Compaction` only says
from which index on the model sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ...run_state.parts import Share
from ...state.agent_state import AgentState
from ...state.conversation.messages import DEFAULT, Message, Role
from ...state.parts.list_part import ListPart
from ...state.parts.state_part import PartItem, PartScope, PartValue, StatePart
from ...state.values.field_types import Count, Text, UtcDatetime
from .tokens import ReflectionUsage


class StableFact(PartValue):
    """A fact that a summary keeps."""

    key: Text
    value: Text
    confidence: Share = 0.8


class SummaryRecord(PartItem):
    """One summary of the beginning of the conversation. The messages that it covers stay in the session.

    Attributes:
        id: Follows from the execution and the step.
        text: What the model reads in place of the covered messages.
        covered_from: Index of the first message that this summary adds to the one before.
        covered_upto: Index behind the last message that it covers.
        source: `model`, or `local` where the model gave no usable summary.
        usage: Tokens; None for a local one.
    """

    id: Text
    text: Text
    created_at: UtcDatetime
    step: Count
    covered_from: Count
    covered_upto: Count
    source: Text = "model"
    stable_facts: tuple[StableFact, ...] = ()
    active_goals: tuple[Text, ...] = ()
    open_questions: tuple[Text, ...] = ()
    discarded_obsolete: tuple[Text, ...] = ()
    usage: ReflectionUsage | None = None


class Summaries(ListPart[SummaryRecord]):
    """The summaries of the session, in order; each covers what those before it cover."""

    part_name = "smart_summaries"
    scope = PartScope.SESSION


class Compaction(StatePart):
    """Which messages of the conversation the model no longer sees as they are.

    Attributes:
        generation: The generation of the conversation that the indexes belong to.
        covered: Messages before this index are represented by the last summary.
        archived: Tool results before this index are shown as handles.
        pinned: Indexes of covered messages that the model still sees.
        facts: What summaries have found, and not declared obsolete.
        obsolete: Keys and values, as `key=value`, that must not come back.
    """

    part_name = "smart_compaction"
    scope = PartScope.SESSION
    generation: Count = 0
    covered: Count = 0
    archived: Count = 0
    pinned: tuple[Count, ...] = ()
    facts: tuple[StableFact, ...] = ()
    obsolete: tuple[Text, ...] = ()


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


Handle = Callable[[Message], Message]
"""Gives the form in which an archived tool result is shown; the same message where it stays as it is."""


@dataclass(frozen=True)
class CompactedConversation:
    """Compiles the conversation with the current tool trace, from the last compaction on.

    It walks over the messages that are shown, not over all of them, so that its cost does not grow with the session.

    Attributes:
        archived: Shows a tool result that is archived.
        recent: Shows one that is not, such as a very long one.
        summary_chars: Characters of the summary that are shown.
    """

    archived: Handle
    recent: Handle
    summary_chars: int

    def compile(self, state: AgentState) -> tuple[Message, ...]:
        """The chosen messages, in order."""
        return self.compile_with(state, compaction_of(state))

    def compile_with(self, state: AgentState, part: Compaction) -> tuple[Message, ...]:
        """The messages as another compaction would show them."""
        names = state.store.section_names()
        if names == (DEFAULT,):
            return self._conversation(state, part)
        shown: list[Message] = []
        for name in names:
            if name == DEFAULT:
                shown += self._conversation(state, part)
            else:
                shown += _without_former_traces(state, state.store.section(name).messages)
        return tuple(shown)

    def _conversation(self, state: AgentState, part: Compaction) -> tuple[Message, ...]:
        messages = state.store.section(DEFAULT).messages
        beginning: list[Message] = []
        if part.covered:
            beginning = [messages[index] for index in part.pinned]
            summary = last_summary(state)
            if summary is not None:
                beginning.append(Message.system(describe_summary(summary)[: self.summary_chars]))
        rest = [
            self.show(message, is_archived=index < part.archived)
            for index, message in enumerate(messages[part.covered :], part.covered)
        ]
        return (*beginning, *_without_former_traces(state, rest))

    def show(self, message: Message, *, is_archived: bool) -> Message:
        """A message as the model sees it."""
        if message.role is not Role.TOOL:
            return message
        return self.archived(message) if is_archived else self.recent(message)


def compaction_of(state: AgentState) -> Compaction:
    """The compaction of the conversation as it is; none where all messages were replaced since."""
    part = state.part(Compaction)
    generation = state.store.section(DEFAULT).generation
    return (
        part if part.generation == generation else part.replace(generation=generation, covered=0, archived=0, pinned=())
    )


def last_summary(state: AgentState) -> SummaryRecord | None:
    """The newest summary; None without one."""
    records = state.part(Summaries)
    return records[-1] if len(records) else None


def describe_summary(summary: SummaryRecord) -> str:
    """A summary as the model reads it."""
    lines = [f"Summary of the {summary.covered_upto} messages before this point:", summary.text]
    lists = (
        ("Facts", [f"{fact.key} = {fact.value}" for fact in summary.stable_facts]),
        ("Active goals", summary.active_goals),
        ("Open questions", summary.open_questions),
    )
    for title, items in lists:
        if items:
            lines += [f"{title}:", *(f"- {item}" for item in items)]
    return "\n".join(lines)


def newest_turn(messages: Sequence[Message], start: int) -> int:
    """The index of the last message with tool calls from `start` on, whose results must stay; else the length."""
    for index in range(len(messages) - 1, start - 1, -1):
        if messages[index].tool_calls:
            return index
    return len(messages)


def is_boundary(messages: Sequence[Message], index: int) -> bool:
    """Tell whether the conversation can be cut before this index: no call is parted from its result there."""
    return index >= len(messages) or messages[index].role is not Role.TOOL


def pinned_of(messages: Sequence[Message], before: Compaction, cut: int) -> tuple[int, ...]:
    """The indexes that stay in sight when all before `cut` is covered.

    They are the system messages, the first message of the user, and the latest one.
    """
    newly = range(before.covered, cut)
    systems = [i for i in (*before.pinned, *newly) if messages[i].role is Role.SYSTEM]
    users = [i for i in (*before.pinned, *newly) if messages[i].role is Role.USER]
    return tuple(sorted({*systems, *users[:1], *users[-1:]}))


def _without_former_traces(state: AgentState, messages: Sequence[Message]) -> list[Message]:
    current = state.execution.tag_id if state.execution is not None else None
    return [each for each in messages if not each.is_trace or each.metadata.get("execution_id") == current]
