"""Waiting: a step whose calls need something from outside gives its claim back and keeps its journal.

    WATCH session, ctl, inbox, journal → check → MULTI … EXEC

The next claim of the same step finds the model's answer, the results and the replies, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from ... import crash_points
from ...errors import ClaimLost, VersionConflict
from ...state import AgentState, ExecutionStatus, Request
from .. import decoding, fields
from ..bookkeeping import BOOKKEEPING, Bookkeeping
from ..cache import CachedSession
from ..context import SessionScope, StoreContext
from ..control import LONGEST_WAIT_MS, ControlFields, control_command
from ..database import Command, WatchedTransaction
from ..journal import Journal
from ..keys import request_note
from ..records import REQUEST_KINDS, Claim, LoadedSession, NewEvent, Snapshot, Transition
from ..requests.index import add_commands
from ..retrying import LOST_REPLIES
from ..sessions.saving import Save, SessionSave, milliseconds
from .journals import StepJournal


@dataclass(frozen=True, slots=True)
class Waiting:
    """The step waits; the claim is given back.

    Attributes:
        until_ms: Redis time at which a worker looks at it again, at the latest.
        open: The requests that it waits for.
    """

    version: int
    until_ms: int
    open: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class NotWaiting:
    """The step must not wait, and nothing was written: the caller goes on with its claim.

    Attributes:
        journal: As it is stored now; an answer may have come.
        cancel: The execution, when somebody asked it to stop.
    """

    journal: Journal
    cancel: str | None


WaitResult = Waiting | NotWaiting


@dataclass(frozen=True, slots=True)
class WaitRequest:
    """A step that has nothing to run until something comes from outside.

    Attributes:
        base: The version that `transition` starts from.
        seen: The journal as the step knows it.
        results: Results that are not journaled yet.
    """

    claim: Claim
    base: LoadedSession
    transition: Transition
    seen: Journal
    results: Mapping[int, bytes]


def wait(context: StoreContext, request: WaitRequest) -> WaitResult:
    """Give the claim back until something wakes the session. See `StepStore.wait`."""
    scope = context.session(request.claim.ref.session_id)
    result = scope.retry(_Wait(scope, request).run, purpose="wait", lost_replies=LOST_REPLIES)
    if isinstance(result, Waiting):
        crash_points.at("w1")
    return result


def wait_id(claim: Claim) -> str:
    """The mark that a wait leaves in the session, so that its own worker recognizes it after a lost reply."""
    return f"{claim.ref.step}:{claim.id}:wait"


@dataclass(frozen=True, slots=True)
class _Wait:
    """One wait and its attempts."""

    scope: SessionScope
    request: WaitRequest

    @property
    def _journal(self) -> str:
        ref = self.request.claim.ref
        return self.scope.keys.journal(ref.execution_id, ref.step)

    def run(self) -> WaitResult:
        """Make one attempt."""
        scope, keys = self.scope, self.scope.keys
        reads: list[Command] = [
            ("HMGET", keys.session, "version", "last", *BOOKKEEPING),
            control_command(keys),
            ("HGETALL", self._journal),
            scope.clock.now(),
        ]
        with scope.database.watch("wait.read", (keys.session, keys.ctl, keys.inbox, self._journal), reads) as watched:
            (version, last, *bookkeeping), control, journal, now = watched.replies
            found, stored = ControlFields.read(control), decoding.journal(journal)
            if fields.text(last) == wait_id(self.request.claim) and found.phase == "wait":
                return Waiting(fields.number(version), found.not_before_ms, stored.open_requests)
            self._check(found, fields.number(version))
            if found.requested_stop or not stored.open_requests or stored.answers.keys() - self.request.seen.answers:
                return NotWaiting(stored, found.requested_stop)
            now_ms = scope.clock.milliseconds(now)
            return self._apply(found, stored, Bookkeeping.read(*bookkeeping), now_ms, watched)

    def _check(self, control: ControlFields, version: int) -> None:
        """Refuse a wait whose claim is gone, or whose session was saved or deleted."""
        ref, base = self.request.claim.ref, self.request.base
        if not control.is_claimed_by(self.request.claim.id, ref) or control.phase != "run":
            raise ClaimLost(f"step {ref.step} of session {ref.session_id} has another claim by now")
        if version != base.version:
            raise VersionConflict(f"session {ref.session_id} is at version {version}, not {base.version}")

    def _apply(
        self,
        control: ControlFields,
        journal: Journal,
        bookkeeping: Bookkeeping,
        now_ms: int,
        watched: WatchedTransaction,
    ) -> Waiting:
        base, opened = self.request.base, journal.open_requests
        snapshot = Snapshot(state=base.state, inbox=(), entries=0, now_ms=now_ms, cancel=None)
        next_state = self.request.transition(snapshot)
        assert next_state.state.status is ExecutionStatus.WAITING, "the transition lets the execution wait"
        until_ms = _until_ms(next_state.state, opened, now_ms)
        event = self._event(opened, until_ms)
        save = SessionSave(
            scope=self.scope,
            before=base.state,
            next_state=replace(next_state, events=(*next_state.events, event)),
            bookkeeping=bookkeeping,
            version=base.version + 1,
            now_ms=now_ms,
            extra=("last", wait_id(self.request.claim)),
            work_changed=False,
        ).prepare()
        commands = [*save.commands, *self._step_commands(control, opened, until_ms)]
        watched.commit("wait.exec", [*commands, *self._callbacks(bookkeeping, opened, now_ms)])
        self._cache(next_state.state, save)
        return Waiting(base.version + 1, until_ms, opened)

    def _step_commands(self, control: ControlFields, opened: tuple[Request, ...], until_ms: int) -> list[Command]:
        """Commands for the journal, the control fields, the indexes and the lease."""
        scope, keys, claim = self.scope, self.scope.keys, self.request.claim
        look_ms = until_ms if control.hold is None else control.hold.until_ms
        return [
            *StepJournal(scope, claim).result_commands(self.request.results),
            ("PERSIST", self._journal),
            (
                "HSET", keys.ctl, "phase", "wait", "claim", "", "worker", "", "attempts", 0, "delays", 0, "delayed", 0,
                "nudges", 0, "published", 0, "not_before", until_ms, "legs", control.legs + 1,
            ),
            ("ZADD", keys.shard.due, look_ms, scope.session_id),
            *add_commands(keys.shard, opened),
            ("DEL", keys.shard.lease(claim.id)),
        ]  # fmt: skip

    def _callbacks(self, bookkeeping: Bookkeeping, opened: tuple[Request, ...], now_ms: int) -> Iterator[Command]:
        """Put the callbacks of requests into the outbox, of those that no earlier wait has put there."""
        execution, scope = self.request.base.state.execution, self.scope
        if execution is None or bookkeeping.notify is None or b'"request_' not in bookkeeping.notify:
            return
        known = {summary.id for summary in execution.waiting_for}
        operation = execution.operation_id or ""
        receivers = cast("Mapping[str, Any]", fields.read_json(bookkeeping.notify, "notify")).get(operation, {})
        kinds = [kind for kind in REQUEST_KINDS if kind in receivers]
        for request in opened:
            for kind in kinds if request.id not in known else ():
                note = request_note(scope.session_id, request.execution_id, kind, (request.id, operation))
                yield ("ZADD", scope.keys.shard.callbacks, now_ms, note)

    def _event(self, opened: tuple[Request, ...], until_ms: int) -> NewEvent:
        ref = self.request.claim.ref
        data = {"requests": [request.id for request in opened], "until_ms": until_ms}
        return NewEvent(type="execution_waiting", execution_id=ref.execution_id, step=ref.step, data=data)

    def _cache(self, state: AgentState, save: Save) -> None:
        base = self.request.base
        session = CachedSession(
            version=base.version + 1,
            state=state,
            size=base.session.size + save.size,
            agent=base.agent,
            bookkeeping=save.bookkeeping,
        )
        self.scope.cache.put(self.scope.session_id, session)


def _until_ms(state: AgentState, opened: tuple[Request, ...], now_ms: int) -> int:
    """When a worker has to look at the session again: never 0, which would mean at once."""
    times = [request.expires_at_ms for request in opened if request.expires_at_ms is not None]
    execution = state.execution
    if execution is not None and execution.budget.deadline is not None:
        times.append(milliseconds(execution.budget.deadline))
    return max(1, min([*times, now_ms + LONGEST_WAIT_MS]))
