"""The thread in every worker that runs the housekeeping jobs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from ...config.brokers import is_redis
from ...worker.errors import CeleryAgentsError, StoreUnavailable
from ...worker.redaction import describe_exception
from ...worker.store.keys import ShardKeys
from ..runtime import Runtime
from .jobs import HousekeepingJob, housekeeping_jobs

log = logging.getLogger(__name__)

_CLOSE_SECONDS: Final = 5.0
# A worker that dies with the lock of a server is replaced within three passes.
_LOCK_PASSES: Final = 3


class Sweeper:
    """Runs the jobs one after another in a thread, with a pause of `sweep_seconds` between two passes."""

    def __init__(
        self,
        runtime: Callable[[], Runtime],
        queue_length: Callable[[], int],
        *,
        jobs: Sequence[HousekeepingJob] | None = None,
    ) -> None:
        """
        Args:
            queue_length: Gives the number of waiting messages, for brokers whose queue cannot be read.
            jobs: Jobs to run, in this order. None: those of `housekeeping_jobs`.
        """
        self._runtime = runtime
        chosen = housekeeping_jobs(runtime, queue_length) if jobs is None else jobs
        self._jobs = [_ScheduledJob(job) for job in chosen]
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="celery-agents-sweep", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and wait for the job that runs, at most five seconds."""
        self._closed.set()
        self._thread.join(timeout=_CLOSE_SECONDS)

    def run_pass(self) -> None:
        """Run every job that is due, whatever becomes of the others."""
        shards = self._lock_shards()
        for job in self._jobs:
            job.run_if_due(shards)

    def _run(self) -> None:
        self.run_pass()  # a worker that has just started may be what sessions wait for
        while not self._closed.wait(self._runtime().settings.sweep_seconds):
            self.run_pass()

    def _lock_shards(self) -> list[ShardKeys]:
        """Shards that only this worker works on in this pass; none when Redis does not answer."""
        locked: list[ShardKeys] = []

        def lock() -> None:
            runtime = self._runtime()
            hold_ms = round(runtime.settings.sweep_seconds * _LOCK_PASSES * 1000)
            for shards in runtime.store.context.servers():
                if runtime.store.housekeeping.lock_sweep(shards, runtime.name, hold_ms):
                    locked.extend(shards)

        _log_errors("locking shards", lock)
        return locked


class _ScheduledJob:
    """A job and the time at which it is due again."""

    def __init__(self, job: HousekeepingJob) -> None:
        self._job = job
        self._due_at = time.monotonic() + (0.0 if job.runs_at_start else job.interval_seconds)

    def run_if_due(self, shards: Sequence[ShardKeys]) -> None:
        """Run the job when its time has come; after an error it stays due."""
        if time.monotonic() < self._due_at:
            return
        if _log_errors(self._job.name, lambda: self._job.run(shards)):
            self._due_at = time.monotonic() + self._job.interval_seconds


def _log_errors(name: str, call: Callable[[], None]) -> bool:
    """Call a function and log its error: lost steps need a thread that goes on. Returns whether it succeeded."""
    try:
        call()
    except CeleryAgentsError as error:
        log.warning("housekeeping: %s failed: %s", name, error)
    except Exception as error:  # noqa: BLE001 - whatever a job raises, the others are to run
        log.warning("housekeeping: %s failed: %s", name, describe_exception(error).message)
    else:
        return True
    return False


def queue_length(app_connection: Callable[[], object], queues: Sequence[str], broker: str) -> int:
    """Number of messages that wait in queues, by the broker's names.

    Raises:
        StoreUnavailable: The broker does not answer.
    """
    try:
        with app_connection() as connection:  # pyright: ignore
            channel = connection.default_channel  # pyright: ignore
            if is_redis(broker):
                return sum(int(channel.client.llen(queue)) for queue in queues)  # pyright: ignore
            declared = (channel.queue_declare(queue, passive=True) for queue in queues)  # pyright: ignore
            return sum(int(each.message_count) for each in declared)  # pyright: ignore
    except Exception as error:
        raise StoreUnavailable(f"the broker cannot be asked how long its queue is: {error}") from error
