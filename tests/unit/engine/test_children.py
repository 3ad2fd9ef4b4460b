"""Agents that call agents: children are made once, answer once, and their parent waits without a worker."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.engine import Parked, Waiting
from celery_agents.worker.errors import ActionRefused
from celery_agents.worker.state import (
    AgentState,
    ExecutionBudget,
    ExecutionStatus,
    Message,
    StopReason,
    ToolOutcome,
)
from celery_agents.worker.state.reducers import append_list
from celery_agents.worker.store import Claimed
from celery_agents.worker.tools import ToolContext, tool

from support.engine import Bench
from support.trees import a_tree, answering, asking, calls_of, children_of, delegating, nested, run_tree, tool_messages

NewBench = Callable[..., Bench]


# --- one child ----------------------------------------------------------------------------------------------------


def test_a_parent_waits_for_its_child_and_gets_its_answer(new_bench: NewBench) -> None:
    worker = answering()
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool()])
    bench, root = a_tree(new_bench, lead, worker)
    waited = bench.step(root)
    assert isinstance(waited, Waiting)
    (child,) = children_of(bench, root)
    assert child.startswith(f"{root}.")
    assert len(child) == len(root) + 33
    assert bench.state(root).status is ExecutionStatus.WAITING
    assert bench.state(child).parent_agent_id == bench.state(root).agent_id
    run_tree(bench, root)
    assert bench.record(root).final_response == "done a"
    assert bench.record(child).status is ExecutionStatus.COMPLETED
    assert tool_messages(bench, root) == ["done a"]
    kinds = bench.events(root)
    assert kinds.count("child_started") == kinds.count("child_ended") == 1


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        (["one", "two"], "ok"),
        ([Message.user("one"), "two"], "ok"),
        ({"role": "user", "content": "one"}, "error"),
        ([5], "error"),
        (None, "error"),
        (SystemExit(3), "error"),
    ],
    ids=str,
)
def test_what_a_function_chooses_for_a_child_is_texts_and_messages_or_an_error_that_the_model_reads(
    new_bench: NewBench, given: Any, outcome: str
) -> None:
    def choose(state: AgentState, prompt: str) -> Any:
        if isinstance(given, BaseException):
            raise given
        return given

    worker = answering()
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool(context=choose)])
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    (made,) = calls_of(bench, root)
    assert (bench.record(root).status, made.outcome) == (ExecutionStatus.COMPLETED, outcome)
    if outcome == "ok":
        (child,) = children_of(bench, root)
        assert [each.content for each in bench.state(child).messages[:2]] == ["one", "two"]


def test_the_parents_messages_stay_clean_of_the_childs(new_bench: NewBench) -> None:
    worker = answering()
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool()])
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    assert [message.content for message in bench.state(root).messages if message.role.value == "user"] == ["hello"]


def test_an_empty_answer_of_a_child_is_allowed(new_bench: NewBench) -> None:
    worker = answering(text=lambda _prompt: "")
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool()])
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    assert tool_messages(bench, root) == [""]
    assert bench.record(root).status is ExecutionStatus.COMPLETED


@pytest.mark.parametrize(
    ("context", "seen"),
    [
        ("input", ["a"]),
        ("last", ["second", "a"]),
        ("all", ["first", "noted", "second", "a"]),
        (lambda state, prompt: f"{len(state.messages)} {prompt}", ["3 a"]),
        (lambda _state, prompt: [Message.user("x"), Message.user(prompt)], ["x", "a"]),
    ],
)
def test_a_child_sees_of_the_conversation_what_its_context_says(
    new_bench: NewBench, context: Any, seen: list[str]
) -> None:
    worker = answering()

    def driver(state: AgentState) -> Any:
        if state.execution_count == 1:
            return "noted"
        return asking("ask_worker", "a") if not state.step_count else "done"

    lead = Agent("lead", driver=driver, tools=[worker.as_tool(context=context)])
    bench, root = a_tree(new_bench, lead, worker, message="first")
    run_tree(bench, root)
    bench.send(root, "second")
    run_tree(bench, root)
    (child,) = children_of(bench, root)
    assert [message.content for message in bench.state(child).messages][: len(seen)] == seen


def test_a_context_function_that_fails_is_an_error_of_the_call(new_bench: NewBench) -> None:
    def context(_state: AgentState, _prompt: str) -> str:
        raise LookupError("no notes")

    worker = answering()
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool(context=context)])
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    assert "no notes" in tool_messages(bench, root)[0]
    assert children_of(bench, root) == []


# --- several children ---------------------------------------------------------------------------------------------


def test_children_of_a_step_give_their_results_in_the_order_of_the_calls(new_bench: NewBench) -> None:
    worker = answering()
    lead = delegating("lead", *asking("ask_worker", *"abcdefghijkl"), tools=[worker.as_tool()])
    bench, root = a_tree(new_bench, lead, worker)
    bench.step(root)
    assert len(children_of(bench, root)) == 8, "no more than max_children at the same time"
    run_tree(bench, root)
    assert tool_messages(bench, root) == [f"done {letter}" for letter in "abcdefghijkl"]
    assert len(children_of(bench, root)) == 12


def test_64_children_of_one_step_are_joined_once(new_bench: NewBench) -> None:
    worker = answering()
    prompts = [str(number) for number in range(64)]
    lead = delegating("lead", *asking("ask_worker", *prompts), tools=[worker.as_tool()], max_children=64)
    bench, root = a_tree(new_bench, lead, worker, max_calls=64)
    bench.step(root)
    assert len(children_of(bench, root)) == 64
    run_tree(bench, root, limit=1000)
    assert tool_messages(bench, root) == [f"done {prompt}" for prompt in prompts]
    assert bench.events(root).count("child_ended") == 64


def test_the_first_that_completes_stops_the_others(new_bench: NewBench) -> None:
    worker = answering(text=lambda prompt: f"done {prompt}")
    lead = delegating("lead", *asking("ask_worker", "a", "b", "c"), tools=[worker.as_tool(join="first")])
    bench, root = a_tree(new_bench, lead, worker)
    bench.step(root)
    first, *others = [request.child.session_id for request in bench.open_requests(root) if request.child is not None]
    bench.step(first)
    run_tree(bench, root)
    assert bench.record(first).status is ExecutionStatus.COMPLETED
    assert [bench.record(each).status for each in others] == [ExecutionStatus.STOPPED] * 2
    shown = tool_messages(bench, root)
    assert shown[0] == "done a"
    assert all(json.loads(text)["partial"] for text in shown[1:])
    assert bench.record(root).status is ExecutionStatus.COMPLETED


# --- failures -----------------------------------------------------------------------------------------------------


def failing(name: str = "worker") -> Agent:
    """An agent that fails when it is asked for "bad"."""

    def text(prompt: str) -> str:
        if prompt == "bad":
            raise LookupError("no such book")
        return f"done {prompt}"

    return answering(name, text)


def test_a_failed_child_is_an_error_that_the_model_reads(new_bench: NewBench) -> None:
    worker = failing()
    lead = delegating("lead", *asking("ask_worker", "bad", "b"), tools=[worker.as_tool()])
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    error, other = calls_of(bench, root)
    (child, _) = sorted(children_of(bench, root), key=lambda each: bench.record(each).status.value, reverse=True)[0], 0
    assert error.outcome is ToolOutcome.ERROR
    assert error.error.kind == "child_failed"
    for fact in ("no such book", '"status": "failed"', '"steps"', '"tokens"'):
        assert fact in error.error.message
    assert child in error.error.message
    assert other.value == "done b"
    assert bench.record(root).status is ExecutionStatus.COMPLETED


def test_a_failed_child_is_not_in_the_listing_of_failed_sessions(new_bench: NewBench) -> None:
    worker = failing()
    lead = delegating("lead", *asking("ask_worker", "bad"), tools=[worker.as_tool()])
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    assert bench.store.sessions.headers(index="failed")[0] == []


def test_fail_fast_stops_the_other_children_at_once(new_bench: NewBench) -> None:
    worker = failing()
    lead = delegating("lead", *asking("ask_worker", "bad", "b", "c"), tools=[worker.as_tool(on_failure="fail_fast")])
    bench, root = a_tree(new_bench, lead, worker)
    bench.step(root)
    bad = next(each.child.session_id for each in bench.open_requests(root) if each.child and each.child.prompt == "bad")
    bench.step(bad)
    run_tree(bench, root)
    assert bench.record(root).status is ExecutionStatus.FAILED
    assert "no such book" in bench.record(root).errors[-1]
    others = [each for each in children_of(bench, root) if each != bad]
    assert [bench.record(each).status for each in others] == [ExecutionStatus.STOPPED] * 2


def test_fail_waits_for_the_other_children(new_bench: NewBench) -> None:
    worker = failing()
    lead = delegating("lead", *asking("ask_worker", "bad", "b"), tools=[worker.as_tool(on_failure="fail")])
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    assert bench.record(root).status is ExecutionStatus.FAILED
    ended = sorted(bench.record(each).status.value for each in children_of(bench, root))
    assert ended == ["completed", "failed"]


def test_a_child_stopped_by_its_limits_gives_its_partial_result(new_bench: NewBench) -> None:
    @tool(effect="pure")
    def look() -> str:
        return "seen"

    def driver(state: AgentState) -> Any:
        return ["so far so good", *[look_call]]

    from celery_agents.worker.drivers import CallTool

    look_call = CallTool("look")
    worker = Agent("worker", driver=driver, tools=[look], budget=ExecutionBudget(max_steps=2))
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool(on_failure="fail_fast")])
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    (call,) = calls_of(bench, root)
    assert call.outcome is ToolOutcome.OK
    assert dict(call.value)["partial"] is True
    assert dict(call.value)["stopped_by"] == "steps_limit"
    assert dict(call.value)["result"] == "so far so good"
    assert bench.record(root).status is ExecutionStatus.COMPLETED


def test_a_child_that_is_late_is_stopped_and_counts_as_failed_when_it_gives_no_end(new_bench: NewBench) -> None:
    worker = answering()
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool(timeout=timedelta(minutes=1))])
    bench, root = a_tree(new_bench, lead, worker)
    bench.step(root)
    (child,) = children_of(bench, root)
    bench.clock.go_on(61)
    outcome = bench.step(root)
    assert bench.record(child).status is ExecutionStatus.STOPPED
    run_tree(bench, root)
    assert json.loads(tool_messages(bench, root)[0])["partial"] is True, outcome


# --- stops --------------------------------------------------------------------------------------------------------


def test_a_stopped_parent_stops_its_children_and_keeps_their_partial_results(new_bench: NewBench) -> None:
    worker = answering()
    lead = delegating("lead", *asking("ask_worker", *"abcdefghij"), tools=[worker.as_tool()])
    bench, root = a_tree(new_bench, lead, worker)
    bench.step(root)
    done, *_ = children_of(bench, root)
    bench.step(done)
    bench.stop(root)
    run_tree(bench, root)
    assert bench.record(root).status is ExecutionStatus.STOPPED
    ended = [bench.record(each).status for each in children_of(bench, root)]
    assert ended.count(ExecutionStatus.COMPLETED) == 1
    assert ended.count(ExecutionStatus.STOPPED) == 7
    outcomes = [call.outcome for call in calls_of(bench, root)]
    assert outcomes.count(ToolOutcome.NOT_RUN) == 2, "the two that were never made"
    assert outcomes.count(ToolOutcome.OK) == 8


def test_a_parent_does_not_wait_longer_than_a_lease_for_a_child_that_never_ends(new_bench: NewBench) -> None:
    worker = answering()
    reserved = ExecutionBudget(max_cost=0.5)
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool(budget=reserved)])
    bench, root = a_tree(new_bench, lead, worker, budget=ExecutionBudget(max_cost=1.0))
    bench.step(root)
    (child,) = children_of(bench, root)
    ref = bench.due(child)
    assert ref is not None
    claimed = bench.store.steps.claim(ref, "f" * 32, "elsewhere", alone=False)  # a worker that stands still has it
    assert isinstance(claimed, Claimed)
    bench.stop(root)
    first = bench.step(root)
    assert isinstance(first, Waiting), "the step gives its worker back while the child ends"
    assert bench.due(root) is None
    bench.clock.go_on(bench.settings.lease_seconds * 0.6)
    bench.store.steps.renew([claimed.claim])  # it stands still in a call, and its process renews the lease
    bench.clock.go_on(bench.settings.lease_seconds * 0.5)
    bench.step(root)
    assert bench.record(root).status is ExecutionStatus.STOPPED
    assert bench.record(root).cost == pytest.approx(0.5), "a child without an end is charged its whole reservation"


def test_a_tool_that_ends_the_execution_stops_the_children_of_its_step(new_bench: NewBench) -> None:
    from celery_agents.worker.drivers import CallTool
    from celery_agents.worker.tools import StopExecution

    @tool(effect="keyed")
    def enough() -> str:
        raise StopExecution("enough")

    worker = answering()
    calls = [*asking("ask_worker", "a"), CallTool("enough")]
    lead = delegating("lead", *calls, tools=[worker.as_tool(), enough])
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    assert bench.record(root).status is ExecutionStatus.STOPPED
    assert bench.record(root).stop_reason is StopReason.STOP_REQUESTED
    assert children_of(bench, root) == [], "a child that was not made yet never is"


def test_the_reason_of_an_end_survives_the_wait_for_its_children(new_bench: NewBench) -> None:
    worker = failing()
    lead = delegating("lead", *asking("ask_worker", "bad", "b"), tools=[worker.as_tool(on_failure="fail_fast")])
    bench, root = a_tree(new_bench, lead, worker)
    bench.step(root)
    requests = {each.child.prompt: each.child.session_id for each in bench.open_requests(root) if each.child}
    ref = bench.due(requests["b"])
    assert ref is not None
    bench.store.steps.claim(ref, "f" * 32, "elsewhere", alone=False)
    bench.step(requests["bad"])
    assert isinstance(bench.step(root), Waiting)
    bench.clock.go_on(bench.settings.lease_seconds + 0.1)
    run_tree(bench, root, limit=10)
    assert bench.record(root).status is ExecutionStatus.FAILED
    assert "no such book" in bench.record(root).errors[-1]


# --- one execution ------------------------------------------------------------------------------------------------


def test_a_message_that_meets_the_final_step_of_a_child_makes_it_go_on(new_bench: NewBench) -> None:
    worker = answering()
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool()])
    bench, root = a_tree(new_bench, lead, worker)
    bench.step(root)
    (child,) = children_of(bench, root)
    ref = bench.due(child)
    assert ref is not None
    bench.runner = bench.runner
    crash = bench.store.steps.claim(ref, "e" * 32, "elsewhere", alone=False)
    assert crash
    assert bench.send(child, "more").outcome == "queued"
    bench.clock.go_on(30)
    run_tree(bench, root)
    assert bench.execution(child).number == 1
    assert bench.execution(child).step_count == 2
    assert bench.record(root).final_response == "done more"


def test_an_ended_child_takes_no_message_and_no_retry(new_bench: NewBench) -> None:
    worker = failing()
    lead = delegating("lead", *asking("ask_worker", "bad"), tools=[worker.as_tool()])
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    (child,) = children_of(bench, root)
    with pytest.raises(ActionRefused, match="send the message to the parent"):
        bench.send(child, "more")
    with pytest.raises(ActionRefused, match="retry the parent"):
        bench.retry(child)


# --- depth and names ----------------------------------------------------------------------------------------------


def test_children_are_refused_below_the_deepest_level(new_bench: NewBench) -> None:
    bench, root = a_tree(new_bench, nested())
    run_tree(bench, root)
    assert len(children_of(bench, root)) == 3
    assert "at depth 3" in bench.record(root).final_response
    assert bench.record(root).status is ExecutionStatus.COMPLETED


def test_a_spawned_agent_that_nobody_has_registered_is_an_error(new_bench: NewBench) -> None:
    from celery_agents.worker.drivers import CallTool

    @tool(effect="keyed")
    def research(ctx: ToolContext) -> str:
        return ctx.spawn("nobody", "a")[0].response

    worker = answering()
    lead = delegating("lead", CallTool("research"), tools=[research])
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    assert "there is no such agent; agents: lead, worker" in tool_messages(bench, root)[0]


def test_a_tool_that_spawns_runs_again_with_the_ends(new_bench: NewBench) -> None:
    from celery_agents.worker.drivers import CallTool

    runs: list[int] = []

    @tool(effect="unsafe")
    def research(ctx: ToolContext) -> list[str]:
        runs.append(1)
        first = ctx.spawn("worker", ["a", "b"])
        second = ctx.spawn("worker", f"{first[0].response} and {first[1].response}")
        return [each.response for each in (*first, *second)]

    worker = answering()
    lead = delegating("lead", CallTool("research"), tools=[research])
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    (call,) = calls_of(bench, root)
    assert list(call.value) == ["done a", "done b", "done done a and done b"]
    assert len(runs) == 3
    assert len(children_of(bench, root)) == 3


# --- merging ------------------------------------------------------------------------------------------------------


def test_metadata_of_parallel_children_is_merged_by_reducers(new_bench: NewBench) -> None:
    from celery_agents.worker.hooks import Hook, HookContext, HookPoint

    def note(context: HookContext) -> HookContext:
        found = [message.content for message in context.state.messages if message.role.value == "user"][-1]
        return context.changed(state=context.state.with_metadata("findings", [found]))

    worker = answering(hooks=[Hook(HookPoint.AFTER_STEP, note)])
    tools = [worker.as_tool(merge={"findings": append_list})]
    lead = delegating("lead", *asking("ask_worker", "a", "b", "c"), tools=tools)
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    assert bench.state(root).context.metadata["findings"] == ("a", "b", "c")


def test_a_reducer_that_fails_fails_the_execution_with_its_name(new_bench: NewBench) -> None:
    from celery_agents.worker.hooks import Hook, HookContext, HookPoint

    def note(context: HookContext) -> HookContext:
        return context.changed(state=context.state.with_metadata("sum", "text"))

    from celery_agents.worker.state.reducers import add_numbers

    worker = answering(hooks=[Hook(HookPoint.AFTER_STEP, note)])
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool(merge={"sum": add_numbers})])
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    assert bench.record(root).status is ExecutionStatus.FAILED
    assert "merging sum failed" in bench.record(root).errors[-1]


# --- a child that cannot be read ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["child", "grandchild"])
@pytest.mark.parametrize("damage", ["damaged", "newer"])
def test_a_session_below_that_cannot_be_read_does_not_keep_its_parent_from_ending(
    new_bench: NewBench, place: str, damage: str
) -> None:
    """As in a deployment: the child was stored by a worker of a newer version, and an older one stops the parent."""
    worker = answering()
    middle = delegating("middle", *asking("ask_worker", "a"), tools=[worker.as_tool()])
    lead = delegating("lead", *asking("ask_middle", "a"), tools=[middle.as_tool()])
    bench, root = a_tree(new_bench, lead, middle, worker)
    bench.step(root)
    (unreadable,) = children_of(bench, root)
    if place == "grandchild":
        bench.step(unreadable)
        (unreadable,) = {*children_of(bench, root)} - {unreadable}
    database, keys = bench.store.context.database, bench.store.context.keys(unreadable)
    (head,) = database.pipeline("test", [("HGET", keys.session, "head")])
    changed = b"[]" if damage == "damaged" else head.replace(b'"schema_version":', b'"schema_version":9')
    assert changed != head
    database.pipeline("test", [("HSET", keys.session, "head", changed)])
    bench.stop(root)
    for _ in range(4):
        if bench.due(root) is not None:
            assert not isinstance(bench.step(root), Parked)
        bench.clock.go_on(bench.settings.lease_seconds + 1)
    assert bench.record(root).status is ExecutionStatus.STOPPED
