"""Reading an execution step by step: some of its steps, the step that is due, and what its events tell.

The conversation is not read, and of the steps those that are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from ...errors import StateUnreadable
from ...moments import unix_ms
from ...state.codec.join import Head, read_head
from ...state.execution.execution import ExecutionState
from ...state.execution.steps import StepExecution
from .. import fields
from ..context import SessionScope, StorePart
from ..control import ControlFields, control_command
from ..database import Command, Reply
from ..event_records import Event
from ..events import parse_events
from ..journal import NOTHING_JOURNALED, Journal, read_journal
from ..packing import read_steps
from ..records import Hold
from .loading import missing_error, read_whole, require_head

_MOST_EVENTS: Final = 10_000
# Times of steps follow an estimate of Redis's clock, those of events its clock.
_CLOCK_MARGIN_MS: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentStep:
    """The step that an execution is at, which is not committed.

    Attributes:
        phase: "run", "wait", "end" or "parked". "end": the execution ended in this step, before its commit.
        claim: The claim that has the step; "" for none.
        worker: The worker of the claim, dead or alive.
        is_leased: The lease of the claim is alive.
        attempts: How often the step was claimed since it waited last.
        not_before_ms: When it may be claimed at the earliest (Redis ms); 0 when at once.
        hold: Who suspended the session; None: nobody.
        journal: What the step has obtained.
    """

    number: int
    phase: str
    claim: str
    worker: str
    is_leased: bool
    attempts: int
    not_before_ms: int
    hold: Hold | None
    journal: Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredExecution:
    """The latest execution of a session, with some of its steps, as it is stored at one moment.

    Attributes:
        status: Of the session, as in its header.
        execution: Without its steps. None: the session has had no execution.
        committed: How many steps are committed.
        before: The committed step before `steps`; None where these begin with the first.
        steps: Committed steps that follow each other.
        current: The step after the committed ones. None: the execution has ended with its last commit.
        events: Of this execution since the step `before`, the oldest first; the store keeps the newest thousand or so.
        definition: The agent's definition as it was when the session was created; empty before the first commit.
        now_ms: Redis's time.
    """

    session_id: str
    agent: str
    status: str
    execution: ExecutionState | None
    committed: int = 0
    before: StepExecution | None = None
    steps: tuple[StepExecution, ...] = ()
    current: CurrentStep | None = None
    events: tuple[Event, ...] = ()
    definition: Any = None
    now_ms: int


class ExecutionReadVerbs(StorePart):
    """Reading steps without the whole session."""

    def execution(self, session_id: str, first_step: int, limit: int) -> StoredExecution:
        """Read the latest execution, and of its committed steps at most `limit` from this number on.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            StateUnreadable: A part of it cannot be read.
            StoreUnavailable: No answer in time, or the session changes too fast to be read.
        """
        scope = self._context.session(session_id)
        return read_whole(session_id, lambda: _read(scope, first_step, limit))


def _read(scope: SessionScope, first_step: int, limit: int) -> StoredExecution | None:
    """Read once; None where the session was saved or claimed meanwhile."""
    keys = scope.keys
    names = ("version", "agent", "status", "head", "definition")
    (version, agent, status, head, definition), control = scope.database.transaction(
        "execution.head", [("HMGET", keys.session, *names), control_command(keys)]
    )
    if version is None:
        raise missing_error(scope.context, scope.session_id)
    read, at = read_head(require_head(head)), ControlFields.read(control)
    execution = read.state.execution
    try:
        before, steps = _read_steps(scope, read, first_step, limit) if execution is not None else (None, ())
    except StateUnreadable:
        # The steps of a later version do not fit, and then nothing is wrong with the session.
        (now,) = scope.database.pipeline("execution.check", [("HGET", keys.session, "version")])
        if now != version:
            return None
        raise
    since_ms = 0 if execution is None else unix_ms(execution.created_at if before is None else before.completed_at)
    found = StoredExecution(
        session_id=scope.session_id,
        agent=fields.text(agent),
        status=fields.text(status),
        execution=execution,
        committed=read.steps,
        before=before,
        steps=steps,
        definition=fields.read_json(definition, "definition") if definition else None,
        now_ms=0,
    )
    return _with_current(scope, found, (version, at), max(0, since_ms - _CLOCK_MARGIN_MS))


def _read_steps(
    scope: SessionScope, head: Head, first_step: int, limit: int
) -> tuple[StepExecution | None, tuple[StepExecution, ...]]:
    """The steps from a number on, and the one before them."""
    assert head.state.execution is not None
    first = max(0, first_step - 2)
    last = min(head.steps, first_step - 1 + limit) - 1
    if last < first:
        return None, ()
    (items,) = scope.database.pipeline(
        "execution.steps", [("LRANGE", scope.keys.steps(head.state.execution.execution_id), first, last)]
    )
    found = read_steps(scope.database.pipeline, scope.keys, items, first)
    steps = tuple(_parse_step(item, first + place) for place, item in enumerate(found))
    return (None, steps) if first_step == 1 else (steps[0] if steps else None, steps[1:])


def _parse_step(item: bytes, place: int) -> StepExecution:
    try:
        return StepExecution.from_json(item)
    except ValidationError:
        raise StateUnreadable(f"steps[{place}]", "it is no step") from None


def _with_current(
    scope: SessionScope, found: StoredExecution, seen: tuple[bytes, ControlFields], since_ms: int
) -> StoredExecution | None:
    """Add the current step, the events and the time; None where the session is at another place by now.

    Args:
        seen: Its version and its control fields, as they were read first.
    """
    keys, (seen_version, before) = scope.keys, seen
    reads: list[Command] = [
        ("HGET", keys.session, "version"),
        control_command(keys),
        ("HGETALL", keys.journal(before.execution, before.step)),
        ("EXISTS", keys.shard.lease(before.claim or "-")),
        ("XRANGE", keys.events, f"{since_ms}-0", "+", "COUNT", _MOST_EVENTS),
        scope.clock.now(),
    ]
    version, control, journal, is_leased, events, now = scope.database.transaction("execution.current", reads)
    at = ControlFields.read(control)
    is_there = (at.execution, at.step, at.claim) == (before.execution, before.step, before.claim)
    if version != seen_version or not is_there:
        return None
    parsed = read_journal(journal) if journal else NOTHING_JOURNALED
    return replace(
        found,
        current=_current_step(found, at, bool(is_leased), parsed),
        events=_events_of(scope, at.execution, events),
        now_ms=scope.clock.milliseconds(now),
    )


def _current_step(
    found: StoredExecution, control: ControlFields, is_leased: bool, journal: Journal
) -> CurrentStep | None:
    execution = found.execution
    if execution is None or execution.execution_id != control.execution or control.step <= found.committed:
        return None
    return CurrentStep(
        number=control.step,
        phase=control.phase,
        claim=control.claim,
        worker=control.worker if control.claim else "",
        is_leased=is_leased,
        attempts=control.attempts,
        not_before_ms=control.not_before_ms,
        hold=control.hold,
        journal=journal,
    )


def _events_of(scope: SessionScope, execution_id: str, entries: Sequence[Reply]) -> tuple[Event, ...]:
    found = parse_events(scope.session_id, entries)
    return tuple(event for event in found if event.execution_id == execution_id)
