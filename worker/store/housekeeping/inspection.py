"""Reads of operators and of the workers' housekeeping: queues, delays, the dead list, the server, damaged data.

Damage that other programs have done to stored data is only reported: people decide what becomes of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from ...errors import StateUnreadable, StoreForbidden, StoreUnavailable
from ...moments import LAST_MS
from .. import fields, labels
from ..context import StoreContext, StorePart
from ..database import Command, Reply, Word
from ..keys import ShardKeys
from ..lanes import lane_key, lanes_key, lanes_of, queue_types, script_keys
from ..requests.index import read_entry
from ..session_records import DelayedStep
from .callbacks import read_note

# The fields of an entry of the dead list, with the value of those that it lacks.
_DEAD: Final = {"kind": "", "session": "", "execution": "", "step": "0", "reason": "no reason is stored", "payload": ""}
_DELAY: Final = ("step", "phase", "claim", "delays", "not_before", "why", "put_off")
_PAGES: Final = 20


class FactVerbs(StorePart):
    """Reads over all sessions, and the few writes that belong to them."""

    def queue_length(self, queue_key: str) -> int:
        """How many messages wait in a queue of the store's Redis, or of a broker's."""
        return self._context.ask_queues("queue.length", [("LLEN", queue_key)])[0]

    def oldest_message(self, queue_key: str) -> bytes | None:
        """Read the message that leaves next from a queue in a Redis; None when the queue is empty."""
        return self._context.ask_queues("queue.oldest", [("LINDEX", queue_key, -1)])[0]

    def drop_queue(self, queue_key: str) -> None:
        """Delete a queue in a Redis that no worker takes; the sweep publishes what was in it."""
        ask = self._context.ask_queues
        (shares,) = ask("queue.shares", [("ZRANGEBYSCORE", lanes_key(queue_key), "-inf", "+inf")])
        own = [lane_key(queue_key, lane) for share in shares for lane in lanes_of(fields.name(share))]
        ask("queue.drop", [("DEL", queue_key, *script_keys(queue_key), *own)])

    def now_ms(self, session_id: str | None = None) -> int:
        """Ask Redis for its time in milliseconds: the server of a session, or any (None)."""
        return self._context.now_ms() if session_id is None else self._context.now_of(session_id)

    def server_facts(self) -> dict[str, str]:
        """Ask Redis for the lines of `INFO`, by their names, and for its time in milliseconds as `now_ms`.

        Raises:
            StoreForbidden: This Redis user may not run INFO.
        """
        now_ms = self._context.now_ms("facts.now")
        (info,) = self._context.database.pipeline("facts", [("INFO",)])
        return fields.info_lines(info) | {"now_ms": str(now_ms)}

    def node_facts(self) -> dict[str, dict[str, str] | StoreUnavailable]:
        """The same of each node of a cluster by its address, or why it does not answer; nothing for one server.

        Raises:
            StoreForbidden: This Redis user may not run INFO.
        """
        context, found = self._context, dict[str, dict[str, str] | StoreUnavailable]()
        served = {context.database.place(shards[0].due): shards[0].due for shards in context.servers()}
        for place in sorted(served.keys() - {""}):
            try:
                reads: list[Command] = [("INFO",), ("TIME",), ("EXISTS", served[place])]
                info, now, _ = context.database.pipeline("facts.node", reads)
                found[place] = fields.info_lines(info) | {"now_ms": str(context.clock.at(place).milliseconds(now))}
            except StoreUnavailable as error:
                found[place] = error
        return found

    def try_writing(self) -> None:
        """Try a command that writes, on a key that nothing has.

        Raises:
            StoreForbidden: This Redis user may not.
            StoreUnavailable: Redis takes no writes; the sentence says why.
        """
        self._context.database.pipeline("facts.write", [("DEL", self._context.fleet.none)])

    def list_dead(self, limit: int = 100) -> list[dict[str, str]]:
        """Read the newest entries of the dead list: parked steps, quarantined messages, lost callbacks."""
        read = self._context.read_shards("dead", lambda shard: [("XREVRANGE", shard.dead, "+", "-", "COUNT", limit)])
        found = [
            {**_DEAD, **_named(flat), "id": entry_id.decode()}
            for (entries,) in read.values()
            for entry_id, flat in entries
        ]
        return sorted(found, key=lambda entry: entry["id"], reverse=True)[:limit]

    def backlog(self) -> tuple[int, int, int]:
        """Count the sessions in the due index and those overdue; the third number is how late the oldest is (ms)."""
        total, late, oldest = 0, 0, 0
        now_ms = self._context.now_ms("backlog.now")

        def reads(shard: ShardKeys) -> list[Command]:
            first = ("ZRANGEBYSCORE", shard.due, "-inf", now_ms, "WITHSCORES", "LIMIT", 0, 1)
            return [("ZCARD", shard.due), ("ZCOUNT", shard.due, "-inf", now_ms), first]

        for count, overdue, first in self._context.read_shards("backlog", reads).values():
            total, late = total + count, late + overdue
            if first:
                oldest = max(oldest, now_ms - fields.score_ms(first[1]))
        return total, late, oldest

    def list_delayed(self, limit: int = 1000, *, without: str = "") -> list[DelayedStep]:
        """Read the delayed steps that are not due yet, the next try first.

        Args:
            without: Steps that were put off by this are left out, and those behind them read, up to 20 times `limit` of
                each shard. "": none.
        """
        context, found = self._context, dict[str, DelayedStep]()
        now_ms, shards = context.now_ms("delayed.now"), [*context.shards]
        for start in range(0, _PAGES * limit, limit):
            window: list[Word] = [now_ms, "+inf", "LIMIT", start, limit]
            read = context.read_shards("delayed.read", partial(_delayed_reads, window), shards)
            steps = self._delayed_of([entry for (entries,) in read.values() for entry in entries], now_ms)
            found |= {each.session_id: each for each in steps if not without or each.put_off != without}
            counts = Counter(context.keys(each).shard for each in found)
            shards = [shard for shard, (entries,) in read.items() if len(entries) == limit and counts[shard] < limit]
            if not shards or not without:
                break
        return sorted(found.values(), key=lambda entry: entry.next_try_ms)[:limit]

    def _delayed_of(self, entries: Sequence[bytes], now_ms: int) -> Iterator[DelayedStep]:
        # An entry that is no text is none of ours; `inspection` names it.
        session_ids = [name for entry in entries if (name := fields.name(entry)).encode() == entry]
        reads: list[list[Command]] = [[("HMGET", self._context.keys(each).ctl, *_DELAY)] for each in session_ids]
        for session_id, replies in zip(session_ids, self._context.read_apart("delayed.why", reads), strict=True):
            if not isinstance(replies, StateUnreadable):
                yield from _delayed_steps(session_id, replies[0], now_ms)


def _delayed_reads(window: Sequence[Word], shard: ShardKeys) -> list[Command]:
    return [("ZRANGEBYSCORE", shard.delayed, *window)]


def _named(flat: Sequence[bytes]) -> dict[str, str]:
    return {fields.name(name): fields.name(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}


def _delayed_steps(session_id: str, control: Sequence[Reply], now_ms: int) -> list[DelayedStep]:
    """The delayed step of these control fields; none where a stop or another end came first."""
    step, phase, claim, delays, not_before, why, put_off = control
    try:
        next_try_ms = fields.milliseconds(not_before)
        if fields.text(phase) != "run" or claim or not (fields.number(delays) or put_off) or next_try_ms <= now_ms:
            return []
        return [
            DelayedStep(
                session_id=session_id,
                step=fields.number(step),
                reason=fields.text(why),
                next_try_ms=next_try_ms,
                delays=fields.number(delays),
                put_off=fields.text(put_off),
            )
        ]
    except StateUnreadable:
        return []


_LOOKED_AT: Final = 1_000
_RECORDS_LOOKED_AT: Final = 100
# What is written in transactions, as Redis's append-only file has it. They are asked about and not given.
_REPLAYED: Final = (
    "HSET KEY f v", "SET KEY v", "XADD KEY * f v", "ZADD KEY 1 m", "DEL KEY", "PEXPIREAT KEY 1", "LPUSH QUEUE v",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Damage:
    """A key or an entry in a form that this package does not write.

    Attributes:
        entry: The entry's name, escaped; "" when the whole key is meant.
    """

    key: str
    what: str
    entry: str = ""


class InspectVerbs(StorePart):
    """Looking for damaged data and missing rights."""

    def wrong_types(self, more: Mapping[str, str]) -> list[Damage]:
        """Find keys that hold another type than they should; `more` are keys of the broker, with the type of each."""
        expected = {**_expected_types(self._context), **more}
        replies = self._context.database.pipeline("types", [("TYPE", key) for key in expected])
        found: list[Damage] = []
        for (key, kind), reply in zip(expected.items(), replies, strict=True):
            actual = fields.name(reply)
            if actual not in ("none", kind):
                found.append(Damage(key, f"it is a {actual}, not a {kind}"))
        return found

    def expect_shared_keys(self, queue: str = "") -> None:
        """Look whether a key that all sessions share is why a session cannot be read.

        Args:
            queue: Name of the queue that the session's step came from.
        Raises:
            StoreUnavailable: Such a key, or the queue, holds another type. Steps stay due until it is removed.
        """
        keys = [str(command[1]) for command in self._context.publisher.count_commands(queue)]
        try:
            found = self.wrong_types(queue_types(keys))
        except StoreForbidden:
            return  # this Redis user may not look
        if found:
            raise StoreUnavailable(f"key {found[0].key!r}: {found[0].what}; somebody else wrote to it")

    def bad_entries(self) -> list[Damage]:
        """Find entries of the indexes that name no session or have no time."""
        return [damage for shard in self._context.shards for damage in _bad_entries_of(self._context, shard)]

    def unreplayable_commands(self, queue_key: str) -> list[str]:
        """Name the commands of our transactions that Redis's user `default` may not give.

        Redis replays an append-only file as that user, and most releases since 7.0 check its rights again at the end of
        each transaction: what is refused then is lost. Redis 7.0 is the first that can be asked.

        Args:
            queue_key: The key of a queue of steps.
        Raises:
            StoreForbidden: This Redis user may not ask, or this Redis has no such command.
        """
        keys = {"KEY": self._context.shards[0].due, "QUEUE": queue_key}
        tries: list[Command] = [
            ("ACL", "DRYRUN", "default", *(keys.get(word, word) for word in command.split())) for command in _REPLAYED
        ]
        replies = self._context.database.pipeline("dryrun", tries)
        return [
            command.partition(" ")[0]
            for command, reply in zip(_REPLAYED, replies, strict=True)
            if fields.name(reply) != "OK"
        ]

    def unacked_records(self, key: str) -> tuple[int, dict[str, bytes]]:
        """Count the broker's records of unacknowledged messages, and read a hundred of them by their names."""
        count, (_, flat) = self._context.database.pipeline(
            "unacked", [("HLEN", key), ("HSCAN", key, 0, "COUNT", _RECORDS_LOOKED_AT)]
        )
        return count, fields.named_pairs(flat)


def _expected_types(context: StoreContext) -> dict[str, str]:
    fleet = context.fleet
    types = {fleet.agents: "hash", fleet.workers: "hash", fleet.shards: "string"}
    for shard in context.shards:
        types |= dict.fromkeys(_indexes(shard), "zset")
        types |= {shard.dead: "stream", shard.sweeper: "string", shard.primary: "string"}
    types |= {context.shards[0].schedules: "hash", context.shards[0].scheduled: "zset"}
    return types


def _bad_entries_of(context: StoreContext, shard: ShardKeys) -> Iterator[Damage]:
    for key, is_entry in _indexes(shard).items():
        try:
            yield from _bad_entries_in(context, key, is_entry)
        except StateUnreadable:
            continue  # of another type, which `wrong_types` tells


def _indexes(shard: ShardKeys) -> Mapping[str, Callable[[bytes], bool]]:
    """The sorted sets of a shard, with the check of their entries."""
    of_sessions = (shard.due, shard.delayed, shard.sessions, shard.failed, shard.ending, shard.children, shard.lost)
    return {
        **dict.fromkeys(of_sessions, fields.is_session_id),
        shard.callbacks: _is_note,
        shard.unoffered: _is_unoffered,
        shard.labels: labels.is_member,
        shard.requests: lambda entry: read_entry(entry) is not None,
    }


def _bad_entries_in(context: StoreContext, key: str, is_entry: Callable[[bytes], bool]) -> Iterator[Damage]:
    any_score: Command = ("ZRANGEBYSCORE", key, "-inf", "+inf", "LIMIT", 0, _LOOKED_AT)
    too_late: Command = ("ZRANGEBYSCORE", key, f"({LAST_MS}", "+inf", "LIMIT", 0, _LOOKED_AT)
    members, late = context.database.pipeline("entries", [any_score, too_late])
    for member in members:
        if not is_entry(member):
            yield Damage(key, "it is no entry of this index", fields.name(member))
    for member in late:
        yield Damage(
            key, "its time is infinite or after the year 9999, so nobody ever looks at it", fields.name(member)
        )


def _is_note(entry: bytes) -> bool:
    name = fields.name(entry)
    note = read_note(name) if name.encode() == entry else None
    return note is not None and fields.is_session_id(note.session_id.encode())


def _is_unoffered(entry: bytes) -> bool:
    """Whether an entry is the name of an agent, then the id of a session."""
    agent, space, session_id = entry.rpartition(b" ")
    return bool(agent and space) and fields.is_session_id(session_id)
