"""Reading requests: those of one session from its journal and its committed steps, the inbox of all from the index."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from pydantic import ValidationError

from ...errors import ActionRefused, InvalidInput, RequestNotFound, RequestNotOpen
from ...state.execution.answers import AnswerVerb, RequestResolution
from ...state.execution.requests import RequestStatus, RequestSummary
from ...state.execution.steps import StepExecution
from ...state.execution.tool_calls import ToolExecution
from .. import fields
from ..children.trees import Trees
from ..context import SessionScope, StoreContext, StorePart
from ..control import ControlFields, control_command
from ..database import Command, Reply
from ..journal import Journal, read_journal
from ..keys import ShardKeys
from ..packing import step_spans, unpack
from ..sessions.loading import missing_error
from .index import read_entry
from .later import with_messages
from .records import FoundRequest, OpenCount, RequestFilter, RequestPage

# A step that made no request has not this word in its JSON, or has it in a text, which does no harm.
_RESOLUTIONS = b'"resolutions"'
# After the commit these say nothing new; the others say what became of a request that was not used.
_USED = frozenset({RequestStatus.ANSWERED, RequestStatus.DENIED, RequestStatus.EXPIRED})


@dataclass(frozen=True, slots=True)
class StoredRequests:
    """The requests of a session as stored at one moment.

    Attributes:
        journal: Of the step that the session is at; after the execution's end, of its last step.
        executions: Executions whose steps are kept, oldest first.
        now_ms: Redis time of the moment.
    """

    scope: SessionScope
    control: ControlFields
    journal: Journal
    executions: tuple[str, ...]
    now_ms: int

    @staticmethod
    def reads(scope: SessionScope) -> list[Command]:
        """Commands whose replies `journal_key` and `parse` take."""
        keys = scope.keys
        return [control_command(keys), ("HMGET", keys.session, "version", "executions"), scope.clock.now()]

    @classmethod
    def parse(cls, scope: SessionScope, replies: Sequence[Reply], journal: Reply) -> StoredRequests:
        """Parse the replies to `reads` and the journal, the reply to HGETALL."""
        control, (_version, executions), now = replies
        return cls(
            scope=scope,
            control=ControlFields.read(control),
            journal=read_journal(journal),
            executions=fields.strings(executions),
            now_ms=scope.clock.milliseconds(now),
        )

    @classmethod
    def read(cls, scope: SessionScope) -> StoredRequests:
        """Read them without a WATCH, in two round trips.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
        """
        replies = scope.database.transaction("requests.session", cls.reads(scope))
        key = journal_key(scope, replies)
        (journal,) = scope.database.pipeline("requests.journal", [("HGETALL", key)])
        return cls.parse(scope, replies, journal)

    def of_step(self) -> Iterator[FoundRequest]:
        """The requests of the current step, by call and round."""
        for request in self.journal.all_requests:
            record = self.journal.answer_to(request)
            status = record.status if record is not None else self._open_status()
            yield FoundRequest(
                summary=request.summarize(), call_id=request.call_id, status=status, request=request, answer=record
            )

    def committed(self) -> Iterator[FoundRequest]:
        """The requests of committed steps, the newest first."""
        keys = self.scope.keys
        newest_first = self.executions[::-1]
        commands: list[Command] = [("LRANGE", keys.steps(each), 0, -1) for each in newest_first]
        lists = self.scope.database.pipeline("requests.steps", commands) if commands else []
        for execution_id, items in zip(newest_first, lists, strict=True):
            for entry in reversed(items):
                # A step that has asked is packed by itself.
                item = b"" if fields.or_else(step_spans, entry, ()) else fields.or_else(unpack, entry, b"")
                if _RESOLUTIONS in item:
                    yield from self._of_committed_step(execution_id, item)

    def find(self, name: str) -> FoundRequest:
        """Find a request by its id, or by the model's id of its call: then the newest round.

        Raises:
            RequestNotFound: There is none, or it is too long ago.
            ActionRefused: It is the id of several calls of the current step, which have asked.
        """
        calls = {request.index: request.id for request in self.journal.all_requests if request.call_id == name}
        if len(calls) > 1:  # asked by a build that took equal ids as the model wrote them
            raise ActionRefused(
                f"{name!r:.100} is the id of {len(calls)} calls of session {self.scope.session_id!r}, which have "
                f"asked. Name the request by its own id instead: {' or '.join(calls.values())}."
            )
        for found in self.all():
            if name in (found.summary.id, found.call_id):
                return found
        raise RequestNotFound(self.scope.session_id, name)

    def all(self) -> Iterator[FoundRequest]:
        """Every request that is known, newest first, each once; committed steps are read only when it comes to them."""
        here = list(self.of_step())[::-1]
        if self.control.phase != "end":
            yield from here
            yield from self.committed()
            return
        committed = list(self.committed())
        committed_ids = {found.summary.id for found in committed}
        yield from committed
        yield from (found for found in here if found.summary.id not in committed_ids)

    def refusal(self, found: FoundRequest) -> RequestNotOpen | None:
        """Why a request cannot be answered; None while it is open."""
        name, status, answer = found.summary.id, found.status, found.answer or found.resolution
        if answer is not None:
            what = _PARTICIPLES[answer.verb]
            if answer.status is RequestStatus.EXPIRED:
                what += " at its expiry"
            return RequestNotOpen(name, status.value, by=answer.by, at_ms=answer.at_ms, what=what)
        if status is not RequestStatus.OPEN:
            what = "left without an answer" if self.control.phase == "end" else "cancelled: its execution is stopping"
            return RequestNotOpen(name, status.value, what=what)
        if found.request is not None and found.request.is_expired(self.now_ms):
            at_ms = found.request.expires_at_ms or 0
            return RequestNotOpen(name, RequestStatus.EXPIRED.value, at_ms=at_ms)
        return None

    def _open_status(self) -> RequestStatus:
        """The status of a request without an answer."""
        is_over = self.control.phase == "end" or self.control.requested_stop is not None
        return RequestStatus.CANCELLED if is_over else RequestStatus.OPEN

    def _of_committed_step(self, execution_id: str, item: bytes) -> Iterator[FoundRequest]:
        try:
            step = StepExecution.from_json(item).step
        except ValidationError:
            return  # its session is unreadable, which other readers say
        for execution in step.tool_executions:
            for resolution in reversed(execution.resolutions):
                summary = self._summarize(execution_id, step.number, execution, resolution)
                status = RequestStatus.USED if resolution.status in _USED else resolution.status
                call_id = execution.tool_call.id
                yield FoundRequest(summary=summary, call_id=call_id, status=status, resolution=resolution)

    def _summarize(
        self, execution_id: str, step: int, execution: ToolExecution, resolution: RequestResolution
    ) -> RequestSummary:
        call = execution.tool_call
        return RequestSummary(
            id=resolution.request_id,
            kind=resolution.kind,
            session_id=self.scope.session_id,
            agent="",
            execution_id=execution_id,
            step=step,
            tool=call.name,
            call=f"{call.name}({call.args_json()})"[:200],
            to=resolution.to,
            asked_at_ms=resolution.asked_at_ms,
        )


_PARTICIPLES = {
    AnswerVerb.APPROVE: "approved",
    AnswerVerb.DENY: "denied",
    AnswerVerb.ANSWER: "answered",
    AnswerVerb.COMPLETE: "completed",
    AnswerVerb.FAIL: "failed",
    AnswerVerb.PASS_ON: "passed on to another addressee",
    AnswerVerb.CANCEL: "cancelled",
}


def journal_key(scope: SessionScope, replies: Sequence[Reply]) -> str:
    """The key of the journal that belongs to the replies to `StoredRequests.reads`.

    A session that has had no execution has no journal: a key of this name is never written.

    Raises:
        SessionNotFound: There is no such session, or it has expired.
    """
    control, (version, _executions) = ControlFields.read(replies[0]), replies[1]
    if version is None:
        raise missing_error(scope.context, scope.session_id)
    return scope.keys.journal(control.execution, control.step)


_MOST: Final = 1000
# A filtered page reads up to this number of entries; an unfiltered one reads what it shows.
_CHUNK: Final = 500
_CURSOR: Final = re.compile(r"(\d{1,15})-([0-9a-f]{1,64})")

Position = tuple[int, str]


class RequestListVerbs(StorePart):
    """Finding, listing and counting requests."""

    def find(self, session_id: str, request_id: str) -> FoundRequest:
        """Find a request by its id, or by the model's id of its call (then its newest round).

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            RequestNotFound: The session never made this request, or it is too long ago.
        """
        found = StoredRequests.read(self._context.session(session_id)).find(request_id)
        return with_messages(self._context, [found])[0]

    def page(self, wanted: RequestFilter, *, limit: int = 50, cursor: str | None = None) -> RequestPage:
        """List requests, oldest first. The inbox of all sessions is one read of one index, and one of the messages that
        have come behind the requests of the page, however many wait.

        Raises:
            InvalidInput: The cursor is none of ours, the limit is not 1 to 1000, or a status other than open is asked
                for without a session.
            SessionNotFound: `session_id` names no session.
        """
        if not 1 <= limit <= _MOST:
            raise InvalidInput("limit", limit, f"give 1 to {_MOST}.")
        after = _parse_cursor(cursor)
        if wanted.session_id is None and wanted.status is not RequestStatus.OPEN:
            status = wanted.status.value if wanted.status else None
            raise InvalidInput("status", status, "without a session_id only open requests can be listed.")
        source = (
            _everywhere(self._context, wanted, limit, after)
            if wanted.session_id is None
            else _of_session(self._context, wanted)
        )
        chosen = (found for found in source if _matches(wanted, found) and _position(found.summary) > after)
        found = list(islice(chosen, limit + 1))
        more = len(found) > limit
        cursor = _cursor_of(found[limit - 1].summary) if more else None
        shown = with_messages(self._context, found[:limit], is_listing=True)
        return RequestPage(requests=tuple(shown), cursor=cursor, unread=len(self._context.unread))

    def count_open(self) -> OpenCount:
        """Count the open requests of all sessions; one read of the index."""
        total, oldest = 0, None

        def reads(shard: ShardKeys) -> list[Command]:
            first = ("ZRANGEBYSCORE", shard.requests, "-inf", "+inf", "WITHSCORES", "LIMIT", 0, 1)
            return [("ZCARD", shard.requests), first]

        for count, found in self._context.read_shards("requests.count", reads).values():
            total += count
            if found:
                asked = fields.score_ms(found[1])
                oldest = asked if oldest is None else min(oldest, asked)
        return OpenCount(total, oldest)


def _everywhere(context: StoreContext, wanted: RequestFilter, limit: int, after: Position) -> Iterator[FoundRequest]:
    is_filtered = wanted.to is not None or wanted.kind is not None
    chunk = limit + 1 + bool(after[0])
    if is_filtered:
        chunk = max(chunk, _CHUNK // len(context.shards))
    firsts = context.read_shards("requests.page", lambda shard: [_read(shard, after[0], 0, chunk)])
    shards = (_entries(context, shard, after[0], chunk, first) for shard, (first,) in firsts.items())
    for summary in heapq.merge(*shards, key=_position):
        yield FoundRequest(summary=summary, status=RequestStatus.OPEN)


def _read(shard: ShardKeys, from_ms: int, start: int, chunk: int) -> Command:
    return ("ZRANGEBYSCORE", shard.requests, from_ms, "+inf", "WITHSCORES", "LIMIT", start, chunk)


def _entries(
    context: StoreContext, shard: ShardKeys, from_ms: int, chunk: int, first: Reply | None = None
) -> Iterator[RequestSummary]:
    """The entries of a shard's index from a time on, read chunk by chunk as they are asked for.

    A chunk begins at the time of the last entry before it: requests that are answered meanwhile move the places.
    """
    start, found, seen = 0, first, set[bytes]()
    while True:
        if found is None:
            (found,) = context.database.pipeline("requests.page", [_read(shard, from_ms, start, chunk)])
        entries = found[::2]
        yield from (summary for each in entries if each not in seen and (summary := read_entry(each)) is not None)
        if len(entries) < chunk:
            return
        last_ms = fields.score_ms(found[-1])
        start = start + chunk if last_ms <= from_ms else 0
        from_ms, found, seen = max(last_ms, from_ms), None, set(entries)


def _of_session(context: StoreContext, wanted: RequestFilter) -> Iterator[FoundRequest]:
    """All requests of a session, oldest first, and the open ones of the sessions below it."""
    assert wanted.session_id is not None
    stored = StoredRequests.read(context.session(wanted.session_id))
    found = list(stored.of_step() if wanted.status is RequestStatus.OPEN else stored.all())
    if wanted.tree:
        below = {header.session_id for header in Trees(context).below(wanted.session_id)}
        shard = context.keys(wanted.session_id).shard
        summaries = _entries(context, shard, 0, _CHUNK) if below else ()
        found += [
            FoundRequest(summary=each, status=RequestStatus.OPEN) for each in summaries if each.session_id in below
        ]
    return iter(sorted(found, key=lambda each: _position(each.summary)))


def _matches(wanted: RequestFilter, found: FoundRequest) -> bool:
    summary = found.summary
    return (
        (wanted.to is None or summary.to == wanted.to)
        and (wanted.kind is None or summary.kind is wanted.kind)
        and (wanted.status is None or found.status is wanted.status)
    )


def _position(summary: RequestSummary) -> Position:
    return summary.asked_at_ms, summary.id


def _cursor_of(summary: RequestSummary) -> str:
    return f"{summary.asked_at_ms}-{summary.id}"


def _parse_cursor(cursor: str | None) -> Position:
    if cursor is None:
        return 0, ""
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidInput("cursor", cursor, "give back the cursor of the page before.")
    return int(match[1]), match[2]
