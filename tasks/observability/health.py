"""Health of the workers on this machine, for the probes of a supervisor: quick, and without importing Celery.

A process that lives may do nothing. A healthy worker has registered lately, its main loop turns, and no message waits
while it has free slots.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...config.brokers import shares_a_database
from ...config.settings import Settings
from ...worker.store.store import Store, redis_store


@dataclass(frozen=True, slots=True)
class Health:
    """Answer to a probe.

    Attributes:
        alive: Restarting it would not help.
        ready: It takes work. Draining, it is alive and not ready.
        what: A sentence.
    """

    alive: bool
    ready: bool
    what: str


def look(settings: Settings, *, pid: int | None = None, within_seconds: float = 20.0) -> Health:
    """Judge this machine's workers by the registry; the best counts, since a killed one stays there for a while.

    Args:
        pid: Only the worker with this process id.
        within_seconds: An older sign of life does not count.
    Raises:
        StoreUnavailable: Redis does not answer, which says nothing about the worker.
    """
    store = redis_store(settings, name="celery-agents-health")
    now_ms = store.housekeeping.now_ms()
    here = [
        (name, facts)
        for name, facts in store.registry.workers().items()
        if facts["host"] == socket.gethostname() and pid in (None, facts["pid"])
    ]
    names = {queue for _, facts in here for queue in facts["queues"]}
    waits = {name: _read_longest_wait(store, settings, name, now_ms) for name in names}
    unknown = f"no worker on {socket.gethostname()}{f' with pid {pid}' if pid else ''} is known"

    def longest_wait(facts: Mapping[str, Any]) -> float:
        return max((waits[queue] for queue in facts["queues"]), default=0.0)

    found = _choose_best(_judge(name, facts, now_ms, longest_wait(facts), within_seconds) for name, facts in here)
    return found or Health(alive=False, ready=False, what=unknown)


def _choose_best(found: Iterable[Health]) -> Health | None:
    return max(found, key=lambda health: (health.ready, health.alive), default=None)


def _judge(name: str, facts: Mapping[str, Any], now_ms: int, waits: float, within: float) -> Health:
    silent = max(0.0, (now_ms - facts["seen"]) / 1000)
    still, idle = silent + facts.get("turned", 0.0), silent + facts.get("took", 0.0)
    pool, running, slots = facts["pool"], facts["running"], facts["slots"]
    busy = f"{running} of {slots} slots busy"
    # A solo worker's loop runs the step itself; a prefork worker does not know which of its children are busy.
    should_turn = pool != "solo" or not running
    has_room = pool in ("greenlets", "threads") and running < slots
    if silent > within:
        return Health(alive=False, ready=False, what=f"worker {name} was last heard of {silent:.0f} s ago")
    if facts["draining"]:
        return Health(alive=True, ready=False, what=f"worker {name} is draining; {busy}")
    if should_turn and still > within:
        what = f"worker {name} takes no messages: its loop has stood still for {still:.0f} s; {busy}"
        return Health(alive=False, ready=False, what=what)
    if has_room and waits > within and idle > within:
        what = f"worker {name} takes no messages: one has waited for {waits:.0f} s; {busy}"
        return Health(alive=False, ready=False, what=what)
    return Health(alive=True, ready=True, what=f"worker {name} works; {busy}")


def _read_longest_wait(store: Store, settings: Settings, queue: str, now_ms: int) -> float:
    """Read how many seconds a queue's oldest message has waited; 0 where the broker is not the store's Redis."""
    if not shares_a_database(settings):
        return 0.0
    if store.housekeeping.oldest_message(settings.step_queue(queue)) is None:
        return 0.0
    from ..publishing import oldest_queued_ms  # imports Celery, which an empty queue does not need

    published_ms = oldest_queued_ms(store, settings.step_queue(queue))
    return (now_ms - published_ms) / 1000 if published_ms > 0 else 0.0
