"""Which execution a message has become part of, for those who hold its handle."""

from __future__ import annotations

import pytest

from celery_agents.tasks.client.job import Job
from celery_agents.worker.store.memory.database import MemoryDatabase

from support.store import Bench

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")


def test_a_handle_finds_its_execution_after_the_events_are_gone(bench: Bench) -> None:
    """Redis keeps the last events only, and fewer of them when it is full."""
    claimed = bench.claim()
    assert bench.message("more", "m1").outcome == "queued"
    job = Job(bench.store, bench.session, operation_id="m1")
    assert job.execution_id == ""
    bench.commit(claimed)
    bench.database("XTRIM", bench.store.context.keys(bench.session).events, "MAXLEN", 0)
    assert bench.store.sessions.events(bench.session) == []
    assert job.execution_id == bench.execution


def test_a_message_that_starts_an_execution_is_part_of_it(bench: Bench) -> None:
    bench.commit(bench.claim(), final=True)
    started = bench.message("the next", "m1").execution_id
    assert started not in ("", bench.execution)
    assert bench.store.sessions.read_joined(bench.session, "m1") == started
    assert bench.store.sessions.read_joined(bench.session, "op-first") == bench.execution
    assert bench.store.sessions.read_joined(bench.session, "never sent") == ""


def test_operations_that_are_too_many_leave_nothing_behind() -> None:
    bench = Bench(MemoryDatabase(), operations_kept=8)
    bench.submit()
    for number in range(20):
        claimed = bench.claim(number + 1)
        bench.message("more", f"m{number}")
        bench.commit(claimed)
    names = bench.database("HGETALL", bench.store.context.keys(bench.session).session)[::2]
    assert sorted(name for name in names if name.startswith(b"o:")) == sorted(b"o:m%d" % n for n in range(12, 20))
