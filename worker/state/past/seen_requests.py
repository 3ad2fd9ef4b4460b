"""The request that a model saw in a committed step: messages by the record of the step, the rest as it was kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from pydantic_core import from_json

from ...errors import NotKept
from ..conversation.compilers import choose_current
from ..conversation.messages import Extent, Message, MessageStore, Section
from ..conversation.pairing import repair_pairs
from .chosen_messages import read_chosen
from .old_values import Position
from .past_states import StoredPast

R = TypeVar("R")

_PYDANTIC_AI: Final = "pydantic_ai_agent"
_NOTES: Final = {
    "not_asked": "The model was not asked in this step.",
    "again": (
        "The worker that had asked was lost before its commit: prompt and tools are those of the worker that has "
        "committed the step, and settings those of the session."
    ),
    "unknown": "What was asked is not known: these are the messages that an agent sees unless it chooses others.",
    "too_long": (
        "The agent has sent other messages than these: a hook or a processor has made them, and they were too long to "
        "be kept."
    ),
}
"""What a fact of a request means for its reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """The request that a model saw.

    Attributes:
        step: Its number within the execution.
        agent, model: Their names; "" where they are not known. The model is the one that answered.
        system_prompt: None where it is not kept.
        messages: Without the system prompt, calls and results in pairs. None where they are not kept.
        tools: Name, description and JSON Schema of the parameters of each. None where they are not kept.
        settings: Temperature and the like, without headers. Of a driver that does not tell what it sends, such as a
            function: those of the session.
        response_format: The shape that the answer must have; None for text.
        not_kept: Names of values that are not kept any more.
        notes: What else keeps this from being the request to the letter, as sentences.
    """

    session_id: str
    execution_id: str
    step: int
    agent: str = ""
    model: str = ""
    system_prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    tools: tuple[Mapping[str, Any], ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    response_format: Mapping[str, Any] | None = None
    not_kept: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        shown = None if self.messages is None else [message.to_dict() for message in self.messages]
        tools = None if self.tools is None else list(self.tools)
        return {**values, "messages": shown, "tools": tools, "not_kept": list(self.not_kept), "notes": list(self.notes)}


def seen_request(session_id: str, stored: StoredPast, at: Position) -> ModelRequest:
    """Put the request of a step together.

    Raises:
        StateUnreadable: A part of what is stored is damaged.
    """
    return _Seen(stored, at).request(session_id)


class _Seen:
    """One reading of a request; it notes what is not kept."""

    def __init__(self, stored: StoredPast, at: Position) -> None:
        self._stored, self._at = stored, at
        self._record = stored.record(at.step)
        self._not_kept: list[str] = []

    def request(self, session_id: str) -> ModelRequest:
        """Look up what was kept."""
        facts = self._try(self._facts, {"unknown": True})
        execution_id = self._execution_id()
        tools = self._text(facts, "tools")
        return ModelRequest(
            session_id=session_id,
            execution_id=execution_id,
            step=self._at.step,
            agent=facts.get("agent", ""),
            model=self._record.step.inference_response.model or facts.get("model") or "",
            system_prompt=self._prompt(facts),
            messages=self._try(lambda: self._messages(facts), None),
            tools=None if tools is None else tuple(from_json(tools)),
            settings=facts.get("settings") or {},
            response_format=facts.get("response_format"),
            not_kept=tuple(dict.fromkeys(self._not_kept)),
            notes=tuple(text for name, text in _NOTES.items() if facts.get(name)),
        )

    def _try(self, read: Callable[[], R], otherwise: R) -> R:
        try:
            return read()
        except NotKept as error:
            self._not_kept.append(error.name)
            return otherwise

    def _facts(self) -> Mapping[str, Any]:
        found = self._stored.old.first("request", self._at)
        facts = self._stored.asked if found is None else found.value
        if not facts:
            raise NotKept("request", self._at.step)
        return from_json(facts)

    def _text(self, facts: Mapping[str, Any], name: str) -> bytes | None:
        """A text that the facts name; None where they name none, or where it is not kept."""
        digest = facts.get(name)
        text = None if digest is None else self._stored.old.texts.get(digest)
        if digest is not None and text is None:
            self._not_kept.append(name)
        return text

    def _execution_id(self) -> str:
        present = self._stored.head.state.execution
        if present is not None and present.number == self._at.execution:
            return present.execution_id
        return next(name for name, at in self._stored.old.executions().items() if at.execution == self._at.execution)

    def _prompt(self, facts: Mapping[str, Any]) -> str | None:
        """The prompt; of an agent of pydantic-ai that was asked by a lost worker, as its answer keeps it."""
        kept = self._text(facts, "prompt")
        found = self._try(self._instructions, None) if kept is None or facts.get("again") else None
        return found if found is not None else None if kept is None else from_json(kept)

    def _messages(self, facts: Mapping[str, Any]) -> tuple[Message, ...] | None:
        """The messages that were chosen of those that were there."""
        if facts.get("not_asked"):
            return ()
        before, inputs = Position(self._at.execution, self._at.step - 1), self._record.step.inputs
        if "messages" in facts:
            pieces = self._text(facts, "messages")
            if pieces is None:
                return None
            return tuple(read_chosen(from_json(pieces), lambda name: self._read(name, inputs[name], before)))
        sections = {
            name: Section(generation=extent.generation, messages=self._read(name, extent, before))
            for name, extent in inputs.items()
        }
        store = MessageStore().with_sections(sections)
        return repair_pairs(choose_current(store, self._stored.execution(self._at).tag_id))

    def _read(self, name: str, extent: Extent, at: Position) -> tuple[Message, ...]:
        items = self._stored.section(name, extent, at)
        return tuple(Message.from_json(self._stored.unpack(each)) for each in items)

    def _instructions(self) -> str | None:
        """The instructions of an agent of pydantic-ai, which its answers keep; None for another agent."""
        said = list(self._record.step.output_messages)
        for span in self._record.step.outputs:
            said += self._read(span.section, Extent(span.generation, span.stop), self._at)[span.start :]
        return next((found for each in said if (found := _find_instructions(each)) is not None), None)


def _find_instructions(message: Message) -> str | None:
    kept = None if message.provider is None else message.provider.get(_PYDANTIC_AI)
    return None if kept is None else next(_walk(kept), "")


def _walk(value: Any) -> Iterator[str]:
    """Every text under the name `instructions`, the last one first."""
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, Any]", value)
        if isinstance(mapping.get("instructions"), str):
            yield mapping["instructions"]
        for each in mapping.values():
            yield from _walk(each)
    elif isinstance(value, (list, tuple)):
        for each in reversed(cast("list[Any]", value)):
            yield from _walk(each)
