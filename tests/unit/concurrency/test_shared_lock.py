from __future__ import annotations

import threading

import pytest

from celery_agents.worker.concurrency import shared_lock
from celery_agents.worker.concurrency.shared_lock import SharedLock

from support.wait import wait_until


def test_a_suspect_waits_until_nobody_else_is_inside() -> None:
    lock = SharedLock()
    with lock.shared(), lock.exclusive(0.01) as holder:
        assert holder is None
    with lock.exclusive(0.01) as holder:
        assert holder is not None


def test_two_suspects_do_not_run_at_once() -> None:
    lock = SharedLock()
    with lock.exclusive(0.01) as first, lock.exclusive(0.01) as second:
        assert first is not None
        assert second is None


def test_others_wait_while_a_suspect_runs() -> None:
    lock, inside = SharedLock(), threading.Event()

    def other() -> None:
        with lock.shared():
            inside.set()

    with lock.exclusive(0.01):
        thread = threading.Thread(target=other)
        thread.start()
        assert not inside.wait(0.05)
    thread.join(5)
    assert inside.is_set()


def test_a_thread_that_was_given_up_keeps_no_suspect_from_running() -> None:
    lock = SharedLock()
    with lock.shared() as stuck:
        lock.leave(stuck)
        with lock.exclusive(0.01) as holder:
            assert holder is not None
    with lock.exclusive(0.01) as holder:  # leaving twice counts once
        assert holder is not None


def test_a_suspect_that_was_given_up_lets_the_others_in() -> None:
    lock, inside = SharedLock(), threading.Event()

    def other() -> None:
        with lock.shared():
            inside.set()

    with lock.exclusive(0.01) as stuck:
        assert stuck is not None
        thread = threading.Thread(target=other)
        thread.start()
        lock.leave(stuck)
        wait_until(inside.is_set, "the other runs", 5)
        thread.join(5)
        with lock.exclusive(0.01) as next_suspect:
            assert next_suspect is not None


def test_a_suspect_gets_the_lock_also_where_steps_begin_all_the_time() -> None:
    lock, ended = SharedLock(), threading.Event()

    def hold() -> None:
        with lock.shared():
            ended.wait(0.4)

    def begin_steps() -> None:
        while not ended.wait(0.1):
            threading.Thread(target=hold).start()

    feeder = threading.Thread(target=begin_steps)
    feeder.start()
    for _ in range(12):
        ended.wait(0.5)
        with lock.exclusive(0.01) as holder:
            if holder is not None:
                break
    ended.set()
    feeder.join()
    assert holder is not None


class Clock:
    """Time that passes when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, _: object, seconds: float | None) -> None:
        assert seconds is not None
        self.now += seconds


def test_suspects_beside_a_step_of_hours_leave_others_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lock, waits = Clock(), SharedLock(), list[float]()
    monkeypatch.setattr(shared_lock, "time", clock)
    monkeypatch.setattr(shared_lock, "fibers", clock)
    with lock.shared():
        while clock.now < 1000 + 7200:
            begun = clock.now
            with lock.exclusive(5.0) as holder:
                assert holder is None
            waits.append(clock.now - begun)
            clock.now += 0.5  # the next suspect
    assert max(waits) <= 64 * 5
    assert sum(waits) <= 7200 / 2 + 64 * 5
