"""Fetching messages from the lists of a Redis broker, over a connection that nothing else uses.

A BRPOP waits for the next message. While the worker is at work and has further slots, an RPOP behind it on the same
connection brings what else lies in the queue, in the same round trip. The fetcher waits by the functions of `fibers`,
so it runs as a fiber on the loop of the steps as well as in a thread of its own.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

from ...worker.concurrency import fibers
from ...worker.errors import CeleryAgentsError
from ...worker.redaction import describe_exception
from ...worker.store.database import Command, Reply
from ...worker.store.redis.database import FORBIDDEN_SECONDS, RedisDatabase
from .refusals import FETCH, refusals

log = logging.getLogger(__name__)

BLOCK_SECONDS: Final = 1
"""How long a fetch waits in Redis for a message."""

FORBIDDEN: Final = re.compile("no permissions|can't run this command|unknown command", re.IGNORECASE)
"""What `exchange` returns for a command or a key that this user may not use, also within a script."""

# Slots that other tasks of the app had are noticed this late; the end of a step wakes the fetcher at once.
_FULL_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 1.0
_WAY_SECONDS: Final = 0.002
# Redis refuses at once, and an immediate retry would ask as fast as it can.
_REFUSED_SECONDS: Final = 0.05


class FetchedElement(NamedTuple):
    """An element of a list that was taken out of it.

    Attributes:
        queue: The broker's name of its queue.
        key: The list, where it goes if it is not delivered.
        record: Name of its record among those that wait for their acknowledgement; "" without one.
        is_redelivered: Whether another worker had taken it before.
        lane: The lane of the step, where it was taken for a turn or is delivered by its own worker; "" for none.
        estimate: The seconds for which its share was charged when it was taken.
    """

    queue: str
    key: str
    data: bytes
    record: str = ""
    is_redelivered: bool = False
    lane: str = ""
    estimate: float = 0.0


class QueueFetcher:
    """Takes as many messages as there are free slots, and hands them over. One thread or fiber calls `run`.

    Attributes:
        queues: The keys of each queue, highest priority first, by the broker's name of the queue. It may be replaced at
            any time; a message of a queue that is gone goes back.
    """

    def __init__(
        self,
        database: RedisDatabase,
        queues: Mapping[str, Sequence[str]],
        *,
        count_wanted: Callable[[], int],
        hand_over: Callable[[Sequence[FetchedElement]], bool],
        record_turn: Callable[[], object] = lambda: None,
        give_way: Callable[[], object] | None = None,
    ) -> None:
        """
        Args:
            count_wanted: Tells how many messages the worker has room for; 0 when it is full.
            hand_over: Delivers elements. False: the worker does not consume any more, and they go back.
            record_turn: Called whenever Redis has answered, and while the worker is full.
            give_way: Lets Celery's consumer look at its own queues. It is called each time a slot becomes free in a
                full worker, which would otherwise always go to a step. None: Celery does not wait for a free slot.
        """
        self.queues = queues
        self._database = database
        self._count_wanted = count_wanted
        self._hand_over = hand_over
        self._record_turn = record_turn
        self._give_way = give_way
        self._order: list[str] = []
        self._no_batch_until = 0.0
        self._is_ended = False
        self._woken: concurrent.futures.Future[None] | None = None

    def run(self) -> None:
        """Fetch until `end` is called, and close the connection then."""
        while not self._is_ended:
            try:
                self._fetch_once()
            except CeleryAgentsError as error:
                log.warning("no messages are fetched: %s", error)
                fibers.sleep(_RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001 - a worker that fetches nothing any more looks healthy
                log.error("no messages are fetched: %s", describe_exception(error).message)
                fibers.sleep(_RETRY_SECONDS)
        self._database.close()

    def wake(self) -> None:
        """Let a fetcher that waits for a free slot look again. Any thread may call it."""
        woken = self._woken
        if woken is not None:
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                woken.set_result(None)

    def end(self) -> None:
        """Let `run` return within `BLOCK_SECONDS`. What it still takes meanwhile goes back into its queue."""
        self._is_ended = True
        self.wake()

    def _fetch_once(self) -> None:
        queues = self.queues
        wanted = self._count_wanted() if queues else 0
        if wanted <= 0:
            self._wait_for_slot()
            return
        fetched = self._fetch(queues, wanted)
        self._record_turn()
        kept = [each for each in fetched if each.queue in self.queues and not self._is_ended]
        is_taken = False
        try:
            is_taken = len(kept) == len(fetched) and (not kept or self._hand_over(kept))
        finally:
            if not is_taken:
                self._give_back(fetched)

    def _fetch(self, queues: Mapping[str, Sequence[str]], wanted: int) -> list[FetchedElement]:
        """Wait for the next message; bring others of a queue in the same round trip while the worker is at work."""
        order = self._order_queues(queues)
        commands: list[Command] = [("BRPOP", *_keys_of(queues[name] for name in order), BLOCK_SECONDS)]
        batch = FetchedElement(order[-1], queues[order[-1]][0], b"")
        if wanted > 1 and time.monotonic() >= self._no_batch_until:
            commands.append(("RPOP", batch.key, wanted - 1))
        first, *others = self._database.exchange(commands)
        return [
            *self._read_pop(queues, first),
            *(each for reply in others for each in self._read_batch(batch, reply)),
        ]

    def _wait_for_slot(self) -> None:
        self._record_turn()
        woken = self._woken = concurrent.futures.Future[None]()
        is_late = self._is_ended or (self.queues and self._count_wanted() > 0)  # what should have woken it came before
        if not is_late:
            fibers.wait((woken,), _FULL_SECONDS)
        if self._give_way is not None and not self._is_ended:
            self._give_way()
            fibers.sleep(_WAY_SECONDS)

    def _order_queues(self, queues: Mapping[str, Sequence[str]]) -> list[str]:
        """The queues in the order in which Redis looks: the one that brought the last message comes last."""
        known = [name for name in self._order if name in queues]
        self._order = [*(name for name in reversed([*queues]) if name not in known), *known]
        return self._order

    def _read_pop(self, queues: Mapping[str, Sequence[str]], reply: Reply) -> Iterator[FetchedElement]:
        if isinstance(reply, Exception):
            self._refuse(reply)
        elif reply is not None:
            key = reply[0].decode()
            queue = next(name for name, keys in queues.items() if key in keys)
            self._order.remove(queue)
            self._order.append(queue)
            yield FetchedElement(queue, key, reply[1])

    def _read_batch(self, batch: FetchedElement, reply: Reply) -> Iterator[FetchedElement]:
        if not isinstance(reply, Exception):
            for data in reply or ():
                yield batch._replace(data=data)
        elif FORBIDDEN.search(str(reply)):
            log.warning("steps are fetched one by one: %s", reply)
            self._no_batch_until = time.monotonic() + FORBIDDEN_SECONDS

    def _refuse(self, error: Exception) -> None:
        refusals.record(FETCH, f"Redis refuses to pop messages: {error}")
        self._order.append(self._order.pop(0))  # Redis stops at the first key of another type
        fibers.sleep(_REFUSED_SECONDS)

    def _give_back(self, elements: Sequence[FetchedElement]) -> None:
        """Put elements back where they were taken, in their order."""
        commands: list[Command] = [("RPUSH", each.key, each.data) for each in reversed(elements)]
        refused = [reply for reply in self._database.exchange(commands) if isinstance(reply, Exception)]
        if refused:
            log.warning("%d step messages are left to the sweep: %s", len(refused), refused[0])


def _keys_of(queues: Iterable[Sequence[str]]) -> list[str]:
    """The keys of all queues, the highest priority of each first."""
    return [key for level in zip_longest(*queues) for key in level if key is not None]
