"""Trees of agents on the engine's bench: every session that is due runs until none is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.engine import Outcome
from celery_agents.worker.state import AgentState
from celery_agents.worker.tools import AgentTool

from .engine import Bench


def register(bench: Bench) -> None:
    """Make the agents of a bench known, as its worker would."""
    names = {agent.name: agent.definition_hash for agent in bench.agents}
    facts = {"queues": [""], "agent_queues": {}, "group": "", "slots": 8, "running": 0, "draining": False}
    bench.store.registry.register("worker", facts, names)


def children_of(bench: Bench, session_id: str) -> list[str]:
    """Ids of the sessions below a root, by id."""
    keys = bench.store.context.keys(session_id)
    (found,) = bench.store.context.database.pipeline(
        "test", [("ZRANGEBYLEX", keys.shard.children, f"[{session_id}.", f"({session_id}/")]
    )
    return [member.decode() for member in found]


def run_tree(bench: Bench, session_id: str, limit: int = 400) -> list[Outcome]:
    """Run the due steps of a tree, one session after another, until nothing is due."""
    outcomes: list[Outcome] = []
    while len(outcomes) < limit:
        due = [each for each in (session_id, *children_of(bench, session_id)) if bench.due(each) is not None]
        if not due:
            return outcomes
        for each in due:
            if bench.due(each) is not None:
                outcomes.append(bench.step(each))
    raise AssertionError(f"the tree still runs after {limit} steps")


def delegating(name: str, *calls: Any, tools: Any, **fields: Any) -> Agent:
    """An agent that makes these calls in its first step and answers in its second with what came back."""

    def driver(state: AgentState) -> Any:
        if not state.step_count:
            return list(calls)
        return " | ".join(message.content for message in state.messages if message.role.value == "tool")

    return Agent(name, driver=driver, tools=tools, **fields)


def asking(tool: str, *prompts: str) -> list[CallTool]:
    """Calls of an agent's tool."""
    return [CallTool(tool, prompt=prompt) for prompt in prompts]


def answering(
    name: str = "worker", text: Callable[[str], str] = lambda prompt: f"done {prompt}", **fields: Any
) -> Agent:
    """An agent that answers its last user message at once."""

    def driver(state: AgentState) -> Any:
        asked = [message.content for message in state.messages if message.role.value == "user"]
        return text(asked[-1])

    return Agent(name, driver=driver, **fields)


def a_tree(
    new_bench: Callable[..., Bench], *agents: Agent, message: str = "hello", **options: Any
) -> tuple[Bench, str]:
    """A bench that knows these agents, and a session of the first one."""
    budget = options.pop("budget", None)
    bench = new_bench(*agents, **options)
    register(bench)
    return bench, bench.submit(message, agent=agents[0], budget=budget)


def tool_messages(bench: Bench, session_id: str) -> list[str]:
    """What the provider sees of the calls, in order."""
    return [
        message.content
        for message in bench.state(session_id).store.section("messages").messages
        if message.role.value == "tool"
    ]


def calls_of(bench: Bench, session_id: str) -> list[Any]:
    """The records of the calls of the first step."""
    return list(bench.execution(session_id).step_executions[0].step.tool_executions)


def nested(depth_of: int = 3) -> Agent:
    """An agent that asks itself for ever."""

    def driver(state: AgentState) -> Any:
        if not state.step_count:
            return asking("ask_deep", "again")
        return state.messages[-1].content

    return Agent("deep", driver=driver, tools=[AgentTool(agent="deep")], max_depth=depth_of)
