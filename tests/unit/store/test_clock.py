"""Redis's time, as a process guesses it between two answers."""

from __future__ import annotations

from celery_agents.worker.store.clock import RedisClock

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
