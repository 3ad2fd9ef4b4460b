"""Reading of every session whose execution has not ended what it waits for: control fields and indexes, no states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from pydantic_core import from_json

from ...errors import StateUnreadable
from .. import fields
from ..context import StoreContext, StorePart
from ..control import HOLD_FIELDS, read_hold
from ..database import Command, Reply
from ..event_records import Event
from ..events import parse_events
from ..keys import ShardKeys

_BATCH: Final = 2_000
_MOST_REQUESTS: Final = 50_000
_MOST_DEAD: Final = 2_000
_PHASES: Final = (b"run", b"wait", b"parked")
_CTL: Final = ("execution", "phase", "claim", "not_before", "cancel", "put_off", *HOLD_FIELDS)

Asked = tuple[str, str | None]
"""Kind and addressee of an open request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingFacts:
    """The facts of a session whose execution has not ended: what its control fields and the indexes tell.

    Attributes:
        phase: "run", "wait" or "parked".
        claim: The claim that has its step; "" for none.
        is_leased: The lease of the claim is alive; else its worker is lost.
        not_before_ms: When its step may be claimed at the earliest (Redis ms); 0 when at once.
        is_held: It is suspended, and nobody has asked for a stop.
        put_off: The bucket's digest or the `Pause.field` by which its step is put off until then; "" when it is not.
        requests: The kinds and addressees of its open requests, other than those of children.
        last_event: Its newest event, where a worker has its step; None otherwise.
    """

    session_id: str
    agent: str
    phase: str
    claim: str
    is_leased: bool
    not_before_ms: int
    is_held: bool
    put_off: str = ""
    requests: Sequence[Asked] = ()
    last_event: Event | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRead:
    """The sessions whose executions have not ended, as far as they were read.

    Attributes:
        total: How many there are.
        counted: How many of them were looked at.
        is_complete: All were looked at, and the whole list of dead steps for parked ones.
        sessions: Those whose fields could be read.
        now_ms: Redis's time.
    """

    total: int
    counted: int
    is_complete: bool
    sessions: Sequence[WaitingFacts]
    now_ms: int


class WaitingReadVerbs(StorePart):
    """Looking at all sessions that run or wait."""

    def waiting(self, most: int) -> WaitingRead:
        """Read what sessions wait for, those that are due first; parked ones are found in the list of dead steps.

        Args:
            most: Most sessions that are looked at.
        """
        context, now_ms = self._context, self._context.now_ms("waiting.now")
        indexes = context.read_shards("waiting.names", lambda shard: _index_reads(shard, most)).values()
        entries = [entry for _, due, _, _ in indexes for entry in due]
        names = dict.fromkeys(name for entry in entries if (name := fields.name(entry)).encode() == entry)
        dead = {name for _, _, found, _ in indexes for name in _dead_sessions(found)}
        parked = _parked(context, dead - names.keys())
        ids = [*names, *parked][:most]
        are_whole = all(len(due) >= size and len(dead) < _MOST_DEAD for size, due, dead, _ in indexes)
        asked = {name: each for *_, found in indexes for name, each in _parse_requests(found).items()} if ids else {}
        return WaitingRead(
            total=sum(size for size, *_ in indexes) + len(parked),
            counted=len(ids),
            is_complete=are_whole and len(ids) == len(names) + len(parked),
            sessions=[
                each
                for start in range(0, len(ids), _BATCH)
                for each in _facts(context, ids[start : start + _BATCH], asked, now_ms)
            ],
            now_ms=now_ms,
        )


def _index_reads(shard: ShardKeys, most: int) -> list[Command]:
    return [
        ("ZCARD", shard.due),
        ("ZRANGEBYSCORE", shard.due, "-inf", "+inf", "LIMIT", 0, most),
        ("XREVRANGE", shard.dead, "+", "-", "COUNT", _MOST_DEAD),
        ("ZRANGEBYSCORE", shard.requests, "-inf", "+inf", "LIMIT", 0, _MOST_REQUESTS),
    ]


def _parked(context: StoreContext, names: set[str]) -> list[str]:
    """Filter sessions by whether they are parked: others of the list of dead steps have ended since, or go on."""
    ordered = sorted(names)
    replies = context.read_apart("waiting.parked", [[("HGET", context.keys(name).ctl, "phase")] for name in ordered])
    return [name for name, found in zip(ordered, replies, strict=True) if found == [b"parked"]]


def _facts(
    context: StoreContext, names: Sequence[str], asked: Mapping[str, Sequence[Asked]], now_ms: int
) -> list[WaitingFacts]:
    """Read a batch of sessions; those that are gone or damaged are left out."""
    keys = [context.keys(name) for name in names]
    reads = [[("HMGET", each.ctl, *_CTL), ("HGET", each.session, "agent")] for each in keys]
    replies = context.read_apart("waiting.control", reads)
    found = {
        name: facts
        for name, reply in zip(names, replies, strict=True)
        if not isinstance(reply, StateUnreadable)
        and (facts := _parse(name, reply, asked.get(name, ()), now_ms)) is not None
    }
    found.update(_claimed(context, [facts for facts in found.values() if facts.claim]))
    return list(found.values())


def _claimed(context: StoreContext, sessions: Sequence[WaitingFacts]) -> Iterator[tuple[str, WaitingFacts]]:
    """Add to claimed sessions whether their leases are alive, and their newest events."""
    reads: list[list[Command]] = [
        [("EXISTS", keys.shard.lease(each.claim)), ("XREVRANGE", keys.events, "+", "-", "COUNT", 1)]
        for each in sessions
        for keys in (context.keys(each.session_id),)
    ]
    for each, reply in zip(sessions, context.read_apart("waiting.claimed", reads), strict=True):
        if not isinstance(reply, StateUnreadable):
            events = parse_events(each.session_id, reply[1])
            event = events[0] if events else None
            yield each.session_id, replace(each, is_leased=bool(reply[0]), last_event=event)


def _parse(session_id: str, reply: Sequence[Reply], asked: Sequence[Asked], now_ms: int) -> WaitingFacts | None:
    """The facts of a session; None for one that has ended, is gone or is damaged."""
    (execution, phase, claim, not_before, cancel, put_off, *hold), agent = reply
    if execution is None or agent is None or phase not in _PHASES:
        return None
    try:
        held = read_hold(hold)
        return WaitingFacts(
            session_id=session_id,
            agent=fields.text(agent),
            phase=fields.text(phase),
            claim=fields.text(claim),
            is_leased=False,
            not_before_ms=fields.milliseconds(not_before),
            is_held=held is not None and now_ms < held.until_ms and cancel != execution,
            put_off=fields.text(put_off) if fields.milliseconds(not_before) > now_ms else "",
            requests=asked if phase == b"wait" else (),
        )
    except StateUnreadable:
        return None


def _dead_sessions(entries: Sequence[Reply]) -> Iterator[str]:
    """The sessions of the steps in the list of dead steps."""
    for _, flat in entries:
        words = dict(zip(flat[::2], flat[1::2], strict=False))
        name = words.get(b"session", b"")
        if words.get(b"kind") == b"step" and fields.is_session_id(name):
            yield name.decode()


def _parse_requests(entries: Reply) -> dict[str, list[Asked]]:
    """The open requests of a shard, by session: kind and addressee of each."""
    found: dict[str, list[Asked]] = {}
    for entry in entries:
        try:
            parsed: object = from_json(entry)
        except ValueError:
            continue
        if isinstance(parsed, dict):
            summary = cast("dict[str, Any]", parsed)
            found.setdefault(str(summary.get("session_id")), []).append((str(summary.get("kind")), summary.get("to")))
    return found
