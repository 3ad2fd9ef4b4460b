"""Stores the decisions of a policy, the requests of a step, and the answers that its worker gives in place of others.

Requests and decisions of a step need its claim. Answers of people do not: see `requests.answering`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ... import crash_points
from ...errors import ClaimLost, InvalidInput
from ...state import MAX_REQUEST_BYTES, MAX_REQUESTS_PER_STEP, AnswerRecord, Request
from .. import decoding
from ..context import SessionScope
from ..control import ControlFields, control_command
from ..database import Command, Reply, WatchedTransaction
from ..events import event_commands
from ..journal import Journal
from ..records import Claim
from ..requests.events import closed_event, opened_event
from ..requests.index import remove_commands
from ..transaction_retries import LOST_REPLIES
from .journals import StepJournal


@dataclass(frozen=True, slots=True)
class OpenedRequests:
    """The result of opening requests.

    Attributes:
        requests: As they are stored, in the order in which they were given: the first one stored wins.
        cancel: The execution, when somebody asked it to stop; then nothing was written now, and `requests` are those of
            an earlier attempt.
    """

    requests: tuple[Request, ...]
    cancel: str | None = None


@dataclass(frozen=True, slots=True)
class StoppedChildren:
    """The children that a step has asked to stop.

    Attributes:
        at_ms: When (Redis ms), by call index and round of their requests: the first time counts.
        ending: Why the execution ends, as it is stored: the first reason counts. None: it does not.
    """

    at_ms: Mapping[tuple[int, int], int]
    ending: bytes | None


@dataclass(frozen=True, slots=True)
class StepRequests:
    """The requests of a claimed step."""

    scope: SessionScope
    claim: Claim

    @property
    def key(self) -> str:
        """The key of the step's journal."""
        return self.scope.keys.journal(self.claim.ref.execution_id, self.claim.ref.step)

    def record_decisions(self, decisions: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Store what a policy decided. See `StepStore.record_decisions`."""
        indexes = sorted(decisions)
        if not indexes:
            return {}
        writes: list[Command] = [("HSETNX", self.key, f"t{index}:p", decisions[index]) for index in indexes]
        read: Command = ("HMGET", self.key, *(f"t{index}:p" for index in indexes))
        *_, stored = self.scope.database.transaction("journal.decide", [*writes, read])
        StepJournal(self.scope, self.claim).expire_if_past()
        return {index: value or decisions[index] for index, value in zip(indexes, stored, strict=True)}

    def record_started(self, indexes: Collection[int]) -> None:
        """Store that services have these calls. See `StepStore.record_started_calls`."""
        writes: list[Command] = [("HSETNX", self.key, f"t{index}:h", self.claim.id) for index in sorted(indexes)]
        if writes:
            self.scope.database.transaction("journal.started", writes)
            StepJournal(self.scope, self.claim).expire_if_past()

    def open(self, requests: Sequence[Request], begins: Mapping[int, int]) -> OpenedRequests:
        """Journal requests. See `StepStore.open_requests`."""
        for request in requests:
            _check_size(request)
        opened = self.scope.retry(
            lambda: self._open(requests, begins), purpose="open a request", lost_replies=LOST_REPLIES
        )
        crash_points.at("w0")
        return opened

    def _open(self, requests: Sequence[Request], begins: Mapping[int, int]) -> OpenedRequests:
        with self.scope.database.watch("request.look", self._watched_keys, self._reads()) as watched:
            control, journal, now_ms = self._check(watched)
            stored = {request.place: request for request in journal.all_requests}
            if control.requested_stop is not None:  # those of an attempt whose reply was lost may be answered already
                known = tuple(stored[request.place] for request in requests if request.place in stored)
                return OpenedRequests(known, cancel=control.requested_stop)
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
        """Answer open requests as the step's worker. See `StepStore.close_requests`."""
        return self.scope.retry(
            lambda: self._close(records, opens), purpose="close a request", lost_replies=LOST_REPLIES
        )

    def _close(self, records: Mapping[str, AnswerRecord], opens: Sequence[Request]) -> Mapping[str, AnswerRecord]:
        with self.scope.database.watch("request.look", self._watched_keys, self._reads()) as watched:
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
        """Journal that children are asked to stop. See `StepStore.stop_children`."""
        return self.scope.retry(
            lambda: self._stop_children(places, ending), purpose="stop its children", lost_replies=LOST_REPLIES
        )

    def _stop_children(self, places: Collection[tuple[int, int]], ending: bytes | None) -> StoppedChildren:
        with self.scope.database.watch("request.look", self._watched_keys, self._reads()) as watched:
            _control, journal, now_ms = self._check(watched)
            fresh = sorted(place for place in places if place not in journal.stopped)
            commands: list[Command] = [("HSETNX", self.key, f"t{i}:k{round_}", now_ms) for i, round_ in fresh]
            if ending is not None and journal.ending is None:
                commands.append(("HSETNX", self.key, "end", ending))
            if commands:
                watched.commit("request.stop", commands)
            stopped = {place: journal.stopped.get(place, now_ms) for place in places}
            return StoppedChildren(stopped, journal.ending or ending)

    @property
    def _watched_keys(self) -> tuple[str, ...]:
        return self.scope.keys.ctl, self.key

    def _reads(self) -> list[Command]:
        return [control_command(self.scope.keys), ("HGETALL", self.key), self.scope.clock.now()]

    def _check(self, watched: WatchedTransaction) -> tuple[ControlFields, Journal, int]:
        """Read control fields, journal and time; only the holder of the claim may go on.

        Raises:
            ClaimLost: Another worker has the step, or it is past.
        """
        replies: list[Reply] = watched.replies
        control, ref = ControlFields.read(replies[0]), self.claim.ref
        if not control.is_claimed_by(self.claim.id, ref) or control.phase != "run":
            raise ClaimLost(f"step {ref.step} of session {ref.session_id} has another claim by now")
        return control, decoding.journal(replies[1]), self.scope.clock.milliseconds(replies[2])


def _field(request: Request, letter: str) -> str:
    return f"t{request.index}:{letter}{request.round}"


def _check_size(request: Request) -> None:
    size = len(request.to_json())
    if size > MAX_REQUEST_BYTES:
        advice = f"a request may have {MAX_REQUEST_BYTES} bytes as JSON; shorten its text, options or arguments."
        raise InvalidInput(f"request of {request.tool}", f"{size} bytes", advice)
