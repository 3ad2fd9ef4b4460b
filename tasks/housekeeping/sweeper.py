"""The thread in every worker that runs the housekeeping jobs."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
_MOST_SERVERS: Final = 64
_DONE: Final = concurrent.futures.Future[None]()
_DONE.set_result(None)


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
        self._running: dict[str, concurrent.futures.Future[None]] = {}
        self._threads = concurrent.futures.ThreadPoolExecutor(_MOST_SERVERS, "celery-agents-sweep")
        self._thread = threading.Thread(target=self._run, name="celery-agents-sweep", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and wait for the job that runs, at most five seconds."""
        self._closed.set()
        self._thread.join(timeout=_CLOSE_SECONDS)

    def run_pass(self) -> None:
        """Run every job that is due, whatever becomes of the others; the servers of a cluster side by side."""
        servers = self._find_servers()
        if len(servers) == 1 and not servers[0].place:
            shards = servers[0].shards if self._lock(servers[0]) else ()
            for job in self._jobs:
                job.run_if_due(shards)
            return
        for job in self._jobs:
            if not (servers and job.is_of_server):
                job.run_if_due(())
        for server in servers:
            if self._running.get(server.place, _DONE).done():  # a node that does not answer holds up no other
                self._running[server.place] = self._threads.submit(self._run_server, server)
        concurrent.futures.wait(self._running.values(), self._runtime().settings.sweep_seconds)

    def _run_server(self, server: _Server) -> None:
        if self._lock(server):
            for job in self._jobs:
                if job.is_of_server:
                    job.run_if_due(server.shards, server.place)

    def _run(self) -> None:
        self.run_pass()  # a worker that has just started may be what sessions wait for
        while not self._closed.wait(self._runtime().settings.sweep_seconds):
            self.run_pass()

    def _find_servers(self) -> list[_Server]:
        """The servers of the store; none when it cannot be asked for the number of its shards."""
        found: list[_Server] = []

        def find() -> None:
            context = self._runtime().store.context
            found.extend(_Server(context.database.place(shards[0].due), shards) for shards in context.servers())

        _log_errors("looking for the shards", find)
        return found

    def _lock(self, server: _Server) -> bool:
        """Whether only this worker works on the shards of a server in this pass; no when Redis does not answer."""
        is_locked: list[bool] = []

        def lock() -> None:
            runtime = self._runtime()
            hold_ms = round(runtime.settings.sweep_seconds * _LOCK_PASSES * 1000)
            is_locked.append(runtime.store.housekeeping.lock_sweep(server.shards, runtime.name, hold_ms))

        return _log_errors("locking shards", lock) and is_locked[0]


@dataclass(frozen=True, slots=True)
class _Server:
    """A server of the store, "" for the only one, with the shards that are on it."""

    place: str
    shards: Sequence[ShardKeys]


class _ScheduledJob:
    """A job and the times at which it is due again, by server."""

    def __init__(self, job: HousekeepingJob) -> None:
        self._job = job
        self.is_of_server = job.is_of_server
        first = time.monotonic() + (0.0 if job.runs_at_start else job.interval_seconds)
        self._due_at: dict[str, float] = defaultdict(lambda: first)

    def run_if_due(self, shards: Sequence[ShardKeys], place: str = "") -> None:
        """Run the job when its time has come; after an error it stays due."""
        if time.monotonic() < self._due_at[place]:
            return
        if _log_errors(self._job.name, lambda: self._job.run(shards)):
            self._due_at[place] = time.monotonic() + self._job.interval_seconds


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
