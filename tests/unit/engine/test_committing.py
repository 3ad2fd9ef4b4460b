"""What a commit tells of its step, and what becomes of one that meets other changes of its session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import AskUser
from celery_agents.worker.drivers import CallTool, InferenceRequest, ScriptedDriver
from celery_agents.worker.engine import Done, Outcome
from celery_agents.worker.engine.run import Run
from celery_agents.worker.engine.services import new_records
from celery_agents.worker.errors import DriverError, StoreUnavailable
from celery_agents.worker.hooks import AnswerUndecided, Hook, HookContext, HookPoint
from celery_agents.worker.state import AgentState, ExecutionBudget, ExecutionStatus, InferenceResponse, InferenceUsage
from celery_agents.worker.store import StepRef
from celery_agents.worker.tools import tool

from support.engine import Bench, WorkerDied, calling

NewBench = Callable[..., Bench]


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


@tool(effect="pure")
def read(name: str) -> str:
    """Read a file."""
    return name


def looking(steps: int, **options: Any) -> Agent:
    """An agent that looks in each step before its last one."""
    return Agent("looking", driver=ScriptedDriver([CallTool("look")] * (steps - 1) + ["done"]), tools=[look], **options)


def done(outcome: Outcome) -> Done:
    assert isinstance(outcome, Done), outcome
    return outcome


# --- what is told of a step --------------------------------------------------------------------------------------------


def test_a_commit_tells_which_step_follows_it(new_bench: NewBench) -> None:
    bench = new_bench(looking(2))
    session = bench.submit()
    first = done(bench.step(session))
    assert (first.status, first.next, first.publish) == ("in_progress", *[StepRef(session, "e1", 2)] * 2)
    assert first.summary == "1 tool call · look · next step 2"
    last = done(bench.step(session))
    assert (last.status, last.next, last.publish) == ("completed", None, None)
    assert last.summary == "completed"


def test_a_message_that_came_meanwhile_begins_another_execution_after_the_last_step(new_bench: NewBench) -> None:
    def send(state: AgentState) -> str:
        if len(state.messages) == 1:
            bench.send(session)
        return "done"

    bench = new_bench(Agent("sent", driver=send))
    session = bench.submit()
    outcome = done(bench.step(session))
    assert (outcome.status, outcome.summary) == ("completed", "completed"), "of this execution, which has no next step"
    assert outcome.next is not None
    assert (outcome.next.step, outcome.next.execution_id != "e1") == (1, True)
    assert outcome.publish == outcome.next


def test_a_summary_counts_calls_and_tokens(new_bench: NewBench) -> None:
    calls = [CallTool("read", name="a"), CallTool("look"), CallTool("read", name="b")]
    answer = InferenceResponse(content="done", usage=InferenceUsage(input=400, output=12))
    bench = new_bench(Agent("reading", driver=ScriptedDriver([calls, answer]), tools=[look, read]))
    session = bench.submit()
    assert done(bench.step(session)).summary == "3 tool calls · read ×2, look · next step 2"
    assert done(bench.step(session)).summary == "412 tokens · completed"


class Watching:
    """Notes what a step does, as metrics do."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.seen: list[tuple[Any, ...]] = []

    def step_begun(self, run: Run) -> None:
        self.seen.append(("begun", run.ref.step))

    def driver_called(
        self, run: Run, request: InferenceRequest, seconds: float, response: InferenceResponse | None, error: str
    ) -> None:
        self.seen.append((request.purpose or "driver", seconds, None if response is None else response.content, error))

    def tools_called(self, run: Run) -> None:
        self.seen.append(("tools", new_records(run)))

    def step_ended(self, run: Run, outcome: Outcome | None) -> None:
        self.seen.append(("ended", None if outcome is None else type(outcome).__name__))


def test_an_observer_is_told_what_a_step_does_and_how_long_its_model_takes(new_bench: NewBench) -> None:
    def driver(state: AgentState) -> Any:
        bench.clock.go_on(2.5)
        if not failures:
            return "done" if state.step_count else [CallTool("look"), CallTool("look")]
        raise failures.pop()

    failures = [DriverError("overloaded", "too much", transient=True)]
    agent = Agent("watched", driver=driver, tools=[look])
    bench = new_bench(agent)
    watching = Watching(bench)
    worker = bench.another_worker(agent, observer=watching)
    session = bench.submit()
    bench.step(session, worker)
    bench.step(session, worker)
    assert watching.seen == [
        ("begun", 1), ("driver", 2.5, None, "overloaded"), ("driver", 2.5, "", ""), ("tools", [0, 1]), ("ended", "Done"),
        ("begun", 2), ("driver", 2.5, "done", ""), ("ended", "Done"),
    ]  # fmt: skip


def test_an_observer_is_told_once_of_an_answer_that_a_hook_lets_wait(new_bench: NewBench) -> None:
    def hold(context: HookContext) -> HookContext:
        if failures:
            raise AnswerUndecided(failures.pop(), context)
        return context

    failures = [DriverError("overloaded", "the judge is away", transient=True)]
    agent = Agent("held", driver=ScriptedDriver(["done"]), hooks=[Hook(HookPoint.AFTER_INFERENCE, hold)])
    bench = new_bench(agent)
    watching = Watching(bench)
    worker = bench.another_worker(agent, observer=watching)
    session = bench.submit()
    bench.step(session, worker)
    bench.clock.go_on(60)
    assert done(bench.step(session, worker)).status is ExecutionStatus.COMPLETED
    assert [each[:1] + each[2:] for each in watching.seen if each[0] == "driver"] == [("driver", "done", "")]


def test_an_observer_is_told_of_no_calls_where_none_has_ended(new_bench: NewBench) -> None:
    @tool(effect="unsafe", approval="always")
    def pay() -> str:
        """Pay."""
        return "paid"

    agent = calling(CallTool("pay"), tools=[pay])
    bench = new_bench(agent)
    watching = Watching(bench)
    bench.step(bench.submit(), bench.another_worker(agent, observer=watching))
    assert [each[0] for each in watching.seen] == ["begun", "driver", "ended"]


def test_an_observer_is_told_of_a_step_that_an_exception_ends(new_bench: NewBench) -> None:
    def die(state: AgentState) -> Any:
        raise WorkerDied

    agent = Agent("dying", driver=die)
    bench = new_bench(agent)
    watching = Watching(bench)
    with pytest.raises(WorkerDied):
        bench.step(bench.submit(), bench.another_worker(agent, observer=watching))
    assert watching.seen == [("begun", 1), ("ended", None)]


# --- other changes of the session --------------------------------------------------------------------------------------


def changing(times: int, bench: list[Bench]) -> Hook:
    """A hook during which another change of the session is saved, so often."""
    left = [True] * times

    def change(context: HookContext) -> HookContext:
        if left:
            left.pop()
            bench[0].save_beside(context.session_id, lambda state: state.with_metadata("left", len(left)))
        return context

    return Hook(HookPoint.AFTER_STEP, change)


@pytest.mark.parametrize(("times", "is_saved"), [(19, True), (20, False)])
def test_a_step_is_applied_to_a_session_that_changes_beside_it_up_to_twenty_times(
    new_bench: NewBench, times: int, is_saved: bool
) -> None:
    benches: list[Bench] = []
    bench = new_bench(looking(1, hooks=[changing(times, benches)]))
    benches.append(bench)
    session = bench.submit()
    if not is_saved:
        with pytest.raises(StoreUnavailable, match=f"session {session} changes too fast to commit step 1"):
            bench.step(session)
        assert bench.execution(session).status is ExecutionStatus.PENDING
        return
    assert done(bench.step(session)).status is ExecutionStatus.COMPLETED
    assert bench.state(session).metadata["left"] == 0


def test_the_steps_that_are_given_without_a_budget_hold_after_a_change_beside_the_first(new_bench: NewBench) -> None:
    benches: list[Bench] = []
    bench = new_bench(looking(9, hooks=[changing(1, benches)]), default_max_steps=3)
    benches.append(bench)
    session = bench.submit()
    bench.run(session)
    assert bench.execution(session).step_count == 3
    assert bench.record(session).stop_reason == "steps_limit"


def test_a_budget_of_the_agent_holds_after_a_change_beside_the_first_step(new_bench: NewBench) -> None:
    benches: list[Bench] = []
    bench = new_bench(looking(9, hooks=[changing(1, benches)], budget=ExecutionBudget(max_steps=2)))
    benches.append(bench)
    session = bench.submit()
    bench.run(session)
    assert bench.execution(session).step_count == 2


# --- the definition that a session keeps -------------------------------------------------------------------------------


def asking(answers: list[Any], prompt: str) -> Agent:
    return Agent("asking", driver=ScriptedDriver(answers), system_prompt=prompt, tools=[look], capabilities=[AskUser()])


def test_a_session_that_waits_in_its_first_step_keeps_the_definition_of_its_agent(new_bench: NewBench) -> None:
    bench = new_bench(asking([ASK, "done"], "Be brief."))
    session = bench.submit()
    bench.step(session)
    assert bench.state(session).status is ExecutionStatus.WAITING
    assert bench.store.sessions.definition(session)["system_prompt"] == "Be brief."


def test_a_wait_in_a_later_step_keeps_the_definition_that_the_execution_began_with(new_bench: NewBench) -> None:
    bench = new_bench(asking([CallTool("look"), ASK, "done"], "Be brief."))
    session = bench.submit()
    bench.step(session)
    changed = bench.another_worker(asking([CallTool("look"), ASK, "done"], "Be long."))
    bench.step(session, changed)
    assert bench.state(session).status is ExecutionStatus.WAITING
    assert bench.store.sessions.definition(session)["system_prompt"] == "Be brief."


ASK = CallTool("ask_user_question", questions=[{"question": "Which?", "options": [{"label": "a"}, {"label": "b"}]}])
