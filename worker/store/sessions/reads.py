"""Reading of sessions what does not need their state: headers, listings, events, results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ...errors import SessionNotFound, StateUnreadable
from ...state import ExecutionStatus
from .. import fields
from ..context import StoreContext
from ..database import Reply
from ..events import parse_events
from ..keys import SessionKeys
from ..records import Event, Header, Result

_HEADER: Final = ("version", "agent", "status", "created", "updated")
_CTL: Final = ("execution", "step")
_ACTIVE: Final = frozenset(status.value for status in ExecutionStatus if not status.is_terminal())


def header(context: StoreContext, session_id: str) -> Header:
    """Read what a listing shows of a session.

    Raises:
        SessionNotFound: There is no such session, or it has expired.
    """
    found = _read_headers(context, [context.keys(session_id)])[0]
    if found is None:
        raise SessionNotFound(session_id)
    return found


def headers(
    context: StoreContext, *, index: str, newest_ms: int | None, oldest_ms: int | None, limit: int
) -> tuple[list[Header], int | None]:
    """Read a page of sessions by last update, newest first, and where the next page begins (ms; None at the end).

    Args:
        index: "sessions", or "failed" for those whose last execution failed.
        newest_ms: Begin at this update time (inclusive). None: the newest.
        oldest_ms: Nothing older than this. None: no bound.
        limit: Most sessions.
    """
    scored: list[tuple[int, str]] = []
    for shard in context.shards:
        key = shard.failed if index == "failed" else shard.sessions
        upper = "+inf" if newest_ms is None else newest_ms
        lower = "-inf" if oldest_ms is None else oldest_ms
        (reply,) = context.database.pipeline(
            "list", [("ZREVRANGEBYSCORE", key, upper, lower, "WITHSCORES", "LIMIT", 0, limit + 1)]
        )
        scored += [(int(float(reply[i + 1])), reply[i].decode()) for i in range(0, len(reply), 2)]
    scored.sort(reverse=True)
    page, rest = scored[:limit], scored[limit:]
    found = _read_headers(context, [context.keys(session_id) for _, session_id in page])
    return [item for item in found if item is not None], rest[0][0] if rest else None


def _read_headers(context: StoreContext, all_keys: Sequence[SessionKeys]) -> list[Header | None]:
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
        return [header for keys in all_keys for header in _read_headers(context, [keys])]
    return [_parse_header(keys.session_id, replies[2 * i], replies[2 * i + 1]) for i, keys in enumerate(all_keys)]


def _parse_header(session_id: str, session: Sequence[Reply], ctl: Sequence[Reply]) -> Header | None:
    version, agent, status, created, updated = session
    if version is None:
        return None
    try:
        return Header(
            session_id=session_id,
            agent=fields.text(agent),
            status=fields.text(status),
            execution_id=fields.text(ctl[0]),
            step=fields.number(ctl[1]),
            version=fields.number(version),
            created_ms=fields.number(created),
            updated_ms=fields.number(updated),
        )
    except StateUnreadable as error:
        return _unreadable_header(session_id, agent, error)


def _unreadable_header(session_id: str, agent: bytes | None, error: StateUnreadable) -> Header:
    name = (agent or b"").decode("utf-8", "replace")
    return Header(
        session_id=session_id,
        agent=name,
        status="unreadable",
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
        raise SessionNotFound(session_id)
    return fields.read_json(stored, "definition")


def record(context: StoreContext, session_id: str, execution_id: str) -> Result | None:
    """Read how an execution ended last, whether it was retried since or not; None when it never has.

    Raises:
        SessionNotFound: There is no such session, or it has expired.
    """
    keys = context.keys(session_id)
    (reply,) = context.database.pipeline("record", [("HMGET", keys.session, "version", f"e:{execution_id}")])
    return _result(session_id, *reply)


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
    found = _result(session_id, version, stored)
    return None if is_active else found


def _result(session_id: str, version: Reply, stored: Reply) -> Result | None:
    if version is None:
        raise SessionNotFound(session_id)
    if stored is None:
        return None
    return Result.from_dict(session_id, fields.read_json(stored, "the record of an execution"))


def events(context: StoreContext, session_id: str, after: str | None, limit: int) -> list[Event]:
    """Read stored events after an event id; None: from the beginning."""
    keys = context.keys(session_id)
    first = "-" if after is None else f"({after}"
    (entries,) = context.database.pipeline("events", [("XRANGE", keys.events, first, "+", "COUNT", limit)])
    return parse_events(session_id, entries)


def watch(context: StoreContext, session_id: str, after: str, block_ms: int) -> list[Event]:
    """Read events after an event id, and wait for the first of them no longer than `block_ms`."""
    keys = context.keys(session_id)
    (reply,) = context.database.pipeline(
        "watch", [("XREAD", "COUNT", 100, "BLOCK", block_ms, "STREAMS", keys.events, after)]
    )
    return parse_events(session_id, reply[0][1]) if reply else []


def dead(context: StoreContext, limit: int) -> list[dict[str, str]]:
    """Read the newest entries of the dead list: parked steps, quarantined messages, lost callbacks."""
    found: list[dict[str, str]] = []
    for shard in context.shards:
        (entries,) = context.database.pipeline("dead", [("XREVRANGE", shard.dead, "+", "-", "COUNT", limit)])
        for entry_id, flat in entries:
            named = {name: value.decode("utf-8", "replace") for name, value in fields.pairs(flat).items()}
            found.append({"id": entry_id.decode(), **named})
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
            oldest = max(oldest, now_ms - int(float(first[1])))
    return total, late, oldest


def server_facts(context: StoreContext) -> dict[str, str]:
    """Ask Redis for the lines of `INFO`, by their names, and for its time in milliseconds as `now_ms`."""
    info, now_reply = context.database.pipeline("facts", [("INFO",), context.clock.now()])
    lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines() if ":" in line)
    return {name: value for name, _, value in lines} | {"now_ms": str(context.clock.milliseconds(now_reply))}
