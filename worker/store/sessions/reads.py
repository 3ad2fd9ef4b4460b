"""Reading of sessions what does not need their state: headers, listings, events, results."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...errors import StateUnreadable
from ...state import DEFAULT, ExecutionStatus
from .. import decoding, fields
from ..context import StoreContext
from ..control import HOLD_FIELDS, read_hold, read_unoffered
from ..database import Command, Reply, Word
from ..event_records import Event
from ..events import parse_events
from ..keys import SessionKeys, ShardKeys, joined_field
from ..records import Operation
from ..session_records import Header, Result, SessionState, SessionSummary
from .marks import missing_error

_BATCH: Final = 5_000
# With more due sessions than this, the listing of all is read instead: the due index has no order by update.
_MOST_ACTIVE: Final = 20_000
_FIRST_CHARS: Final = 200
_HEADER: Final = ("version", "agent", "status", "created", "updated", "session_status", "forked_from")
_CTL: Final = ("execution", "step", "unoffered", "not_before", *HOLD_FIELDS)
# The fields of an entry of the dead list, with the value of those that it lacks.
_DEAD: Final = {"kind": "", "session": "", "execution": "", "step": "0", "reason": "no reason is stored", "payload": ""}
_ACTIVE: Final = frozenset(status.value for status in ExecutionStatus if not status.is_terminal())


def header(context: StoreContext, session_id: str) -> Header:
    """Read what a listing shows of a session.

    Raises:
        SessionNotFound: There is no such session, or it has expired.
    """
    found = read_headers(context, [context.keys(session_id)])[0]
    if found is None:
        raise missing_error(context, session_id)
    return found


def headers(
    context: StoreContext,
    *,
    index: str,
    newest_ms: int | None,
    oldest_ms: int | None,
    limit: int,
    status: str | None = None,
) -> tuple[list[Header], int | None]:
    """Read a page of sessions by last update, newest first, and where the next page begins (ms; None at the end).

    Args:
        index: "sessions"; "failed" for those whose last execution failed; "active" for those whose execution runs or
            waits, which are found in the due index.
        newest_ms: Begin at this update time (inclusive). None: the newest.
        oldest_ms: Nothing older than this. None: no bound.
        limit: Most sessions that are looked at.
        status: Only those with this status. Of the others nothing but the status is read. None: all.
    """
    bounds = _Bounds(newest_ms, oldest_ms, limit + 1)
    scored: list[tuple[int, bytes]] = []
    is_by_due = index == "active" and _count_due(context) <= _MOST_ACTIVE
    for shard in context.shards:
        if is_by_due:
            scored += _active_entries(context, shard, bounds)
        else:
            scored += _entries(context, shard.failed if index == "failed" else shard.sessions, bounds)
    named = sorted(((at_ms, fields.name(member)) for at_ms, member in scored), reverse=True)
    damaged = {fields.name(member) for _, member in scored if fields.name(member).encode() != member}
    page, rest = named[:limit], named[limit:]
    whole = [context.keys(name) for _, name in page if name not in damaged]
    found = read_headers(context, whole if status is None else _with_status(context, whole, status))
    no_id = StateUnreadable("the listing", "an entry is no session id")
    unreadable = [_unreadable_header(name, b"", no_id) for _, name in page if name in damaged]
    return [*(item for item in found if item is not None), *unreadable], rest[0][0] if rest else None


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Which entries of an index are read: updated between these times, and at most so many."""

    newest_ms: int | None
    oldest_ms: int | None
    count: int

    def holds(self, at_ms: int) -> bool:
        """Whether a time is within the bounds."""
        return (self.newest_ms is None or at_ms <= self.newest_ms) and (
            self.oldest_ms is None or at_ms >= self.oldest_ms
        )


def _entries(context: StoreContext, index: str, bounds: _Bounds) -> list[tuple[int, bytes]]:
    """Entries of an index by update time, newest first."""
    upper: Word = "+inf" if bounds.newest_ms is None else bounds.newest_ms
    lower: Word = "-inf" if bounds.oldest_ms is None else bounds.oldest_ms
    (reply,) = context.database.pipeline(
        "list", [("ZREVRANGEBYSCORE", index, upper, lower, "WITHSCORES", "LIMIT", 0, bounds.count)]
    )
    return [(fields.score_ms(score), member) for member, score in zip(reply[::2], reply[1::2], strict=True)]


def _count_due(context: StoreContext) -> int:
    return sum(context.database.pipeline("list.due.count", [("ZCARD", shard.due) for shard in context.shards]))


def _active_entries(context: StoreContext, shard: ShardKeys, bounds: _Bounds) -> list[tuple[int, bytes]]:
    """The sessions of the due index, which holds each whose execution runs or waits, with their update times."""
    (members,) = context.database.pipeline("list.due", [("ZREVRANGEBYSCORE", shard.due, "+inf", "-inf")])
    scores = context.database.pipeline("list.updated", [("ZSCORE", shard.sessions, member) for member in members])
    found = [
        (at_ms, member)
        for score, member in zip(scores, members, strict=True)
        if score is not None and bounds.holds(at_ms := fields.score_ms(score))
    ]
    return sorted(found, reverse=True)[: bounds.count]


def _with_status(context: StoreContext, sessions: Sequence[SessionKeys], status: str) -> Sequence[SessionKeys]:
    """Filter sessions by their status; all of them where only their headers tell."""
    if status == SessionState.UNREADABLE or not sessions:
        return sessions
    try:
        stored = context.database.pipeline("headers.status", [("HGET", keys.session, "status") for keys in sessions])
    except StateUnreadable:  # a key of another type, which is told with its header
        return sessions
    wanted = status.encode()
    return [keys for keys, found in zip(sessions, stored, strict=True) if found == wanted]


def find_matching(context: StoreContext, prefix: str, limit: int) -> list[str]:
    """Find sessions by the beginning of their id, in sorted order; reads the listing's names in batches."""
    found: set[str] = set()
    wanted = prefix.encode()
    for shard in context.shards:
        upper: Word = "+inf"
        while True:
            (names,) = context.database.pipeline(
                "match", [("ZREVRANGEBYSCORE", shard.sessions, upper, "-inf", "WITHSCORES", "LIMIT", 0, _BATCH)]
            )
            found.update(name.decode("utf-8", "replace") for name in names[::2] if name.startswith(wanted))
            last = names[-1] if names else b""
            if len(names) < 2 * _BATCH or len(found) > limit or last == upper:
                break
            upper = last
    return sorted(found)[:limit]


def read_headers(context: StoreContext, all_keys: Sequence[SessionKeys]) -> list[Header | None]:
    """Read the headers of sessions, in order; None for one that does not exist."""
    if not all_keys:
        return []
    commands = [
        command for keys in all_keys for command in (("HMGET", keys.session, *_HEADER), ("HMGET", keys.ctl, *_CTL))
    ]
    try:
        replies = context.database.pipeline("headers", commands)
    except StateUnreadable as error:  # a key of another type: of one session, and the others are to be seen
        if len(all_keys) == 1:
            return [_unreadable_header(all_keys[0].session_id, b"", error)]
        return [header for keys in all_keys for header in read_headers(context, [keys])]
    return [_parse_header(keys.session_id, replies[2 * i], replies[2 * i + 1]) for i, keys in enumerate(all_keys)]


def _parse_header(session_id: str, session: Sequence[Reply], ctl: Sequence[Reply]) -> Header | None:
    version, agent, status, created, updated, session_status, forked_from = session
    if version is None:
        return None
    try:
        return Header(
            session_id=session_id,
            agent=fields.text(agent),
            status=_session_state(fields.text(status)),
            execution_id=fields.text(ctl[0]),
            step=fields.number(ctl[1]),
            version=fields.number(version),
            created_ms=fields.milliseconds(created),
            updated_ms=fields.milliseconds(updated),
            unoffered_since_ms=read_unoffered(fields.text(ctl[2]))[0],
            not_before_ms=fields.milliseconds(ctl[3]),
            hold=(hold := read_hold(ctl[4:])),
            session_status="suspended" if hold is not None else fields.text(session_status) or "active",
            forked_from=fields.text(forked_from),
        )
    except StateUnreadable as error:
        return _unreadable_header(session_id, agent, error)


def _session_state(name: str) -> SessionState | str:
    try:
        return SessionState(name)
    except ValueError:  # of a newer version
        return name


def _unreadable_header(session_id: str, agent: bytes | None, error: StateUnreadable) -> Header:
    name = (agent or b"").decode("utf-8", "replace")
    return Header(
        session_id=session_id,
        agent=name,
        status=SessionState.UNREADABLE,
        execution_id="",
        step=0,
        version=0,
        created_ms=0,
        updated_ms=0,
        problem=str(error),
    )


def definition(context: StoreContext, session_id: str) -> dict[str, Any]:
    """Read the agent's definition as it was when the session was created."""
    keys = context.keys(session_id)
    (stored,) = context.database.pipeline("definition", [("HGET", keys.session, "definition")])
    if stored is None:
        raise missing_error(context, session_id)
    return fields.read_json(stored, "definition")


def record(context: StoreContext, session_id: str, execution_id: str) -> Result | None:
    """Read how an execution ended last, whether it was retried since or not; None when it never has.

    Raises:
        SessionNotFound: There is no such session, or it has expired.
    """
    keys = context.keys(session_id)
    (reply,) = context.database.pipeline("record", [("HMGET", keys.session, "version", f"e:{execution_id}")])
    return _result(context, session_id, *reply)


def records(context: StoreContext, session_id: str) -> list[Result]:
    """Read how the executions that are kept have ended, the oldest first; those that never have are left out.

    Raises:
        SessionNotFound: There is no such session, or it has expired.
    """
    keys = context.keys(session_id)
    ((version, named),) = context.database.pipeline("records", [("HMGET", keys.session, "version", "executions")])
    if version is None:
        raise missing_error(context, session_id)
    names = [f"e:{execution_id}" for execution_id in fields.strings(named)]
    if not names:
        return []
    (stored,) = context.database.pipeline("records.read", [("HMGET", keys.session, *names)])
    found = [_result(context, session_id, version, each) for each in stored]
    return [each for each in found if each is not None]


def read_joined(context: StoreContext, session_id: str, operation_id: str) -> str:
    """Read which execution a message has read_joined; "" while it waits in the inbox, and when it is long forgotten.

    Raises:
        SessionNotFound: There is no such session, or it has expired.
    """
    keys = context.keys(session_id)
    reads = [("HMGET", keys.session, "version", joined_field(operation_id))]
    ((version, execution_id),) = context.database.pipeline("joined", reads)
    if version is None:
        raise missing_error(context, session_id)
    return fields.text(execution_id)


def outcome(context: StoreContext, session_id: str, execution_id: str) -> Result | None:
    """Read how an execution ended; None while it has not, or goes on after a retry.

    Raises:
        SessionNotFound: There is no such session, or it has expired.
    """
    keys = context.keys(session_id)
    # In this order, with status and record at one moment: else a retried execution that ends between the two reads
    # would give its former result.
    reads = [
        ("HGET", keys.ctl, "execution"),
        ("HMGET", keys.session, "version", f"e:{execution_id}", "status"),
    ]
    current, (version, stored, status) = context.database.pipeline("outcome", reads)
    is_active = fields.text(current) == execution_id and fields.text(status) in _ACTIVE
    found = _result(context, session_id, version, stored)
    return None if is_active else found


def _result(context: StoreContext, session_id: str, version: Reply, stored: Reply) -> Result | None:
    if version is None:
        raise missing_error(context, session_id)
    if stored is None:
        return None
    return Result.from_dict(session_id, fields.read_json(stored, "the record of an execution"))


def events(context: StoreContext, session_id: str, after: str | None, limit: int) -> list[Event]:
    """Read stored events after an event id; None: from the beginning."""
    keys = context.keys(session_id)
    first = "-" if after is None else f"({after}"
    (entries,) = context.database.pipeline("events", [("XRANGE", keys.events, first, "+", "COUNT", limit)])
    return parse_events(session_id, entries)


def latest_events(context: StoreContext, session_id: str, limit: int) -> list[Event]:
    """Read the newest events, the oldest of them first."""
    keys = context.keys(session_id)
    (entries,) = context.database.pipeline("events.latest", [("XREVRANGE", keys.events, "+", "-", "COUNT", limit)])
    return parse_events(session_id, list(reversed(entries)))


def summaries(context: StoreContext, session_ids: Sequence[str]) -> dict[str, SessionSummary]:
    """Read the first message, the steps and the cost of sessions; those whose parts cannot be read are left out."""
    if not session_ids:
        return {}
    commands: list[Command] = []
    for session_id in session_ids:
        keys = context.keys(session_id)
        commands += [("HGET", keys.session, "head"), ("LINDEX", keys.section(DEFAULT, 0), 0)]
    try:
        replies = context.database.pipeline("summaries", commands)
    except StateUnreadable:  # a key of another type: of one session, and the others are to be seen
        if len(session_ids) == 1:
            return {}
        return {name: found for each in session_ids for name, found in summaries(context, [each]).items()}
    found: dict[str, SessionSummary] = {}
    for place, session_id in enumerate(session_ids):
        with contextlib.suppress(StateUnreadable, AttributeError, KeyError, TypeError):
            found[session_id] = _summary(replies[2 * place], replies[2 * place + 1])
    return found


def _summary(head: bytes | None, message: bytes | None) -> SessionSummary:
    stored: Any = fields.read_json(head, "head") if head else {}
    execution: Any = stored.get("state", {}).get("execution") or {}
    first = fields.read_json(message, "a message").get("content", "") if message else ""
    return SessionSummary(
        first_message=str(first)[:_FIRST_CHARS], steps=execution.get("step_count", 0), cost=execution.get("cost")
    )


def watch(context: StoreContext, session_id: str, after: str, block_ms: int) -> list[Event]:
    """Read events after an event id, and wait for the first of them no longer than `block_ms`."""
    keys = context.keys(session_id)
    (reply,) = context.database.pipeline(
        "watch", [("XREAD", "COUNT", 100, "BLOCK", block_ms, "STREAMS", keys.events, after)]
    )
    return parse_events(session_id, reply[0][1]) if reply else []


def watch_many(context: StoreContext, positions: Mapping[str, str], block_ms: int) -> dict[str, list[Event]]:
    """Read the events of several sessions, each after an event id, and wait for the first of them."""
    names = {context.keys(session_id).events: session_id for session_id in positions}
    command = ("XREAD", "COUNT", 100, "BLOCK", block_ms, "STREAMS", *names, *positions.values())
    (reply,) = context.database.pipeline("watch.many", [command])
    found = [(names[fields.name(name)], entries) for name, entries in reply or ()]
    return {session_id: parse_events(session_id, entries) for session_id, entries in found}


def waiting_operations(context: StoreContext, session_id: str) -> tuple[Operation, ...]:
    """Read what waits for the step that runs, the oldest first.

    Raises:
        StateUnreadable: An entry is damaged.
    """
    keys = context.keys(session_id)
    reads: list[Command] = [("LRANGE", keys.inbox, 0, -1), ("HGET", keys.session, "ops")]
    entries, known = context.database.pipeline("inbox", reads)
    return decoding.inbox(entries, fields.strings(known))


def list_dead(context: StoreContext, limit: int) -> list[dict[str, str]]:
    """Read the newest entries of the dead list: parked steps, quarantined messages, lost callbacks."""
    found: list[dict[str, str]] = []
    for shard in context.shards:
        (entries,) = context.database.pipeline("dead", [("XREVRANGE", shard.dead, "+", "-", "COUNT", limit)])
        for entry_id, flat in entries:
            named = {fields.name(flat[i]): fields.name(flat[i + 1]) for i in range(0, len(flat), 2)}
            found.append({**_DEAD, **named, "id": entry_id.decode()})
    return sorted(found, key=lambda entry: entry["id"], reverse=True)[:limit]


def backlog(context: StoreContext) -> tuple[int, int, int]:
    """Count the sessions in the due index and those overdue; the third number is how late the oldest is (ms)."""
    total, late, oldest = 0, 0, 0
    for shard in context.shards:
        (now_reply,) = context.database.pipeline("backlog.now", [context.clock.now()])
        now_ms = context.clock.milliseconds(now_reply)
        count, overdue, first = context.database.pipeline(
            "backlog",
            [
                ("ZCARD", shard.due),
                ("ZCOUNT", shard.due, "-inf", now_ms),
                ("ZRANGEBYSCORE", shard.due, "-inf", now_ms, "WITHSCORES", "LIMIT", 0, 1),
            ],
        )
        total, late = total + count, late + overdue
        if first:
            oldest = max(oldest, now_ms - fields.score_ms(first[1]))
    return total, late, oldest


def server_facts(context: StoreContext) -> dict[str, str]:
    """Ask Redis for the lines of `INFO`, by their names, and for its time in milliseconds as `now_ms`.

    Raises:
        StoreForbidden: This Redis user may not run INFO.
    """
    (now_reply,) = context.database.pipeline("facts.now", [context.clock.now()])
    (info,) = context.database.pipeline("facts", [("INFO",)])
    lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines() if ":" in line)
    return {name: value for name, _, value in lines} | {"now_ms": str(context.clock.milliseconds(now_reply))}
