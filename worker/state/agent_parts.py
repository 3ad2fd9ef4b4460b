"""The changes to an agent's context (messages, prompt, metadata, model), and the parts that capabilities own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Self

from .agent_fields import AgentFields, schema_version_of
from .conversation.context import AgentContext, LLMConfig, ResponseFormat
from .conversation.messages import DEFAULT, Message, MessageStore
from .execution.execution import ExecutionState
from .parts.state_part import PartScope, check_part_name
from .parts.storage import NO_PARTS, AnyPart, Part, PartList, StoredParts
from .values.field_types import utcnow
from .values.frozen import FrozenMap

_OF_EXECUTION = ".x"
_NO_LISTS: Mapping[str, PartList] = FrozenMap[PartList]()


class AgentWithParts(AgentFields):
    """The context and the parts of `AgentState`. The running execution sees a changed context from its next step on.

    Parts of scope execution are in the execution and end with it.
    """

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
        return self.model_copy(update={"llm_config": config})._change(now)

    # --- parts ------------------------------------------------------------------------------------------------

    def part(self, kind: type[Part]) -> Part:
        """The part of this kind, or its default where the state holds none.

        Raises:
            StateUnreadable: The value stored under its name does not fit the class.
        """
        found = self._stored_parts(kind.scope).part(kind)
        return kind() if found is None else found

    def has_part(self, kind: type[AnyPart]) -> bool:
        """Whether the state holds a part of this kind."""
        return check_part_name(kind) in self._stored_parts(kind.scope)

    def with_part(self, part: AnyPart, *, now: datetime | None = None) -> Self:
        """The part in place of the former one of its kind; of a list, only items that are new are written.

        A part of scope execution begins the next execution where there is none.
        """
        return self._with_stored_parts(type(part), self._stored_parts(part.scope).with_part(part), now)

    def without_part(self, kind: type[AnyPart], *, now: datetime | None = None) -> Self:
        """The part removed, so that its default is read; unchanged where the state holds none."""
        if not self.has_part(kind):
            return self
        return self._with_stored_parts(kind, self._stored_parts(kind.scope).without(kind.part_name), now)

    @property
    def part_lists(self) -> Mapping[str, PartList]:
        """Every list of every capability by the name it is stored under: an execution's list is `<name>.x`."""
        parts, execution = self.parts, self.execution
        if parts is None and (execution is None or execution.parts is None):
            return _NO_LISTS
        lists: dict[str, PartList] = dict(parts.lists) if parts is not None else {}
        if execution is not None and execution.parts is not None:
            lists.update({f"{name}{_OF_EXECUTION}": each for name, each in execution.parts.lists.items()})
        return lists

    def with_part_lists(self, lists: Mapping[str, PartList]) -> Self:
        """The state with exactly these lists, named as by `part_lists`, as a store reads them back."""
        if not lists:
            return self
        execution, parts = self.execution, self.parts
        if parts is not None:
            parts = parts.with_lists({n: each for n, each in lists.items() if not n.endswith(_OF_EXECUTION)})
        if execution is not None and execution.parts is not None:
            own = {n.removesuffix(_OF_EXECUTION): each for n, each in lists.items() if n.endswith(_OF_EXECUTION)}
            execution = execution.with_parts(execution.parts.with_lists(own))
        return self._with(parts=parts, execution=execution)

    def _stored_parts(self, scope: PartScope) -> StoredParts:
        if scope is PartScope.SESSION:
            return self.parts or NO_PARTS
        return (self.execution.parts if self.execution is not None else None) or NO_PARTS

    def _with_stored_parts(self, kind: type[AnyPart], parts: StoredParts, now: datetime | None) -> Self:
        changed: dict[str, Any] = {}
        stored = parts if parts.values or parts.lists else None
        moment = now or utcnow()
        if kind.scope is PartScope.SESSION:
            changed["parts"] = stored
        else:
            execution = self.execution or ExecutionState(number=self.execution_count + 1, created_at=moment)
            changed["execution"] = execution.with_parts(stored)
        after = self._change(moment, **changed)
        return after._with(schema_version=schema_version_of(after.parts, after.execution))
