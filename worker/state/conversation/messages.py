"""The conversation: messages, sections of them, and the store that holds the sections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic.functional_validators import AfterValidator

from ...errors import InvalidInput
from ..execution.tool_calls import ToolCall
from ..values.field_types import Count, Flag, FrozenMapField, Text, check_kind
from ..values.frozen import FrozenDict, FrozenMap, Json
from ..values.ids import ID_PATTERN
from ..values.value import Value

SUMMARY = "summary"
BUFFER = "buffer"
DEFAULT = "messages"
INFERENCE_ORDER = (SUMMARY, BUFFER, DEFAULT)
"""The order in which a model reads the sections; any others follow in the order they were added."""


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Message(Value):
    """One message.

    Attributes:
        tool_calls: Calls an assistant's message asks for.
        tool_call_id: The call a tool's message answers.
        name: The tool's, or the speaker's.
        is_error: A tool's message reports a failure.
        metadata: Tags: `step_id`, `execution_id`, `agent_id`, and `is_trace` on messages of steps that were not final;
            `was_blocked` and `is_from_outside` on results that a person refused, or that a service brought.
        provider: What the driver that wrote it needs back on the next turn; opaque.
    """

    role: Role
    content: Text = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: Text | None = None
    name: Text | None = None
    is_error: Flag = False
    metadata: FrozenDict = FrozenDict()
    provider: FrozenDict | None = None

    @classmethod
    def system(cls, content: str) -> Message:
        """A message with instructions."""
        return cls(role=Role.SYSTEM, content=content)

    @classmethod
    def user(cls, content: str) -> Message:
        """A message of the user."""
        return cls(role=Role.USER, content=content)

    @classmethod
    def assistant(cls, content: str, tool_calls: Iterable[ToolCall] = ()) -> Message:
        """A message of the model."""
        return cls(role=Role.ASSISTANT, content=content, tool_calls=tuple(tool_calls))

    @property
    def is_trace(self) -> bool:
        """Tell whether a step that was not final wrote the message."""
        return self.metadata.get("is_trace") is True

    def with_tags(self, tags: Mapping[str, Json]) -> Message:
        """The same with these metadata added; the values must be frozen already."""
        return self._with(metadata=FrozenDict.of({**self.metadata, **tags}))

    def with_content(self, content: str) -> Message:
        """The same with another text; the provider's data, which hold the former one, are dropped."""
        return self.model_copy(update={"content": content, "provider": None})

    def as_result(self, content: str) -> Message:
        """The result of the same call with another text, and no error."""
        kept = {name: self.metadata[name] for name in self.metadata if name not in ("was_blocked", "is_from_outside")}
        return self.model_copy(update={"content": content, "is_error": False, "metadata": FrozenDict.of(kept)})

    def with_tool_calls(self, tool_calls: tuple[ToolCall, ...]) -> Message:
        """The same with other calls; the provider's data, which hold the former ones, are dropped."""
        return self.model_copy(update={"tool_calls": tool_calls, "provider": None})


class Extent(NamedTuple):
    """How much of an append-only list: which generation of it, and how many items from its beginning."""

    generation: Count
    length: Count


class Span(NamedTuple):
    """The place of a step's messages in the store: items start to stop - 1 of a section's generation."""

    section: Text
    generation: Count
    start: Count
    stop: Count


class Section(Value):
    """An append-only list of messages. Replacing its messages begins a new generation."""

    generation: Count = 0
    messages: tuple[Message, ...] = ()

    @property
    def extent(self) -> Extent:
        """The generation and the length of the section."""
        return Extent(self.generation, len(self.messages))

    def with_messages_added(self, messages: tuple[Message, ...]) -> Section:
        """Append messages."""
        return self._with(messages=self.messages + messages)

    def with_messages_replaced(self, messages: tuple[Message, ...]) -> Section:
        """Replace all messages and begin a new generation."""
        return Section(generation=self.generation + 1, messages=messages)

    def after(self, before: Section | None) -> Section:
        """The same messages with the generation they have when they come after that section."""
        if before is None or self is before:
            return self
        if self.generation == before.generation and self.messages[: len(before.messages)] == before.messages:
            return self
        return self._with(generation=before.generation + 1)


_EMPTY = Section()


def _check_names(sections: FrozenMap[Section]) -> FrozenMap[Section]:
    for name in sections:
        _check_name(name)
    return sections


def _check_name(name: str) -> None:
    if ID_PATTERN.fullmatch(name) is None:
        advice = "a section's name is 1 to 64 letters, digits, '_' or '-', beginning with a letter or digit."
        raise InvalidInput("section", name, advice)


class MessageStore(Value):
    """All messages by section: `summary`, `buffer`, `messages` (the default one), and any others."""

    sections: Annotated[FrozenMapField[Section], AfterValidator(_check_names)] = FrozenMap[Section]()

    def section(self, name: str = DEFAULT) -> Section:
        """An empty one when there is none of this name."""
        return self.sections.get(name, _EMPTY)

    @property
    def extents(self) -> FrozenMap[Extent]:
        """How much each section holds now."""
        return FrozenMap[Extent].of({name: section.extent for name, section in self.sections.items()})

    def section_names(self) -> tuple[str, ...]:
        """In the order a model reads them."""
        known = tuple(name for name in INFERENCE_ORDER if name in self.sections)
        return known + tuple(name for name in self.sections if name not in INFERENCE_ORDER)

    def append(self, messages: Iterable[Message], section: str = DEFAULT) -> MessageStore:
        """The same store when there is nothing to append."""
        added = tuple(check_kind("message", each, Message) for each in messages)
        return self._with_section(section, self.section(section).with_messages_added(added)) if added else self

    def replace(self, messages: Iterable[Message], section: str = DEFAULT) -> MessageStore:
        """Another content for a section: a new generation of it."""
        return self._with_section(section, self.section(section).with_messages_replaced(tuple(messages)))

    def with_sections(self, sections: Mapping[str, Section]) -> MessageStore:
        """The same with exactly these sections, as a store reads them back."""
        return self._with(sections=FrozenMap[Section].of(sections))

    def upto(self, extents: Mapping[str, Extent]) -> MessageStore:
        """The store as it was at these extents; sections of another generation are left out."""
        return self._with(
            sections=FrozenMap[Section].of(
                {
                    name: section._with(messages=section.messages[: extents[name].length])
                    for name, section in self.sections.items()
                    if name in extents and extents[name].generation == section.generation
                }
            )
        )

    def after(self, before: MessageStore) -> MessageStore:
        """This store as the successor of that one: what does not continue a section replaces it."""
        gone = {name: _EMPTY for name in before.sections if name not in self.sections}
        sections = {**self.sections, **gone}
        return self._with(
            sections=FrozenMap[Section].of(
                {name: section.after(before.sections.get(name)) for name, section in sections.items()}
            )
        )

    def _with_section(self, name: str, section: Section) -> MessageStore:
        _check_name(name)
        return self._with(sections=self.sections.with_item(name, section))
