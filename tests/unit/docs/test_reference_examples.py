"""The examples of the reference pages work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_agents.worker.engine import Done, RetryLater

from support.documents import read_document
from support.engine import Bench


def load(page: str, file: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(read_document(page).files[file], names)
    return names


@pytest.fixture
def bench_of() -> Iterator[Any]:
    benches: list[Bench] = []

    def make(agent: Any) -> Bench:
        benches.append(Bench(agent))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


def test_the_guard_delays_steps_at_night(bench_of: Any) -> None:
    bench = bench_of(load("docs/guards.md", "patient.py")["patient"])
    outcomes = set()
    for _ in range(24):
        session_id = bench.submit()
        outcome = bench.step(session_id)
        is_day = 8 <= bench.clock.now.hour < 18
        assert isinstance(outcome, Done if is_day else RetryLater)
        outcomes.add(type(outcome))
        bench.clock.go_on(3600)
    assert outcomes == {Done, RetryLater}


def test_the_hook_stops_when_it_is_told(bench_of: Any) -> None:
    bench = bench_of(load("docs/hooks.md", "frugal.py")["frugal"])
    assert bench.ran("tell me more").final_response == "go on?"
    record = bench.ran("that is enough")
    assert (record.status, record.stop_message, record.step_count) == ("stopped", "the user has had enough", 0)


@pytest.mark.parametrize(
    ("page", "file", "name"),
    [("docs/results.md", "print_answer.py", "print_answer"), ("docs/events.md", "tell_events.py", "tell")],
)
def test_the_functions_of_the_other_pages_can_be_imported(page: str, file: str, name: str) -> None:
    assert callable(load(page, file)[name])
