"""The changes to an agent's context: its messages, its prompt, its metadata and its model."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Self

from .agent_view import AgentView
from .conversation.context import AgentContext, LLMConfig, ResponseFormat
from .conversation.messages import DEFAULT, Message, MessageStore


class AgentWithContext(AgentView):
    """The changes to the context of `AgentState`. The running execution sees them from its next step on."""

    def with_context(self, context: AgentContext, *, now: datetime | None = None) -> Self:
        """Replace the context; messages that do not continue the present ones replace them."""
        if context.store is self.store:
            return self._change(now, context=context)
        store = context.store.after(self.store)
        replaced = any(
            store.section(name).generation != section.generation for name, section in self.store.sections.items()
        )
        execution = self.execution.with_steps_written_anew() if self.execution and replaced else self.execution
        return self._change(now, context=context.with_store(store), execution=execution)

    def with_user_message(self, message: str | Message, *, now: datetime | None = None) -> Self:
        """Append a message from the user, untagged."""
        return self.with_messages_added((Message.user(message) if isinstance(message, str) else message,), now=now)

    def with_messages_added(
        self, messages: Iterable[Message], section: str = DEFAULT, *, now: datetime | None = None
    ) -> Self:
        """Append messages to a section, the default one unless named."""
        return self._change(now, context=self.context.with_messages_added(messages, section))

    def with_messages(
        self, messages: Iterable[Message], section: str = DEFAULT, *, now: datetime | None = None
    ) -> Self:
        """Replace the messages of a section, the default one unless named. Steps keep the messages they said."""
        return self.with_message_store(self.store.replace(messages, section), now=now)

    def with_message_store(self, store: MessageStore, *, now: datetime | None = None) -> Self:
        """Replace the messages of all sections."""
        return self.with_context(self.context.with_store(store), now=now)

    def with_metadata(self, key: str, value: Any, *, now: datetime | None = None) -> Self:
        """Set one entry of the metadata. Raises `InvalidInput`, with the path, when the value is no JSON."""
        return self.with_context(self.context.with_metadata(key, value), now=now)

    def without_metadata(self, key: str, *, now: datetime | None = None) -> Self:
        """Remove one entry of the metadata."""
        return self.with_context(self.context.without_metadata(key), now=now)

    def with_system_prompt(self, prompt: str, *, now: datetime | None = None) -> Self:
        """Set the session's own prompt; empty returns to the agent's."""
        return self.with_context(self.context.with_system_prompt(prompt), now=now)

    def with_response_format(self, response_format: ResponseFormat | None, *, now: datetime | None = None) -> Self:
        """Set the shape of the final answer; None returns to the agent's."""
        return self.with_context(self.context.with_response_format(response_format), now=now)

    def with_llm_config(self, config: LLMConfig | None, *, now: datetime | None = None) -> Self:
        """Set a model for this agent alone; None returns to the definition's model."""
        return self._change(now, llm_config=config)
