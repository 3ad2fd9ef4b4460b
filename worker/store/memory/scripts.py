"""The scripts of `redis.scripts` in Python; the contract suite holds the two together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...errors import StateUnreadable
from ...moments import LAST_MS
from ..database import Command, Reply, Word

Run = Callable[[Command], Reply]
"""Runs one command of Redis."""
Script = Callable[[Run, Sequence[str], Sequence[Word]], Reply]

_SWEPT_FIELDS: Final = (
    "execution", "step", "claim", "phase", "published", "nudges", "retries", "queue", "unoffered",
    "legs", "held", "cancel", "lane", "not_before",
)  # fmt: skip
_SLACK_MS: Final = 1000
_NO_KEY: Final = -2


@dataclass(frozen=True, slots=True)
class _Due:
    """A due session: its id, the claim as it was read before, and its keys."""

    sid: bytes
    claim: bytes
    session: str
    ctl: str
    events: str
    lease: str


class _Sweep:
    """A pass of the sweep: its arguments, as `redis/scripts/sweep.lua` describes them, and what it has found."""

    def __init__(self, run: Run, keys: Sequence[str], args: Sequence[Word]) -> None:
        count, self.now, self.lease, self.grace, self.wait, self.longest, *more = map(int, args[:9])
        self.capacity, self.patience, self.events = more
        self.run, (self.due, self.unoffered, *owned) = run, keys
        start, pairs_end = 11 + 2 * count, 11 + 2 * count + 2 * int(args[10])
        ids, claims = map(_bytes, args[11:start:2]), map(_bytes, args[12:start:2])
        self.sessions = [_Due(*each) for each in zip(ids, claims, *(owned[i::4] for i in range(4)), strict=True)]
        pairs, rest = args[start:pairs_end], args[pairs_end:]
        self.oldest = {_bytes(name): int(ms) for name, ms in zip(pairs[::2], pairs[1::2], strict=True)}
        offers: dict[bytes, list[bytes]] = {}
        while rest:
            end = 2 + int(rest[1])
            offers[_bytes(rest[0])] = [_bytes(name) for name in rest[2:end]]
            rest = rest[end:]
        self.offers = offers if int(args[9]) else None
        self.lost, self.broken, self.expired = list[Reply](), list[bytes](), list[Reply]()
        self.live = self.queued = 0

    def examine(self, entry: _Due) -> bool:
        """Look at one entry of the due index; False: there is no more room for messages."""
        sid = entry.sid
        try:
            found = self.run(("HMGET", entry.ctl, *_SWEPT_FIELDS))
        except StateUnreadable:
            found = [b""] * len(_SWEPT_FIELDS)
        execution, step, claim, phase, _, _, retries, _, _, legs, held, *_ = found
        numbers = [_count(b"0" if number is None else number) for number in (retries, legs)]
        if execution is not None and None in (_count(step), *numbers, _time(b"0" if held is None else held)):
            self.broken.append(sid)
            self._look_again(sid, self.now + self.wait)
            return True
        if execution is None or phase == b"end":
            self.run(("ZREM", self.due, sid))
            return True
        if (claim or b"") != entry.claim:
            return True
        left = self.run(("PTTL", entry.lease)) if claim else -2
        if left == -1 and claim:
            self.run(("PEXPIRE", entry.lease, self.lease))
            left = self.lease
        if left >= 0:
            self.live += 1
            self._look_again(sid, self.now + left + self.grace)
            return True
        return self._examine_unclaimed(entry, found)

    def _examine_unclaimed(self, entry: _Due, found: Sequence[Any]) -> bool:
        sid = entry.sid
        execution, step, _, _, published, republished, retries, queue, mark, legs, held, cancel, lane, comes = found
        until = (0 if cancel == execution else _time(held)) if _time(held) else _time(comes)
        if until and until > self.now:
            self._look_again(sid, until)
            return True
        agent = self.run(("HGET", entry.session, "agent")) if self.offers is not None else None
        queues = (self.offers or {}).get(agent) if agent else None
        if agent and queues is None:
            self._leave_unoffered(entry, found, agent)
            return True
        name, moves = queue or b"", queues is not None and (queue or b"") not in queues
        oldest = self.oldest.get(name + b"\n" + lane if lane else name, -1)
        if not moves and oldest >= 0 and _number_in(published, self.now + self.lease) + _SLACK_MS >= oldest:
            self.queued += 1
            self._look_again(sid, self.now + self.wait)
            return True
        if len(self.lost) >= self.capacity:
            return False
        count, left = _number_in(republished, 1e6), b""
        self.run(("HSET", entry.ctl, "published", self.now, "nudges", int(count + 1)))
        if moves and queues:
            left, name = name, queues[0]
            self.run(("HSET", entry.ctl, "queue", name))
        if mark and queues and agent:
            self.run(("HDEL", entry.ctl, "unoffered"))
            self.run(("ZREM", self.unoffered, agent + b" " + sid))
        self._look_again(sid, self.now + min(self.wait * 2 ** min(count, 20), self.longest))
        self.lost.append([sid, execution, step, retries or b"0", legs or b"0", name, lane or b"", left])
        return True

    def _leave_unoffered(self, entry: _Due, found: Sequence[Any], agent: bytes) -> None:
        """Let a session wait for a worker that offers its agent; the grace period counts from the first time."""
        sid, execution, step, mark = entry.sid, found[0], found[1], found[8]
        since = _count((mark or b"").partition(b" ")[0])
        if since is not None and self.now >= since + self.patience:
            self._look_again(sid, self.now + self.wait)
            self.expired.append([sid, execution, step, agent])
            return
        if since is None:
            since = self.now
            self.run(("HSET", entry.ctl, "unoffered", b"%d %b" % (self.now, agent)))
            _add_event(self.run, entry.events, self.events, ("waiting_for_worker", execution, step, agent))
        self.run(("ZADD", self.unoffered, 0, agent + b" " + sid))
        self._look_again(sid, since + self.patience)

    def _look_again(self, sid: bytes, at: float) -> None:
        self.run(("ZADD", self.due, "XX", at, sid))


def _sweep(run: Run, keys: Sequence[str], args: Sequence[Word]) -> Reply:
    sweep = _Sweep(run, keys, args)
    for entry in sweep.sessions:
        if not sweep.examine(entry):
            break
    return [sweep.lost, sweep.live, sweep.queued, sweep.broken, sweep.expired]


def _offer(run: Run, keys: Sequence[str], args: Sequence[Word]) -> Reply:
    now, kept, wait, agent, count, *rest = args
    queues, session_ids, owned = rest[: int(count)], rest[int(count) :], keys[2:]
    free: list[Reply] = []
    for sid, session, ctl, events in zip(session_ids, owned[::3], owned[1::3], owned[2::3], strict=True):
        waited = run(("ZREM", keys[0], _bytes(agent) + b" " + _bytes(sid)))
        names = ("execution", "step", "phase", "queue", "started", "not_before", "held", "claim", "retries", "legs")
        execution, step, phase, queue, started, not_before, held, *more = run(("HMGET", ctl, *names, "lane"))
        claim, retries, legs, lane = more
        if execution is None or not waited:
            continue
        run(("HDEL", ctl, "unoffered"))
        name = (queue or b"").decode()
        if name not in queues:
            name = str(queues[0])
            run(("HSET", ctl, "queue", name))
        due = max(int(now), int(_count(not_before) or 0), int(_count(held) or 0))
        if phase == b"parked":
            run(("HSET", ctl, "phase", "run", "attempts", 0))
            run(("HSET", session, "status", "pending" if (started or b"0") == b"0" else "in_progress"))
            run(("ZADD", keys[1], due, sid))
        if phase != b"end":
            is_free = int(wait) > 0 and due <= int(now) and not claim
            run(("HSET", ctl, "published", now if is_free else 0, "nudges", 0))
            run(("ZADD", keys[1], "XX", int(now) + int(wait) if is_free else due, sid))
            if is_free:
                counts = (step or b"0", retries or b"0", legs or b"0")
                free.append([_bytes(sid), execution, *counts, _bytes(name), lane or b""])
            _add_event(run, events, kept, ("worker_found", execution, step or b"0", _bytes(agent)))
    return free


def _prune(run: Run, keys: Sequence[str], args: Sequence[Word]) -> Reply:
    now_ms, *sids = args
    gone = 0
    for sid, session, *others in zip(sids, keys[6::3], keys[7::3], keys[8::3], strict=True):
        left = run(("PTTL", session))
        if left == _NO_KEY:
            gone += 1
            for index in keys[1:5]:
                run(("ZREM", index, sid))
            own = b"@" + _bytes(sid)
            for member in run(("ZRANGEBYLEX", keys[5], b"[" + own + b"\n", b"(" + own + b"\x0b")):
                label = member.partition(b"\n")[2]
                run(("ZREM", keys[5], member, b"=" + label + b"\n" + _bytes(sid)))
            run(("DEL", *others))
        run(("ZREM", keys[0], sid))
        if left >= 0:
            run(("ZADD", keys[0], int(now_ms) + left + 1, sid))
    return gone


def _journal_when_full(run: Run, keys: Sequence[str], args: Sequence[Word]) -> Reply:
    run(("XTRIM", keys[1], "MAXLEN", 16))
    return [run(("HSETNX", keys[0], str(f), v)) for f, v in zip(args[::2], args[1::2], strict=True)]


def _write_live(run: Run, keys: Sequence[str], args: Sequence[Word]) -> Reply:
    life, *rest = args
    words, written = iter(rest), 0
    for session, ctl, live in zip(keys[::3], keys[1::3], keys[2::3], strict=True):
        claim, step, mark, kept, entries = (_bytes(next(words)) for _ in range(5))
        found: list[bytes | None] = run(("HMGET", ctl, "claim", "step", "live"))
        counts = found[2] == mark
        if not counts and found[:2] == [claim, step]:
            run(("HSET", ctl, "live", mark))
            counts = True
        if not counts:
            done, _, by = (run(("HGET", session, "last")) or b"").partition(b":")
            counts = by == claim and int(done) >= int(step)
        for _ in range(int(entries)):
            entry = [next(words) for _ in range(int(next(words)))]
            if counts:
                run(("XADD", live, "MAXLEN", "~", kept, "*", *entry))
                written += 1
        if counts:
            run(("PEXPIRE", live, life))
    return written


def _admit(run: Run, keys: Sequence[str], args: Sequence[Word]) -> Reply:
    """Admit every request: one process has no fleet. See `tests/support/lua_scripts.py`."""
    del keys
    seconds, microseconds = run(("TIME",))
    is_reserve = json.loads(_bytes(args[0]))["op"] == "reserve"
    return [1, int(seconds) * 1000 + int(microseconds) // 1000, 0] if is_reserve else [0, 0, 0, 0]


def _hold(run: Run, keys: Sequence[str], args: Sequence[Word]) -> Reply:
    """Let everything begin: one process has no fleet. See `tests/support/lua_scripts.py`."""
    del run, keys
    return {"take": [1, 0, 0], "keep": [1, 0, 0], "look": [1]}.get(json.loads(_bytes(args[0]))["op"], [])


def _spend(run: Run, keys: Sequence[str], args: Sequence[Word]) -> Reply:
    """Let everything be spent: one process has no fleet. See `tests/support/lua_scripts.py`."""
    del run, keys
    return [1] if json.loads(_bytes(args[0]))["op"] == "reserve" else []


SCRIPTS: Final[Mapping[str, Script]] = {
    "sweep": _sweep,
    "offer": _offer,
    "prune": _prune,
    "journal_when_full": _journal_when_full,
    "write_live": _write_live,
    "bucket": _admit,
    "holders": _hold,
    "caps": _spend,
}
"""The functions by the names of the scripts."""


def _add_event(run: Run, stream: str, kept: Word, event: tuple[str, bytes, bytes, bytes]) -> None:
    kind, execution, step, agent = event
    words: tuple[Word, ...] = ("type", kind, "execution", execution, "step", step, "data", b'{"agent":"%b"}' % agent)
    run(("XADD", stream, "MAXLEN", "~", kept, "*", *words))


def _bytes(value: Word) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _count(value: bytes | None) -> float | None:
    """Parse a number as Lua's `tonumber` does; None when it is none."""
    try:
        return float(value) if value is not None else None
    except ValueError:
        return None


def _number_in(value: bytes | None, most: float) -> float:
    """Parse a number from 0 to `most`; anything else counts as 0."""
    number = _count(value) or 0
    return number if 0 <= number <= most else 0


def _time(value: bytes | None) -> float | None:
    """Parse a time in milliseconds; None when it is none, or later than any."""
    found = _count(value)
    return found if found is not None and 0 <= found <= LAST_MS else None
