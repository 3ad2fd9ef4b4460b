"""Counting the slots of a worker that are free for steps."""

from __future__ import annotations

import weakref
from typing import Any, Final

from .internals import reserved_count

# Delivering that many takes about ten milliseconds, in which the loop of the steps does nothing else.
MOST_AT_ONCE: Final = 32


def count_slots(consumer: Any) -> int:
    """Return how many tasks the worker of a consumer of Celery runs at a time."""
    return getattr(consumer.controller, "max_concurrency", None) or consumer.pool.num_processes


class Slots:
    """The slots of a Celery worker. A step takes one when it is delivered, and frees it with its acknowledgement."""

    def __init__(self, consumer: Any, *, counts_other_tasks: bool) -> None:
        """
        Args:
            consumer: Celery's.
            counts_other_tasks: Whether every task that the worker has received takes a slot. Not where the worker also
                receives tasks ahead of its slots (`worker_prefetch_multiplier`): no step would find room among these.
        """
        self._consumer = consumer
        self._counts_other_tasks = counts_other_tasks
        # Celery drops tasks that wait for a rate limit when it connects again, and acknowledges none of them.
        self._steps = weakref.WeakSet[Any]()

    def take(self, message: object) -> None:
        """Count a step that is delivered, until `free` is called with the same message."""
        self._steps.add(message)

    def free(self, message: object) -> None:
        """Count a step no more that has ended."""
        self._steps.discard(message)

    def has_room(self) -> bool:
        """Tell whether another step would find a slot."""
        return self._busy < count_slots(self._consumer)

    def count_wanted(self) -> int:
        """Return how many messages to ask for: those that find a slot; an idle worker leaves all but one to others."""
        limit, busy = count_slots(self._consumer), self._busy
        return min(limit - busy, MOST_AT_ONCE) if busy > 1 else min(limit - busy, 1)

    @property
    def _busy(self) -> int:
        return max(len(self._steps), reserved_count() if self._counts_other_tasks else 0)
