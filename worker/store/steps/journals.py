"""The journal of a step: what it has already obtained.

First writer wins, whoever holds the claim: an answer that was paid for counts even when it comes from a worker whose
lease has ended. A begin record needs the claim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ... import crash_points
from ...errors import ClaimLost, StoreFull, StoreUnavailable
from ...state import ExecutionStatus
from .. import decoding, fields
from ..context import SessionScope
from ..database import Changed, Command, Reply, Word
from ..event_records import NewEvent
from ..events import event_commands
from ..journal import BeginRecord
from ..records import Claim
from ..transaction_retries import LOST_REPLIES, TooManyConflicts

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
    """

    own: frozenset[int]
    others: Mapping[int, BeginRecord]
    results: Mapping[int, bytes]
    cancel: str | None


class StepJournal:
    """The journal of a claimed step.

    Attributes:
        key: The journal's key.
    """

    __slots__ = ("claim", "key", "scope")

    def __init__(self, scope: SessionScope, claim: Claim) -> None:
        self.scope = scope
        self.claim = claim
        self.key = scope.keys.journal(claim.ref.execution_id, claim.ref.step)

    def record_answer(self, raw: bytes) -> bytes:
        """Store the driver's raw answer. See `StepStore.record_answer`."""
        database = self.scope.database
        try:
            first, place = database.transaction("journal.answer", [("HSETNX", self.key, "llm", raw), self._place()])
            self.expire_if_past(place)
        except StoreFull:
            first = self._record_when_full(("llm", raw))[0]
        crash_points.at("c3")
        if first:
            return raw
        # None: the step is long past, and its journal with it; the commit will say so.
        return database.pipeline("journal.adopt", [("HGET", self.key, "llm")])[0] or raw

    def record_results(self, results: Mapping[int, bytes]) -> None:
        """Store results of tool calls. See `StepStore.record_results`."""
        try:
            commands = [*self.result_commands(results), self._place()]
            self.expire_if_past(self.scope.database.transaction("journal.result", commands)[-1])
        except StoreFull:
            self._record_when_full([word for i, value in sorted(results.items()) for word in (f"t{i}:r", value)])
        except StoreUnavailable:
            # A lost reply may hide that a worker that slept has revived the journal, and nobody else would end it.
            with contextlib.suppress(StoreUnavailable, Changed):
                self._expire()
            raise
        crash_points.at("c6")

    def result_commands(self, results: Mapping[int, bytes]) -> list[Command]:
        """Commands that record results; they may travel with the commit's first reads."""
        return [("HSETNX", self.key, f"t{i}:r", value) for i, value in sorted(results.items())]

    def record_failure(self, number: int, failure: bytes, events: Sequence[NewEvent] = ()) -> None:
        """Store a driver attempt that gave no answer. See `StepStore.record_failure`."""
        record: Command = ("HSETNX", self.key, f"err:{self.claim.id}:{number}", failure)
        writes = [record, *event_commands(self.scope, events, is_late=True)]
        self.expire_if_past(self.scope.database.transaction("journal.failure", [*writes, self._place()])[-1])

    def record_auxiliary(self, key: str, raw: bytes) -> bytes:
        """Store the raw answer of an auxiliary call. See `StepStore.record_auxiliary`."""
        database, name = self.scope.database, f"x:{key}"
        try:
            first, place = database.transaction("journal.auxiliary", [("HSETNX", self.key, name, raw), self._place()])
            self.expire_if_past(place)
        except StoreFull:
            first = self._record_when_full((name, raw))[0]
        crash_points.at("c3")
        # None: the step is long past, and its journal with it; the commit will say so.
        return raw if first else database.pipeline("journal.adopt", [("HGET", self.key, name)])[0] or raw

    def record_tools(self, raw: bytes) -> bytes:
        """Store the digests of remote lists of tools. See `StepStore.record_tools`."""
        database = self.scope.database
        stored, place = database.transaction("journal.tools", [("HSETNX", self.key, "tools", raw), self._place()])
        self.expire_if_past(place)
        return raw if stored else database.pipeline("journal.adopt", [("HGET", self.key, "tools")])[0] or raw

    def drop_answer(self, rejected: bytes | None = None) -> bool:
        """Forget an answer that cannot be parsed and has begun or asked nothing. See `StepStore.drop_answer`."""
        try:
            return self.scope.retry(lambda: self._drop_answer(rejected), purpose="forget an answer")
        except TooManyConflicts:
            return False

    def _drop_answer(self, rejected: bytes | None) -> bool:
        keys = self.scope.keys
        reads: list[Command] = [("HGET", keys.ctl, "claim"), ("HGETALL", self.key)]
        # Watched: after a pause another claim's answer may stand in its place.
        with self.scope.database.watch("journal.look", (keys.ctl, self.key), reads) as watched:
            holder, stored = fields.text(watched.replies[0]), decoding.journal(watched.replies[1])
            if holder != self.claim.id or stored.begun or stored.results or stored.has_asked:
                return False
            number = len(stored.rejected)
            kept: list[Command] = [("HSET", self.key, f"rej:{number}", rejected)] if rejected is not None else []
            watched.commit("journal.drop", [("HDEL", self.key, "llm"), *kept])
            return True

    def drop_results(self, results: Mapping[int, bytes]) -> None:
        """Forget results, as long as they stand there. See `StepStore.drop_results`."""
        self.scope.retry(lambda: self._drop_results(results), purpose="forget a result")

    def _drop_results(self, results: Mapping[int, bytes]) -> None:
        keys, wanted = self.scope.keys, {f"t{i}:r": value for i, value in results.items()}
        reads: list[Command] = [("HGET", keys.ctl, "claim"), ("HMGET", self.key, *wanted)]
        with self.scope.database.watch("journal.look", (keys.ctl, self.key), reads) as watched:
            holder, stored = watched.replies
            if fields.text(holder) != self.claim.id:
                raise self._claim_lost()
            same = [name for name, value in zip(wanted, stored, strict=True) if value == wanted[name]]
            if same:
                watched.commit("journal.drop", [("HDEL", self.key, *same)])

    def begin_calls(self, timeouts_ms: Mapping[int, int], at_ms: int, again: Collection[int]) -> BeginResult:
        """Record that tool calls begin. See `StepStore.begin_calls`."""
        wanted = sorted(timeouts_ms)
        records = {i: f"{self.claim.id} {at_ms} {timeouts_ms[i]}" for i in wanted}
        commands: list[Command] = [
            ("HMGET", self.scope.keys.ctl, *_PLACE, "claim", "cancel"),
            ("HMGET", self.key, *(f"t{i}:r" for i in wanted)),
            *(("HSET" if i in again else "HSETNX", self.key, f"t{i}:s", records[i]) for i in wanted),
            ("HMGET", self.key, *(f"t{i}:s" for i in wanted)),
        ]
        replies = (
            self.scope.retry(lambda: self._begin_again(commands), purpose="begin a call")
            if again
            else self.scope.database.transaction("journal.begin", commands)
        )
        (*place, holder, stop), results, *written, begun = replies
        if fields.text(holder) != self.claim.id:
            # A record that stays reads as a call that may have happened, which is the safe way to be wrong.
            self.expire_if_past(place)
            raise self._claim_lost()
        is_stopped = fields.text(stop) == self.claim.ref.execution_id
        finished = {i: value for i, value in zip(wanted, results, strict=True) if value is not None}
        fresh = (i for i, is_new in zip(wanted, written, strict=True) if is_new)
        self._withdraw({i: records[i] for i in fresh if is_stopped or i in finished})
        crash_points.at("c4")
        open_calls = {
            i: decoding.begun_record(value) for i, value in zip(wanted, begun, strict=True) if i not in finished
        }
        own = (i for i, record in open_calls.items() if record.claim == self.claim.id and not is_stopped)
        return BeginResult(
            own=frozenset(own),
            others={i: record for i, record in open_calls.items() if record.claim != self.claim.id},
            results=finished,
            cancel=self.claim.ref.execution_id if is_stopped else None,
        )

    def _begin_again(self, commands: Sequence[Command]) -> list[Reply]:
        """Overwrite records of an earlier claim; the same transaction checks that the claim is stored."""
        ctl = self.scope.keys.ctl
        with self.scope.database.watch("journal.again", (ctl,), [("HGET", ctl, "claim")]) as watched:
            if fields.text(watched.replies[0]) != self.claim.id:
                raise self._claim_lost()
            return watched.commit("journal.begin", commands)

    def _withdraw(self, records: Mapping[int, str]) -> None:
        """Delete begin records of calls that do not begin, as long as they are still this claim's."""
        if not records:
            return
        names = {f"t{i}:s": record for i, record in records.items()}
        reads: list[Command] = [("HMGET", self.key, *names)]
        # After a conflict somebody else writes there; a record that stays reads as a call that may have happened.
        with (
            contextlib.suppress(Changed),
            self.scope.database.watch("journal.own", (self.key,), reads) as watched,
        ):
            stored = zip(names.items(), watched.replies[0], strict=True)
            still = [name for (name, record), value in stored if fields.text(value) == record]
            if still:
                watched.commit("journal.unbegin", [("HDEL", self.key, *still)])

    def expire_if_past(self, place: Sequence[bytes | None] | None = None) -> None:
        """Give the journal its time to live again when its step is past: a worker that slept may have revived it.

        Args:
            place: The control fields `_PLACE` as they were read; None: not read.
        """
        if place is not None and not self._is_past(place):
            return
        try:
            self.scope.retry(self._expire, purpose="expire a journal", lost_replies=LOST_REPLIES)
        except TooManyConflicts:
            return

    def _expire(self) -> None:
        # Watched: a retry that brings the step back at this moment needs its journal.
        keys = self.scope.keys
        header: Command = ("HMGET", keys.session, "version", "status")
        reads: list[Command] = [self._place(), header, ("PTTL", self.key)]
        with self.scope.database.watch("journal.past", (keys.ctl,), reads) as watched:
            place, (version, status), left_ms = watched.replies
            if version is None and not any(place):  # the session was deleted, and nothing of it stays
                watched.commit("journal.bury", [("DEL", self.key)])
            elif self._is_past(place) and left_ms == _NO_END and not self._is_kept(place, status):
                watched.commit("journal.bury", [("PEXPIRE", self.key, self.scope.context.journal_ms)])

    def _record_when_full(self, words: Iterable[Word]) -> list[Reply]:
        """Make room by trimming the session's events, and record fields and values."""
        keys = (self.key, self.scope.keys.events)
        first = self.scope.database.script("journal.full", "journal_when_full", keys, [*words])
        self.expire_if_past()
        return first

    def _place(self) -> Command:
        return ("HMGET", self.scope.keys.ctl, *_PLACE)

    def _is_past(self, place: Sequence[bytes | None]) -> bool:
        execution, step, phase = place
        here = (self.claim.ref.execution_id, self.claim.ref.step)
        return (fields.text(execution), fields.number(step)) != here or fields.text(phase) == "end"

    def _is_kept(self, place: Sequence[bytes | None], status: bytes | None) -> bool:
        """Whether a retry may need the journal, which then lives as long as the session: here, for ever."""
        here = (self.claim.ref.execution_id, self.claim.ref.step)
        is_last = (fields.text(place[0]), fields.number(place[1])) == here
        return self.scope.context.retention_ms is None and is_last and fields.text(status) in _RETRIED

    def _claim_lost(self) -> ClaimLost:
        ref = self.claim.ref
        return ClaimLost(f"step {ref.step} of session {ref.session_id} has another claim by now")
