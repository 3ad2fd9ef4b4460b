"""Waiting in a fiber lets the others go on; outside of one it is ordinary waiting."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
import time
from collections.abc import Iterator

import pytest

from celery_agents.worker.concurrency import fibers

from support.fiber_thread import FiberThread

Future = concurrent.futures.Future


@pytest.fixture
def thread() -> Iterator[FiberThread]:
    with contextlib.closing(FiberThread()) as opened:
        yield opened


def test_outside_of_fibers_everything_happens_in_the_callers_thread() -> None:
    ended: Future[int] = Future()
    assert fibers.current() is None
    assert fibers.run_in_thread(threading.get_ident) == threading.get_ident()
    assert fibers.wait((ended,), 0.01) == (set(), {ended})
    with pytest.raises(TimeoutError):
        fibers.result(ended, 0.01)
    ended.set_result(7)
    assert fibers.result(ended) == 7
    before = time.monotonic()
    fibers.sleep(0.05)
    assert time.monotonic() - before >= 0.05


def test_a_fiber_knows_itself_and_a_coroutine_beside_it_is_none(thread: FiberThread) -> None:
    async def seen() -> fibers.Fiber | None:
        return fibers.current()

    def body() -> tuple[bool, fibers.Fiber | None]:
        return fibers.current() is not None, fibers.result(thread.loop.submit(seen, 5))

    assert thread.run(body) == (True, None)


def test_a_thousand_fibers_sleep_at_the_same_time_in_one_thread(thread: FiberThread) -> None:
    idents: set[int] = set()

    def body() -> None:
        idents.add(threading.get_ident())
        fibers.sleep(0.3)
        idents.add(threading.get_ident())

    before = time.monotonic()
    thread.together([body] * 1_000)
    assert time.monotonic() - before < 30, "they slept one after the other"
    assert idents == {thread.loop.thread_id}


def test_a_blocking_function_gets_a_thread_and_the_fibers_context(thread: FiberThread) -> None:
    word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="nobody's")
    both = threading.Barrier(2, timeout=10)  # passed only by two that run at the same time

    def blocking() -> tuple[str, int]:
        both.wait()
        return word.get(), threading.get_ident()

    def body(mine: str) -> tuple[str, int]:
        word.set(mine)
        return fibers.run_in_thread(blocking)

    (first, a), (second, b) = thread.together([lambda: body("first"), lambda: body("second")])
    assert (first, second) == ("first", "second"), "a fiber sees its own context only"
    assert len({a, b, thread.loop.thread_id}) == 3


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_blocking_function_raises_is_raised_in_the_fiber(thread: FiberThread, error: BaseException) -> None:
    def blocking() -> None:
        raise error

    def body() -> BaseException | None:
        try:
            fibers.run_in_thread(blocking)
        except BaseException as raised:
            return raised
        return None

    assert thread.run(body) is error


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_code_of_users_cannot_end_more_than_itself(thread: FiberThread, error: BaseException) -> None:
    def ending() -> None:
        raise error

    def body() -> BaseException | None:
        try:
            fibers.run_users_code(ending)
        except fibers.ExitAttempt as raised:
            return raised.__cause__
        return None

    assert thread.run(body) is error


def test_a_person_at_the_keyboard_can_end_the_code_of_users() -> None:
    def ending() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fibers.bounded(ending)


def test_a_result_that_is_late_is_a_timeout_and_can_be_had_later(thread: FiberThread) -> None:
    ended: Future[int] = Future()

    def body() -> int:
        with pytest.raises(TimeoutError):
            fibers.result(ended, 0.05)
        return fibers.result(ended, 10)

    waiting = thread.start(body)
    time.sleep(0.3)
    assert not waiting.done()
    ended.set_result(5)
    assert waiting.result(10) == 5


def test_wait_comes_back_with_the_first_and_once_only(thread: FiberThread) -> None:
    first, second = Future[int](), Future[int]()

    def body() -> tuple[list[Future[int]], list[Future[int]]]:
        done, left = fibers.wait((first, second), 10)
        found = [*done], [*left]
        fibers.sleep(0.2)  # the second ends meanwhile, which must not end this sleep
        return found

    waiting = thread.start(body)
    time.sleep(0.1)
    before = time.monotonic()
    first.set_result(1)
    second.set_result(2)
    done, left = waiting.result(10)
    assert time.monotonic() - before >= 0.2
    assert first in done
    assert first not in left


def test_a_fiber_that_completes_a_future_goes_on_before_who_waits_for_it(thread: FiberThread) -> None:
    ended: Future[None] = Future()
    order: list[str] = []

    def waits() -> None:
        fibers.result(ended)
        order.append("waited")
        fibers.sleep(0)

    def completes() -> None:
        fibers.sleep(0.05)
        ended.set_result(None)
        order.append("completed")
        fibers.sleep(0)
        order.append("went on")

    assert thread.together([waits, completes]) == [None, None]
    assert order == ["completed", "waited", "went on"]


def test_a_coroutine_is_cancelled_from_another_thread(thread: FiberThread) -> None:
    begun, cancelled = threading.Event(), threading.Event()
    calls: list[Future[object]] = []

    async def slow() -> None:
        begun.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def body() -> str:
        calls.append(thread.loop.submit(slow, 30))
        try:
            fibers.result(calls[0])
        except concurrent.futures.CancelledError:
            return "cancelled"
        return "ended"

    waiting = thread.start(body)
    assert begun.wait(10)
    calls[0].cancel()
    assert waiting.result(10) == "cancelled"
    assert cancelled.wait(10), "the coroutine went on"


@pytest.mark.parametrize("how", ["returns", "raises", "times out", "cancels itself"])
def test_what_becomes_of_a_coroutine_is_the_same_beside_a_fiber_and_from_a_thread(
    thread: FiberThread, how: str
) -> None:
    async def call() -> str:
        if how == "raises":
            raise LookupError("gone")
        if how == "times out":
            await asyncio.sleep(30)
        if how == "cancels itself":
            raise asyncio.CancelledError
        return "here"

    def outcome() -> object:
        try:
            return fibers.result(thread.loop.submit(call, 0.1))
        except BaseException as error:
            return type(error), str(error)

    assert thread.run(outcome) == outcome()


def test_a_future_that_was_looked_at_often_says_nothing_to_a_loop_that_has_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: Future[None] = Future()
    with contextlib.closing(FiberThread()) as thread:
        thread.run(lambda: [fibers.wait((ended,), 0.01) for _ in range(3)] and None)
    time.sleep(0.1)
    ended.set_result(None)
    assert not caplog.records
