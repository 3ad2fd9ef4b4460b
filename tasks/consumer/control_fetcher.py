"""Fetching control messages, each of which stays in Redis until its task has ended.

A control message is all there is of what a client wants. So a script moves it from its queue into a hash, and its
acknowledgement removes it there. A record that is older than the visibility timeout is that of a worker that was
killed: its message is taken again. The hash is ours alone. In that of kombu, `unacked`, another app's worker might fail
at what another program has written into the queue.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from ...worker.errors import CeleryAgentsError, StoreForbidden
from ...worker.store.database import Command, Reply
from ...worker.store.redis.database import FORBIDDEN_SECONDS, RedisDatabase
from ...worker.unique import unique_hex
from .garbage_collection import MessageGarbage
from .queue_fetcher import BLOCK_SECONDS, FORBIDDEN, FetchedElement, QueueFetcher
from .refusals import REDELIVERY, refusals

log = logging.getLogger(__name__)

MOST_HELD_BYTES: Final = 16_000_000
"""Bodies of control messages that a worker holds at a time; beyond, it takes no further message until one is done."""

PUT_BACK: Final = """
if redis.call('HGET', KEYS[1], ARGV[1]) and KEYS[3] then redis.call('RPUSH', KEYS[3], ARGV[2]) end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
"""
"""Moves the message of a record into a queue. Where Redis refuses the push, the script ends and the record stays.

KEYS: hash and index of the records, and the list of the queue; without a list the record is removed. ARGV: the record's
name, and the message.
"""

_HELD_BESIDE_BODY: Final = 4_000
_MOST_UNREMOVED: Final = 1_000
LOOK_SECONDS: Final = 5.0
# KEYS: hash and index of the records, then the lists of the queue. ARGV: the name of a new record, which changes with
# each message, and the age in seconds from which a record is taken again; "" looks for none.
_TAKE: Final = """
local hash, index, now = KEYS[1], KEYS[2], tonumber(redis.call('TIME')[1])
local function keep(data)
  redis.call('ZADD', index, now, ARGV[1])
  redis.call('HSET', hash, ARGV[1], data)
end
local taken = redis.call('HGET', hash, ARGV[1])
if taken then return {taken, 0} end  -- the worker asks again, because the reply was lost
-- A key of another type is an error before anything is taken. At the memory limit, Redis lets a script write on that
-- has begun to write.
redis.call('ZREM', index, ARGV[1])
if ARGV[2] ~= '' then
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', now - ARGV[2], 'LIMIT', 0, 1)) do
    local data = redis.call('HGET', hash, name)
    if data then keep(data) end
    redis.call('HDEL', hash, name)
    redis.call('ZREM', index, name)
    if data then return {data, 1} end
  end
end
for i = 3, #KEYS do
  local data = redis.call('LINDEX', KEYS[i], -1)
  if data then
    redis.call('RPOP', KEYS[i], 0)  -- pops nothing, and is refused before there is a record
    keep(data)
    redis.call('RPOP', KEYS[i])
    return {data, 0}
  end
end
return false
"""


class ControlRecords:
    """The control messages that a worker has taken and not acknowledged, and their records in Redis."""

    def __init__(self, database: RedisDatabase, keys: tuple[str, str]) -> None:
        """
        Args:
            database: For short commands alone: nothing may wait behind one that blocks.
            keys: The hash of the records of all workers, and the sorted set of their times in seconds.
        """
        self.keys = keys
        self._database = database
        self._lock = threading.Lock()
        self._held: dict[str, FetchedElement] = {}
        self._later: set[str] = set()
        self._unrecorded: set[str] = set()
        self._unremoved = deque[str](maxlen=_MOST_UNREMOVED)
        self._garbage = MessageGarbage()

    def count_wanted(self, limit: int) -> int:
        """Return how many further messages the worker may take, of `limit` that do not wait for their time."""
        sizes = [len(each.data) + _HELD_BESIDE_BODY for each in tuple(self._held.values())]
        return limit - len(sizes) + len(self._later) if sum(sizes) < MOST_HELD_BYTES else 0

    def hold(self, element: FetchedElement, *, is_later: bool) -> None:
        """Count a message until it is acknowledged.

        Args:
            is_later: It waits for its time, its `eta`.
        """
        self._held[element.record] = element
        if is_later:
            self._later.add(element.record)

    def acknowledge(self, element: FetchedElement) -> None:
        """Remove the record of a message that is done."""
        self.forget(element)
        self._garbage.add(len(element.data))
        self.remove(element.record)

    def give_back(self, elements: Sequence[FetchedElement]) -> None:
        """Put messages back where they were taken, in their order. One that Redis does not take keeps its record.

        One whose record is gone has ended meanwhile, or is another worker's.
        """
        recorded = [each for each in reversed(elements) if each.record not in self._unrecorded]
        scripts = [("EVAL", PUT_BACK, 3, *self.keys, each.key, each.record, each.data) for each in recorded]
        replies = self._run(scripts, notes_errors=False)
        # No script may run, or a key of the records has another type: nothing is removed that was not pushed before.
        rest = [each for each, reply in zip(recorded, replies, strict=False) if isinstance(reply, Exception)]
        rest += [each for each in reversed(elements) if each.record in self._unrecorded]
        pushed = self._run([("RPUSH", each.key, each.data) for each in rest])
        refused = [isinstance(reply, Exception) for reply in pushed]
        self.remove(*(each.record for each, stays in zip(rest, refused, strict=False) if not stays))
        for each in elements:
            self.forget(each)

    def give_back_all(self, running: Collection[str] = ()) -> None:
        """Put back what this worker holds: Celery has forgotten it, or ends.

        Args:
            running: Names of records that stay: their tasks run, and will acknowledge them.
        """
        self.give_back([each for each in tuple(self._held.values()) if each.record not in running])

    def add(self, element: FetchedElement) -> None:
        """Make the record of a message that was popped; without one it is delivered all the same."""
        hash_key, index = self.keys
        now = round(time.time())
        replies = self._run([("HSET", hash_key, element.record, element.data), ("ZADD", index, now, element.record)])
        if not replies or isinstance(replies[0], Exception):
            self._unrecorded.add(element.record)

    def forget(self, element: FetchedElement) -> None:
        """Count a message no more, and leave its record: it comes once more."""
        self._held.pop(element.record, None)
        self._later.discard(element.record)
        self._unrecorded.discard(element.record)

    def remove(self, *records: str) -> None:
        """Remove records by their names, and those whose removal had failed. What fails now is tried again later."""
        hash_key, index = self.keys
        names, self._unremoved = [*records, *self._unremoved], deque[str](maxlen=_MOST_UNREMOVED)
        replies = self._run([("HDEL", hash_key, *names), ("ZREM", index, *names)]) if names else names
        if not replies or any(isinstance(reply, Exception) for reply in replies):
            self._unremoved += names

    def _run(self, commands: Sequence[Command], *, notes_errors: bool = True) -> Sequence[Reply]:
        """Run commands in one round trip; no replies: Redis has not answered."""
        replies: Sequence[Reply] = ()
        errors: list[Exception] = []
        try:
            with self._lock:
                replies = self._database.exchange(commands) if commands else ()
        except StoreForbidden as error:
            errors.append(error)
        except CeleryAgentsError as error:
            log.warning("records of control messages are changed later: %s", error)
        if notes_errors:
            errors += (each for each in replies if isinstance(each, Exception))
        for error in errors:
            refusals.record(REDELIVERY, f"a record of a control message cannot be changed: {error}")
        return replies


class ControlFetcher(QueueFetcher):
    """Takes control messages, one in each round trip, and leaves a record of each in Redis."""

    def __init__(
        self,
        database: RedisDatabase,
        queues: Mapping[str, Sequence[str]],
        records: ControlRecords,
        *,
        visibility_seconds: float,
        restore: Callable[[], object] = lambda: None,
        **options: Any,
    ) -> None:
        """
        Args:
            visibility_seconds: The age from which a record is that of a worker that was killed.
            restore: Puts what others have left back into the queue; it is called every few seconds.
            options: Those of `QueueFetcher`.
        """
        super().__init__(database, queues, **options)
        self._records = records
        self._visibility_seconds = visibility_seconds
        self._restore = restore
        self._no_scripts_until = self._no_wait_until = 0.0
        self._looked_at = self._restored_at = float("-inf")
        self._record = unique_hex()

    def _fetch(self, queues: Mapping[str, Sequence[str]], wanted: int) -> list[FetchedElement]:
        """Take what lies in the queues, or what comes within a second."""
        del wanted
        if time.monotonic() >= self._no_scripts_until and (taken := self._take_with_record(queues)) is not None:
            return taken
        popped = [each._replace(record=unique_hex()) for each in super()._fetch(queues, 1)]
        for each in popped:
            self._records.add(each)
        return popped

    def _take_with_record(self, queues: Mapping[str, Sequence[str]]) -> list[FetchedElement] | None:
        """Take a message and leave a record in one script; None: Redis refuses that, or to wait without popping."""
        for _ in range(2):
            for queue, keys in queues.items():
                taken = self._take(queue, keys)
                if taken is None or taken:
                    return taken
            if (has_come := self._wait(queues)) is None:
                return None
            if not has_come:
                break
        return []

    def _wait(self, queues: Mapping[str, Sequence[str]]) -> bool | None:
        """Wait for the next message, and leave it where it is: popped, it would be lost with a worker that is killed.

        Of several lists the first is waited for; another one, with messages of another priority, is looked at after
        `BLOCK_SECONDS` at the latest.

        Returns:
            Whether one has come; None where Redis refuses to wait so.
        """
        if time.monotonic() < self._no_wait_until:
            return None
        key = next(iter(queues.values()))[0]
        (reply,) = self._database.exchange([("BLMOVE", key, key, "RIGHT", "RIGHT", BLOCK_SECONDS)])
        if isinstance(reply, Exception):
            if FORBIDDEN.search(str(reply)):
                self._no_wait_until = time.monotonic() + FORBIDDEN_SECONDS
            return None
        return reply is not None

    def _take(self, queue: str, keys: Sequence[str]) -> list[FetchedElement] | None:
        """Take a message of a queue, if there is one; None: Redis refuses the script."""
        now = time.monotonic()
        looks = now - self._looked_at >= LOOK_SECONDS
        if now - self._restored_at >= LOOK_SECONDS:
            self._restored_at = now
            self._records.remove()
            self._restore()
        record, age = self._record, round(self._visibility_seconds) if looks else ""
        (reply,) = self._database.exchange([("EVAL", _TAKE, 2 + len(keys), *self._records.keys, *keys, record, age)])
        if isinstance(reply, Exception):
            if FORBIDDEN.search(str(reply)):
                log.warning("no script may run, so control messages of a killed worker are lost: %s", reply)
                self._no_scripts_until = time.monotonic() + FORBIDDEN_SECONDS
            elif "WRONGTYPE" not in str(reply):  # the BRPOP says it
                refusals.record(REDELIVERY, f"control messages are taken without records: {reply}")
            return None
        data, is_again = reply or (None, 0)
        if looks and not is_again:
            self._looked_at = time.monotonic()
        if data is None:
            return []
        self._record = unique_hex()
        return [FetchedElement(queue=queue, key=keys[0], data=data, record=record, is_redelivered=bool(is_again))]

    def _give_back(self, elements: Sequence[FetchedElement]) -> None:
        self._records.give_back(elements)
