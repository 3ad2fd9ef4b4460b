"""The conversation as the model sees it after compaction: pinned messages, the summary, and the rest with handles.

Everything here follows from the state alone. No message is taken out of the session: the part `Compaction` only says
from which index on the model sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...state.agent_state import AgentState
from ...state.conversation.messages import DEFAULT, Message, Role
from ...state.views.smart_parts import Compaction, Summaries, SummaryRecord

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
    current = state.execution.execution_id if state.execution is not None else None
    return [each for each in messages if not each.is_trace or each.metadata.get("execution_id") == current]
