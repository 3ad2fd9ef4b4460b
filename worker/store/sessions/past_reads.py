"""Reading a session as a step has committed it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import from_json

from ...errors import InvalidInput, NotKept, StoreUnavailable
from ...state.agent_state import AgentState
from ...state.codec.join import Head, read_head
from ...state.conversation.messages import Message, Span
from ...state.execution.steps import AgentStep, StepExecution
from ...state.past.old_values import Position, position_of
from ...state.past.past_states import OldValues, StoredPast, past_state
from ...state.past.seen_requests import ModelRequest, seen_request
from .. import fields
from ..context import SessionScope, StorePart
from ..database import Command
from ..packing import read_steps, unpack, unpack_step
from ..past import Past, read_old_values
from .loading import missing_error, require_head

_TORN_READS: Final = 20


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
        return past_state(*self._read_past(session_id, address, is_alone=False))

    def request_at(self, session_id: str, address: StepAddress) -> ModelRequest:
        """Read what the model saw in a step; raises as `state_at`, but the result names what is not kept of it."""
        return seen_request(session_id, *self._read_past(session_id, address, is_alone=True))

    def steps_after(self, session_id: str, address: StepAddress) -> Iterator[tuple[str, AgentStep]]:
        """Read the committed steps behind one, of its execution and of later ones, each with the id of its execution.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            StateUnreadable: One cannot be read.
        """
        keys, database = self._context.keys(session_id), self._context.database
        (named,) = database.pipeline("past.executions", [("HGET", keys.session, "executions")])
        names = fields.strings(named)
        first = names.index(address.execution_id or names[-1])
        lists: list[Command] = [
            ("LRANGE", keys.steps(name), address.number if place == 0 else 0, -1)
            for place, name in enumerate(names[first:])
        ]
        for name, entries in zip(names[first:], database.pipeline("past.steps", lists), strict=True):
            for record in read_steps(database.pipeline, keys, entries):
                yield name, StepExecution.from_json(record).step

    def _read_past(self, session_id: str, address: StepAddress, *, is_alone: bool) -> tuple[StoredPast, Position]:
        scope = self._context.session(session_id)
        for _ in range(_TORN_READS):
            found = _PastRead(scope, address, is_alone=is_alone).read()
            if found is not None:
                return found
        raise StoreUnavailable(f"session {session_id} changes too fast to be read; try again")


class _PastRead:
    """One read of all that the state at a step is made of; `is_alone`: of the records that of this step alone."""

    def __init__(self, scope: SessionScope, address: StepAddress, *, is_alone: bool) -> None:
        self._scope, self._address, self._is_alone = scope, address, is_alone

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
        plain = [list(map(unpack, entries)) for entries in items]
        messages: dict[str, Sequence[bytes]] = dict(zip(sections, plain, strict=False))
        grown: dict[str, Sequence[bytes]] = dict(zip(lists, plain[len(sections) :], strict=True))
        stored = StoredPast(
            head=head,
            position=Position(position_of(head.state).execution, head.steps),
            is_committed=past.is_committed,
            old=values,
            records=_unpack_records(self._needed(entries), head, messages, values, at),
            asked=asked or b"",
            messages=lambda name, length: messages[name][:length],
            items=lambda name, length: grown[name][:length],
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

    def _needed(self, entries: Sequence[bytes]) -> Sequence[bytes]:
        """The entries of the steps that are read; the others may be packed over messages that are not kept."""
        if not self._is_alone:
            return entries
        return [entry if number == self._address.number else b"" for number, entry in enumerate(entries, 1)]

    def _check(self, execution: int, steps: int, execution_id: str) -> Position:
        if not 1 <= self._address.number <= steps:
            advice = f"execution {execution_id} has {steps} committed steps, which are numbered from 1."
            raise InvalidInput(self._address.field, str(self._address), advice)
        return Position(execution, self._address.number)


def _unpack_records(
    entries: Sequence[bytes], head: Head, messages: Mapping[str, Sequence[bytes]], old: OldValues, at: Position
) -> list[bytes]:
    """The records of steps, packed over messages of the present sections, or of sections that were replaced."""
    sections = head.state.store.sections

    def said(span: Span) -> Sequence[bytes]:
        if span.section in sections and sections[span.section].generation == span.generation:
            return messages[span.section][span.start : span.stop]
        kept = old.first(f"messages/{span.section}/{span.generation}", at)
        replaced: list[Any] = [] if kept is None else from_json(kept.value)[span.start : span.stop]
        return [Message.from_dict(each).to_json() for each in replaced]

    found: list[bytes] = []
    for place, entry in enumerate(entries):
        record = unpack_step(entry, said, f"steps[{place}]")
        if record is None:
            raise NotKept(f"steps[{place}]", at.step)
        found.append(record)
    return found


def _before(scope: SessionScope, past: Past | None) -> str:
    if not scope.settings.history_bytes:
        return "CELERY_AGENTS_HISTORY_BYTES is 0, so that no old values are kept"
    if past is None:
        return "the session was saved last by a version of this package that kept no old values"
    number, step = past.since
    return (
        f"the past of this session is known from step {step} of its execution {number} on: before, it was saved by a "
        "version of this package that kept no old values, was cleared, or has dropped them to stay within its bound"
    )
