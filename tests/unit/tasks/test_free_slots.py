"""A full worker's loop turns as soon as a slot is free."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state

from celery_agents.tasks.consumer.free_slots import wake_for_free_slots
from celery_agents.tasks.consumer.pool import TaskPool
from celery_agents.tasks.names import STEP
from celery_agents.worker.concurrency import fibers

from support.wait import wait_until


class Reserved:
    """A task that the worker has."""


@pytest.fixture
def pool() -> Iterator[TaskPool]:
    opened = TaskPool(limit=4)
    yield opened
    opened.on_stop()


@pytest.fixture
def turns(pool: TaskPool) -> list[Any]:
    """What the worker's loop was told to do in its next turn."""
    told: list[Any] = []
    wake_for_free_slots(pool, SimpleNamespace(call_soon=told.append))
    return told


@pytest.fixture
def reserve(monkeypatch: pytest.MonkeyPatch) -> Any:
    tasks: set[Any] = set()
    monkeypatch.setattr(state, "reserved_requests", tasks)
    return lambda count: tasks.update(Reserved() for _ in range(count))


def apply(pool: TaskPool, seconds: float) -> None:
    def step(name: str) -> None:
        fibers.sleep(seconds)

    pool.on_apply(step, (STEP,), {}, lambda returned: None, None)


@pytest.mark.parametrize(("reserved", "expected"), [(4, 1), (3, 1), (2, 0)])
def test_when_a_step_ends_in_a_full_pool(
    pool: TaskPool, turns: list[Any], reserve: Any, reserved: int, expected: int
) -> None:
    reserve(reserved)
    apply(pool, 0.12)
    wait_until(lambda: pool.is_idle, "the step has ended")
    assert len(turns) == expected


def test_when_a_step_ends_that_did_not_wait(pool: TaskPool, turns: list[Any], reserve: Any) -> None:
    reserve(4)
    apply(pool, 0.0)
    wait_until(lambda: pool.is_idle, "the step has ended")
    assert len(turns) == 1


def test_a_pool_without_a_loop_begins_what_waits_itself(pool: TaskPool) -> None:
    wake_for_free_slots(pool, None)
    for _ in range(12):
        apply(pool, 0.12)
    wait_until(lambda: pool.is_idle, "all have ended")
