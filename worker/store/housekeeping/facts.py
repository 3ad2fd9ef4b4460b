"""Facts that operators and the workers' housekeeping read: queues, delays, the dead list, shards, the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...errors import ConfigurationError, StateUnreadable, StoreForbidden
from .. import fields
from ..context import StorePart
from ..database import Command, Reply
from ..keys import SHARDS
from ..session_records import DelayedStep

# The fields of an entry of the dead list, with the value of those that it lacks.
_DEAD: Final = {"kind": "", "session": "", "execution": "", "step": "0", "reason": "no reason is stored", "payload": ""}
_DELAY: Final = ("step", "phase", "claim", "delays", "not_before", "why")
_SHOWN: Final = 20


class FactVerbs(StorePart):
    """Reads over all sessions, and the few writes that belong to them."""

    def queue_length(self, queue_key: str) -> int:
        """How many messages wait in a queue that is in the store's Redis."""
        return self._context.database.pipeline("queue.length", [("LLEN", queue_key)])[0]

    def oldest_message(self, queue_key: str) -> bytes | None:
        """Read the message that leaves next from a queue in the store's Redis; None when the queue is empty."""
        return self._context.database.pipeline("queue.oldest", [("LINDEX", queue_key, -1)])[0]

    def drop_queue(self, queue_key: str) -> None:
        """Delete a queue that is in the store's Redis and that nobody takes; the sweep publishes what was in it."""
        self._context.database.pipeline("queue.drop", [("DEL", queue_key)])

    def now_ms(self) -> int:
        """Ask Redis for its time in milliseconds."""
        return self._context.now_ms()

    def server_facts(self) -> dict[str, str]:
        """Ask Redis for the lines of `INFO`, by their names, and for its time in milliseconds as `now_ms`.

        Raises:
            StoreForbidden: This Redis user may not run INFO.
        """
        now_ms = self._context.now_ms("facts.now")
        (info,) = self._context.database.pipeline("facts", [("INFO",)])
        lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines() if ":" in line)
        return {name: value for name, _, value in lines} | {"now_ms": str(now_ms)}

    def list_dead(self, limit: int = 100) -> list[dict[str, str]]:
        """Read the newest entries of the dead list: parked steps, quarantined messages, lost callbacks."""
        found: list[dict[str, str]] = []
        for shard in self._context.shards:
            (entries,) = self._context.database.pipeline("dead", [("XREVRANGE", shard.dead, "+", "-", "COUNT", limit)])
            found += [{**_DEAD, **_named(flat), "id": entry_id.decode()} for entry_id, flat in entries]
        return sorted(found, key=lambda entry: entry["id"], reverse=True)[:limit]

    def backlog(self) -> tuple[int, int, int]:
        """Count the sessions in the due index and those overdue; the third number is how late the oldest is (ms)."""
        total, late, oldest = 0, 0, 0
        for shard in self._context.shards:
            now_ms = self._context.now_ms("backlog.now")
            reads: list[Command] = [
                ("ZCARD", shard.due),
                ("ZCOUNT", shard.due, "-inf", now_ms),
                ("ZRANGEBYSCORE", shard.due, "-inf", now_ms, "WITHSCORES", "LIMIT", 0, 1),
            ]
            count, overdue, first = self._context.database.pipeline("backlog", reads)
            total, late = total + count, late + overdue
            if first:
                oldest = max(oldest, now_ms - fields.score_ms(first[1]))
        return total, late, oldest

    def list_delayed(self, limit: int = 1000) -> list[DelayedStep]:
        """Read the delayed steps that are not due yet, the next try first."""
        found: list[DelayedStep] = []
        for shard in self._context.shards:
            now_ms = self._context.now_ms("delayed.now")
            command: Command = ("ZRANGEBYSCORE", shard.delayed, now_ms, "+inf", "WITHSCORES", "LIMIT", 0, limit)
            (reply,) = self._context.database.pipeline("delayed.read", [command])
            # An entry that is no text is none of ours; `inspection` names it.
            session_ids = [name for entry in reply[::2] if (name := fields.name(entry)).encode() == entry]
            reads: list[list[Command]] = [[("HMGET", shard.session(each).ctl, *_DELAY)] for each in session_ids]
            for session_id, replies in zip(session_ids, self._context.read_apart("delayed.why", reads), strict=True):
                if not isinstance(replies, StateUnreadable):
                    found += _delayed_steps(session_id, replies[0], now_ms)
        return sorted(found, key=lambda entry: entry.next_try_ms)[:limit]

    def check_shards(self) -> None:
        """Compare the number of shards in the settings with the one that this Redis was used with.

        It stays the same as long as a Redis holds sessions.

        Raises:
            ConfigurationError: They differ, or the stored one cannot be read; sessions would be looked for in the wrong
                place.
        """
        wanted = str(self._context.settings.shards)
        try:
            (stored,) = self._context.database.pipeline("shards", [("GET", SHARDS)])
        except StateUnreadable as error:
            raise ConfigurationError(
                f"the key {SHARDS} holds another type than a string: somebody else wrote to it. DEL {SHARDS}; the next "
                f"worker writes the number of shards, {wanted}, again"
            ) from error
        if stored is None:
            stored = self._store_shards(wanted)
        if fields.name(stored) != wanted:
            raise ConfigurationError(
                f"CELERY_AGENTS_SHARDS={wanted}, but this Redis holds sessions in {fields.name(stored)[:_SHOWN]!r} "
                f"shards; set it to that, or use an empty Redis"
            )

    def _store_shards(self, wanted: str) -> Reply:
        """Store the number in an empty Redis; a user who may not write leaves that to the first worker."""
        writes: list[Command] = [("SET", SHARDS, wanted, "NX"), ("GET", SHARDS)]
        try:
            return self._context.database.pipeline("shards.first", writes)[1]
        except (ConfigurationError, StoreForbidden):
            return wanted.encode()


def _named(flat: Sequence[bytes]) -> dict[str, str]:
    return {fields.name(name): fields.name(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}


def _delayed_steps(session_id: str, control: Sequence[Reply], now_ms: int) -> list[DelayedStep]:
    """The delayed step of these control fields; none where a stop or another end came first."""
    step, phase, claim, delays, not_before, why = control
    try:
        next_try_ms = fields.milliseconds(not_before)
        if fields.text(phase) != "run" or claim or not fields.number(delays) or next_try_ms <= now_ms:
            return []
        return [
            DelayedStep(
                session_id=session_id,
                step=fields.number(step),
                reason=fields.text(why),
                next_try_ms=next_try_ms,
                delays=fields.number(delays),
            )
        ]
    except StateUnreadable:
        return []
