"""The journal of a step: what it has already obtained.

The first writer wins, with the claim or without: an answer that was paid for counts even when it comes from a worker
whose lease has ended. A begin record needs the claim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from ... import crash_points
from ...errors import NotConfirmed, StoreFull, StoreUnavailable
from ...state.execution.status import ExecutionStatus
from .. import fields, primaries
from ..context import SessionScope, StorePart, TooManyConflicts
from ..control import interrupt_field
from ..database import Changed, Command, Reply, WatchedTransaction, Word
from ..event_records import NewEvent
from ..events import event_commands
from ..flow.records import Settlement
from ..flow.reservations import read_settled, settle_commands
from ..journal import BeginRecord, begun_record, read_journal
from ..records import Claim, claim_lost

# The control fields that tell whether a step is past.
_PLACE: Final = ("execution", "step", "phase")
_RETRIED: Final = (ExecutionStatus.FAILED.value, ExecutionStatus.STOPPED.value)
_NO_END: Final = -1
"""Redis's PTTL of a key that lives for ever."""


@dataclass(frozen=True, slots=True)
class BeginResult:
    """The tool calls that may begin.

    Attributes:
        own: Indexes of the calls that this claim began now, or had begun under the same claim.
        others: Calls that another claim began before, with their records.
        results: Calls that have a result meanwhile.
        cancel: A stop was asked for; nothing may begin and nothing was recorded.
        is_interrupted: A message interrupts the step; only calls that had begun may, and no other was recorded.
    """

    own: frozenset[int]
    others: Mapping[int, BeginRecord]
    results: Mapping[int, bytes]
    cancel: str | None
    is_interrupted: bool = False


class JournalVerbs(StorePart):
    """Recording what a step has obtained before its commit."""

    def _journal(self, claim: Claim) -> StepJournal:
        return StepJournal(self._context.session(claim.ref.session_id), claim)

    def record_answer(self, claim: Claim, raw: bytes, settlement: Settlement | None = None) -> bytes:
        """Journal the driver's raw answer; the first one stored wins, whichever worker wrote it.

        Args:
            settlement: Of the request, to be written in the same round trip. Where that is not possible,
                `settlement.settled` stays None, and the caller settles.
        Returns:
            The stored answer, which may be another worker's.
        Raises:
            StoreFull: Not even the room kept for this was enough; keep the answer and ask again.
            StoreUnavailable: No answer in time; asking again is safe.
        """
        return self._journal(claim).record_once("journal.answer", "llm", raw, settlement)

    def record_auxiliary(self, claim: Claim, key: str, raw: bytes, settlement: Settlement | None = None) -> bytes:
        """Journal the raw answer of an auxiliary call under its key; else as `record_answer`."""
        return self._journal(claim).record_once("journal.auxiliary", f"x:{key}", raw, settlement)

    def record_tools(self, claim: Claim, raw: bytes) -> bytes:
        """Journal to which remote lists of tools the step is pinned; the first one stored wins, also another worker's.

        Returns:
            The stored pins, which may be another worker's.
        """
        journal = self._journal(claim)
        (first,) = journal.write("journal.tools", [("HSETNX", journal.key, "tools", raw)])
        return raw if first else journal.read_stored("tools", raw)

    def record_failure(self, claim: Claim, number: int, failure: bytes, events: Sequence[NewEvent] = ()) -> None:
        """Journal an attempt of the driver that gave no usable answer, and tell watchers of it by the events."""
        journal = self._journal(claim)
        record: Command = ("HSETNX", journal.key, f"err:{claim.id}:{number}", failure)
        journal.write("journal.failure", [record, *event_commands(journal.scope, events, is_late=True)])

    def record_results(self, claim: Claim, results: Mapping[int, bytes]) -> None:
        """Journal results of tool calls; the first one stored wins."""
        journal = self._journal(claim)
        try:
            journal.write("journal.result", journal.result_commands(results))
        except StoreFull:
            journal.record_when_full([word for i, value in sorted(results.items()) for word in (f"t{i}:r", value)])
        crash_points.at("c6")

    def drop_answer(self, claim: Claim, rejected: bytes | None = None, *, was_journaled: bool = True) -> bool:
        """Forget a journaled answer that cannot be parsed; refused once a tool of it has begun or a request is made.

        Args:
            rejected: A record of what the answer cost, to keep in its place. None: unknown.
            was_journaled: False for one that was none before it could be: this is refused where there is another.
        """
        journal = self._journal(claim)
        try:
            return journal.scope.retry(lambda: _drop_answer(journal, rejected, was_journaled), "forget an answer")
        except TooManyConflicts:
            return False

    def drop_results(self, claim: Claim, results: Mapping[int, bytes]) -> None:
        """Forget journaled results, by call index; one that is another by now stays.

        Raises:
            ClaimLost: Another worker took over; nothing was written.
        """
        journal = self._journal(claim)
        journal.scope.retry(lambda: _drop_results(journal, results), "forget a result")

    def begun_ms(self, claim: Claim, record: BeginRecord) -> int:
        """Tell from when the timeout of a begun call counts (Redis ms): its beginning, or the failover since then."""
        scope = self._context.session(claim.ref.session_id)
        database, clock, shard = scope.database, scope.clock, scope.keys.shard
        now_reply, *replies = database.pipeline("journal.primary", [clock.now(), *primaries.reads(shard)])
        primary = primaries.read_primary(shard, clock.milliseconds(now_reply), *replies)
        if primary.notes:
            database.pipeline("journal.primary", primary.notes)
        return primary.begun_ms(record)

    def begin_calls(
        self,
        claim: Claim,
        timeouts_ms: Mapping[int, int],
        at_ms: int,
        *,
        again: Collection[int] = (),
        looked_up: Collection[int] = (),
    ) -> BeginResult:
        """Record that tool calls begin now (Redis ms), and learn which of them may run.

        Args:
            again: Calls that an earlier claim began and that may be run again; their record becomes this claim's.
            looked_up: Calls whose time counts later, when their tool is asked whether they happened.
        Raises:
            ClaimLost: Another worker took over; no record of this claim stays.
            NotConfirmed: Too few replicas have the records; those that were new were taken back.
        """
        confirmer, journal = self._context.confirmer, self._journal(claim)
        if confirmer is None:
            return self._begin_calls(journal, timeouts_ms, at_ms, again, looked_up)
        with confirmer.noting() as used:
            begun = self._begin_calls(journal, timeouts_ms, at_ms, again, looked_up)
        if begun.own:
            try:
                confirmer.confirm(journal.scope.keys.shard, used)
            except StoreUnavailable as error:
                fresh = begun.own - set(again)
                _withdraw(journal, {i: _begin_record(claim, at_ms, timeouts_ms[i]) for i in fresh})
                raise error if isinstance(error, NotConfirmed) else NotConfirmed(str(error)) from error
        return begun

    def _begin_calls(
        self,
        journal: StepJournal,
        timeouts_ms: Mapping[int, int],
        at_ms: int,
        again: Collection[int],
        looked_up: Collection[int],
    ) -> BeginResult:
        claim, wanted = journal.claim, sorted(timeouts_ms)
        records = {i: _begin_record(claim, at_ms, timeouts_ms[i]) for i in wanted}
        commands = _begin_commands(journal, records, again)
        marks = primaries.BeginMarks(journal.key, sorted(looked_up), journal.scope.context.known[journal.scope.place])
        replies = _begin(journal, [*commands, *marks.commands()], again)
        (*place, holder, stop, interrupt), *written, found = replies[: len(commands)]
        results, begun = found[: len(wanted)], found[len(wanted) :]
        fresh = [i for i, is_new in zip(wanted, written, strict=True) if is_new]
        if not journal.is_held(holder):
            _withdraw(journal, {i: records[i] for i in fresh if i not in again})
            journal.expire_if_past(place)
            raise claim_lost(claim)
        is_stopped = fields.text(stop) == claim.ref.execution_id
        is_interrupted = fields.text(interrupt) == interrupt_field(claim.ref.execution_id, claim.ref.step)
        finished = {i: value for i, value in zip(wanted, results, strict=True) if value is not None}
        _withdraw(journal, {i: records[i] for i in fresh if is_stopped or is_interrupted or i in finished})
        crash_points.at("c4")
        is_own = {*fresh, *again}
        if corrections := marks.correct(replies[len(commands) :], is_own):
            # Only while these records are there: a worker that was paused here must not bring a journal back.
            own_records = {f"t{i}:s": value for i, value in zip(wanted, begun, strict=True) if i in is_own and value}
            is_there = (("HMGET", journal.key, *own_records), [*own_records.values()])
            journal.database.compare_and_apply("journal.primary", [is_there], corrections)
        open_calls = {i: begun_record(value) for i, value in zip(wanted, begun, strict=True) if i not in finished}
        may_run = () if is_stopped else again if is_interrupted else open_calls
        return BeginResult(
            own=frozenset(i for i, record in open_calls.items() if record.claim == claim.id and i in may_run),
            others={i: record for i, record in open_calls.items() if record.claim != claim.id},
            results=finished,
            cancel=claim.ref.execution_id if is_stopped else None,
            is_interrupted=is_interrupted,
        )


def _drop_answer(journal: StepJournal, rejected: bytes | None, was_journaled: bool) -> bool:
    with journal.watch_claim("journal.look", ("HGETALL", journal.key)) as watched:
        holder, stored = watched.replies[0], read_journal(watched.replies[1])
        if not journal.is_held(holder) or stored.begun or stored.results or stored.has_asked:
            return False
        if stored.answer is not None and not was_journaled:
            return False
        number = len(stored.rejected)
        kept: list[Command] = [("HSET", journal.key, f"rej:{number}", rejected)] if rejected is not None else []
        watched.commit("journal.drop", [("HDEL", journal.key, "llm"), *kept])
        return True


def _drop_results(journal: StepJournal, results: Mapping[int, bytes]) -> None:
    wanted = {f"t{i}:r": value for i, value in results.items()}
    with journal.watch_claim("journal.look", ("HMGET", journal.key, *wanted)) as watched:
        holder, stored = watched.replies
        if not journal.is_held(holder):
            raise claim_lost(journal.claim)
        same = [name for name, value in zip(wanted, stored, strict=True) if value == wanted[name]]
        if same:
            watched.commit("journal.drop", [("HDEL", journal.key, *same)])


def _begin_record(claim: Claim, at_ms: int, timeout_ms: int) -> str:
    return f"{claim.id} {at_ms} {timeout_ms}"


def _begin_commands(journal: StepJournal, records: Mapping[int, str], again: Collection[int]) -> list[Command]:
    return [
        ("HMGET", journal.scope.keys.ctl, *_PLACE, "claim", "cancel", "interrupt"),
        *(("HSET" if i in again else "HSETNX", journal.key, f"t{i}:s", record) for i, record in records.items()),
        ("HMGET", journal.key, *(f"t{i}:r" for i in records), *(f"t{i}:s" for i in records)),
    ]


def _begin(journal: StepJournal, commands: Sequence[Command], again: Collection[int]) -> list[Reply]:
    with journal.ending():
        if again:
            return journal.scope.retry(lambda: _begin_again(journal, commands), "begin a call")
        return journal.database.transaction("journal.begin", commands)


def _begin_again(journal: StepJournal, commands: Sequence[Command]) -> list[Reply]:
    """Overwrite records of an earlier claim; the same transaction checks that the claim is stored."""
    ctl = journal.scope.keys.ctl
    with journal.database.watch("journal.again", (ctl,), [("HGET", ctl, "claim")]) as watched:
        if not journal.is_held(watched.replies[0]):
            raise claim_lost(journal.claim)
        return watched.commit("journal.begin", commands)


def _withdraw(journal: StepJournal, records: Mapping[int, str]) -> None:
    """Delete begin records of calls that do not begin, as long as they are still this claim's."""
    if not records:
        return
    names = {f"t{i}:s": record for i, record in records.items()}
    reads: list[Command] = [("HMGET", journal.key, *names)]
    # After a conflict another worker writes there; a record that stays reads as a call that may have happened.
    with contextlib.suppress(Changed), journal.database.watch("journal.own", (journal.key,), reads) as watched:
        stored = zip(names.items(), watched.replies[0], strict=True)
        still = [name for (name, record), value in stored if fields.text(value) == record]
        if still:
            watched.commit("journal.unbegin", [("HDEL", journal.key, *still)])


class StepJournal:
    """The journal of a claimed step in the store.

    Attributes:
        key: Its key.
    """

    __slots__ = ("claim", "database", "key", "scope")

    def __init__(self, scope: SessionScope, claim: Claim) -> None:
        self.scope = scope
        self.database = scope.database
        self.claim = claim
        self.key = scope.keys.journal(claim.ref.execution_id, claim.ref.step)

    def record_once(self, point: str, name: str, raw: bytes, settlement: Settlement | None = None) -> bytes:
        """Store a field unless another worker has, settle a request where one is given, and give what is stored.

        Raises:
            StoreFull: Not even the room kept for this was enough.
        """
        try:
            settling = settle_commands(self.scope.context, settlement) if settlement is not None else ()
            first, *settled = self.write(point, [("HSETNX", self.key, name, raw), *settling])
            if settlement is not None and settled and settled[0] is not None:
                settlement.settled = read_settled(settled[0])
        except StoreFull:
            first = self.record_when_full((name, raw))[0]
        crash_points.at("c3")
        return raw if first else self.read_stored(name, raw)

    def write(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        """Run commands that write to the journal, which gets its time to live again where its step is past."""
        with self.ending():
            *replies, place = self.database.transaction(point, [*commands, self.place()])
        self.expire_if_past(place)
        return replies

    @contextlib.contextmanager
    def ending(self) -> Generator[None]:
        """End a journal that a worker that slept has revived, also where the reply to its write is lost."""
        try:
            yield
        except StoreUnavailable:
            with contextlib.suppress(StoreUnavailable, Changed):
                self.expire()
            raise

    def read_stored(self, name: str, own: bytes) -> bytes:
        """Read a field that another worker has stored.

        Returns:
            `own` where the step is long past, and its journal with it; the commit will say so.
        """
        return self.database.pipeline("journal.adopt", [("HGET", self.key, name)])[0] or own

    def result_commands(self, results: Mapping[int, bytes]) -> list[Command]:
        """Commands that record results; they may travel with the commit's first reads."""
        return [("HSETNX", self.key, f"t{i}:r", value) for i, value in sorted(results.items())]

    def watch_claim(self, point: str, *reads: Command) -> AbstractContextManager[WatchedTransaction]:
        """Watch the control fields and the journal, and read the holder of the claim first."""
        ctl = self.scope.keys.ctl
        # Watched: after a pause another claim's values may stand in the place of ours.
        return self.database.watch(point, (ctl, self.key), [("HGET", ctl, "claim"), *reads])

    def is_held(self, holder: bytes | None) -> bool:
        """Whether the claim still holds, by the control field `claim`."""
        return fields.text(holder) == self.claim.id

    def expire_if_past(self, place: Sequence[bytes | None] | None = None) -> None:
        """Give the journal its time to live again when its step is past: a worker that slept may have revived it.

        Args:
            place: The control fields `_PLACE` as they were read; None: not read.
        """
        if place is not None and not self._is_past(place):
            return
        try:
            self.scope.apply_once(self.expire, "expire a journal")
        except TooManyConflicts:
            return

    def expire(self) -> None:
        """Give the journal its time to live again if its step is past."""
        # Watched: a retry that brings the step back at this moment needs its journal.
        keys = self.scope.keys
        header: Command = ("HMGET", keys.session, "version", "status")
        reads: list[Command] = [self.place(), header, ("PTTL", self.key)]
        with self.scope.database.watch("journal.past", (keys.ctl,), reads) as watched:
            place, (version, status), left_ms = watched.replies
            if version is None and not any(place):  # the session was deleted, and nothing of it stays
                watched.commit("journal.bury", [("DEL", self.key)])
            elif self._is_past(place) and left_ms == _NO_END and not self._is_kept(place, status):
                watched.commit("journal.bury", [("PEXPIRE", self.key, self.scope.context.journal_ms)])

    def record_when_full(self, words: Iterable[Word]) -> list[Reply]:
        """Make room by trimming the session's events, and record fields and values."""
        keys = (self.key, self.scope.keys.events)
        with self.ending():
            first = self.scope.database.script("journal.full", "journal_when_full", keys, [*words])
        self.expire_if_past()
        return first

    def place(self) -> Command:
        """The command that reads whether the step is past."""
        return ("HMGET", self.scope.keys.ctl, *_PLACE)

    def _is_past(self, place: Sequence[bytes | None]) -> bool:
        execution, step, phase = place
        here = (self.claim.ref.execution_id, self.claim.ref.step)
        return (fields.text(execution), fields.number(step)) != here or fields.text(phase) == "end"

    def _is_kept(self, place: Sequence[bytes | None], status: bytes | None) -> bool:
        """Whether a retry may need the journal, which then lives as long as the session: here, without an end."""
        here = (self.claim.ref.execution_id, self.claim.ref.step)
        is_last = (fields.text(place[0]), fields.number(place[1])) == here
        return self.scope.context.ended_ms is None and is_last and fields.text(status) in _RETRIED
