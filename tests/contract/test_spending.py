"""Costs, as a store of each kind reads them: each execution once, and copied steps for the session they come from."""

from __future__ import annotations

import time
from dataclasses import replace

from celery_agents.worker.archive.rows import ExecutionCost
from celery_agents.worker.store.database import Database
from celery_agents.worker.store.sessions.spending import add_up

from support.store import Bench


def costs_of(bench: Bench, *sessions: str) -> list[ExecutionCost]:
    found, unread = bench.store.sessions.costs([bench.store.sessions.header(each) for each in sessions])
    assert unread == []
    return found


def test_each_execution_is_counted_once_and_one_that_cannot_be_read_is_named(database: Database) -> None:
    bench = Bench(database)
    names = [f"s{number}" for number in range(6)]
    for name in names:
        bench.session, bench.execution = name, f"e{name}"
        bench.submit()
        bench.commit(bench.claim())
        bench.commit(bench.claim(2), final=True)
    found = costs_of(bench, *names)
    assert [(each.session_id, each.execution_id, each.steps, each.is_priced) for each in found] == [
        (name, f"e{name}", 2, False) for name in names
    ]
    (total,) = add_up((each, "all") for each in found)
    assert (total.executions, total.steps, total.unpriced, total.cost) == (6, 12, 6, 0.0)
    keys = bench.store.context.keys("s3")
    bench.database("RPUSH", keys.steps("es3"), b"{")
    headers = [bench.store.sessions.header(each) for each in names]
    rest, unread = bench.store.sessions.costs(headers)
    assert (unread, [each.session_id for each in rest]) == (["s3"], [each for each in names if each != "s3"])


def test_steps_of_a_copy_count_for_the_session_that_they_come_from(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    bench.commit(bench.claim())
    source, session = bench.store.sessions.load(bench.session), bench.session
    time.sleep(0.002)
    bench.store.sessions.create("copy", replace(source, version=0))
    assert [each.steps for each in costs_of(bench, session)] == [1]
    assert costs_of(bench, "copy") == []
    bench.session = "copy"
    bench.commit(bench.claim(2), final=True)
    assert [each.steps for each in costs_of(bench, session, "copy")] == [1, 1]
