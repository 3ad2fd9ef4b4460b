"""Reading a session as a step has committed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import from_json

from ...errors import InvalidInput, NotKept, StateUnreadable
from ...state.agent_state import AgentState
from ...state.codec.join import Head, StateParts, read_head, read_item
from ...state.conversation.messages import Message, Span
from ...state.execution.steps import AgentStep, StepExecution
from ...state.past.old_values import Position, position_of
from ...state.past.past_states import OldValues, StoredPast, past_parts
from ...state.past.seen_requests import ModelRequest, seen_request
from .. import fields
from ..context import SessionScope, StorePart
from ..database import Command
from ..packing import read_steps, unpack, unpack_step
from ..past import Past, read_old_values
from .joining import join_whole
from .loading import missing_error, read_whole, require_head

# In the JSON of a step that has carried out calls; a quoted one in a text has backslashes.
_CALLS: Final = b'"tool_executions":'


@dataclass(frozen=True, slots=True)
class StepAddress:
    """A committed step of a session.

    Attributes:
        number: From 1 within its execution.
        execution_id: None: the latest execution.
        field: Who gave it calls it so.
    """

    number: int
    execution_id: str | None = None
    field: str = "at"

    def __str__(self) -> str:
        return f"{self.number}" if self.execution_id is None else f"{self.execution_id}:{self.number}"


class PastReadVerbs(StorePart):
    """Reading sessions as they were."""

    def state_at(self, session_id: str, address: StepAddress) -> AgentState:
        """Read the state exactly as a step has committed it.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            InvalidInput: The session has no such step.
            NotKept: What it was at that step is not kept, or not any more.
            StateUnreadable: A part of it cannot be read.
            StoreUnavailable: No answer in time, or the session changes too fast to be read.
        """
        return join_whole(self.parts_at(session_id, address))[0]

    def parts_at(self, session_id: str, address: StepAddress) -> StateParts:
        """Read the same state with its lists as entries, which are not parsed; raises as `state_at`."""
        return past_parts(*self._read_past(session_id, address))

    def request_at(self, session_id: str, address: StepAddress) -> ModelRequest:
        """Read what the model saw in a step; raises as `state_at`, but the result names what is not kept of it."""
        return seen_request(session_id, *self._read_past(session_id, address))

    def steps_after(
        self, session_id: str, address: StepAddress, *, with_calls: bool = False
    ) -> list[tuple[str, AgentStep]]:
        """Read the committed steps behind one, of its execution and of later ones, each with the id of its execution.

        Args:
            with_calls: Only those that have carried out calls.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            InvalidInput: The session has no such execution any more.
            StateUnreadable: One cannot be read.
            StoreUnavailable: No answer in time, or the session changes too fast to be read.
        """
        scope = self._context.session(session_id)
        return [
            (name, StepExecution.from_json(record).step)
            for name, records in read_whole(session_id, lambda: _read_after(scope, address)).items()
            for record in records
            if _CALLS in record or not with_calls
        ]

    def _read_past(self, session_id: str, address: StepAddress) -> tuple[StoredPast, Position]:
        scope = self._context.session(session_id)
        return read_whole(session_id, lambda: _PastRead(scope, address).read())


def _read_after(scope: SessionScope, address: StepAddress) -> dict[str, list[bytes]] | None:
    """Read the records behind a step, by execution. None: the session was saved in between."""
    keys, database = scope.keys, scope.database
    named: Command = ("HMGET", keys.session, "version", "executions")
    ((version, stored),) = database.pipeline("past.executions", [named])
    if version is None:
        raise missing_error(scope.context, scope.session_id)
    names = fields.strings(stored)
    wanted = address.execution_id or next(reversed(names), "")
    if wanted not in names:
        raise InvalidInput(address.field, str(address), f"session {scope.session_id} does not keep this execution.")
    later = names[names.index(wanted) :]
    lists: list[Command] = [("LRANGE", keys.steps(name), address.number if name == wanted else 0, -1) for name in later]
    entries, damage = database.pipeline("past.steps", lists), None
    found = dict[str, list[bytes]]()
    try:
        found = {name: read_steps(database.pipeline, keys, each) for name, each in zip(later, entries, strict=True)}
    except StateUnreadable as error:
        damage = error
    ((after, _),) = database.pipeline("past.after", [named])
    if after != version:
        return None
    if damage is not None:
        raise damage
    return found


class _PastRead:
    """One read of all that the state at a step is made of."""

    def __init__(self, scope: SessionScope, address: StepAddress) -> None:
        self._scope, self._address = scope, address

    def read(self) -> tuple[StoredPast, Position] | None:
        """Read twice: what there is, and the lists. None: the session was saved in between."""
        scope, keys = self._scope, self._scope.keys
        named: Command = ("HMGET", keys.session, "version", "head", "past", "asked")
        # Pipelines, since a full Redis takes no transaction; the version is read first and last.
        (version, content, known, asked), old = scope.database.pipeline(
            "past.head", [named, ("HGETALL", keys.old_values)]
        )
        if version is None:
            raise missing_error(scope.context, scope.session_id)
        head, past = read_head(require_head(content)), Past.read(known)
        is_kept = past is not None and past.version == fields.number(version)
        values = read_old_values(old)
        execution_id, execution = self._execution(head, values.executions())
        sections, lists = head.state.store.sections, head.state.part_lists
        commands: list[Command] = [("LRANGE", keys.steps(execution_id), 0, -1)]
        commands += [("LRANGE", keys.section(name, each.generation), 0, -1) for name, each in sections.items()]
        commands += [("LRANGE", keys.part(name, each.generation), 0, -1) for name, each in lists.items()]
        entries, *items, (after,) = scope.database.pipeline(
            "past.lists", [*commands, ("HMGET", keys.session, "version")]
        )
        if after != version:
            return None
        at = self._check(execution, len(entries), execution_id)
        if past is None or not is_kept or at < past.since:
            raise NotKept("steps", at.step, _before(scope, past))
        messages: dict[str, Sequence[bytes]] = dict(zip(sections, items, strict=False))
        grown: dict[str, Sequence[bytes]] = dict(zip(lists, items[len(sections) :], strict=True))
        stored = StoredPast(
            head=head,
            position=Position(position_of(head.state).execution, head.steps),
            is_committed=past.is_committed,
            old=values,
            records=entries,
            record=_Records(entries, head, messages, old=values, at=at).read,
            asked=asked or b"",
            messages=lambda name, length: messages[name][:length],
            items=lambda name, length: grown[name][:length],
            unpack=unpack,
        )
        return stored, at

    def _execution(self, head: Head, earlier: dict[str, Position]) -> tuple[str, int]:
        """Id and number of the execution that is asked for."""
        wanted, execution = self._address.execution_id, head.state.execution
        if execution is not None and wanted in (None, execution.execution_id):
            return execution.execution_id, execution.number
        if wanted in earlier:
            return wanted, earlier[wanted].execution
        advice = "the session has had no execution."
        if execution is not None:
            latest = execution.execution_id
            advice = f"the session has no such execution, or does not keep its past; the latest one is {latest}."
        raise InvalidInput(self._address.field, str(self._address), advice)

    def _check(self, execution: int, steps: int, execution_id: str) -> Position:
        if not 1 <= self._address.number <= steps:
            advice = f"execution {execution_id} has {steps} committed steps, which are numbered from 1."
            raise InvalidInput(self._address.field, str(self._address), advice)
        return Position(execution, self._address.number)


class _Records:
    """The records of steps, packed over messages of the present sections, or of sections that were replaced."""

    def __init__(
        self,
        entries: Sequence[bytes],
        head: Head,
        messages: Mapping[str, Sequence[bytes]],
        *,
        old: OldValues,
        at: Position,
    ) -> None:
        self._entries, self._sections, self._messages = entries, head.state.store.sections, messages
        self._old, self._at = old, at
        self._read: dict[int, StepExecution] = {}

    def read(self, number: int) -> StepExecution:
        """The record of a step, from 1."""
        if number not in self._read:
            part = f"steps[{number - 1}]"
            record = unpack_step(self._entries[number - 1], self._said, part)
            if record is None:
                raise NotKept(part, self._at.step)
            self._read[number] = read_item(StepExecution, record, part)
        return self._read[number]

    def _said(self, span: Span) -> Sequence[bytes]:
        present = self._sections.get(span.section)
        if present is not None and present.generation == span.generation:
            return list(map(unpack, self._messages[span.section][span.start : span.stop]))
        kept = self._old.first(f"messages/{span.section}/{span.generation}", self._at)
        replaced: list[Any] = [] if kept is None else from_json(kept.value)[span.start : span.stop]
        return [Message.from_dict(each).to_json() for each in replaced]


def _before(scope: SessionScope, past: Past | None) -> str:
    if not scope.settings.history_bytes:
        return "CELERY_AGENTS_HISTORY_BYTES is 0, so that no old values are kept"
    if past is None:
        return "the session was saved last by a version of this package that kept no old values"
    number, step = past.since
    return (
        f"the past of this session is known from step {step} of its execution {number} on: before, it was the session "
        "that it is a copy of, was saved by a version of this package that kept no old values, was cleared, or has "
        "dropped them to stay within its bound"
    )
