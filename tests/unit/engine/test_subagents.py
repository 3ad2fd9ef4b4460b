"""Subagents: the rules of the parent hold for the tools that a subagent takes, and the limits of the tree for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from celery_agents.worker.agent import Agent, AgentRegistry
from celery_agents.worker.capabilities.approvals import Approvals, Rule
from celery_agents.worker.capabilities.guardrails import Guardrail, Guardrails, RegexRule
from celery_agents.worker.capabilities.subagents import Subagent, Subagents
from celery_agents.worker.capability import Capability
from celery_agents.worker.drivers import CallTool, TokenPrice
from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.guards import PROCEED, GuardView, Verdict
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.mcp import MCPServer
from celery_agents.worker.state import AgentState, Approve, Deny, RequestKind
from celery_agents.worker.tools import AgentTool, Ask, CallPolicy, tool
from celery_agents.worker.tools.delegation import ChildLimits

from support.engine import Bench
from support.trees import answering, children_of, register, run_tree

NewBench = Callable[..., Bench]


def last_prompt(state: AgentState) -> str:
    return [message.content for message in state.messages if message.role.value == "user"][-1]


def lead(*wanted: Subagent, effects: list[str], **fields: Any) -> Agent:
    """An agent that lets its subagent `helper` delete something; both have the same driver and tools."""

    @tool(effect="unsafe")
    def delete(what: str) -> str:
        """Delete something."""
        effects.append(what)
        return f"deleted {what}"

    def driver(state: AgentState) -> Any:
        if state.step_count:
            return next(message.content for message in reversed(state.messages) if message.role.value == "tool")
        if last_prompt(state) == "hello":
            return CallTool("spawn_subagent", subagent="helper", prompt="delete it")
        return CallTool("delete", what="prod")

    rules = fields.pop("capabilities", [Approvals([Rule("delete", then=Ask(to="admins"))])])
    return Agent(
        "lead",
        driver=driver,
        tools=[delete],
        capabilities=[*rules, Subagents(wanted or [Subagent("helper")])],
        **fields,
    )


def started(new_bench: NewBench, *agents: Agent) -> tuple[Bench, str]:
    bench = new_bench(*agents)
    register(bench)
    return bench, bench.submit("hello", agent=agents[0])


@pytest.mark.parametrize("wanted", [Subagent("helper"), Subagent("helper", tools=["delete"])])
def test_a_subagent_asks_before_a_tool_that_its_parent_asks_for(new_bench: NewBench, wanted: Subagent) -> None:
    effects: list[str] = []
    bench, root = started(new_bench, lead(wanted, effects=effects))
    run_tree(bench, root)
    (child,) = children_of(bench, root)
    asked = bench.open_request(child)
    assert (asked.kind, asked.tool, asked.to, effects) == (RequestKind.APPROVAL, "delete", "admins", [])
    bench.answer(child, Approve())
    run_tree(bench, root)
    assert (bench.record(root).final_response, effects) == ("deleted prod", ["prod"])


def test_a_denied_call_of_a_subagent_has_no_effect(new_bench: NewBench) -> None:
    effects: list[str] = []
    bench, root = started(new_bench, lead(effects=effects))
    run_tree(bench, root)
    bench.answer(children_of(bench, root)[0], Deny("not today"))
    run_tree(bench, root)
    assert effects == []
    assert "not today" in bench.record(root).final_response


def test_a_subagent_of_a_subagent_asks_as_well(new_bench: NewBench) -> None:
    effects: list[str] = []
    agent = lead(Subagent("helper"), Subagent("second"), effects=effects)

    def driver(state: AgentState) -> Any:
        if state.step_count:
            return "done"
        following = {"hello": "helper", "for helper": "second"}.get(last_prompt(state))
        if following is None:
            return CallTool("delete", what="prod")
        return CallTool("spawn_subagent", subagent=following, prompt=f"for {following}")

    object.__setattr__(agent, "driver", driver)
    bench, root = started(new_bench, agent)
    run_tree(bench, root)
    asking = [child for child in children_of(bench, root) if bench.store.sessions.header(child).agent == "second"]
    assert [bench.open_request(child).tool for child in asking] == ["delete"]
    assert effects == []


def test_hooks_around_tools_hold_for_the_tools_of_a_subagent(new_bench: NewBench) -> None:
    def block(context: HookContext) -> HookContext:
        assert context.tool_call is not None
        return context.changed(blocked="no deletions") if context.tool_call.name == "delete" else context

    effects: list[str] = []
    hooks = [Hook(HookPoint.BEFORE_TOOL, block), Hook(HookPoint.AFTER_STEP, lambda context: context)]
    bench, root = started(new_bench, lead(effects=effects, capabilities=[], hooks=hooks))
    run_tree(bench, root)
    assert effects == []
    assert "no deletions" in bench.record(root).final_response
    helper = AgentRegistry(bench.agents)["helper"]
    assert helper.hook_stack.at(HookPoint.AFTER_STEP) == (), "a hook that keeps the parent's state is not taken over"


def test_the_rules_of_a_capability_of_ones_own_hold_for_a_subagent(new_bench: NewBench) -> None:
    class Policy:
        def decide(self, context: Any, args: Mapping[str, Any]) -> Any:
            return Ask() if context.tool == "delete" else None

    @dataclass(frozen=True)
    class OwnRules(Capability):
        def policies(self) -> list[CallPolicy]:
            return [Policy()]

    effects: list[str] = []
    bench, root = started(new_bench, lead(effects=effects, capabilities=[OwnRules()]))
    run_tree(bench, root)
    assert bench.open_request(children_of(bench, root)[0]).tool == "delete"
    assert effects == []


def test_guards_guardrails_and_times_of_the_parent_hold_for_a_subagent() -> None:
    class Watch:
        def check(self, view: GuardView) -> Verdict:
            return PROCEED

    watch = Watch()
    guardrails = Guardrails([Guardrail("no-secrets", [RegexRule("sk-", name="key")])])
    agent = lead(effects=[], capabilities=[guardrails], guards=[watch], tool_timeout=5, step_timeout=7)
    helper = AgentRegistry([agent])["helper"]
    assert guardrails in helper.capabilities
    assert watch in helper.all_guards
    assert (helper.tool_timeout, helper.step_timeout) == (5, 7)


def test_a_registry_that_is_restricted_to_queues_keeps_subagents_with_their_parents() -> None:
    whole = AgentRegistry([lead(effects=[]), lead_of_another_queue()])
    assert {agent.name for agent in whole.restricted_to([""])} == {"lead", "helper"}
    assert {agent.name for agent in whole.restricted_to(["gpu"])} == {"painter", "brush"}
    assert whole.restricted_to(["gpu"])["brush"] is whole["brush"]


def lead_of_another_queue() -> Agent:
    return Agent("painter", driver=lambda _state: "", queue="gpu", capabilities=[Subagents([Subagent("brush")])])


# --- limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["max_children", "max_depth"])
@pytest.mark.parametrize("value", [0, -1, True, 2.5, "3", None])
def test_a_limit_without_a_meaning_is_refused_where_it_is_written(field: str, value: Any) -> None:
    if (field, value) == ("max_depth", 0) and value is not False:
        assert Subagents([Subagent("helper")], max_depth=0).max_depth == 0
        return
    with pytest.raises(ConfigurationError, match=rf"Subagents: {field}={value!r} must be a whole number from [01]"):
        Subagents([Subagent("helper")], **{field: value})


@pytest.mark.parametrize("value", [0, -1, True, 1.0])
def test_an_agent_refuses_a_number_of_children_that_would_make_it_wait_for_ever(value: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"agent 'lead': max_children={value!r} must be a whole number from 1"
    ):
        Agent("lead", driver=lambda _state: "", max_children=value)


@dataclass(frozen=True)
class Narrow(Capability):
    """Limits children as a user's capability may; its own attribute of such a name means something else."""

    max_children: int = 1

    def child_limits(self) -> ChildLimits:
        return ChildLimits(max_children=3, max_depth=2)


def test_the_smallest_limits_of_the_capabilities_count_and_no_attribute_of_theirs() -> None:
    def limits(*capabilities: Capability) -> tuple[int, int]:
        agent = Agent("lead", driver=lambda _state: "", max_children=5, max_depth=1, capabilities=capabilities)
        return agent.max_children, agent.max_depth

    subagents = Subagents([Subagent("helper")], max_children=4, max_depth=0)
    assert (limits(), limits(Narrow()), limits(subagents), limits(subagents, Narrow())) == (
        (5, 1),
        (3, 2),
        (4, 0),
        (3, 0),
    )


def deeper(name: str, **fields: Any) -> Agent:
    """An agent that always starts `chain` before it answers."""

    def driver(state: AgentState) -> Any:
        if state.step_count:
            return next(message.content for message in reversed(state.messages) if message.role.value == "tool")
        return CallTool("ask_chain", prompt="go on")

    return Agent(name, driver=driver, tools=[AgentTool("chain")], **fields)


@pytest.mark.parametrize(("of_root", "of_chain", "levels"), [(0, 9, 0), (1, 9, 1), (2, 9, 2), (5, 1, 1), (5, 3, 3)])
def test_no_agent_of_a_tree_goes_deeper_than_those_above_it_allow(
    new_bench: NewBench, of_root: int, of_chain: int, levels: int
) -> None:
    bench, root = started(new_bench, deeper("root", max_depth=of_root), deeper("chain", max_depth=of_chain))
    run_tree(bench, root)
    assert len(children_of(bench, root)) == levels
    assert f"at depth {levels} may start no agents" in bench.record(root).final_response


def test_a_subagents_capability_of_a_child_cannot_raise_the_depth(new_bench: NewBench) -> None:
    def driver(state: AgentState) -> Any:
        return "done" if state.step_count else CallTool("spawn_subagent", subagent="leaf", prompt="go on")

    middle = Agent("middle", driver=driver, capabilities=[Subagents([answering("leaf")], max_depth=9)])
    root_agent = Agent(
        "root",
        driver=lambda state: "done" if state.step_count else CallTool("ask_middle", prompt="go on"),
        tools=[AgentTool("middle")],
        max_depth=1,
    )
    bench, root = started(new_bench, root_agent, middle, answering("leaf"))
    run_tree(bench, root)
    assert len(children_of(bench, root)) == 1


@pytest.mark.parametrize(
    ("wanted", "asks_servers"), [(Subagent("helper"), True), (Subagent("helper", tools=[]), False)]
)
def test_a_subagent_with_a_list_of_tools_has_none_of_a_tool_server(wanted: Subagent, asks_servers: bool) -> None:
    parent = lead(wanted, effects=[], mcp=[MCPServer("http://127.0.0.1:9/mcp", name="crm")])
    assert AgentRegistry([parent])["helper"].mcp == (parent.mcp if asks_servers else ())


def test_a_tool_that_the_parent_lacks_is_named_the_first_of_several() -> None:
    with pytest.raises(
        ConfigurationError, match=r"its parent 'lead' has no tool 'buy'; it has delete, spawn_subagent$"
    ):
        AgentRegistry([lead(Subagent("helper", tools=["delete", "buy"], deny=["sell"]), effects=[])])


@pytest.mark.parametrize(("names", "told"), [((), "got none"), (("a", "b", "a"), "got a, b, a")])
def test_subagents_are_given_each_name_once(names: tuple[str, ...], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Subagents([Subagent(name) for name in names])


def test_a_subagent_asks_as_its_parent_does_and_another_provider_at_its_own_address() -> None:
    url, price = "http://127.0.0.1:9/v1", TokenPrice(input=1.0, output=2.0)
    wanted = [
        Subagent("same"),
        Subagent("small", model="openai:small"),
        Subagent("claude", model="anthropic:claude-haiku-4-5"),
    ]
    team = Subagents(wanted)
    boss = Agent("boss", model="openai:mine", base_url=url, price=price, provider_group="batch", capabilities=[team])
    same, small, claude = team.derive(boss)
    assert [each.base_url for each in (same, small, claude)] == [url, url, None]
    assert (same.price, small.price) == (price, None)
    assert {each.provider_group for each in (same, small, claude)} == {"batch"}


def test_a_subagent_attaches_to_answers_and_goes_on_without_a_window_as_its_parent_does() -> None:
    team = Subagents([Subagent("same"), Subagent("other", model="openai:small")])
    boss = Agent("boss", model="openai:mine", background=True, window_failed="live", capabilities=[team])
    same, other = team.derive(boss)
    assert [each.window_failed for each in (same, other)] == ["live", "live"]
    assert [each.background for each in (same, other)] == [True, False]
