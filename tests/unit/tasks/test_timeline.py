"""The timeline of an execution: what the engine has stored becomes spans with their times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from celery_agents.tasks.observability.timeline.making import make_timeline
from celery_agents.tasks.observability.timeline.values import Span, Timeline, TimelineStep
from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.errors import DriverError, SessionNotFound
from celery_agents.worker.known_secrets import remember_secrets
from celery_agents.worker.state import AgentState, Answer, Approve, Complete, Deny, ExecutionStatus
from celery_agents.worker.store import Event, EventType
from celery_agents.worker.tools import Ask, NeedsAnswer, ToolContext, tool

from support.engine import BEGINNING_MS, Bench, WorkerDied, fragile_tool
from support.trees import a_tree, answering, asking, delegating, run_tree

START = 3600.0
"""The clock of a bench when its first session is submitted, in seconds."""


class Worked:
    """A driver whose calls take time: for each step what it says or calls, after so many seconds."""

    def __init__(self, *steps: Any, seconds: float = 2.0) -> None:
        self.steps = steps
        self.seconds = seconds
        self.bench: Bench | None = None
        self.failures: list[DriverError] = []

    def __call__(self, state: AgentState) -> Any:
        assert state.execution is not None
        assert self.bench is not None
        self.bench.clock.go_on(self.seconds)
        if self.failures:
            raise self.failures.pop(0)
        return self.steps[state.execution.step_count]


class Size(BaseModel):
    size: str


@tool(effect="keyed", approval=Ask(to="team"))
def refund(cents: int) -> str:
    """Pay money back."""
    return f"{cents} paid"


@tool(effect="keyed")
def measured(ctx: ToolContext) -> str:
    """Ask for a size."""
    size = ctx.answer(Size)
    if size is None:
        raise NeedsAnswer("Which size?", schema=Size)
    return size.size


@tool(effect="keyed", result="later")
def render(ctx: ToolContext) -> None:
    """Have a service do it."""


@tool(effect="pure")
def failing() -> str:
    """Raise."""
    raise ValueError("it broke")


Made = tuple[Bench, str, Worked]


@pytest.fixture
def new(new_bench: Callable[..., Bench]) -> Callable[..., Made]:
    """A bench with an agent of these steps, a session that was submitted, and the driver."""

    def make(*steps: Any, tools: tuple[Any, ...] = (), **settings: Any) -> Made:
        driver = Worked(*steps)
        bench = new_bench(Agent("agent", driver=driver, tools=tools), **settings)
        driver.bench = bench
        return bench, bench.submit(), driver

    return make


@pytest.fixture
def new_bench() -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(*agents: Agent, **settings: Any) -> Bench:
        benches.append(Bench(*agents, **settings))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


def read(bench: Bench, session: str, first: int = 1, limit: int = 200, *, data: bool = False) -> Timeline:
    return make_timeline(bench.store.sessions.execution(session, first, limit), first, limit, with_data=data)


def step_of(bench: Bench, session: str, number: int, **options: Any) -> TimelineStep:
    return next(step for step in read(bench, session, **options).steps if step.number == number)


def at(ms: int | None) -> float | None:
    """A time in seconds since the submit."""
    return None if ms is None else round((ms - BEGINNING_MS) / 1000 - START, 3)


def seen(step: TimelineStep) -> dict[str, tuple[Any, ...]]:
    """Kind, beginning, end and outcome of the spans of a step, by id without its step and without times."""
    found: dict[str, tuple[Any, ...]] = {}
    for span in step.spans:
        mark = span.id.partition(".")[2]
        name = mark if mark[0] in "mt" else mark[0]
        found[name] = (span.kind.value, at(span.start_ms), at(span.end_ms), span.outcome and span.outcome.value)
    assert len(found) == len(step.spans), [span.id for span in step.spans]
    return found


def span_of(step: TimelineStep, kind: str) -> Span:
    (span,) = (each for each in step.spans if each.kind == kind)
    return span


# --- an ordinary step -----------------------------------------------------------------------------------------------


def test_a_step_is_queue_model_and_tools(new: Callable[..., Made]) -> None:
    bench, session, _ = new([CallTool("failing"), CallTool("unknown")], "done", tools=(failing,))
    bench.clock.go_on(1)
    assert [(step.status, seen(step)) for step in read(bench, session).steps] == [
        ("due", {"q": ("queue", 0.0, None, None)})
    ]
    bench.step(session)
    first = step_of(bench, session, 1)
    assert (first.status, at(first.start_ms), at(first.end_ms), first.attempts, first.worker) == (
        "committed", 1.0, 3.0, 1, "worker",
    )  # fmt: skip
    assert seen(first) == {
        "q": ("queue", 0.0, 1.0, None),
        "m": ("model", 1.0, 3.0, "ok"),
        "t0": ("tool", 3.0, 3.0, "error"),
        "t1": ("tool", 3.0, 3.0, "error"),
    }
    tools = [span for span in first.spans if span.kind == "tool"]
    assert [span.name for span in tools] == ["failing", "unknown"]
    assert "it broke" in tools[0].note
    second = step_of(bench, session, 2)
    assert (second.status, seen(second)) == ("due", {"q": ("queue", 3.0, None, None)})
    bench.clock.go_on(4)
    bench.step(session)
    timeline = read(bench, session)
    assert (timeline.status, timeline.total_steps, timeline.next_step) == ("completed", 2, None)
    assert timeline.ended_at is not None
    assert seen(timeline.steps[1]) == {"q": ("queue", 3.0, 7.0, None), "m": ("model", 7.0, 9.0, "ok")}
    assert [step.finish_reason for step in timeline.steps] == ["tool_calls", "stop"]


def test_tokens_and_cost_that_the_driver_does_not_tell_are_not_known(new: Callable[..., Made]) -> None:
    bench, session, _ = new("done")
    bench.run(session)
    step = step_of(bench, session, 1)
    model = span_of(step, "model")
    assert (step.tokens, step.cost, step.model, model.tokens, model.cost) == (None, None, None, None, None)


def test_pages_follow_each_other_and_hold_what_the_whole_holds(new: Callable[..., Made]) -> None:
    bench, session, _ = new(*[[CallTool("failing")]] * 4, "done", tools=(failing,))
    bench.run(session)
    whole = read(bench, session)
    pages, first = [read(bench, session, 1, 2)], 3
    while pages[-1].next_step is not None:
        assert pages[-1].next_step == first
        pages.append(read(bench, session, first, 2))
        first += 2
    assert [len(page.steps) for page in pages] == [2, 2, 1]
    assert tuple(step for page in pages for step in page.steps) == whole.steps
    assert read(bench, session, 6, 2).steps == ()
    with pytest.raises(SessionNotFound):
        read(bench, "nothing")


def test_a_session_without_an_execution_has_a_timeline_without_steps(new: Callable[..., Made]) -> None:
    bench, session, _ = new("done")
    bench.run(session)
    fork = f"{session}.{'0' * 32}"
    bench.store.sessions.fork(session, fork)
    timeline = read(bench, fork)
    assert (timeline.execution_id, timeline.steps, timeline.submitted_at, timeline.status) == ("", (), None, "idle")


def test_data_say_what_was_given_and_answered_and_are_left_out_otherwise(new: Callable[..., Made]) -> None:
    bench, session, _ = new([CallTool("failing")], "the answer", tools=(failing,))
    bench.run(session)
    assert all(span.data is None for step in read(bench, session).steps for span in step.spans)
    first, second = read(bench, session, data=True).steps
    called = span_of(first, "tool").data
    assert called is not None
    assert (called["args"], called["approved_args"], called["effect"], called["worker"], called["attempt"]) == (
        {}, None, "pure", "worker", 1,
    )  # fmt: skip
    assert called["error"] == {"kind": "ValueError", "message": "ValueError: it broke"} or "it broke" in str(called)
    assert len(called["key"]) == 64
    said = span_of(second, "model").data
    assert said is not None
    assert (said["text"], said["finish_reason"], said["tool_calls"]) == ("the answer", "stop", [])


def test_known_secrets_are_redacted(new: Callable[..., Made]) -> None:
    secret = "not-a-real-token-of-anything"
    bench, session, _ = new(f"it is {secret}")
    bench.run(session)
    assert secret in str(read(bench, session, data=True))
    remember_secrets([secret])
    assert secret not in str(read(bench, session, data=True).redacted())


# --- lost workers ---------------------------------------------------------------------------------------------------


def test_a_worker_lost_in_a_tool_leaves_a_ghost_below_the_call(new: Callable[..., Made]) -> None:
    bench, session, _ = new([CallTool("fragile")], "done", tools=(fragile_tool(),))
    bench.clock.go_on(1)
    bench.worker_died(session)
    died = step_of(bench, session, 1)
    assert (died.status, died.attempts) == ("due", 1)
    assert seen(died) == {
        "q": ("queue", 0.0, 1.0, None),
        "m": ("model", 1.0, 3.0, "ok"),
        "t0": ("tool", 3.0, None, None),
        "t0.l1": ("lost", 3.0, None, "lost"),
    }
    ghost = span_of(died, "lost")
    assert ghost.parent == "1.t0"
    assert "another one takes the step over" in ghost.note
    assert [span.name for span in died.spans if span.kind == "tool"] == ["fragile"], "as the model has called it"
    over = at(bench.clock.now_ms())
    bench.step(session)
    again = step_of(bench, session, 1)
    assert (again.status, again.attempts) == ("committed", 2)
    assert seen(again) == {
        "q": ("queue", 0.0, 1.0, None),
        "m": ("model", 1.0, 3.0, "ok"),
        "t0": ("tool", over, over, "ok"),
        "t0.l1": ("lost", 3.0, over, "lost"),
    }
    assert span_of(again, "lost").note == "attempt 1, lost with worker worker"


def test_a_ghost_ends_where_the_next_attempt_begins_though_its_event_was_stored_later(
    new: Callable[..., Made],
) -> None:
    bench, session, _ = new([CallTool("fragile")], "done", tools=(fragile_tool(),))
    bench.worker_died(session)
    over = at(bench.clock.now_ms())
    bench.step(session)
    stored = bench.store.sessions.execution(session, 1, 200)
    later = [
        replace(event, at_ms=event.at_ms + 5) if event.type == EventType.STEP_RECOVERED else event
        for event in stored.events
    ]
    (step, *_) = make_timeline(replace(stored, events=tuple(later)), 1, 200, with_data=False).steps
    assert at(span_of(step, "lost").end_ms) == at(span_of(step, "tool").start_ms) == over


def test_a_worker_lost_in_the_model_call_leaves_a_ghost_and_the_call_is_made_again(new: Callable[..., Made]) -> None:
    bench, session, driver = new("done")
    driver.failures = [WorkerDied()]  # type: ignore[list-item]
    bench.worker_died(session)
    assert seen(step_of(bench, session, 1)) == {"l": ("lost", 0.0, None, "lost")}
    over = at(bench.clock.now_ms())
    assert over is not None
    bench.step(session)
    step = step_of(bench, session, 1)
    assert seen(step) == {"l": ("lost", 0.0, over, "lost"), "m": ("model", over, over + 2, "ok")}
    assert step.attempts == 2


def test_a_worker_lost_in_a_pure_tool_keeps_the_answer(new: Callable[..., Made]) -> None:
    deaths = [1]

    @tool(effect="pure")
    def deadly() -> str:
        """Die at first."""
        if deaths:
            deaths.pop()
            raise WorkerDied
        return "whole"

    bench, session, _ = new([CallTool("deadly")], "done", tools=(deadly,))
    bench.worker_died(session)
    over = at(bench.clock.now_ms())
    bench.step(session)
    step = step_of(bench, session, 1)
    assert seen(step) == {
        "m": ("model", 0.0, over, "ok"),
        "l": ("lost", 0.0, over, "lost"),
        "t0": ("tool", over, over, "ok"),
    }
    assert "after the model had answered" in span_of(step, "lost").note


# --- the provider ---------------------------------------------------------------------------------------------------


def failure(**options: Any) -> DriverError:
    return DriverError("rate_limit", "too many requests", transient=True, status=429, **options)


def test_failed_model_calls_and_the_pauses_after_them(new: Callable[..., Made]) -> None:
    bench, session, driver = new("done")
    driver.failures = [failure(retry_after=0.05)]
    bench.run(session)
    step = step_of(bench, session, 1)
    assert seen(step) == {
        "f": ("lost", 0.0, 2.0, "void"),
        "p": ("provider", 2.0, 2.05, None),
        "m": ("model", 2.05, 4.0, "ok"),
    }
    assert span_of(step, "lost").note == "429: too many requests"


def test_a_pause_of_nothing_ends_no_earlier_than_it_begins(new: Callable[..., Made]) -> None:
    bench, session, driver = new("done", driver_attempts=3)
    driver.failures = [failure(retry_after=0.05), failure(retry_after=0.05)]
    bench.run(session)
    stored = bench.store.sessions.execution(session, 1, 200)
    # As a worker's estimate of Redis's clock has it, whose pause has ended before Redis knew that it began.
    events = [
        replace(each, data={**each.data, "next_try_ms": each.at_ms - 3}) if "next_try_ms" in each.data else each
        for each in stored.events
    ]
    (step,) = make_timeline(replace(stored, events=tuple(events)), 1, 200, with_data=True).steps
    assert [span.kind for span in step.spans] == ["lost", "provider", "lost", "provider", "model"]
    assert all(span.end_ms is not None and span.start_ms <= span.end_ms for span in step.spans)


def test_a_delay_begins_with_the_attempt_that_gave_up(new: Callable[..., Made]) -> None:
    bench, session, driver = new("done", driver_attempts=1)
    driver.failures = [failure()]
    bench.step(session)
    delayed = step_of(bench, session, 1)
    assert delayed.status == "due"
    assert seen(delayed) == {"l": ("lost", 0.0, 2.0, "void"), "d": ("delay", 2.0, None, None)}
    assert "too many requests" in span_of(delayed, "delay").note
    bench.clock.go_on(100)
    queued = seen(step_of(bench, session, 1))
    assert queued["d"][2] is not None
    assert queued["q"] == ("queue", queued["d"][2], None, None), "its time is over, and no worker has it"
    bench.step(session)
    step = step_of(bench, session, 1)
    assert seen(step) == {
        "l": ("lost", 0.0, 2.0, "void"),
        "d": ("delay", 2.0, 102.0, None),
        "m": ("model", 102.0, 104.0, "ok"),
    }


def test_a_step_that_failed_is_shown_with_its_error_and_again_after_a_retry(new: Callable[..., Made]) -> None:
    bench, session, driver = new([CallTool("failing")], "done", tools=(failing,))
    bench.step(session)
    driver.failures = [DriverError("bad_request", "no such model", transient=False)]
    bench.step(session)
    timeline = read(bench, session)
    assert (timeline.status, timeline.total_steps) == ("failed", 1)
    failed = timeline.steps[1]
    assert (failed.number, failed.status, at(failed.end_ms)) == (2, "ended", 4.0)
    assert "no such model" in str(failed.error)
    assert seen(failed) == {"x": ("model", 2.0, 4.0, "error")}
    bench.clock.go_on(10)
    bench.retry(session)
    bench.clock.go_on(3)
    bench.run(session)
    step = step_of(bench, session, 2)
    assert [(span.kind.value, at(span.start_ms), at(span.end_ms)) for span in step.spans] == [
        ("model", 2.0, 4.0), ("queue", 14.0, 17.0), ("model", 17.0, 19.0),
    ]  # fmt: skip
    assert len({span.id for span in step.spans}) == 3
    assert step.error is None
    assert span_of(step, "queue").note == "retried"


def test_an_execution_that_was_stopped_before_a_step_began_does_not_show_it(new: Callable[..., Made]) -> None:
    bench, session, _ = new([CallTool("fragile")], "done", tools=(fragile_tool(0),))
    bench.step(session)
    bench.stop(session)
    timeline = read(bench, session)
    assert (timeline.status, [step.number for step in timeline.steps]) == ("stopped", [1])


# --- requests -------------------------------------------------------------------------------------------------------


def test_an_approval_is_a_span_with_who_answered_and_what_was_approved(new: Callable[..., Made]) -> None:
    bench, session, _ = new([CallTool("refund", cents=5)], "done", tools=(refund,))
    bench.step(session)
    waiting = step_of(bench, session, 1)
    assert waiting.status == "waiting"
    assert seen(waiting) == {
        "m": ("model", 0.0, 2.0, "ok"),
        "t0": ("tool", 2.0, None, None),
        "t0.r0": ("request", 2.0, None, "open"),
    }
    asked = span_of(waiting, "request")
    assert (asked.parent, asked.name, asked.note) == ("1.t0", "approval", "asked of team")
    bench.clock.go_on(50)
    bench.answer(session, Approve({"cents": 4}), by="ann", note="less")
    bench.clock.go_on(1)
    assert seen(step_of(bench, session, 1))["q"] == ("queue", 52.0, None, None)
    bench.run(session)
    step = step_of(bench, session, 1, data=True)
    assert seen(step) == {
        "m": ("model", 0.0, 2.0, "ok"),
        "t0": ("tool", 53.0, 53.0, "ok"),
        "t0.r0": ("request", 2.0, 52.0, "answered"),
        "q": ("queue", 52.0, 53.0, None),
    }
    request, called = span_of(step, "request"), span_of(step, "tool")
    assert request.note == "approved by ann with cents=4 instead of 5: less"
    assert called.data is not None
    assert (called.data["args"], called.data["approved_args"]) == ({"cents": 5}, {"cents": 4})
    (resolution,) = called.data["resolutions"]
    assert (resolution["by"], resolution["verb"], resolution["args"]) == ("ann", "approve", {"cents": 4})
    assert (step.attempts, at(step.start_ms)) == (1, 0.0)


def test_a_denied_call_did_not_run(new: Callable[..., Made]) -> None:
    bench, session, _ = new([CallTool("refund", cents=5)], "done", tools=(refund,))
    bench.step(session)
    bench.clock.go_on(8)
    bench.answer(session, Deny("too much"), by="ann")
    bench.run(session)
    step = step_of(bench, session, 1)
    assert seen(step)["t0"] == ("tool", 2.0, 10.0, "blocked")
    assert span_of(step, "request").note == "denied by ann: too much"


def test_a_question_and_a_later_result_are_requests(new: Callable[..., Made]) -> None:
    settings = {"token_secret": "not-a-secret-but-long-enough"}
    bench, session, _ = new([CallTool("measured"), CallTool("render")], "done", tools=(measured, render), **settings)
    bench.step(session)
    names = [span.name for span in step_of(bench, session, 1).spans if span.kind == "request"]
    assert names == ["question", "external"]
    question, external = bench.open_requests(session)
    bench.clock.go_on(5)
    bench.answer(session, {external.id: Complete("rendered")}, by="service")
    bench.run(session)
    half = seen(step_of(bench, session, 1))
    assert (half["t1"], half["t1.r0"]) == (("tool", 2.0, 7.0, "ok"), ("request", 2.0, 7.0, "answered"))
    assert half["t0.r0"] == ("request", 2.0, None, "open")
    bench.answer(session, {question.id: Answer({"size": "large"})}, by="ann")
    bench.run(session)
    step = step_of(bench, session, 1, data=True)
    assert seen(step)["t0.r0"] == ("request", 2.0, 7.0, "answered")
    values = {span.id: span.data["value"] for span in step.spans if span.kind == "tool" and span.data}
    assert values == {"1.t0": "large", "1.t1": "rendered"}


def test_a_stop_cancels_what_was_asked(new: Callable[..., Made]) -> None:
    bench, session, _ = new([CallTool("refund", cents=5)], "done", tools=(refund,))
    bench.step(session)
    bench.clock.go_on(8)
    bench.stop(session)
    bench.run(session)
    assert bench.state(session).status is ExecutionStatus.STOPPED
    step = step_of(bench, session, 1)
    assert seen(step)["t0.r0"][1:] == (2.0, 10.0, "cancelled")
    assert seen(step)["t0"][3] == "not_run"


# --- children, holds, messages --------------------------------------------------------------------------------------


def test_a_call_that_started_a_child_names_its_session(new_bench: Callable[..., Bench]) -> None:
    worker = answering()
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool()])
    bench, root = a_tree(new_bench, lead, worker)
    bench.step(root)
    child = span_of(step_of(bench, root, 1), "child")
    (session,) = bench.store.trees.members(root)
    assert (child.session, child.name, child.end_ms, child.id) == (session, worker.name, None, "1.t0")
    bench.clock.go_on(3)
    run_tree(bench, root)
    ended = span_of(step_of(bench, root, 1), "child")
    assert (ended.session, ended.outcome, at(ended.start_ms), at(ended.end_ms)) == (session, "ok", 0.0, 3.0)
    assert "request" not in [span.kind for span in step_of(bench, root, 1).spans]


def test_a_hold_is_a_span_of_the_step_that_was_due(new: Callable[..., Made]) -> None:
    bench, session, _ = new([CallTool("failing")], "done", tools=(failing,))
    bench.step(session)
    bench.store.sessions.suspend(session, reason="a look", by="ann")
    bench.clock.go_on(5)
    held = step_of(bench, session, 2)
    assert (held.status, seen(held)) == ("due", {"h": ("hold", 2.0, None, None)})
    assert span_of(held, "hold").note == "suspended by ann: a look"
    bench.store.sessions.resume(session, by="bob")
    bench.clock.go_on(1)
    bench.run(session)
    step = step_of(bench, session, 2, data=True)
    assert seen(step) == {
        "h": ("hold", 2.0, 7.0, None), "q": ("queue", 7.0, 8.0, None), "m": ("model", 8.0, 10.0, "ok"),
    }  # fmt: skip
    hold = span_of(step, "hold")
    assert hold.data is not None
    assert hold.data["resumed_by"] == "bob"


def test_messages_that_come_meanwhile_are_moments(new: Callable[..., Made]) -> None:
    @tool(effect="pure")
    def meanwhile() -> str:
        """Somebody writes while it runs."""
        bench.send(session, "while it runs")
        return "ok"

    bench, session, _ = new([CallTool("meanwhile")], "done", tools=(meanwhile,))
    bench.step(session)
    bench.clock.go_on(1)
    bench.send(session, "between the steps")
    bench.run(session)
    first, second = read(bench, session).steps
    assert seen(first)["n"] == ("message", 2.0, 2.0, None)
    assert seen(second)["n"] == ("message", 3.0, 3.0, None)


def test_a_parked_step_says_so_while_it_waits(new: Callable[..., Made]) -> None:
    bench, session, _ = new("done")
    ref = bench.due(session)
    assert ref is not None
    bench.clock.go_on(1)
    bench.store.steps.park(ref, "no live worker offers agent 'agent'")
    step = step_of(bench, session, 1)
    assert (step.status, seen(step)) == ("due", {"q": ("queue", 0.0, None, None)})
    assert span_of(step, "queue").note == "parked: no live worker offers agent 'agent'"


# --- what is gone or damaged ----------------------------------------------------------------------------------------


def without_events(bench: Bench, session: str) -> None:
    bench.store.context.database.pipeline("test", [("DEL", bench.store.context.keys(session).events)])


def test_without_events_records_tell_what_they_know(new: Callable[..., Made]) -> None:
    bench, session, _ = new([CallTool("fragile"), CallTool("refund", cents=5)], "done", tools=(fragile_tool(), refund))
    bench.worker_died(session)
    bench.run(session)
    bench.clock.go_on(50)
    bench.answer(session, Approve(), by="ann")
    bench.run(session)
    whole = seen(step_of(bench, session, 1))
    without_events(bench, session)
    first, second = read(bench, session).steps
    known = seen(first)
    assert (first.attempts, first.worker, first.start_ms) == (None, None, None)
    assert {name: known[name] for name in ("t0", "t1", "t1.r0")} == {n: whole[n] for n in ("t0", "t1", "t1.r0")}
    assert known["m"][:2] == ("model", 0.0)
    assert "is not known" in span_of(first, "model").note
    assert seen(second)["m"] == ("model", at(second.start_ms), at(second.end_ms), "ok")


@pytest.mark.parametrize(
    "data",
    [
        {"since_ms": "soon", "begun": 7, "answered": "yes", "worker": 3, "lost_worker": []},
        {"since_ms": -1, "begun": {"x": 1, "0": "y"}, "next_try_ms": 1e300, "by": {}, "reason": None},
        {"begun": {"9" * 5000: 5}, "since_ms": 10**400, "tokens": 10**400, "cost": 10**400},
        {"in_step": "1", "operation": [1], "cause": [], "session": {}, "tokens": "many", "cost": "much"},
    ],
)
def test_events_with_odd_data_end_no_timeline(new: Callable[..., Made], data: dict[str, Any]) -> None:
    bench, session, _ = new([CallTool("failing")], "done", tools=(failing,))
    bench.run(session)
    stored = bench.store.sessions.execution(session, 1, 200)
    odd = [
        Event(id=f"{n}-0", type=kind, at_ms=stored.now_ms, session_id=session, execution_id="e1", step=1, data=data)
        for n, kind in enumerate((*EventType, "unreadable", "of_a_newer_version"))
    ]
    timeline = make_timeline(replace(stored, events=(*stored.events, *odd)), 1, 200, with_data=True)
    assert [step.number for step in timeline.steps] == [1, 2]
