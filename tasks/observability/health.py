"""Whether the worker on this machine works, for the probes of a supervisor: quick, and without Celery's machinery.

A worker can live and do nothing. What is asked is what users would notice: it was heard of lately, the loop that takes
messages turns, and no message waits while it has free slots.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...config.settings import Settings
from ...worker.store import Store, redis_store


@dataclass(frozen=True, slots=True)
class Health:
    """What a probe tells.

    Attributes:
        alive: Restarting it would not help.
        ready: It takes work. Draining, it is alive and not ready.
        what: A sentence.
    """

    alive: bool
    ready: bool
    what: str


def look(settings: Settings, *, pid: int | None = None, within_seconds: float = 20.0) -> Health:
    """Look at this machine's workers; the best of them counts, since one that was killed is known for a while.

    Args:
        pid: Only the worker with this process id.
        within_seconds: A sign of life older than this is none.
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
    waits = _longest_wait(store, settings, now_ms)
    unknown = f"no worker on {socket.gethostname()}{f' with pid {pid}' if pid else ''} is known"
    found = _best(_judged(name, facts, now_ms, waits, within_seconds) for name, facts in here)
    return found or Health(alive=False, ready=False, what=unknown)


def _best(found: Iterable[Health]) -> Health | None:
    return max(found, key=lambda health: (health.ready, health.alive), default=None)


def _judged(name: str, facts: Mapping[str, Any], now_ms: int, waits: float, within: float) -> Health:
    silent = max(0.0, (now_ms - facts["seen"]) / 1000)
    stands, idle = silent + facts.get("turned", 0.0), silent + facts.get("took", 0.0)
    pool, running, slots = facts["pool"], facts["running"], facts["slots"]
    busy = f"{running} of {slots} slots busy"
    # A solo worker's loop stands still while a step runs in it; of a prefork worker's slots only its children know.
    should_turn = pool != "solo" or not running
    has_room = pool in ("greenlets", "threads") and running < slots
    if silent > within:
        return Health(alive=False, ready=False, what=f"worker {name} was last heard of {silent:.0f} s ago")
    if facts["draining"]:
        return Health(alive=True, ready=False, what=f"worker {name} is draining; {busy}")
    if should_turn and stands > within:
        what = f"worker {name} takes no messages: its loop has stood still for {stands:.0f} s; {busy}"
        return Health(alive=False, ready=False, what=what)
    if has_room and waits > within and idle > within:
        what = f"worker {name} takes no messages: one has waited for {waits:.0f} s; {busy}"
        return Health(alive=False, ready=False, what=what)
    return Health(alive=True, ready=True, what=f"worker {name} works; {busy}")


def _longest_wait(store: Store, settings: Settings, now_ms: int) -> float:
    """Seconds that the queue's oldest message has waited; 0 where that cannot be seen."""
    if settings.broker != settings.redis_url:
        return 0.0
    if store.housekeeping.oldest_message(settings.queue) is None:
        return 0.0
    from ..publishing import oldest_queued_ms  # with Celery, which an empty queue spares us

    published_ms = oldest_queued_ms(store, settings.queue)
    return (now_ms - published_ms) / 1000 if published_ms > 0 else 0.0
