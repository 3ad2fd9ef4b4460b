"""Redis's time, as a process guesses it between two answers."""

from __future__ import annotations

import contextlib

from celery_agents.worker.store.clock import RedisClock

from support.fiber_thread import FiberThread

SECOND, MICROSECONDS = 1_700_000_000, 250_000


def test_the_last_answer_is_carried_on_by_this_machines_clock() -> None:
    here = 100.0
    clock = RedisClock(lambda: here)
    assert clock.estimate_ms() is None, "nobody has asked"
    assert clock.milliseconds((SECOND, MICROSECONDS)) == SECOND * 1000 + 250
    here += 59.5
    assert clock.estimate_ms() == SECOND * 1000 + 250 + 59_500


def test_an_answer_of_a_minute_ago_is_no_guess_any_more() -> None:
    here = 100.0
    clock = RedisClock(lambda: here)
    clock.milliseconds((SECOND, 0))
    here += 60.0
    assert clock.estimate_ms() is None
    assert clock.milliseconds((SECOND + 3600, 0)) == (SECOND + 3600) * 1000
    assert clock.estimate_ms() == (SECOND + 3600) * 1000


def info(uptime: int, run: str = "a1") -> bytes:
    return f"# Server\r\nredis_version:7.0.15\r\nrun_id:{run}\r\nuptime_in_seconds:{uptime}\r\n".encode()


def test_a_clock_of_redis_that_was_set_back_ends_no_sweep_for_ever() -> None:
    """Redis's uptime is negative then; the grace after a restart would last as long as the clock went back."""
    here = 100.0
    clock = RedisClock(lambda: here)
    assert clock.uptime_seconds(info(-3600)) < 6, "it may have restarted just now"
    here += 10
    assert clock.uptime_seconds(info(-3590)) == 10
    assert clock.uptime_seconds(info(5_000)) == 5_000


def test_another_run_of_redis_begins_anew() -> None:
    here = 100.0
    clock = RedisClock(lambda: here)
    clock.uptime_seconds(info(50))
    here += 1_000
    assert clock.uptime_seconds(info(2, "b2")) == 2
    assert clock.uptime_seconds(b"# Server\r\n") == float("inf")


def test_a_pause_of_one_fiber_lets_the_others_run() -> None:
    order: list[str] = []
    clock = RedisClock()

    def wait() -> None:
        clock.pause(0.2)
        order.append("waited")

    with contextlib.closing(FiberThread()) as thread:
        thread.together([wait, lambda: order.append("ran")])
    assert order == ["ran", "waited"]
