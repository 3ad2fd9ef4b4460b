"""Stores the decisions of a policy, the requests of a step, and the answers that its worker gives in place of others.

Requests and decisions of a step need its claim. Answers of people do not: see `requests.answering`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from ... import crash_points
from ...errors import InvalidInput
from ...state.execution.answers import AnswerRecord
from ...state.execution.requests import MAX_REQUEST_BYTES, MAX_REQUESTS_PER_STEP, Request
from ..context import StorePart
from ..control import ControlFields, control_command
from ..database import Command, Reply, WatchedTransaction
from ..events import event_commands
from ..journal import OVERTIME, Journal, read_journal
from ..records import Claim, claim_lost
from ..requests.index import closed_event, opened_event, remove_commands
from .journals import StepJournal


@dataclass(frozen=True, slots=True)
class OpenedRequests:
    """The result of opening requests.

    Attributes:
        requests: As they are stored, in the order in which they were given: the first one stored wins.
        cancel: The execution, when it was asked to stop; then nothing was written now, and `requests` are those of
            an earlier attempt.
        is_interrupted: As `cancel`, for calls that were to begin: a message interrupts the step.
    """

    requests: tuple[Request, ...]
    cancel: str | None = None
    is_interrupted: bool = False


@dataclass(frozen=True, slots=True)
class StoppedChildren:
    """The children that a step has asked to stop.

    Attributes:
        at_ms: When (Redis ms), by call index and round of their requests: the first time counts.
        ending: Why the execution ends, as it is stored: the first reason counts. None: it does not.
    """

    at_ms: Mapping[tuple[int, int], int]
    ending: bytes | None


class StepRequestVerbs(StorePart):
    """Recording what a step decides and asks, and answers that its worker gives in place of others.

    Raises:
        ClaimLost: By what the claim guards: another worker took over; nothing was written.
    """

    def _requests(self, claim: Claim) -> _StepRequests:
        return _StepRequests(self._context.session(claim.ref.session_id), claim)

    def record_decisions(self, claim: Claim, decisions: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Journal what a policy decided about calls, by call index, before anything else happens to them.

        Returns:
            The stored decisions of these calls, also another worker's: the first one wins. So a policy is asked once.
        """
        if not decisions:
            return {}
        journal, indexes = self._requests(claim), sorted(decisions)
        writes: list[Command] = [("HSETNX", journal.key, f"t{index}:p", decisions[index]) for index in indexes]
        read: Command = ("HMGET", journal.key, *(f"t{index}:p" for index in indexes))
        *_, stored = journal.write("journal.decide", [*writes, read])
        return {index: value or decisions[index] for index, value in zip(indexes, stored, strict=True)}

    def record_started_calls(self, claim: Claim, indexes: Collection[int]) -> None:
        """Journal that calls with a later result have been started, and their start has returned.

        Without this note, after a crash, the effect class decides whether a call is started again.
        """
        journal = self._requests(claim)
        writes: list[Command] = [("HSETNX", journal.key, f"t{index}:h", claim.id) for index in sorted(indexes)]
        if writes:
            journal.write("journal.started", writes)

    def open_requests(
        self, claim: Claim, requests: Sequence[Request], *, begins: Mapping[int, int] | None = None
    ) -> OpenedRequests:
        """Journal requests of this step in one transaction that the claim guards, and tell watchers of the new ones.

        A request takes the begin record of its call back: the call asked before its effect and runs from its start.
        A call of `begins` keeps or gets its begin record in the same transaction: its result comes later, from outside.

        Args:
            begins: Calls that begin together with their request, by index: their timeouts (ms).
        Raises:
            InvalidInput: A request is longer than `MAX_REQUEST_BYTES`, or the step would have more than
                `MAX_REQUESTS_PER_STEP`; nothing was written.
            StoreFull: Nothing was written; ask again when there is room.
            NotConfirmed: Too few replicas have the begin records, so nothing may begin; ask again.
        """
        for request in requests:
            _check_size(request)
        asked = self._requests(claim)
        with self._context.confirming(asked.scope.keys.shard) if begins else nullcontext():
            opened = asked.scope.apply_once(lambda: asked.open(requests, begins or {}), "open a request")
        crash_points.at("w0")
        return opened

    def close_requests(
        self, claim: Claim, records: Mapping[str, AnswerRecord], *, opens: Sequence[Request] = ()
    ) -> Mapping[str, AnswerRecord]:
        """Answer open requests of this step as its worker: at their expiry, or under a stop.

        One transaction, guarded by the claim. An answer that came in between stays.

        Args:
            records: By request id.
            opens: The next rounds of requests whose record passes them on; each is written where its record is.
        Returns:
            The stored answers of these requests, by request id; another's where it came first.
        """
        asked = self._requests(claim)
        return asked.scope.apply_once(lambda: asked.close(records, opens), "close a request")

    def stop_children(
        self, claim: Claim, places: Collection[tuple[int, int]], *, ending: bytes | None = None
    ) -> StoppedChildren:
        """Journal that children are asked to stop; from now on they have one lease for it.

        Args:
            places: Call index and round of their requests.
            ending: Why the execution ends after this step, where it does: each later leg finds it. None: it does not.
        Returns:
            The stored times and reason; those of an earlier leg where it came first.
        """
        asked = self._requests(claim)
        return asked.scope.apply_once(lambda: asked.stop_children(places, ending), "stop its children")

    def record_overtime(self, claim: Claim, ending: bytes) -> None:
        """Journal why the execution ends with this step, for its next leg; a retry does not find it."""
        asked = self._requests(claim)
        asked.scope.apply_once(lambda: asked.record_overtime(ending), "end its execution")


class _StepRequests(StepJournal):
    """One attempt at each transaction over the requests of a claimed step."""

    __slots__ = ()

    def open(self, requests: Sequence[Request], begins: Mapping[int, int]) -> OpenedRequests:
        """Journal requests that are not stored yet."""
        with self._watch() as watched:
            control, journal, now_ms = self._check(watched)
            stored = {request.place: request for request in journal.all_requests}
            is_interrupted = control.is_interrupted and bool(begins)
            if control.requested_stop is not None or is_interrupted:
                # Those of an attempt whose reply was lost may be answered already.
                known = tuple(stored[request.place] for request in requests if request.place in stored)
                return OpenedRequests(known, cancel=control.requested_stop, is_interrupted=is_interrupted)
            fresh = [request for request in requests if request.place not in stored]
            if len(stored) + len(fresh) > MAX_REQUESTS_PER_STEP:
                advice = f"one step may ask at most {MAX_REQUESTS_PER_STEP} times; ask for less at once."
                raise InvalidInput("requests", len(stored) + len(fresh), advice)
            writes: list[Command] = [("HSETNX", self.key, _field(request, "q"), request.to_json()) for request in fresh]
            for request in fresh:
                begun = f"t{request.index}:s"
                if request.index in begins:
                    record = f"{self.claim.id} {now_ms} {begins[request.index]}"
                    writes.append(("HSETNX", self.key, begun, record))
                else:
                    writes.append(("HDEL", self.key, begun))
            if fresh:
                events = event_commands(self.scope, map(opened_event, fresh))
                watched.commit("request.open", [*writes, *events])
            known = stored | {request.place: request for request in fresh}
            return OpenedRequests(tuple(known[request.place] for request in requests))

    def close(self, records: Mapping[str, AnswerRecord], opens: Sequence[Request]) -> Mapping[str, AnswerRecord]:
        """Store answers to requests that are open."""
        with self._watch() as watched:
            _control, journal, _now_ms = self._check(watched)
            asked = [request for request in journal.all_requests if request.id in records]
            present = {request.id: journal.answers.get(request.place) for request in asked}
            fresh = [request for request in asked if present[request.id] is None]
            closed = {request.index for request in fresh}
            following = [request for request in opens if request.index in closed]
            if fresh:
                events = [closed_event(request, records[request.id]) for request in fresh]
                commands: list[Command] = [
                    *(("HSETNX", self.key, _field(r, "a"), records[r.id].to_json()) for r in fresh),
                    *(("HSETNX", self.key, _field(r, "q"), r.to_json()) for r in following),
                    *event_commands(self.scope, [*events, *map(opened_event, following)]),
                    *remove_commands(self.scope.keys.shard, fresh),
                ]
                watched.commit("request.close", commands)
            return {request.id: present[request.id] or records[request.id] for request in asked}

    def stop_children(self, places: Collection[tuple[int, int]], ending: bytes | None) -> StoppedChildren:
        """Journal which children are asked to stop."""
        with self._watch() as watched:
            _control, journal, now_ms = self._check(watched)
            fresh = sorted(place for place in places if place not in journal.stopped)
            commands: list[Command] = [("HSETNX", self.key, f"t{i}:k{round_}", now_ms) for i, round_ in fresh]
            if ending is not None and journal.ending is None:
                commands.append(("HSETNX", self.key, "end", ending))
            if commands:
                watched.commit("request.stop", commands)
            stopped = {place: journal.stopped.get(place, now_ms) for place in places}
            return StoppedChildren(stopped, journal.ending or ending)

    def record_overtime(self, ending: bytes) -> None:
        """Journal why the execution ends."""
        with self._watch() as watched:
            control, _journal, _now_ms = self._check(watched)
            watched.commit("request.stop", [("HSETNX", self.key, f"{OVERTIME}{control.retries}", ending)])

    def _watch(self) -> AbstractContextManager[WatchedTransaction]:
        reads = [control_command(self.scope.keys), ("HGETALL", self.key), self.scope.clock.now()]
        return self.database.watch("request.look", (self.scope.keys.ctl, self.key), reads)

    def _check(self, watched: WatchedTransaction) -> tuple[ControlFields, Journal, int]:
        """Read control fields, journal and time; only the holder of the claim may continue.

        Raises:
            ClaimLost: Another worker has the step, or it is past.
        """
        replies: list[Reply] = watched.replies
        control, ref = ControlFields.read(replies[0]), self.claim.ref
        if not control.is_claimed_by(self.claim.id, ref) or control.phase != "run":
            raise claim_lost(self.claim)
        return control, read_journal(replies[1], control.retries), self.scope.clock.milliseconds(replies[2])


def _field(request: Request, letter: str) -> str:
    return f"t{request.index}:{letter}{request.round}"


def _check_size(request: Request) -> None:
    size = len(request.to_json())
    if size > MAX_REQUEST_BYTES:
        advice = f"a request may have {MAX_REQUEST_BYTES} bytes as JSON; shorten its text, options or arguments."
        raise InvalidInput(f"request of {request.tool}", f"{size} bytes", advice)
