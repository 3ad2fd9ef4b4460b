"""Budgets of children: shares of what their parent has left, made only while it is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.state import (
    AgentState,
    ExecutionBudget,
    ExecutionStatus,
    InferenceResponse,
    InferenceUsage,
    StopReason,
)
from celery_agents.worker.tools import tool

from support.engine import Bench
from support.trees import a_tree, answering, asking, calls_of, children_of, delegating, nested, run_tree, tool_messages

NewBench = Callable[..., Bench]


def costly(cost: float = 0.1, tokens: int = 10, name: str = "worker", steps: int = 1, **fields: Any) -> Agent:
    """An agent whose every step costs so much, and that makes so many steps."""
    from celery_agents.worker.drivers import CallTool

    @tool(effect="pure")
    def look() -> str:
        return "seen"

    def driver(state: AgentState) -> Any:
        usage = InferenceUsage(input=tokens, requests=1)
        if state.step_count + 1 < steps:
            call = CallTool("look")
            from celery_agents.worker.drivers.answers import as_response

            return as_response([call], state.step_count + 1).model_copy(update={"usage": usage, "cost": cost})
        return InferenceResponse(content="done", usage=usage, cost=cost)

    return Agent(name, driver=driver, tools=[look], **fields)


def budgets(bench: Bench, root: str) -> dict[str, ExecutionBudget]:
    """The budget of each child by its prompt, as it was reserved."""
    return {each.child.prompt: each.child.budget for each in bench.open_requests(root) if each.child is not None}


def test_b13_a_childs_budget_is_the_parents_remainder_capped_by_its_definition(new_bench: NewBench) -> None:
    worker = answering(budget=ExecutionBudget(max_steps=100, max_tokens=5000))
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool()])
    bench, root = a_tree(new_bench, lead, worker, budget=ExecutionBudget(max_steps=11, max_tokens=1000))
    bench.step(root)
    assert budgets(bench, root)["a"] == ExecutionBudget(max_steps=9, max_tokens=1000)


def test_b13_an_unlimited_parent_gives_the_definitions_limits(new_bench: NewBench) -> None:
    limits = ExecutionBudget(max_steps=5, max_tokens=500, max_seconds=30.0)
    worker = answering(budget=limits)
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool()])
    bench, root = a_tree(new_bench, lead, worker)
    bench.step(root)
    assert budgets(bench, root)["a"] == limits


def test_b13_three_levels_of_a_root_of_100_steps_keep_shrinking(new_bench: NewBench) -> None:
    bench, root = a_tree(new_bench, nested(), budget=ExecutionBudget(max_steps=100))
    run_tree(bench, root)
    limits = sorted((bench.execution(each).budget.max_steps or 0 for each in children_of(bench, root)), reverse=True)
    assert limits == [98, 96, 94]
    assert bench.execution(root).steps_used == 8


def test_b14_two_children_of_one_step_together_cannot_exceed_the_parents_remainder(new_bench: NewBench) -> None:
    worker = costly(cost=0.3, steps=100)
    lead = delegating("lead", *asking("ask_worker", "a", "b"), tools=[worker.as_tool()])
    bench, root = a_tree(new_bench, lead, worker, budget=ExecutionBudget(max_cost=1.0))
    bench.step(root)
    assert [each.max_cost for each in budgets(bench, root).values()] == [0.5, 0.5]
    run_tree(bench, root)
    spent = sum(bench.record(each).cost or 0.0 for each in children_of(bench, root))
    assert spent <= 1.0 + 2 * 0.3
    assert bench.record(root).cost == pytest.approx(spent)
    assert bench.record(root).stop_reason is StopReason.COST_LIMIT_REACHED


def test_a_childs_usage_returns_to_its_parent_once(new_bench: NewBench) -> None:
    worker = costly(cost=0.1, tokens=7, steps=3)
    lead = delegating("lead", *asking("ask_worker", "a", "b"), tools=[worker.as_tool()])
    bench, root = a_tree(new_bench, lead, worker, budget=ExecutionBudget(max_cost=5.0))
    run_tree(bench, root)
    record = bench.record(root)
    assert record.cost == pytest.approx(0.6)
    assert record.usage["input"] == 42
    assert bench.execution(root).child_steps == 6


def test_limits_of_their_own_come_first_and_the_rest_is_split_evenly(new_bench: NewBench) -> None:
    worker, other = answering("worker"), answering("other")
    tools = [worker.as_tool(), other.as_tool(budget=ExecutionBudget(max_cost=0.4))]
    calls = [*asking("ask_worker", "a"), *asking("ask_other", "b"), *asking("ask_worker", "c")]
    bench, root = a_tree(
        new_bench, delegating("lead", *calls, tools=tools), worker, other, budget=ExecutionBudget(max_cost=1.0)
    )
    bench.step(root)
    shares = {prompt: each.max_cost for prompt, each in budgets(bench, root).items()}
    assert shares == {"a": pytest.approx(0.3), "b": 0.4, "c": pytest.approx(0.3)}


def test_a_budget_above_the_remainder_is_an_error_with_the_numbers_and_starts_nothing(new_bench: NewBench) -> None:
    worker = answering()
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool(budget=ExecutionBudget(max_cost=2.0))])
    bench, root = a_tree(new_bench, lead, worker, budget=ExecutionBudget(max_cost=1.0))
    run_tree(bench, root)
    assert "2 US dollars, and 1 are left" in tool_messages(bench, root)[0]
    assert children_of(bench, root) == []


def test_limits_of_the_childs_agent_cap_its_share_and_the_parent_uses_what_was_obtained(new_bench: NewBench) -> None:
    worker = costly(steps=100, budget=ExecutionBudget(max_steps=9))
    lead = delegating("lead", *asking("ask_worker", "a", "b"), tools=[worker.as_tool()])
    bench, root = a_tree(new_bench, lead, worker, budget=ExecutionBudget(max_steps=9))
    bench.step(root)
    assert [each.max_steps for each in budgets(bench, root).values()] == [4, 3]
    run_tree(bench, root)
    assert bench.record(root).status is ExecutionStatus.COMPLETED
    assert bench.record(root).final_response.count('"partial":true') == 2
    assert bench.execution(root).steps_used == 9


def test_a_limit_given_for_a_child_is_cut_for_the_step_that_uses_its_result(new_bench: NewBench) -> None:
    worker = costly(steps=100)
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool(budget=ExecutionBudget(max_steps=8))])
    bench, root = a_tree(new_bench, lead, worker, budget=ExecutionBudget(max_steps=9))
    bench.step(root)
    assert budgets(bench, root)["a"].max_steps == 7
    run_tree(bench, root)
    assert bench.record(root).status is ExecutionStatus.COMPLETED


def paying(*calls: Any, worker: Agent, **fields: Any) -> Agent:
    """An agent that pays 1 dollar for each of its two steps, and makes these calls in the first."""

    def driver(state: AgentState) -> Any:
        from celery_agents.worker.drivers.answers import as_response

        made = list(calls) if not state.step_count else "closed"
        return as_response(made, state.step_count + 1).model_copy(update={"cost": 1.0})

    return Agent("lead", driver=driver, tools=[worker.as_tool()], **fields)


@pytest.mark.parametrize("at_once", [1, 3, 8])
@pytest.mark.parametrize("affordable", [3.01, 4.01, 8.01])
def test_no_child_is_made_when_others_have_used_up_what_is_left(
    new_bench: NewBench, at_once: int, affordable: float
) -> None:
    worker = costly(cost=1.0)
    lead = paying(*asking("ask_worker", *map(str, range(20))), worker=worker, max_children=at_once)
    bench, root = a_tree(new_bench, lead, worker, budget=ExecutionBudget(max_cost=affordable))
    run_tree(bench, root)
    record, children = bench.record(root), children_of(bench, root)
    assert record.cost == pytest.approx(len(children) + (1 if record.status is ExecutionStatus.STOPPED else 2))
    # The children that were at work when the last dollar went are the calls in flight.
    assert (record.cost or 0.0) <= affordable + at_once
    assert len(children) >= min(at_once, 20)
    results = tool_messages(bench, root) or [each.error.message for each in calls_of(bench, root) if each.error]
    refused = [text for text in results if "no US dollars are left for it: the calls before it used them" in text]
    assert len(refused) == 20 - len(children)


def test_a_child_is_made_with_what_is_left_where_others_have_used_a_little_more(new_bench: NewBench) -> None:
    worker = costly(cost=0.3, steps=100)
    lead = delegating("lead", *asking("ask_worker", "a", "b"), tools=[worker.as_tool()], max_children=1)
    bench, root = a_tree(new_bench, lead, worker, budget=ExecutionBudget(max_cost=1.0))
    run_tree(bench, root)
    shares = sorted(bench.execution(each).budget.max_cost or 0.0 for each in children_of(bench, root))
    assert shares == [pytest.approx(0.4), 0.5]


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_no_more_children_work_at_once_than_the_agent_says(new_bench: NewBench, at_once: int) -> None:
    worker = answering()
    lead = delegating("lead", *asking("ask_worker", *"abcdef"), tools=[worker.as_tool()], max_children=at_once)
    bench, root = a_tree(new_bench, lead, worker)
    bench.step(root)
    most = 0
    while not bench.execution(root).status.is_terminal():
        working = [each for each in children_of(bench, root) if not bench.execution(each).status.is_terminal()]
        most = max(most, len(working))
        bench.step(root if bench.due(root) is not None else working[0])
    assert most == at_once
    assert len(children_of(bench, root)) == 6


def test_waiting_for_children_counts_as_time_and_no_more_than_the_longest(new_bench: NewBench) -> None:
    bench: Bench

    def slow(prompt: str) -> str:
        bench.clock.go_on(20)
        return prompt

    worker = answering(text=slow)
    lead = delegating("lead", *asking("ask_worker", "a", "b"), tools=[worker.as_tool()])
    bench, root = a_tree(new_bench, lead, worker)
    run_tree(bench, root)
    elapsed = bench.execution(root).elapsed_seconds()
    assert elapsed == pytest.approx(20, abs=1), "the children ran side by side for the budget, whoever ran them"
