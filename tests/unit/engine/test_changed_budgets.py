"""A budget that is changed while an execution lives: each step decides by the one that holds then."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.engine import Done, RetryLater, Waiting
from celery_agents.worker.engine.leases import Interruption
from celery_agents.worker.errors import ActionRefused
from celery_agents.worker.requests.answers import Approve
from celery_agents.worker.state import (
    AgentState,
    ExecutionBudget,
    ExecutionStatus,
    InferenceResponse,
    InferenceUsage,
    StopReason,
    ToolCall,
)
from celery_agents.worker.tools import tool
from celery_agents.worker.tools.context import ToolContext

from support.engine import Bench, WorkerDied
from support.trees import a_tree, asking, calls_of, children_of, delegating, run_tree

NewBench = Callable[..., Bench]


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


def stepping(hook: Callable[[int], None] = lambda _: None, *, last: int = 6) -> Any:
    """A driver that calls `look` until its last step, and lets something happen in each; a step takes 100 tokens."""

    def driver(state: AgentState) -> InferenceResponse:
        number = state.step_count + 1
        hook(number)
        calls = () if number == last else (ToolCall(id=f"c{number}", name="look"),)
        return InferenceResponse(
            content="done" if number == last else "", tool_calls=calls, usage=InferenceUsage(input=100), cost=0.1
        )

    return driver


def an_agent(hook: Callable[[int], None] = lambda _: None, **fields: Any) -> Agent:
    return Agent("worker", driver=stepping(hook), tools=[look], **fields)


def limits(bench: Bench, session: str) -> ExecutionBudget:
    return bench.execution(session).budget


# --- between steps ----------------------------------------------------------------------------------------------------


def test_a_raised_limit_lets_an_execution_end_by_itself(new_bench: NewBench) -> None:
    bench = new_bench(an_agent())
    session = bench.submit(budget=ExecutionBudget(max_steps=2))
    bench.step(session)
    assert bench.change_budget(session, max_steps=50).outcome == "changed"
    assert limits(bench, session) == ExecutionBudget(max_steps=50), "readers see it at once"
    bench.run(session)
    assert bench.record(session).status == "completed"
    assert bench.record(session).step_count == 6
    assert bench.events(session).count("budget_changed") == 1


def test_a_limit_that_is_lowered_below_what_is_used_ends_the_execution_before_the_next_call(
    new_bench: NewBench,
) -> None:
    asked: list[int] = []
    bench = new_bench(an_agent(asked.append))
    session = bench.submit()
    bench.step(session)
    bench.step(session)
    bench.change_budget(session, max_tokens=150)
    bench.run(session)
    assert asked == [1, 2]
    assert bench.record(session).stop_reason is StopReason.TOKEN_LIMIT_REACHED
    assert limits(bench, session) == ExecutionBudget(max_tokens=150)


def test_a_changed_budget_takes_the_place_of_the_default_limit_of_steps(new_bench: NewBench) -> None:
    bench = new_bench(an_agent(), default_max_steps=3)
    session = bench.submit()
    bench.step(session)
    bench.change_budget(session, max_tokens=10_000)
    bench.run(session)
    assert bench.record(session).status == "completed"


def test_an_execution_that_no_worker_has_begun_begins_with_it(new_bench: NewBench) -> None:
    bench = new_bench(an_agent(budget=ExecutionBudget(max_steps=1)))
    session = bench.submit()
    bench.change_budget(session, max_steps=4)
    bench.run(session)
    assert bench.record(session).step_count == 4


def test_after_the_commit_that_takes_it_in_steps_go_by_scripts_again(new_bench: NewBench) -> None:
    bench = new_bench(an_agent())
    session = bench.submit()
    bench.step(session)
    bench.change_budget(session, max_steps=50)
    bench.step(session)
    keys = bench.store.context.keys(session)
    assert bench.store.context.database.pipeline("test", [("HMGET", keys.ctl, "budget", "cancel")]) == [[None, b""]]
    assert limits(bench, session) == ExecutionBudget(max_steps=50)


# --- while a step runs ------------------------------------------------------------------------------------------------


def test_a_limit_raised_during_the_step_that_would_end_by_it(new_bench: NewBench) -> None:
    def raise_it(number: int) -> None:
        if number == 2:
            bench.change_budget(session, max_steps=50)

    bench = new_bench(an_agent(raise_it))
    session = bench.submit(budget=ExecutionBudget(max_steps=2))
    bench.run(session)
    assert (bench.record(session).status, bench.record(session).step_count) == ("completed", 6)


def test_a_limit_lowered_during_a_step_ends_the_execution_with_it(new_bench: NewBench) -> None:
    def lower_it(number: int) -> None:
        if number == 2:
            bench.change_budget(session, max_steps=1)

    bench = new_bench(an_agent(lower_it))
    session = bench.submit()
    bench.run(session)
    assert (bench.record(session).stop_reason, bench.record(session).step_count) == (StopReason.STEPS_LIMIT_REACHED, 2)


def test_a_burst_carries_nothing_on_under_the_old_limit(new_bench: NewBench) -> None:
    def lower_it(number: int) -> None:
        if number == 3:
            bench.change_budget(session, max_steps=3)

    bench = new_bench(an_agent(lower_it), steps_per_task=10)
    session = bench.submit()
    bench.run(session)
    assert bench.record(session).step_count == 3


def test_two_changes_in_one_step_and_the_last_one_counts(new_bench: NewBench) -> None:
    def change_it(number: int) -> None:
        if number == 2:
            bench.change_budget(session, max_steps=1)
            bench.change_budget(session, max_steps=4)

    bench = new_bench(an_agent(change_it))
    session = bench.submit(budget=ExecutionBudget(max_steps=2))
    bench.run(session)
    assert bench.record(session).step_count == 4


def test_a_step_that_asked_nothing_because_of_a_limit_goes_on_when_that_is_raised_before_its_commit(
    new_bench: NewBench,
) -> None:
    asked: list[int] = []
    bench = new_bench(an_agent(asked.append))
    session = bench.submit()
    bench.run(session, limit=2)
    bench.change_budget(session, max_steps=2)
    commit = bench.store.steps.commit

    def raise_before(*args: Any, **options: Any) -> Any:
        bench.store.steps.commit = commit  # type: ignore[method-assign]
        bench.change_budget(session, max_steps=9)
        return commit(*args, **options)

    bench.store.steps.commit = raise_before  # type: ignore[method-assign]
    outcome = bench.step(session)
    assert isinstance(outcome, RetryLater)
    assert "raised" in outcome.reason
    assert bench.execution(session).status is ExecutionStatus.IN_PROGRESS
    bench.run(session)
    assert (bench.record(session).status, asked) == ("completed", [1, 2, 3, 4, 5, 6])


def test_the_time_of_a_model_call_is_lengthened_by_the_next_heartbeat(new_bench: NewBench) -> None:
    def work_long(number: int) -> None:
        if number == 1:
            bench.change_budget(session, max_seconds=1000)
            bench.keeper.tick()
            bench.clock.go_on(100)
            bench.keeper.tick()

    bench = new_bench(an_agent(work_long), step_timeout_seconds=500)
    session = bench.submit(budget=ExecutionBudget(max_seconds=60))
    assert isinstance(bench.step(session), Done)
    assert bench.execution(session).status is ExecutionStatus.IN_PROGRESS


def test_a_shorter_time_interrupts_the_step_at_the_next_heartbeat(new_bench: NewBench) -> None:
    seen: list[Interruption | None] = []

    def work_long(number: int) -> None:
        if number == 1:
            bench.clock.go_on(30)
            bench.change_budget(session, max_seconds=20)
            bench.keeper.tick()
            bench.keeper.tick()
            seen.extend(lease.interruption for lease in bench.keeper._all())

    bench = new_bench(an_agent(work_long), step_timeout_seconds=500)
    session = bench.submit()
    bench.step(session)
    assert seen == [Interruption.LIMIT]
    record = bench.record(session)
    assert (record.status, record.stop_reason) == ("stopped", StopReason.TIME_LIMIT_REACHED)


def test_the_limit_of_auxiliary_calls_is_the_one_of_the_last_heartbeat(new_bench: NewBench) -> None:
    refused: list[str] = []

    @tool(effect="keyed")
    async def ponder(ctx: ToolContext) -> str:
        """Ask the model beside the step."""
        bench.change_budget(session, max_tokens=50)
        bench.keeper.tick()
        try:
            return (await ctx.ask_model("why", "why?")).content
        except Exception as error:
            refused.append(type(error).__name__)
            raise

    def driver(state: AgentState) -> Any:
        call = ToolCall(id="c", name="ponder")
        return (
            InferenceResponse(tool_calls=(call,), usage=InferenceUsage(input=100)) if not state.step_count else "done"
        )

    bench = new_bench(Agent("worker", driver=driver, tools=[ponder]))
    session = bench.submit()
    bench.run(session)
    assert refused == ["ModelCallRefused"]
    assert bench.record(session).stop_reason is StopReason.TOKEN_LIMIT_REACHED


def test_a_worker_that_dies_beside_a_change_leaves_it_to_the_next(new_bench: NewBench) -> None:
    deaths = [1]

    def die(number: int) -> None:
        if number == 2 and deaths:
            deaths.pop()
            bench.change_budget(session, max_steps=3)
            raise WorkerDied

    bench = new_bench(an_agent(die))
    session = bench.submit(budget=ExecutionBudget(max_steps=2))
    bench.step(session)
    bench.worker_died(session)
    bench.run(session)
    assert bench.record(session).step_count == 3


# --- while a step waits -----------------------------------------------------------------------------------------------


@tool(effect="keyed", approval="always")
def refund() -> str:
    """Refund."""
    return "refunded"


def refunding(**fields: Any) -> Agent:
    def driver(state: AgentState) -> Any:
        usage = InferenceUsage(input=100)
        if state.step_count:
            return InferenceResponse(content="done", usage=usage)
        return InferenceResponse(tool_calls=(ToolCall(id="c", name="refund"),), usage=usage)

    return Agent("worker", driver=driver, tools=[refund], **fields)


def test_a_waiting_session_is_due_at_its_new_deadline(new_bench: NewBench) -> None:
    bench = new_bench(refunding())
    session = bench.submit(budget=ExecutionBudget(deadline=bench.clock.now + timedelta(hours=1)))
    bench.step(session)
    for hours in (3, 2):
        deadline = bench.clock.now + timedelta(hours=hours)
        bench.change_budget(session, deadline=deadline)
        outcome = bench.step(session)  # it was woken, and waits again
        assert isinstance(outcome, Waiting)
        assert outcome.until_ms == round(deadline.timestamp() * 1000)
    bench.clock.go_on(2.1 * 3600)
    bench.run(session)
    assert bench.record(session).stop_reason is StopReason.TIME_LIMIT_REACHED


def test_a_waiting_session_whose_limit_is_reached_by_then_asks_nobody_any_more(new_bench: NewBench) -> None:
    bench = new_bench(refunding())
    session = bench.submit()
    bench.step(session)
    bench.change_budget(session, max_steps=0)
    bench.run(session)
    assert bench.open_requests(session) == ()
    record = bench.record(session)
    assert (record.status, record.stop_reason) == ("stopped", StopReason.STEPS_LIMIT_REACHED)


def test_a_change_before_the_wait_is_looked_at_before_it(new_bench: NewBench) -> None:
    bench = new_bench(refunding())
    session = bench.submit()
    wait = bench.store.steps.wait

    def lower_before(*args: Any, **options: Any) -> Any:
        bench.store.steps.wait = wait  # type: ignore[method-assign]
        bench.change_budget(session, max_steps=0)
        return wait(*args, **options)

    bench.store.steps.wait = lower_before  # type: ignore[method-assign]
    bench.run(session)
    assert bench.record(session).stop_reason is StopReason.STEPS_LIMIT_REACHED


def test_a_session_that_waits_within_its_new_budget_goes_on_as_before(new_bench: NewBench) -> None:
    bench = new_bench(refunding())
    session = bench.submit()
    bench.step(session)
    bench.change_budget(session, max_steps=2)
    assert isinstance(bench.step(session), Waiting)
    bench.answer(session, Approve())
    bench.run(session)
    assert bench.record(session).status == "completed"
    assert bench.events(session).count("request_opened") == 1


# --- holds, stops and ends --------------------------------------------------------------------------------------------


def test_a_held_session_keeps_the_change_until_it_is_resumed(new_bench: NewBench) -> None:
    bench = new_bench(an_agent())
    session = bench.submit(budget=ExecutionBudget(max_steps=2))
    bench.step(session)
    bench.store.sessions.suspend(session, reason="a freeze")
    bench.change_budget(session, max_steps=4)
    bench.store.sessions.resume(session)
    bench.run(session)
    assert bench.record(session).step_count == 4


def test_a_stop_is_stronger_than_a_change(new_bench: NewBench) -> None:
    def stop_it(number: int) -> None:
        if number == 2:
            bench.change_budget(session, max_steps=50)
            bench.stop(session)

    bench = new_bench(an_agent(stop_it))
    session = bench.submit(budget=ExecutionBudget(max_steps=2))
    bench.run(session)
    assert bench.record(session).stop_reason is StopReason.USER_REQUESTED


def test_the_next_execution_has_a_budget_of_its_own(new_bench: NewBench) -> None:
    def change_it(number: int) -> None:
        if number == 6:
            bench.change_budget(session, max_steps=6)

    bench = new_bench(an_agent(change_it))
    session = bench.submit()
    bench.run(session)
    bench.send(session, "more")
    assert limits(bench, session) == ExecutionBudget.unlimited()


def test_a_retry_of_an_execution_keeps_the_budget_that_was_changed(new_bench: NewBench) -> None:
    bench = new_bench(an_agent())
    session = bench.submit()
    bench.step(session)
    bench.change_budget(session, max_steps=2)
    bench.run(session)
    bench.retry(session)
    assert limits(bench, session) == ExecutionBudget(max_steps=2)


# --- trees ------------------------------------------------------------------------------------------------------------


def a_family(new_bench: NewBench, *, steps: int = 12, budget: ExecutionBudget | None) -> tuple[Bench, str]:
    """A parent that waits for two children, each of so many steps of 100 tokens."""
    worker = Agent("worker", driver=stepping(last=steps), tools=[look])
    lead = delegating("lead", *asking("ask_worker", "a", "b"), tools=[worker.as_tool()], max_children=2)
    bench, root = a_tree(new_bench, lead, worker, budget=budget)
    bench.step(root)
    return bench, root


def reasons(bench: Bench, root: str) -> list[str | None]:
    return [bench.record(each).stop_reason for each in children_of(bench, root)]


def test_a_lowered_budget_stops_the_children_that_it_does_not_cover(new_bench: NewBench) -> None:
    bench, root = a_family(new_bench, budget=ExecutionBudget(max_tokens=10_000))
    assert len(children_of(bench, root)) == 2
    bench.change_budget(root, max_tokens=6_000)  # one reservation of 5 000 fits
    run_tree(bench, root)
    ends = sorted(str(reason) for reason in reasons(bench, root))
    assert ends == ["completed", "user_requested"]
    assert bench.record(root).status == "completed"
    assert any("partial" in str(each.value) for each in calls_of(bench, root))


def test_a_budget_without_limits_that_gets_one_stops_children_without_a_share_of_it(new_bench: NewBench) -> None:
    bench, root = a_family(new_bench, budget=None)
    bench.change_budget(root, max_cost=100.0)
    run_tree(bench, root)
    assert reasons(bench, root) == [StopReason.USER_REQUESTED, StopReason.USER_REQUESTED]
    assert bench.record(root).status == "completed"


def test_a_raised_budget_leaves_children_alone(new_bench: NewBench) -> None:
    bench, root = a_family(new_bench, budget=ExecutionBudget(max_tokens=10_000))
    bench.change_budget(root, max_tokens=20_000)
    run_tree(bench, root)
    assert [str(each) for each in reasons(bench, root)] == ["completed", "completed"]


def test_a_child_that_is_stopped_by_a_lowered_budget_and_gives_no_end_is_closed_after_a_lease(
    new_bench: NewBench,
) -> None:
    bench, root = a_family(new_bench, budget=ExecutionBudget(max_tokens=10_000))
    children = children_of(bench, root)
    for each in children:  # workers that have died with them: a stop is only noted
        ref = bench.due(each)
        assert ref is not None
        bench.store.steps.claim(ref, f"claim of {each}", "gone", alone=True)
    bench.change_budget(root, max_tokens=300)
    bench.step(root)
    assert len(bench.open_requests(root)) == 2
    bench.clock.go_on(bench.settings.lease_seconds + 1)
    bench.step(root)
    assert bench.open_requests(root) == ()


def test_a_child_can_only_get_less(new_bench: NewBench) -> None:
    bench, root = a_family(new_bench, budget=ExecutionBudget(max_tokens=10_000))
    child = children_of(bench, root)[0]
    with pytest.raises(ActionRefused, match="can only be lowered"):
        bench.change_budget(child, max_tokens=9_999)
    with pytest.raises(ActionRefused, match="max_tokens"):
        bench.change_budget(child)
    assert bench.change_budget(child, max_tokens=250).outcome == "changed"
    run_tree(bench, root)
    assert bench.record(child).stop_reason is StopReason.TOKEN_LIMIT_REACHED
    assert bench.record(root).status == "completed"


def test_a_parent_below_what_it_has_used_stops_all_of_its_children(new_bench: NewBench) -> None:
    bench, root = a_family(new_bench, budget=ExecutionBudget(max_tokens=10_000))
    bench.change_budget(root, max_steps=0)
    run_tree(bench, root)
    assert reasons(bench, root) == [StopReason.USER_REQUESTED, StopReason.USER_REQUESTED]
    assert bench.record(root).stop_reason is StopReason.STEPS_LIMIT_REACHED
