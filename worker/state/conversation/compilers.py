"""Compilers choose the messages that a model sees. They filter when messages are read; nothing is deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .messages import DEFAULT, Message, MessageStore

if TYPE_CHECKING:
    from ..agent_state import AgentState


class MessageCompiler(Protocol):
    """Chooses messages from the sections of a state."""

    def compile(self, state: AgentState) -> tuple[Message, ...]:
        """The messages the model is to read, in order, without the system prompt."""
        ...


@dataclass(frozen=True)
class ConversationWithCurrentToolTrace:
    """Chooses the conversation, and the tool traces of the current execution only."""

    def compile(self, state: AgentState) -> tuple[Message, ...]:
        """The chosen messages, in order."""
        return choose_current(state.store, state.execution.tag_id if state.execution else None)


@dataclass(frozen=True)
class SelectedSections:
    """Chooses the named sections in this order and skips missing ones; without names, the default section."""

    names: tuple[str, ...] = ()

    def compile(self, state: AgentState) -> tuple[Message, ...]:
        """The chosen messages, in order."""
        return tuple(message for name in self.names or (DEFAULT,) for message in state.store.section(name).messages)


@dataclass(frozen=True)
class AllSections:
    """Chooses every message."""

    def compile(self, state: AgentState) -> tuple[Message, ...]:
        """The chosen messages, in order."""
        return every_message(state.store)


def choose_current(store: MessageStore, execution_id: str | None) -> tuple[Message, ...]:
    """The conversation, and the tool traces of an execution."""
    return tuple(each for each in every_message(store) if not each.is_trace or _is_of(each, execution_id))


def every_message(store: MessageStore) -> tuple[Message, ...]:
    """The messages of all sections in the order a model reads them."""
    sections = [store.section(name).messages for name in store.section_names()]
    return sections[0] if len(sections) == 1 else tuple(message for section in sections for message in section)


def _is_of(message: Message, execution_id: str | None) -> bool:
    return execution_id is not None and message.metadata.get("execution_id") == execution_id
