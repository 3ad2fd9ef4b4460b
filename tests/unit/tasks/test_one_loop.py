"""Celery's loop runs in the thread of the steps, and each of both notices what the other one has to do."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu.asynchronous import Hub

from celery_agents.tasks.consumer.one_loop import OneLoop
from celery_agents.tasks.consumer.pool import TaskPool
from celery_agents.tasks.names import STEP
from celery_agents.worker.concurrency import fibers

# The hub looks around by itself as rarely as that: what takes less was noticed.
HUB_SECONDS = 30.0
LIMIT_SECONDS = 10


class LostBroker(Exception):
    pass


class Consuming:
    """A consumer of Celery as far as its loop goes: turns the hub until it is told to end."""

    def __init__(self, pool: TaskPool, hub: Any) -> None:
        self.hub, self.pool = hub, pool
        self.event_dispatcher = None
        self.app = Celery(set_as_current=False)
        self.loop: Callable[..., Any] = self.turn
        self.threads: list[int] = []
        self.turns = threading.Event()
        self.breaks: Exception | None = None
        self.has_ended = False
        OneLoop(self).start(self)
        self._answer: list[object] = []
        self._thread = threading.Thread(target=self._run)

    def turn(self, consumer: Any, connection: Any, task_consumer: Any, blueprint: Any, hub: Any, rate: float) -> str:
        assert (consumer, hub, rate) == (self, self.hub, 2.0)
        self.threads.append(threading.get_ident())
        turning = hub.create_loop()
        while not self.has_ended:
            next(turning)
            self.turns.set()
            if self.breaks is not None:
                raise self.breaks
        return "ended"

    def __enter__(self) -> Consuming:
        self._thread.start()
        while not self.turns.wait(0.01):  # a hub is called in vain before it has begun
            self.hub.call_soon(lambda: None)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> object:
        """What the caller of Celery's loop got: what it returned, or what it raised."""
        self.has_ended = True
        self.hub.call_soon(lambda: None)
        self._thread.join(LIMIT_SECONDS)
        assert not self._thread.is_alive()
        return self._answer[0]

    def _run(self) -> None:
        try:
            self._answer.append(self.loop(self, None, None, None, self.hub, 2.0))
        except LostBroker as error:
            self._answer.append(error)


@pytest.fixture
def pool() -> Iterator[TaskPool]:
    opened = TaskPool(limit=2)
    yield opened
    opened.on_stop()


@pytest.fixture
def wire() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


@pytest.fixture
def hub(wire: tuple[socket.socket, socket.socket]) -> Iterator[Any]:
    made: Any = Hub()
    made.call_later(3600, lambda: None)
    made.fire_timers = lambda **_: HUB_SECONDS
    made.add_reader(wire[0], lambda: None)
    with contextlib.closing(made):
        yield made


def step(pool: TaskPool, call: Callable[[], object]) -> Any:
    return pool.on_apply(lambda name: call(), (STEP,), {}, lambda returned: None, None).f


def test_celerys_loop_runs_in_the_thread_of_the_steps(pool: TaskPool, hub: Any) -> None:
    seen: list[int] = []
    with Consuming(pool, hub) as consuming:
        step(pool, lambda: seen.append(threading.get_ident())).result(LIMIT_SECONDS)
    assert seen == consuming.threads == [pool.loop.thread_id]
    assert consuming.end() == "ended"


def test_steps_go_on_while_the_hub_waits_and_the_hub_while_they_do(
    pool: TaskPool, hub: Any, wire: tuple[socket.socket, socket.socket]
) -> None:
    here, there = wire
    read = threading.Event()
    del hub.fire_timers
    hub.add_reader(here, lambda: (here.recv(9), read.set()))
    open_gate = threading.Event()
    with Consuming(pool, hub):
        waiting = step(pool, lambda: fibers.run_in_thread(open_gate.wait, LIMIT_SECONDS))
        there.send(b"x")
        assert read.wait(LIMIT_SECONDS)
        fired = threading.Event()
        hub.call_soon(lambda: hub.call_later(0.05, fired.set))
        assert fired.wait(LIMIT_SECONDS)
        assert not waiting.done()
        step(pool, lambda: fibers.sleep(0.05)).result(LIMIT_SECONDS)
        open_gate.set()
        waiting.result(LIMIT_SECONDS)


def test_what_a_step_has_the_hub_call_soon_is_called_soon(pool: TaskPool, hub: Any) -> None:
    called = threading.Event()
    with Consuming(pool, hub):
        step(pool, lambda: (fibers.sleep(0.05), hub.call_soon(called.set))).result(LIMIT_SECONDS)
        assert called.wait(LIMIT_SECONDS)
        called.clear()
        hub.call_soon(called.set)  # from another thread
        assert called.wait(LIMIT_SECONDS)


def test_a_coroutine_is_cancelled_by_what_the_hub_calls(pool: TaskPool, hub: Any) -> None:
    coroutines: list[Any] = []

    def body() -> None:
        coroutines.append(pool.loop.submit(lambda: asyncio.sleep(60), 60))
        fibers.wait(coroutines, 60)

    with Consuming(pool, hub):
        ended = step(pool, body)
        hub.call_soon(lambda: coroutines[0].cancel())
        ended.result(LIMIT_SECONDS)
        assert coroutines[0].done()


def test_a_step_goes_on_as_part_of_its_loop_whoever_lets_it(pool: TaskPool, hub: Any) -> None:
    told: concurrent.futures.Future[int] = concurrent.futures.Future()
    loops: list[object] = []

    def body() -> None:
        assert fibers.result(told) == 7
        loops.append(asyncio.get_running_loop())

    with Consuming(pool, hub):
        ended = step(pool, body)
        hub.call_soon(lambda: told.set_result(7))
        ended.result(LIMIT_SECONDS)
    assert len(loops) == 1


def test_a_lost_broker_is_heard_where_celery_connects_again_and_steps_go_on_meanwhile(pool: TaskPool, hub: Any) -> None:
    poller = hub.poller
    lost = LostBroker("gone")
    open_gate = threading.Event()
    with Consuming(pool, hub) as consuming:
        waiting = step(pool, lambda: fibers.run_in_thread(open_gate.wait, LIMIT_SECONDS))
        consuming.breaks = lost
    assert consuming.end() is lost
    assert hub.poller is poller
    assert "call_soon" not in vars(hub)
    open_gate.set()
    waiting.result(LIMIT_SECONDS)
    step(pool, lambda: fibers.sleep(0.01)).result(LIMIT_SECONDS)
    with Consuming(pool, hub) as again:
        step(pool, lambda: fibers.sleep(0.01)).result(LIMIT_SECONDS)
    assert again.end() == "ended"


def test_a_hub_that_made_itself_a_new_poller_is_left_with_it(pool: TaskPool, hub: Any) -> None:
    with Consuming(pool, hub) as consuming:
        hub.call_soon(hub.reset)
        consuming.has_ended = True
    assert consuming.end() == "ended"
    assert hub.poller.poll(0) is not None
    assert type(hub.poller).__module__.startswith("kombu")


def test_a_consumer_that_is_connected_again_is_not_wrapped_twice(pool: TaskPool, hub: Any) -> None:
    consuming = Consuming(pool, hub)
    once = consuming.loop
    OneLoop(consuming).start(consuming)
    assert consuming.loop is once


def test_a_poller_that_nobody_can_wait_for_is_turned_where_celery_turns_it(pool: TaskPool, hub: Any) -> None:
    inner = hub.poller
    hub.poller = SimpleNamespace(
        poll=inner.poll, register=inner.register, unregister=inner.unregister, close=inner.close
    )
    with Consuming(pool, hub) as consuming:
        step(pool, lambda: fibers.sleep(0.01)).result(LIMIT_SECONDS)
    assert consuming.threads != [pool.loop.thread_id]


def test_a_pool_that_stops_while_its_loop_is_lent_ends_it_afterwards(hub: Any) -> None:
    pool = TaskPool(limit=1)
    with Consuming(pool, hub) as consuming:
        pool.on_stop()
        threads = [each for each in threading.enumerate() if each.ident == consuming.threads[0]]
    assert consuming.end() == "ended"
    for each in threads:
        each.join(LIMIT_SECONDS)
        assert not each.is_alive()
