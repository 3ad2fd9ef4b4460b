"""Handoffs: another agent goes on with the session; subagents by name, with the tools that they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.agent import Agent, AgentRegistry
from celery_agents.worker.capabilities.subagents import Subagent, Subagents
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.state import AgentState, ExecutionBudget, ExecutionStatus, InferenceResponse, StopReason
from celery_agents.worker.tools import tool
from celery_agents.worker.tools.handoff import Handoff

from support.engine import Bench
from support.trees import answering, children_of, register, run_tree

NewBench = Callable[..., Bench]


def chain(name: str, *handoffs: str, **fields: Any) -> Agent:
    """An agent that hands over to the first of these, whenever it may."""

    def driver(state: AgentState) -> Any:
        refused = any(message.is_error for message in state.messages)
        return f"{name} answers" if refused or not handoffs else CallTool(f"transfer_to_{handoffs[0]}")

    return Agent(name, driver=driver, handoffs=[Handoff(each) for each in handoffs], **fields)


def started(new_bench: NewBench, *agents: Agent, **options: Any) -> tuple[Bench, str]:
    bench = new_bench(*agents)
    register(bench)
    return bench, bench.submit("hello", agent=agents[0], **options)


def test_a_handoff_changes_the_agent_and_keeps_session_conversation_and_budget(new_bench: NewBench) -> None:
    bench, root = started(
        new_bench, chain("triage", "billing"), answering("billing"), budget=ExecutionBudget(max_steps=5)
    )
    run_tree(bench, root)
    assert bench.store.sessions.header(root).agent == "billing"
    assert bench.record(root).final_response == "done hello"
    assert bench.record(root).step_count == 2
    assert bench.execution(root).budget.max_steps == 5
    assert bench.execution(root).handed_over_by == ("triage",)
    assert "agent_changed" in bench.events(root)
    assert children_of(bench, root) == []


def test_an_agent_without_a_handoff_to_itself(new_bench: NewBench) -> None:
    with pytest.raises(ConfigurationError, match="leads nowhere"):
        chain("a", "a")


def test_a_handoff_in_a_circle_is_an_error_that_the_model_reads(new_bench: NewBench) -> None:
    bench, root = started(new_bench, chain("a", "b"), chain("b", "a"))
    run_tree(bench, root)
    assert bench.record(root).final_response == "b answers"
    assert "a has had the session before (a → b)" in "".join(each.content for each in bench.state(root).messages)


def test_a_handoff_to_nobody_is_an_error_that_the_model_reads(new_bench: NewBench) -> None:
    bench, root = started(new_bench, chain("a", "nobody"))
    run_tree(bench, root)
    assert bench.record(root).final_response == "a answers"
    assert bench.store.sessions.header(root).agent == "a"


def test_the_eleventh_handoff_of_an_execution_is_refused(new_bench: NewBench) -> None:
    names = [f"agent{number}" for number in range(13)]
    agents = [chain(name, after) for name, after in zip(names, [*names[1:], "nobody"], strict=True)]
    bench, root = started(new_bench, *agents)
    run_tree(bench, root)
    assert bench.record(root).final_response == "agent10 answers"
    assert "handed over 10 times" in "".join(each.content for each in bench.state(root).messages)


def test_only_the_first_handoff_of_a_step_counts(new_bench: NewBench) -> None:
    def driver(state: AgentState) -> Any:
        return [CallTool("transfer_to_b"), CallTool("transfer_to_c")] if not state.step_count else "a answers"

    first = Agent("a", driver=driver, handoffs=[Handoff("b"), Handoff("c")])
    bench, root = started(new_bench, first, answering("b"), answering("c"))
    run_tree(bench, root)
    assert bench.store.sessions.header(root).agent == "b"
    assert "hands the session over already" in "".join(each.content for each in bench.state(root).messages)


def test_a_handoff_of_an_execution_that_ends_changes_nothing(new_bench: NewBench) -> None:
    bench, root = started(new_bench, chain("a", "b"), answering("b"), budget=ExecutionBudget(max_steps=1))
    run_tree(bench, root)
    assert bench.record(root).stop_reason is StopReason.STEPS_LIMIT_REACHED
    assert bench.store.sessions.header(root).agent == "a"


# --- spawn_subagent -----------------------------------------------------------------------------------------------


@tool(effect="pure")
def search(query: str) -> str:
    """Search."""
    return f"found {query}"


@tool(effect="pure")
def write(text: str) -> str:
    """Write."""
    return text


def spawning(subagent: str, *agents: Any, **fields: Any) -> Agent:
    """An agent that hands one task to a subagent and answers with what came back."""

    def driver(state: AgentState) -> Any:
        if state.messages[-1].role.value == "user" and state.messages[-1].content == "hello":
            return CallTool("spawn_subagent", subagent=subagent, prompt="the task")
        return state.messages[-1].content if state.step_count else f"sub {state.messages[-1].content}"

    tools = fields.pop("tools", [search, write])
    return Agent("lead", driver=driver, tools=tools, capabilities=[Subagents(agents, **fields)])


def test_spawn_subagent_hands_a_task_to_a_subagent(new_bench: NewBench) -> None:
    worker = answering()
    bench, root = started(new_bench, spawning("worker", worker), worker)
    run_tree(bench, root)
    assert bench.record(root).final_response == "done the task"
    definition = bench.agents[0].toolset["spawn_subagent"]
    assert definition.parameters["properties"]["subagent"]["enum"] == ("worker",)
    assert "worker" in definition.description


def test_an_unknown_subagent_is_a_tool_error_that_starts_nothing(new_bench: NewBench) -> None:
    worker = answering()
    bench, root = started(new_bench, spawning("nobody", worker), worker)
    run_tree(bench, root)
    assert "there is no such subagent; subagents: worker" in bench.record(root).final_response
    assert children_of(bench, root) == []


def test_the_depth_is_checked_before_the_name(new_bench: NewBench) -> None:
    worker = answering()
    bench, root = started(new_bench, spawning("nobody", worker, max_depth=0), worker)
    run_tree(bench, root)
    assert "at depth 0 may start no agents" in bench.record(root).final_response


def test_a_failed_subagent_is_a_tool_error_and_a_stopped_one_is_not(new_bench: NewBench) -> None:
    def broken(_prompt: str) -> str:
        raise LookupError("lost")

    bench, root = started(new_bench, spawning("worker", answering(text=broken)), answering(text=broken))
    run_tree(bench, root)
    assert "the agent worker failed: LookupError: lost" in bench.record(root).final_response
    assert bench.record(root).status is ExecutionStatus.COMPLETED

    slow = Agent(
        "worker",
        driver=lambda _state: InferenceResponse(content="half", tool_calls=()).model_copy(
            update={"tool_calls": (_look(),)}
        ),
        tools=[search],
        budget=ExecutionBudget(max_steps=1),
    )
    bench, root = started(new_bench, spawning("worker", slow), slow)
    run_tree(bench, root)
    assert '"partial":true' in bench.record(root).final_response.replace(" ", "")


def _look() -> Any:
    from celery_agents.worker.state import ToolCall

    return ToolCall(id="c", name="search", args={"query": "x"})


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"tools": None}, ["search", "write", "spawn_subagent"]),
        ({"tools": []}, []),
        ({"tools": ["search", "write"], "deny": ["write"]}, ["search"]),
        ({"deny": ["write", "spawn_subagent"]}, ["search"]),
    ],
)
def test_a_subagents_tools_follow_from_its_rules(rules: Any, expected: list[str]) -> None:
    registry = AgentRegistry([spawning("helper", Subagent("helper", **rules))])
    assert list(registry["helper"].toolset.names()) == expected


def test_a_subagent_without_a_registration_of_its_own_runs_with_its_parents_workers(new_bench: NewBench) -> None:
    lead = spawning("helper", Subagent("helper", "helps", "Be brief.", tools=[]))
    bench, root = started(new_bench, lead)
    bench.store.registry.register("worker", {"queues": [""], "agent_queues": {}}, {"lead": "1", "helper": "2"})
    run_tree(bench, root)
    assert bench.record(root).final_response == "sub the task"


def test_a_rule_about_a_tool_that_the_parent_lacks_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has no tool 'fly'"):
        AgentRegistry([spawning("helper", Subagent("helper", tools=["fly"]))])
