"""The sweep in every worker: find steps whose message or worker was lost, tell the others that this one lives."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from ...config.celery import is_redis
from ...worker.errors import CeleryAgentsError, StoreUnavailable
from ...worker.redaction import describe_exception
from ...worker.store import QueueSnapshot, SweepResult
from ..publishing import oldest_queued_ms, shares_a_database
from ..runtime import Runtime

log = logging.getLogger(__name__)

_REGISTER_SECONDS: Final = 5.0
_PRUNE_SECONDS: Final = 60.0
_UNLIMITED: Final = 1_000_000


class Sweeper:
    """A thread that looks at what is due; only one worker at a time does it for a shard."""

    def __init__(self, runtime: Callable[[], Runtime], queue_length: Callable[[], int]) -> None:
        """
        Args:
            queue_length: Messages waiting, for brokers whose queue cannot be looked into.
        """
        self._runtime = runtime
        self._queue_length = queue_length
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="celery-agents-sweep", daemon=True)
        self._registered_at = float("-inf")
        self._pruned_at = time.monotonic()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._ended.set()
        self._thread.join(timeout=5)

    def once(self) -> int:
        """One pass over all shards; how many messages were published."""
        runtime = self._runtime()
        settings, store = runtime.settings, runtime.store
        published = 0
        for shard in range(settings.shards):
            # A sweeper that died is replaced within three passes.
            if store.housekeeping.lock_sweep(shard, runtime.name, round(settings.sweep_seconds * 3000)):
                swept = store.housekeeping.sweep(shard, self._lookout(runtime))
                _publish(runtime, swept)
                published += len(swept.lost)
                runtime.callbacks.once(shard)
        if published:
            log.info("%d lost step messages published again", published)
        return published

    def _lookout(self, runtime: Runtime) -> QueueSnapshot:
        """On our own Redis the queue's oldest message tells which others are gone; elsewhere only free slots count."""
        if shares_a_database(runtime.settings):
            oldest = oldest_queued_ms(runtime.store, runtime.publisher.queue_key)
            if oldest:
                return QueueSnapshot(oldest_ms=oldest, capacity=_UNLIMITED)
        free = sum(
            max(0, facts["slots"] - facts["running"])
            for facts in runtime.store.registry.workers().values()
            if not facts["draining"]
        )
        return QueueSnapshot(capacity=max(0, free - self._queue_length()))

    def _run(self) -> None:
        while not self._ended.wait(self._runtime().settings.sweep_seconds):
            try:
                self._register()
                self.once()
                self._prune()
            except CeleryAgentsError as error:
                log.warning("the sweep could not look: %s", error)
            except Exception as error:  # noqa: BLE001 - whatever it is, lost steps need this thread
                log.warning("the sweep could not look: %s", describe_exception(error).message)

    def _register(self) -> None:
        if time.monotonic() - self._registered_at < _REGISTER_SECONDS:
            return
        runtime = self._runtime()
        runtime.store.registry.register(runtime.name, runtime.facts, runtime.agents.hashes)
        self._registered_at = time.monotonic()

    def _prune(self) -> None:
        if time.monotonic() - self._pruned_at < _PRUNE_SECONDS:
            return
        runtime = self._runtime()
        for shard in range(runtime.settings.shards):
            runtime.store.housekeeping.prune(shard)
        self._pruned_at = time.monotonic()


def _publish(runtime: Runtime, swept: SweepResult) -> None:
    """All in one round trip where the queue is in the store's database."""
    if runtime.store.housekeeping.publish(swept.lost, swept.at_ms):
        return
    for ref in swept.lost:
        runtime.separate_publisher.publish(ref, swept.at_ms)


def queue_length(app_connection: Callable[[], object], queue: str, broker: str) -> int:
    """Messages that wait in a queue.

    Raises:
        StoreUnavailable: The broker cannot be asked.
    """
    try:
        with app_connection() as connection:  # pyright: ignore
            channel = connection.default_channel  # pyright: ignore
            if is_redis(broker):
                return int(channel.client.llen(queue))  # pyright: ignore
            return int(channel.queue_declare(queue, passive=True).message_count)  # pyright: ignore
    except Exception as error:
        raise StoreUnavailable(f"the broker cannot be asked how long its queue is: {error}") from error
