"""The timeline of a step that is put off or ended: it shows the calls that were made, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from celery_agents.tasks.observability.timeline.making import make_timeline
from celery_agents.tasks.observability.timeline.values import TimelineStep
from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.errors import DriverError
from celery_agents.worker.guards import Delay, GuardView, Proceed, StopWith, Verdict
from celery_agents.worker.state import AgentState, StopReason, StopSignal
from celery_agents.worker.tools import tool

from support.asking_providers import ProviderDriver, agent_of, refused
from support.engine import Bench


@tool(effect="keyed")
def refund(cents: int) -> str:
    """Pay money back."""
    return f"{cents} paid"


class Benches:
    """Benches whose agents take two seconds for each answer."""

    def __init__(self) -> None:
        self.bench: Bench | None = None

    def new(self, *answers: Any, **fields: Any) -> tuple[Bench, str]:
        def driver(state: AgentState) -> Any:
            bench.clock.go_on(2.0)
            return answers[state.step_count]

        self.bench = bench = Bench(Agent("agent", **{"driver": driver, "tools": [refund], **fields}))
        return bench, bench.submit()


@pytest.fixture
def new() -> Iterator[Any]:
    benches = Benches()
    yield benches.new
    if benches.bench is not None:
        benches.bench.close()


def first_step(bench: Bench, session: str) -> TimelineStep:
    return make_timeline(bench.store.sessions.execution(session, 1, 200), 1, 200, with_data=True).steps[0]


def seen(bench: Bench, session: str) -> list[tuple[str, int, int | None]]:
    """Kinds of the spans of the first step, with their times since its beginning, in seconds."""
    spans = first_step(bench, session).spans
    begun = spans[0].start_ms
    return [
        (
            str(each.kind),
            (each.start_ms - begun) // 1000,
            None if each.end_ms is None else (each.end_ms - begun) // 1000,
        )
        for each in spans
    ]


def test_a_step_that_a_guard_delayed_has_asked_no_model(new: Any) -> None:
    delays = [Delay(5.0), Delay(5.0)]

    class Late:
        def check(self, view: GuardView) -> Verdict:
            bench.clock.go_on(1.0)
            return delays.pop() if delays else Proceed()

    bench, session = new("done", guards=[Late()])
    for _ in range(3):
        bench.step(session)
        bench.clock.go_on(5)
    assert seen(bench, session) == [("delay", 0, 5), ("delay", 6, 11), ("model", 11, 14)]


def test_an_answer_before_a_delay_is_the_only_call(new: Any) -> None:
    bench, session = new([CallTool("refund", cents=5)], "done")
    paused = bench.pause(tool="refund", reason="a freeze")
    bench.step(session)
    held = first_step(bench, session)
    assert [(str(each.kind), each.outcome) for each in held.spans] == [("model", "ok"), ("delay", None)]
    bench.clock.go_on(10)
    bench.unpause(paused)
    bench.step(session)
    assert seen(bench, session) == [("model", 0, 2), ("delay", 2, 12), ("tool", 12, 12)]


def test_a_failed_call_bears_the_name_of_the_model_that_was_asked() -> None:
    driver = ProviderDriver(answers={"openai:a": [refused("overloaded")]})
    bench = Bench(agent_of(driver, "openai:a", "anthropic:b"))
    session = bench.submit()
    bench.step(session)
    asked = [each for each in first_step(bench, session).spans if each.kind in ("lost", "model")]
    assert [(str(each.kind), each.name) for each in asked] == [
        *[("lost", "a")] * bench.settings.driver_attempts, ("model", "anthropic:b"),
    ]  # fmt: skip
    bench.close()


def test_a_step_that_is_delayed_because_its_call_failed_shows_that_call() -> None:
    def answer() -> Exception:
        bench.clock.go_on(2.0)
        return refused("overloaded")

    bench = Bench(agent_of(ProviderDriver(answers={"openai:a": [answer]}), "openai:a"), driver_attempts=1)
    session = bench.submit()
    bench.step(session)
    assert seen(bench, session) == [("lost", 0, 2), ("delay", 2, None)]
    lost = first_step(bench, session).spans[0]
    assert (lost.name, lost.outcome) == ("a", "void")
    assert "overloaded of the provider" in lost.note
    bench.close()


def test_nothing_of_an_execution_ends_after_it() -> None:
    bench = Bench(
        agent_of(ProviderDriver(answers={"openai:a": [DriverError("rejected", "no", transient=False)]}), "openai:a")
    )
    session = bench.submit()
    bench.step(session)
    stored = bench.store.sessions.execution(session, 1, 200)
    # As Redis stores it, a moment after the time that the worker has noted.
    late = tuple(replace(each, at_ms=each.at_ms + 5) if "failed" in each.type else each for each in stored.events)
    timeline = make_timeline(replace(stored, events=late), 1, 200, with_data=True)
    (step,) = timeline.steps
    assert timeline.ended_at is not None
    assert [(str(each.kind), each.ended_at) for each in step.spans] == [("model", timeline.ended_at)]
    bench.close()


def test_an_execution_that_was_ended_before_a_model_was_asked_shows_no_call(new: Any) -> None:
    class Strict:
        def check(self, view: GuardView) -> Verdict:
            bench.clock.go_on(1.0)
            return StopWith((StopSignal(reason=StopReason.STOP_REQUESTED, message="enough", source="mine"),))

    bench, session = new("done", guards=[Strict()])
    bench.step(session)
    assert bench.record(session).status == "stopped"
    assert first_step(bench, session).spans == ()
    (end,) = [each for each in bench.store.sessions.events(session) if each.type == "execution_stopped"]
    assert (end.data["in_step"], end.data["asked"]) == (1, False)
