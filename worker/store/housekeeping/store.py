"""Housekeeping: the sweep, callbacks, pruning, and what operators look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..context import StoreContext
from ..records import StepRef, SweepResult
from ..session_records import Callback, DelayedStep
from ..sessions import parking, reads, step_facts
from . import callbacks, inspection, offering, queues, shards, sweeps
from .inspection import Damage
from .sweeps import QueueSnapshot


class Housekeeping:
    """The work of workers beside their steps, shard by shard, and the facts that operators look at."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context

    def sweep(self, shard: int, queue: QueueSnapshot) -> SweepResult:
        """Look at what is due in a shard, postpone every entry it looks at, and name the steps whose message is lost.

        The caller publishes them. Nothing is named that a live lease holds or whose message may still be queued.
        """
        return sweeps.sweep(self._context, self._context.shards[shard], queue)

    def offer(self, queues: Mapping[str, Sequence[str]]) -> int:
        """End the wait of sessions whose agents a worker has registered.

        Their steps are published at once where the queue is in the store's database, else by the next sweep.

        Args:
            queues: The agents, each with the queues that the worker takes, the preferred one first.
        Returns:
            How many sessions had waited.
        """
        return offering.offer(self._context, queues)

    def count_unoffered(self) -> dict[str, int]:
        """Count the sessions that wait for a worker that offers their agent, parked ones too, by agent.

        Of more than 100 agents the others are counted together, as `(other)`.
        """
        return offering.count_unoffered(self._context)

    def publish(self, refs: Sequence[StepRef], at_ms: int) -> bool:
        """Publish the messages of lost steps in one round trip.

        Args:
            at_ms: The time of the sweep that found them.
        Returns:
            False: The queue is not in the store's database, and nothing was published.
        """
        return sweeps.publish(self._context, refs, at_ms)

    def queue_length(self, queue_key: str) -> int:
        """How many messages wait in a queue that is in the store's Redis."""
        return queues.queue_length(self._context, queue_key)

    def oldest_message(self, queue_key: str) -> bytes | None:
        """Read the message that leaves next from a queue in the store's Redis; None when the queue is empty."""
        return queues.oldest_message(self._context, queue_key)

    def drop_queue(self, queue_key: str) -> None:
        """Delete a queue that is in the store's Redis and that nobody takes; the sweep publishes what was in it."""
        queues.drop_queue(self._context, queue_key)

    def lock_sweep(self, shard: int, worker: str, hold_ms: int) -> bool:
        """Take the lock of a shard's sweep, or keep it, for `hold_ms`; False: another worker has it."""
        return sweeps.lock(self._context, self._context.shards[shard], worker, hold_ms)

    def prune(self, shard: int) -> int:
        """Take expired sessions out of the listings."""
        return sweeps.prune(self._context, self._context.shards[shard])

    def due_callbacks(self, shard: int, *, limit: int, hold_ms: int) -> list[Callback]:
        """Take callbacks that are due; each comes again after `hold_ms` unless it is finished."""
        return callbacks.due_callbacks(self._context, self._context.shards[shard], limit=limit, hold_ms=hold_ms)

    def finish_callback(self, callback: Callback) -> None:
        """Record that a callback was made; it does not come again."""
        callbacks.finish_callback(self._context, callback)

    def delay_callback(self, callback: Callback, *, delay_ms: int) -> None:
        """Let a callback come again after `delay_ms` without counting an attempt."""
        callbacks.delay_callback(self._context, callback, delay_ms=delay_ms)

    def fail_callback(self, callback: Callback, *, delay_ms: int | None, reason: str) -> None:
        """Record that a callback failed: again after `delay_ms`, or never (None), with an entry in the dead list."""
        callbacks.fail_callback(self._context, callback, delay_ms=delay_ms, reason=reason)

    def list_dead(self, limit: int = 100) -> list[dict[str, str]]:
        """Parked steps and quarantined messages, newest first."""
        return reads.list_dead(self._context, limit)

    def backlog(self) -> tuple[int, int, int]:
        """Sessions that are due at some time, those overdue, and the age of the oldest of them in milliseconds."""
        return reads.backlog(self._context)

    def wrong_types(self, more: Mapping[str, str]) -> list[Damage]:
        """Find keys that hold another type than they should; `more` are keys of the broker, with the type of each."""
        return inspection.wrong_types(self._context, more)

    def expect_shared_keys(self, queue: str = "") -> None:
        """Look whether a key that all sessions share is why a session cannot be read.

        Args:
            queue: Name of the queue that the session's step came from.
        Raises:
            StoreUnavailable: Such a key, or the queue, holds another type. Steps stay due until somebody removes it.
        """
        inspection.expect_shared_keys(self._context, queue)

    def bad_entries(self) -> list[Damage]:
        """Find entries of the indexes that name no session or have no time."""
        return inspection.bad_entries(self._context)

    def unreplayable_commands(self, queue_key: str) -> list[str]:
        """Name the commands of our transactions that Redis's user `default` may not give.

        Redis replays an append-only file as that user, and most releases since 7.0 check its rights again at the end of
        each transaction: what is refused then is lost. Redis 7.0 is the first that can be asked.

        Args:
            queue_key: The key of a queue of steps.
        Raises:
            StoreForbidden: This Redis user may not ask, or this Redis has no such command.
        """
        return inspection.unreplayable_commands(self._context, queue_key)

    def unacked_records(self, key: str) -> tuple[int, dict[str, bytes]]:
        """Count the broker's records of unacknowledged messages, and read a hundred of them by their names."""
        return inspection.unacked_records(self._context, key)

    def list_delayed(self, limit: int = 1000) -> list[DelayedStep]:
        """Delayed steps that are not due yet, the next try first."""
        return step_facts.delayed_steps(self._context, limit)

    def server_facts(self) -> dict[str, str]:
        """Ask Redis for `INFO`, by its names, and for its time as `now_ms`.

        Raises:
            StoreForbidden: This Redis user may not run INFO.
        """
        return reads.server_facts(self._context)

    def quarantine(self, payload: str, reason: str) -> None:
        """Keep a malformed message, cut and escaped, with the reason."""
        parking.quarantine(self._context, payload, reason)

    def now_ms(self) -> int:
        """Ask Redis for its time in milliseconds."""
        return sweeps.now_ms(self._context)

    def check_shards(self) -> None:
        """Refuse a Redis that was used with another number of shards."""
        shards.check_shards(self._context)
