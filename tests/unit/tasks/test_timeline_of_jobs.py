"""The timeline of a step whose provider answers later."""

from __future__ import annotations

from celery_agents.tasks.observability.timeline.making import make_timeline
from celery_agents.tasks.observability.timeline.values import TimelineStep
from celery_agents.worker.agent import Agent

from support.engine import Bench
from support.later_driver import LaterDriver


def first_step(bench: Bench, session: str) -> TimelineStep:
    stored = bench.store.sessions.execution(session, 1, 200)
    return make_timeline(stored, 1, 200, with_data=True).steps[0]


def test_an_answer_that_comes_later_is_waited_for_at_the_provider_and_nothing_is_lost() -> None:
    driver = LaterDriver()
    bench = Bench(Agent("report", driver=driver, completion_window="8h"))
    driver.created = lambda: bench.clock.go_on(2.0)
    session = bench.submit()
    bench.step(session)
    (span,) = first_step(bench, session).spans
    assert (span.kind, span.name, span.end_ms) == ("delay", "at the provider", None)
    assert "40 % cheaper" in span.note
    for _ in range(3):
        bench.clock.go_on(601)
        bench.step(session)
    driver.finish()
    bench.clock.go_on(601)
    bench.step(session)
    step = first_step(bench, session)
    assert [span.kind for span in step.spans] == ["delay", "model"]
    assert step.spans[0].end_ms == step.spans[0].start_ms + 4 * 601_000
    bench.close()
