"""Calls that children work on: what a child sees and may use, who was first, who was late, and what comes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.engine import Waiting
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import Approve, ExecutionBudget, ExecutionStatus, StatePart, ToolOutcome
from celery_agents.worker.state.reducers import append_list
from celery_agents.worker.store import Claimed
from celery_agents.worker.tools import ToolContext, tool

from support.claimed_runs import claim_run
from support.engine import Bench
from support.trees import a_tree, answering, asking, calls_of, children_of, delegating, nested, run_tree, tool_messages

NewBench = Callable[..., Bench]


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


def spawning(spawn: Callable[[ToolContext], Any], **fields: Any) -> Agent:
    """An agent whose one tool spawns."""

    @tool(effect="unsafe")
    def research(ctx: ToolContext) -> Any:
        """Research."""
        return spawn(ctx)

    return delegating("lead", CallTool("research"), tools=[research], **fields)


def child_of(bench: Bench, root: str, prompt: str) -> str:
    """The session of the open child that works on a prompt."""
    return next(
        each.child.session_id for each in bench.open_requests(root) if each.child and each.child.prompt == prompt
    )


def stand_still(bench: Bench, child: str) -> Callable[[float], None]:
    """A worker takes the child and never ends it; what is given lets time pass, in which it renews its lease."""
    ref = bench.due(child)
    assert ref is not None
    claimed = bench.store.steps.claim(ref, "f" * 32, "elsewhere", alone=False)
    assert isinstance(claimed, Claimed)

    def pass_time(seconds: float) -> None:
        for _ in range(20):
            bench.clock.go_on(seconds / 20)
            bench.store.steps.renew([claimed.claim])

    return pass_time


# --- what a child begins with ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("context", "seen"), [("input", ["a"]), ("last", ["more", "a"]), ("all", ["hello", "done", "more", "a"])]
)
def test_a_spawned_child_sees_of_the_conversation_what_its_context_says(
    new_bench: NewBench, context: Any, seen: list[str]
) -> None:
    @tool(effect="unsafe")
    def research(ctx: ToolContext) -> str:
        """Research."""
        return ctx.spawn("worker", "a", context=context)[0].response

    def driver(state: Any) -> Any:
        last = state.messages[-1]
        if last.content == "hello":
            return "done"
        return [CallTool("research")] if last.role.value == "user" else last.content

    bench, root = a_tree(new_bench, Agent("lead", driver=driver, tools=[research]), answering())
    run_tree(bench, root)
    bench.send(root, "more")
    run_tree(bench, root)
    (child,) = children_of(bench, root)
    assert [each.content for each in bench.state(child).messages][:-1] == seen


def test_a_tree_is_known_by_its_root_at_every_level(new_bench: NewBench) -> None:
    bench, root = a_tree(new_bench, nested(3))
    bench.step(root)
    (child,) = children_of(bench, root)
    bench.step(child)
    (grandchild,) = [each for each in children_of(bench, root) if each != child]
    link = claim_run(bench, grandchild)[0].parent
    assert link is not None
    assert (link.session_id, link.step, link.depth) == (child, 1, 2)
    assert (link.root_execution_id, link.root_task_id) == ("e1", "e1.1")
    assert link.task_id != link.root_task_id


def test_a_child_without_a_share_has_the_steps_of_any_execution_without_a_budget(new_bench: NewBench) -> None:
    worker = Agent("worker", driver=lambda state: [CallTool("look")], tools=[look])
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool()])
    bench, root = a_tree(new_bench, lead, worker, default_max_steps=3)
    run_tree(bench, root)
    (child,) = children_of(bench, root)
    assert bench.execution(child).step_count == 3


def test_children_get_the_time_that_their_parent_has_left(new_bench: NewBench) -> None:
    bench: Bench

    def slow(prompt: str) -> str:
        bench.clock.go_on(20.0)
        return prompt

    def spawn(ctx: ToolContext) -> str:
        ctx.spawn("worker", "a")
        ctx.spawn("worker", ["b", "c"])
        return "done"

    bench, root = a_tree(new_bench, spawning(spawn), answering(text=slow), budget=ExecutionBudget(max_seconds=100.0))
    bench.step(root)
    (first,) = bench.open_requests(root)
    bench.step(child_of(bench, root, "a"))
    bench.step(root)
    second, third = bench.open_requests(root)
    found = [each.child.budget.max_seconds for each in (first, second, third) if each.child is not None]
    assert found == [pytest.approx(100.0), pytest.approx(80.0), pytest.approx(80.0)]


# --- races -------------------------------------------------------------------------------------------------------------


def test_each_race_has_a_winner_of_its_own(new_bench: NewBench) -> None:
    def spawn(ctx: ToolContext) -> list[list[str]]:
        first = ctx.spawn("worker", ["a", "b"], join="first")
        second = ctx.spawn("worker", ["c", "d"], join="first")
        return [[each.status.value for each in ends] for ends in (first, second)]

    bench, root = a_tree(new_bench, spawning(spawn), answering())
    bench.step(root)
    bench.step(child_of(bench, root, "b"))
    bench.step(root)
    bench.run(root)
    while (due := bench.due(root)) is not None or bench.execution(root).status is ExecutionStatus.WAITING:
        if due is not None:
            bench.step(root)
        elif any(each.child and each.child.prompt == "d" for each in bench.open_requests(root)):
            bench.step(child_of(bench, root, "d"))
        else:
            break
    (call,) = calls_of(bench, root)
    assert [list(each) for each in call.value] == [["stopped", "completed"], ["stopped", "completed"]]


def test_the_end_of_a_race_stops_no_child_outside_of_it(new_bench: NewBench) -> None:
    racer, other = answering("racer"), answering("other")
    calls = [*asking("ask_racer", "a", "b"), *asking("ask_other", "c")]
    lead = delegating("lead", *calls, tools=[racer.as_tool(join="first"), other.as_tool()])
    bench, root = a_tree(new_bench, lead, racer, other)
    bench.step(root)
    waiting = child_of(bench, root, "c")
    bench.step(child_of(bench, root, "b"))
    bench.step(root)
    assert bench.execution(waiting).status is ExecutionStatus.PENDING
    run_tree(bench, root)
    assert bench.record(waiting).status is ExecutionStatus.COMPLETED
    assert tool_messages(bench, root)[1:] == ["done b", "done c"]


@pytest.mark.parametrize("fields", [{}, {"max_children": 1}], ids=["side by side", "one after the other"])
def test_a_failed_child_wins_no_race(new_bench: NewBench, fields: dict[str, int]) -> None:
    def fail(prompt: str) -> str:
        if prompt == "a":
            raise LookupError("no such book")
        return f"done {prompt}"

    worker = answering(text=fail)
    lead = delegating("lead", *asking("ask_worker", "a", "b"), tools=[worker.as_tool(join="first")], **fields)
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    assert len(children_of(bench, root)) == 2
    assert tool_messages(bench, root)[1] == "done b"


def test_a_child_that_was_not_made_before_its_race_was_won_is_not_needed(new_bench: NewBench) -> None:
    worker = answering()
    lead = delegating("lead", *asking("ask_worker", "a", "b"), tools=[worker.as_tool(join="first")], max_children=1)
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    assert len(children_of(bench, root)) == 1
    first, second = calls_of(bench, root)
    assert (first.outcome, second.outcome) == (ToolOutcome.OK, ToolOutcome.BLOCKED)
    assert (second.error.kind, second.error.message) == ("not_needed", "another agent was first")


# --- time ----------------------------------------------------------------------------------------------------------------


def test_a_late_child_gives_what_it_has_with_the_time_that_it_had(new_bench: NewBench) -> None:
    worker = answering()
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool(timeout=timedelta(seconds=90))])
    bench, root = a_tree(new_bench, lead, worker)
    bench.step(root)
    bench.clock.go_on(89.9)
    assert bench.due(root) is None
    bench.clock.go_on(0.1)
    run_tree(bench, root)
    shown = json.loads(tool_messages(bench, root)[0])
    assert (shown["partial"], shown["stopped_by"], shown["message"]) == (True, "timeout", "it had 90 s")


def late_without_end(new_bench: NewBench, lead: Agent) -> tuple[Bench, str]:
    """A tree whose child does not end in its minute, nor within a lease after it was stopped."""
    bench, root = a_tree(new_bench, lead, answering())
    bench.step(root)
    (child,) = children_of(bench, root)
    pass_time = stand_still(bench, child)
    pass_time(60.0)
    assert isinstance(bench.step(root), Waiting)
    pass_time(bench.settings.lease_seconds)
    bench.run(root)
    return bench, root


def test_a_late_child_without_an_end_is_an_error_that_the_model_reads(new_bench: NewBench) -> None:
    tools = [answering().as_tool(timeout=timedelta(minutes=1))]
    bench, root = late_without_end(new_bench, delegating("lead", *asking("ask_worker", "a"), tools=tools))
    (call,) = calls_of(bench, root)
    assert (call.error.kind, call.error.message) == ("child_timeout", "the agent did not end in time")
    assert bench.record(root).status is ExecutionStatus.COMPLETED


def test_a_late_child_without_an_end_has_failed(new_bench: NewBench) -> None:
    tools = [answering().as_tool(timeout=timedelta(minutes=1), on_failure="fail")]
    bench, root = late_without_end(new_bench, delegating("lead", *asking("ask_worker", "a"), tools=tools))
    assert bench.record(root).status is ExecutionStatus.FAILED
    assert "the agent worker failed: the agent did not end in time" in bench.record(root).errors[-1]


def test_a_tool_reads_of_a_late_child_without_an_end_that_it_failed(new_bench: NewBench) -> None:
    def spawn(ctx: ToolContext) -> list[str]:
        (end,) = ctx.spawn("worker", "a", timeout=timedelta(minutes=1))
        return [end.status.value, end.agent, end.message, end.session_id]

    bench, root = late_without_end(new_bench, spawning(spawn))
    (call,) = calls_of(bench, root)
    (child,) = children_of(bench, root)
    assert list(call.value) == ["failed", "worker", "the agent did not end in time", child]


def test_a_parent_that_is_stopped_waits_for_the_last_child_of_a_tool_that_spawned_before(new_bench: NewBench) -> None:
    def spawn(ctx: ToolContext) -> str:
        ctx.spawn("worker", "a")
        return ctx.spawn("worker", "b")[0].response

    bench, root = a_tree(new_bench, spawning(spawn), answering())
    bench.step(root)
    bench.step(child_of(bench, root, "a"))
    bench.step(root)
    last = child_of(bench, root, "b")
    stand_still(bench, last)
    bench.stop(root)
    assert isinstance(bench.step(root), Waiting), "its worker may still make calls that cost something"
    assert not bench.execution(root).status.is_terminal()


def test_a_stop_reaches_what_a_child_has_started_before_the_child_runs_again(new_bench: NewBench) -> None:
    bench, root = a_tree(new_bench, nested(3))
    bench.step(root)
    (child,) = children_of(bench, root)
    bench.step(child)
    (grandchild,) = [each for each in children_of(bench, root) if each != child]
    bench.stop(root)
    outcome = bench.step(root)
    assert bench.due(grandchild) is None or bench.execution(grandchild).continuation.stop_signals
    assert bench.record(grandchild).status is ExecutionStatus.STOPPED
    assert isinstance(outcome, Waiting)


# --- asking first --------------------------------------------------------------------------------------------------------


def test_a_child_that_a_person_has_approved_gives_the_result_of_its_call(new_bench: NewBench) -> None:
    worker = answering()
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool(approval="always")])
    bench, root = a_tree(new_bench, lead, worker)
    bench.step(root)
    assert children_of(bench, root) == []
    bench.answer(root, Approve())
    run_tree(bench, root)
    assert tool_messages(bench, root) == ["done a"]


# --- merging -----------------------------------------------------------------------------------------------------------


class Notes(StatePart):
    part_name = "notes"
    found: tuple[str, ...] = ()


def test_a_part_of_the_children_is_merged_in_the_order_of_the_calls(new_bench: NewBench) -> None:
    def note(context: HookContext) -> HookContext:
        found = [message.content for message in context.state.messages if message.role.value == "user"][-1]
        if found == "b":
            return context
        return context.changed(state=context.state.with_part(Notes(found=(found,))))

    def join(present: Notes, brought: Notes) -> Notes:
        return Notes(found=(*present.found, *brought.found))

    worker = answering(hooks=[Hook(HookPoint.AFTER_STEP, note)])
    tools = [worker.as_tool(merge={Notes: join, "never": append_list})]
    lead = delegating("lead", *asking("ask_worker", "a", "b", "c"), tools=tools)
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    assert bench.state(root).part(Notes).found == ("a", "c"), "what a child has not brought is not merged"
    assert "never" not in bench.state(root).metadata


@pytest.mark.parametrize(
    ("error", "said"), [(LookupError("no room"), "LookupError: no room"), (SystemExit(3), "SystemExit: 3")]
)
def test_a_reducer_of_a_part_that_fails_is_named_by_the_part(
    new_bench: NewBench, error: BaseException, said: str
) -> None:
    def note(context: HookContext) -> HookContext:
        return context.changed(state=context.state.with_part(Notes(found=("x",))))

    def fail(present: Notes, brought: Notes) -> Notes:
        raise error

    worker = answering(hooks=[Hook(HookPoint.AFTER_STEP, note)])
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool(merge={Notes: fail})])
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    assert bench.record(root).status is ExecutionStatus.FAILED
    assert "merging notes failed: " in bench.record(root).errors[-1]
    assert said in bench.record(root).errors[-1]
