"""Housekeeping jobs: registration, sweep, callbacks, pruning, inspection.

A further job is a class derived from `HousekeepingJob` and a place in the list of `housekeeping_jobs`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from ...config.brokers import takes_steps_itself
from ...config.settings import GROUP_MARK
from ...worker.errors import StoreForbidden, StoreUnavailable
from ...worker.flow.schedules import Schedule
from ...worker.store.housekeeping.registry import offered_queues
from ...worker.store.housekeeping.sweeps import QueueSnapshot, SweepResult
from ...worker.store.keys import ShardKeys
from ..observability.server_policy import REPLAY_ADVICE, check_replay, find_problems, memory_share
from ..publishing import oldest_queued_ms
from ..runtime import Runtime
from .archiving import SessionMover

log = logging.getLogger(__name__)

_UNLIMITED: Final = 1_000_000
_SHOWN: Final = 20


class HousekeepingJob(ABC):
    """A job that a worker repeats while it runs.

    Attributes:
        name: Name of the job in log lines.
        interval_seconds: Shortest time between two runs that succeed; 0 runs the job in each pass.
        runs_at_start: Whether the first pass runs it; otherwise it waits for one interval.
        is_of_server: In a cluster, it runs for the shards of each server, these side by side; otherwise once, for none.
    """

    name: str
    interval_seconds = 0.0
    runs_at_start = True
    is_of_server = False

    def __init__(self, runtime: Callable[[], Runtime]) -> None:
        """
        Args:
            runtime: The worker's runtime, which exists once the worker has started.
        """
        self._runtime = runtime

    @abstractmethod
    def run(self, shards: Sequence[ShardKeys]) -> None:
        """Do the job once. An error is logged, and the next pass runs the job again.

        Args:
            shards: Shards whose sweep lock this worker holds, so that no other worker works on them in this pass.
        """


def housekeeping_jobs(runtime: Callable[[], Runtime], queue_length: Callable[[], int]) -> list[HousekeepingJob]:
    """The jobs of a worker, in the order in which a pass runs them.

    Args:
        queue_length: Gives the number of waiting messages, for brokers whose queue cannot be read.
    """
    return [
        Registration(runtime),
        Sweep(runtime, queue_length),
        Schedules(runtime),
        Callbacks(runtime),
        Prune(runtime),
        Inspection(runtime),
        Histories(runtime),
        Archiving(runtime),
        JobCleaning(runtime),
    ]


class Registration(HousekeepingJob):
    """Renews this worker's entry in the registry, lets sessions that waited for one of its agents go on, and reads what
    people and providers allow, should the worker have missed that it changed."""

    name = "registration"
    interval_seconds = 5.0
    _schedules: list[Schedule] | None = None  # those of the agents, until they are stored

    def run(self, shards: Sequence[ShardKeys]) -> None:
        """Write the entry, whichever shards this worker holds."""
        del shards
        runtime = self._runtime()
        facts = runtime.facts
        is_new = runtime.store.registry.register(runtime.name, facts, runtime.agents.hashes)
        if is_new or self._schedules is None:
            self._schedules = [each for agent in runtime.agents for each in agent.schedules]
        if self._schedules:
            runtime.schedules.deploy(self._schedules)
            self._schedules = []
        found = 0 if facts["draining"] else runtime.store.housekeeping.offer(runtime.offers)
        if found:
            log.info("%d sessions had waited for a worker with their agent", found)
        runtime.gate.refresh()


class Sweep(HousekeepingJob):
    """Publishes steps again whose message or worker was lost."""

    name = "sweep"
    is_of_server = True

    def __init__(self, runtime: Callable[[], Runtime], queue_length: Callable[[], int]) -> None:
        super().__init__(runtime)
        self._queue_length = queue_length
        self._workers: dict[str, dict[str, Any]] | None = None

    def run(self, shards: Sequence[ShardKeys]) -> None:
        """Look at what is due in the shards."""
        if not shards:
            return
        runtime = self._runtime()
        queues = self._queue_snapshot(runtime)
        result = runtime.store.housekeeping.sweep(queues, shards)
        runtime.schedules.are_due |= result.has_schedules
        _publish(runtime, result)
        _drop_queues(runtime, result, queues)
        runtime.concurrency.call_waiting()
        if result.lost:
            log.info("%d lost step messages published again", len(result.lost))

    def _queue_snapshot(self, runtime: Runtime) -> QueueSnapshot:
        """The age of each queue's oldest message where Redis is the broker, else the number of free slots."""
        try:
            workers = self._workers = runtime.store.registry.workers()
        except StoreUnavailable:  # of a cluster: the shards of other nodes are swept all the same
            if self._workers is None or not runtime.store.context.fleet.is_apart:
                raise
            workers = self._workers
        offers = offered_queues(workers)
        if takes_steps_itself(runtime.settings):
            names = {queue for queues in offers.values() for queue in queues} - {""}
            oldest = {name: oldest_queued_ms(runtime.store, runtime.publisher.queue_key(name)) for name in ("", *names)}
            if all(oldest.values()):
                return QueueSnapshot(oldest_ms=oldest.pop(""), named=oldest, capacity=_UNLIMITED, offers=offers)
        free = sum(max(0, facts["slots"] - facts["running"]) for facts in workers.values() if not facts["draining"])
        servers = len(runtime.store.context.servers())
        return QueueSnapshot(capacity=-(-max(0, free - self._queue_length()) // servers), offers=offers)


class Schedules(HousekeepingJob):
    """Submits the messages of schedules whose slots have come, as the sweep has seen."""

    name = "schedules"

    def run(self, shards: Sequence[ShardKeys]) -> None:
        """Submit what is due; nothing where the sweep of this worker has seen nothing."""
        del shards
        self._runtime().schedules.run_due()


class Callbacks(HousekeepingJob):
    """Makes the callbacks of executions that have ended."""

    name = "callbacks"
    is_of_server = True

    def run(self, shards: Sequence[ShardKeys]) -> None:
        """Start the callbacks that are due in the shards."""
        if shards:
            self._runtime().callbacks.start_due(shards)


class Prune(HousekeepingJob):
    """Takes expired sessions out of the listings and silent workers out of the registry."""

    name = "prune"
    interval_seconds = 60.0
    runs_at_start = False
    is_of_server = True

    def run(self, shards: Sequence[ShardKeys]) -> None:
        """Prune the shards, or all where another worker has the lock: pruning twice does no harm."""
        self._runtime().store.housekeeping.prune(shards or None)


class Inspection(HousekeepingJob):
    """Looks at what may change under a running worker: policy, disk, memory and role of Redis, and types of keys."""

    name = "inspection"
    interval_seconds = 60.0
    runs_at_start = False

    def run(self, shards: Sequence[ShardKeys]) -> None:
        """Note the problems in the worker's facts, and log each as an error."""
        del shards
        runtime = self._runtime()
        runtime.problems = tuple(_find_problems(runtime))
        for problem in runtime.problems:
            log.error("%s", problem)


class Histories(HousekeepingJob):
    """Looks for history that Redis has lost, behind a lost connection alone."""

    name = "histories"

    def run(self, shards: Sequence[ShardKeys]) -> None:
        """Tell sessions whose end was lost, and log and count those that are gone."""
        del shards
        runtime = self._runtime()
        found = runtime.store.housekeeping.check_histories(runtime.name, partial(_is_pure, runtime))
        runtime.histories_lost["behind"] += len(found.told)
        runtime.histories_lost["gone"] += len(found.gone)
        if found.told:
            log.error(
                "Redis has lost the end of %d sessions, which go on from what it has: %s; 'celery-agents doctor' says "
                "what was lost", len(found.told), ", ".join(found.told[:_SHOWN]),
            )  # fmt: skip
        if found.gone:
            log.error("Redis has lost %d sessions: %s", len(found.gone), ", ".join(found.gone[:_SHOWN]))


class Archiving(HousekeepingJob):
    """Moves sessions that ended long ago to the archive, in threads of its own: a database may take its time."""

    name = "archive"
    interval_seconds = 1.0
    is_of_server = True

    def __init__(self, runtime: Callable[[], Runtime]) -> None:
        super().__init__(runtime)
        self._movers: dict[ShardKeys, SessionMover] = {}

    def run(self, shards: Sequence[ShardKeys]) -> None:
        """Move sessions of the shards until the next pass; nothing without an archive."""
        runtime = self._runtime()
        if not shards or runtime.store.archiver is None:
            return
        mover = self._movers.get(shards[0])
        if mover is None:
            mover = self._movers[shards[0]] = SessionMover(runtime.store.archiver, runtime.archive_progress)
        mover.begin(shards, 2 * self.interval_seconds)  # so that it goes on until the next pass


class JobCleaning(HousekeepingJob):
    """Cancels jobs at providers that no step waits for, and deletes what providers keep, in a thread of its own."""

    name = "jobs"

    def run(self, shards: Sequence[ShardKeys]) -> None:
        """Begin, where it is time to; the jobs of the agents that this worker offers, in all shards."""
        del shards
        self._runtime().cleaner.begin()


def _is_pure(runtime: Runtime, agent: str, tool: str) -> bool:
    found = runtime.agents[agent].toolset.get(tool) if agent in runtime.agents else None
    return found is not None and found.effect == "pure"


def _find_problems(runtime: Runtime) -> Iterator[str]:
    try:
        runtime.store.housekeeping.try_writing()
    except StoreUnavailable as error:
        yield f"Redis takes no writes: {error}"
    try:
        facts = runtime.store.housekeeping.server_facts()
        runtime.redis_memory_share = memory_share(facts)
        replicas = runtime.settings.replicas
        yield from find_problems(facts, replicas=0 if runtime.store.context.fleet.is_apart else replicas)
        for place, found in runtime.store.housekeeping.node_facts().items():
            is_away = isinstance(found, StoreUnavailable)
            problems = [str(found)] if is_away else find_problems(found, replicas=replicas)
            yield from (f"{place}: {problem}" for problem in problems)
        key = runtime.publisher.queue_key("")
        loss = check_replay(facts, lambda: runtime.store.housekeeping.unreplayable_commands(key))
        if loss is not None:
            yield f"{loss}; {REPLAY_ADVICE}"
    except StoreForbidden as error:
        log.debug("whether Redis may lose sessions is not known: %s", error)
    for damage in runtime.store.housekeeping.wrong_types(runtime.broker_key_types):
        yield f"key {damage.key!r}: {damage.what}"


def _drop_queues(runtime: Runtime, result: SweepResult, queues: QueueSnapshot) -> None:
    """Delete the queues of worker groups that are no more: their sessions were moved, and nobody takes the messages."""
    if not takes_steps_itself(runtime.settings):
        return
    taken = {queue for offered in (queues.offers or {}).values() for queue in offered}
    for name in result.left - taken:
        if name.startswith(GROUP_MARK):
            runtime.store.housekeeping.drop_queue(runtime.publisher.queue_key(name))


def _publish(runtime: Runtime, result: SweepResult) -> None:
    """Publish lost steps: in one round trip where the queue is in the store's database."""
    if runtime.store.housekeeping.publish(result.lost, result.at_ms):
        return
    for ref in result.lost:
        runtime.publisher.publish(ref, result.at_ms)
