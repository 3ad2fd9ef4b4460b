"""Fetching control messages, each of which stays in Redis until its task has ended.

A control message is all there is of what a client wants. So a script moves it from its queue into a hash, and its
acknowledgement removes it there. A record that is older than the visibility timeout is that of a worker that was
killed: its message is taken again. The hash is ours alone. In that of kombu, `unacked`, another app's worker might fail
at what somebody has written into the queue.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ...worker.errors import CeleryAgentsError
from ...worker.store.database import Command
from ...worker.store.redis.database import RedisDatabase
from ...worker.unique import unique_hex
from .garbage_collection import MessageGarbage
from .refusals import REDELIVERY, refusals
from .step_fetcher import FetchedElement, StepFetcher

log = logging.getLogger(__name__)

MOST_HELD_BYTES: Final = 16_000_000
"""Bodies of control messages that a worker holds at a time; beyond, it takes no further message until one is done."""

_HELD_BESIDE_BODY: Final = 4_000
_LOOK_SECONDS: Final = 5.0
# KEYS: hash and index of the records, then the lists of the queue. ARGV: the name of a new record, and the age in
# seconds from which a record is taken again; "" looks for none.
_TAKE: Final = """
local hash, index, now = KEYS[1], KEYS[2], tonumber(redis.call('TIME')[1])
local function keep(data, is_again)
  redis.call('HSET', hash, ARGV[1], data)
  redis.call('ZADD', index, now, ARGV[1])
  return {data, is_again}
end
redis.call('HLEN', hash)  -- a key of another type is an error before anything is taken
redis.call('ZCARD', index)
if ARGV[2] ~= '' then
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', now - ARGV[2], 'LIMIT', 0, 1)) do
    local data = redis.call('HGET', hash, name)
    redis.call('HDEL', hash, name)
    redis.call('ZREM', index, name)
    if data then return keep(data, 1) end
  end
end
for i = 3, #KEYS do
  local data = redis.call('RPOP', KEYS[i])
  if data then return keep(data, 0) end
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
        """Remove the record of a message that is done. If Redis does not answer, the message comes once more."""
        self.forget(element)
        self._garbage.add(len(element.data))
        self._run(self._remove(element))

    def give_back(self, elements: Sequence[FetchedElement]) -> None:
        """Put messages back where they were taken, in their order."""
        commands: list[Command] = []
        for each in reversed(elements):
            self.forget(each)
            commands += (("RPUSH", each.key, each.data), *self._remove(each))
        self._run(commands)

    def give_back_all(self) -> None:
        """Put back what this worker holds: Celery has forgotten it, or ends."""
        self.give_back(tuple(self._held.values()))

    def add(self, element: FetchedElement) -> None:
        """Make the record of a message that was popped; without one it is delivered all the same."""
        hash_key, index = self.keys
        now = round(time.time())
        self._run([("HSET", hash_key, element.record, element.data), ("ZADD", index, now, element.record)])

    def forget(self, element: FetchedElement) -> None:
        """Count a message no more, and leave its record: it comes once more."""
        self._held.pop(element.record, None)
        self._later.discard(element.record)

    def _remove(self, element: FetchedElement) -> Sequence[Command]:
        hash_key, index = self.keys
        return (("HDEL", hash_key, element.record), ("ZREM", index, element.record))

    def _run(self, commands: Sequence[Command]) -> None:
        if not commands:
            return
        try:
            with self._lock:
                replies = self._database.exchange(commands)
        except CeleryAgentsError as error:
            replies = [error]
        for reply in replies:
            if isinstance(reply, Exception):
                refusals.record(REDELIVERY, f"a record of a control message cannot be changed: {reply}")


class ControlFetcher(StepFetcher):
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
            options: Those of `StepFetcher`.
        """
        super().__init__(database, queues, **options)
        self._records = records
        self._visibility_seconds = visibility_seconds
        self._restore = restore
        self._looked_at = float("-inf")

    def _fetch(self, queues: Mapping[str, Sequence[str]], wanted: int) -> list[FetchedElement]:
        """Take what lies in the queues. While they are empty, a BRPOP waits, which leaves no record by itself."""
        del wanted
        if self._may_batch:
            for queue, keys in queues.items():
                if (taken := self._take(queue, keys)) is not None:
                    return [taken]
        popped = [each._replace(record=unique_hex()) for each in super()._fetch(queues, 1)]
        for each in popped:
            self._records.add(each)
        return popped

    def _take(self, queue: str, keys: Sequence[str]) -> FetchedElement | None:
        looks = time.monotonic() - self._looked_at >= _LOOK_SECONDS
        if looks:
            self._restore()
        record, age = unique_hex(), round(self._visibility_seconds) if looks else ""
        (reply,) = self._database.exchange([("EVAL", _TAKE, 2 + len(keys), *self._records.keys, *keys, record, age)])
        if isinstance(reply, Exception):
            if "no permissions" in str(reply):
                log.warning("no script may run, so control messages of a killed worker are lost: %s", reply)
                self._may_batch = False
            return None  # what else is wrong the BRPOP says
        data, is_again = reply or (None, 0)
        if looks and not is_again:
            self._looked_at = time.monotonic()
        if data is None:
            return None
        return FetchedElement(queue=queue, key=keys[0], data=data, record=record, is_redelivered=bool(is_again))

    def _give_back(self, elements: Sequence[FetchedElement]) -> None:
        self._records.give_back(elements)
