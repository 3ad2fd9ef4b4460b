"""What the pool changes of the worker around it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.concurrency.thread import TaskPool as ThreadsPool
from celery.exceptions import WorkerLostError

from celery_agents.config.settings import Settings
from celery_agents.tasks.consumer.pool import TaskPool
from celery_agents.tasks.consumer.queue_consumer import consumer_step
from celery_agents.tasks.names import STEP
from celery_agents.tasks.runtime import LazyRuntime
from celery_agents.worker.concurrency import fibers

from support.counted import Counted


def start_step_consumer(pool: Any, dispatcher: Any) -> None:
    """Start the bootstep of Celery's consumer, as each connection does."""
    app = Celery(set_as_current=False)
    consumer = SimpleNamespace(pool=pool, hub=None, event_dispatcher=dispatcher, app=app, connection_errors=())
    step: Any = consumer_step(LazyRuntime(app, Settings.build()))
    step(consumer).start(consumer)


@pytest.mark.parametrize(("kind", "leaves_it"), [(TaskPool, True), (ThreadsPool, False)])
def test_no_step_sends_the_events_of_others(kind: type[Any], leaves_it: bool) -> None:
    sent: list[int] = []
    app = Celery(set_as_current=False)
    dispatcher: Any = app.events.Dispatcher(None, enabled=False, buffer_group=["task"], on_send_buffered=lambda: None)
    dispatcher.enabled, dispatcher.flush = True, lambda: sent.append(1)
    start_step_consumer(kind(limit=1), dispatcher)
    for _ in range(100):
        dispatcher.send("task-started", uuid="1")
    assert (not sent) is leaves_it


def test_a_worker_without_events_starts() -> None:
    start_step_consumer(TaskPool(limit=1), None)


@pytest.fixture
def pool() -> Iterator[TaskPool]:
    opened = TaskPool(limit=2)
    yield opened
    opened.on_stop()


def apply(pool: TaskPool, call: Callable[..., object], name: str = STEP) -> Any:
    return pool.on_apply(call, (name,), {}, lambda returned: None, None)


def test_no_more_steps_run_than_the_pool_has_slots_and_none_is_forgotten(pool: TaskPool) -> None:
    counted = Counted()

    def step(name: str) -> None:
        with counted.one():
            fibers.sleep(0.02)

    futures = [apply(pool, step) for _ in range(25)]
    assert not pool.is_idle
    for each in futures:
        each.result(20)
    assert (counted.most, counted.done) == (2, 25)
    assert pool.is_idle


def test_a_step_gets_a_thread_for_what_blocks_although_other_tasks_take_as_many(pool: TaskPool) -> None:
    free = threading.Event()
    others = [apply(pool, lambda name: free.wait(20), "another.task") for _ in range(2)]
    began = time.monotonic()
    apply(pool, lambda name: fibers.run_in_thread(time.sleep, 0.05)).result(20)
    assert time.monotonic() - began < 10
    free.set()
    for each in others:
        each.result(20)


def test_what_a_step_raises_ends_that_step_only(pool: TaskPool) -> None:
    def wrong(name: str) -> None:
        raise ValueError(name)

    def leaves(name: str) -> None:
        raise SystemExit(3)

    with pytest.raises(ValueError, match=STEP):
        apply(pool, wrong).result(20)
    told: list[Any] = []
    pool.on_apply(leaves, (STEP,), {}, told.append, None).result(20)
    ((has_failed, info, _),) = told
    assert has_failed
    assert isinstance(info.exception.exc, WorkerLostError), "Celery frees the slot and reports the task as failed"
    apply(pool, lambda name: fibers.sleep(0.01)).result(20)


def test_the_pool_stops_when_the_steps_it_took_have_ended() -> None:
    pool, counted = TaskPool(limit=1), Counted()

    def step(name: str) -> None:
        with counted.one():
            fibers.sleep(0.05)

    for _ in range(4):
        apply(pool, step)
    pool.on_stop()
    assert counted.done == 4


def test_what_runs_beside_the_steps_takes_no_slot_and_is_waited_for() -> None:
    pool, events = TaskPool(limit=1), list[str]()
    ended = threading.Event()

    def beside() -> None:
        while not ended.is_set():
            fibers.sleep(0.01)
        events.append("ended")

    pool.run_beside(beside)
    apply(pool, lambda name: events.append("step")).result(20)
    ended.set()
    pool.on_stop()
    assert events == ["step", "ended"]
