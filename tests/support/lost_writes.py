"""A Redis that forgets what it had acknowledged."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

from celery_agents.worker.store.memory.database import MemoryDatabase

from .store import Bench


@contextlib.contextmanager
def lost_afterwards(bench: Bench) -> Iterator[None]:
    """What is written meanwhile is gone, as with an append-only file that is synced every second."""
    database = bench.spy.inner
    if isinstance(database, MemoryDatabase):
        with lost_from_memory(database):
            yield
        return
    pattern = bench.store.context.keys(bench.session).session + "*"
    dumped = {key: bench.database("DUMP", key) for key in bench.database("KEYS", pattern)}
    yield
    bench.database("DEL", *bench.database("KEYS", pattern))
    for key, value in dumped.items():
        bench.database("RESTORE", key, 0, value)


@contextlib.contextmanager
def lost_from_memory(database: MemoryDatabase) -> Iterator[None]:
    """The same of a database in memory."""
    before = {name: copy.deepcopy(getattr(database, name)) for name in ("_values", "_expiry")}
    yield
    for name, value in before.items():
        setattr(database, name, value)
