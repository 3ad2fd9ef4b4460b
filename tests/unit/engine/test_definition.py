"""What an agent cannot be is said where it is written."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from celery_agents.worker.agent import Agent, AgentRegistry
from celery_agents.worker.capability import Capability
from celery_agents.worker.drivers import ScriptedDriver
from celery_agents.worker.drivers.function import LocalDriver
from celery_agents.worker.errors import CeleryAgentsError, ConfigurationError
from celery_agents.worker.guards import BudgetGuard
from celery_agents.worker.hooks import Hook, HookPoint
from celery_agents.worker.mcp import MCPServer
from celery_agents.worker.tools import tool


def _answer(state: object) -> str:
    return "done"


@dataclass(frozen=True)
class _Bringing(Capability):
    """A capability that brings what is no guard or no policy."""

    guard: Any = 5

    def guards(self) -> list[Any]:
        return [self.guard]

    def policies(self) -> list[Any]:
        return [5]


class _WithoutAsync(LocalDriver):
    name = "raw"

    def infer(self, request: Any) -> bytes:
        raise NotImplementedError


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": "a/b"},
        {"name": "ä"},
        {"name": "x" * 65},
        {"name": None},
        {"name": 7},
        {"driver": None},
        {"model": "openai:gpt-5-mini"},
        {"model": 7, "driver": None},
        {"step_timeout": 0},
        {"step_timeout": float("nan")},
        {"step_timeout": "1"},
        {"tool_timeout": -1},
        {"max_parallel_tools": 0},
        {"archive_days": 0},
        {"archive_days": float("inf")},
        {"archive_days": "30"},
        {"max_parallel_tools": 1.5},
        {"max_parallel_tools": True},
        {"system_prompt": None},
        {"description": 5},
        {"budget": {"max_steps": 5}},
        {"guards": [lambda view: None]},
        {"compiler": "all"},
        {"tools": ["search"]},
        {"tools": [print, print]},
        {"tools": [None]},
        {"tools": tool(_answer)},
        {"tools": 5},
        {"hooks": Hook(HookPoint.BEFORE_STEP, lambda context: None)},
        {"guards": BudgetGuard()},
        {"handoffs": "billing"},
        {"capabilities": Capability()},
        {"capabilities": [_Bringing()]},
        {"capabilities": [_Bringing(guard=BudgetGuard())]},
        {"mcp": MCPServer("http://127.0.0.1:9/mcp", name="s")},
        {"schedules": "0 2 * * *"},
        {"driver": 5},
        {"driver": ScriptedDriver},
        {"driver": _WithoutAsync()},
    ],
    # Two workers of pytest-xdist must give a function the same name.
    ids=lambda fields: re.sub(r" at 0x[0-9a-f]+", "", str(fields)),
)
def test_a_definition_that_cannot_work_is_refused_with_a_sentence(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Agent(**{"name": "a", "driver": _answer, **fields})
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("name", ["tools", "guards", "hooks", "capabilities", "handoffs", "mcp", "schedules"])
def test_one_in_the_place_of_a_list_is_told_by_the_name_of_its_field(name: str) -> None:
    for given in (object(), "one"):
        with pytest.raises(ConfigurationError, match=f"agent 'a': {name}=.* must be a list"):
            Agent(**{"name": "a", "driver": _answer, name: given})


def test_a_budget_that_cannot_be_is_refused() -> None:
    from celery_agents import ExecutionBudget

    for fields in (
        {"max_steps": -1},
        {"max_cost": float("nan")},
        {"max_steps": True},
        {"max_stepz": 1},
        {"max_tokens": "1"},
    ):
        with pytest.raises(CeleryAgentsError):
            ExecutionBudget(**fields)


def test_what_sessions_keep_of_it_leaves_out_what_is_not_set() -> None:
    from celery_agents import ExecutionBudget

    agent = Agent(name="a", driver=_answer, budget=ExecutionBudget(max_steps=5))
    kept = json.loads(agent.stored_definition)
    assert kept["budget"] == {"max_steps": 5}
    assert "base_url" not in kept
    assert {**agent.definition, **kept, "budget": agent.definition["budget"]} == agent.definition
    assert b": " not in agent.stored_definition, "it is stored with every session"


def test_the_definition_tells_which_tools_ask_and_others_stay_as_they_were() -> None:
    @tool(effect="keyed")
    def plain() -> str:
        """Act."""
        return ""

    @tool(effect="keyed", approval="always")
    def asked() -> str:
        """Act."""
        return ""

    @tool(effect="keyed", approval=lambda ctx, args: True, result="later")
    def later() -> str:
        """Act."""
        return ""

    described = Agent("a", driver=_answer, tools=[plain, asked, later]).definition["tools"]
    assert [{name: value for name, value in each.items() if name in ("approval", "result")} for each in described] == [
        {},
        {"approval": "always"},
        {"approval": "by policy", "result": "later"},
    ]


@pytest.mark.parametrize("queue", ["", "a b", ".gpu", "@gpu", "x" * 65, 5, "default"])
def test_a_queue_that_cannot_be_one_is_refused_where_the_agent_is_written(queue: Any) -> None:
    with pytest.raises(ConfigurationError, match="agent 'painter': queue="):
        Agent("painter", driver=lambda state: "", queue=queue)


def test_the_group_of_a_worker_follows_from_the_names_of_its_agents() -> None:
    one, other = (Agent(name, driver=lambda state: "") for name in ("one", "other"))
    assert AgentRegistry([one, other]).group == AgentRegistry([other, one]).group
    assert AgentRegistry([one]).group != AgentRegistry([other]).group


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "openai:gpt-5-mini", "completion_window": "3h"}, "'2h', '8h', '24h'"),
        ({"model": "anthropic:claude-haiku-4-5", "completion_window": "8h"}, "it has '24h'"),
        ({"model": "groq:llama-3.3-70b-versatile", "completion_window": "24h"}, "it has none"),
        ({"model": "openai:a", "base_url": "http://localhost:1/v1", "completion_window": "8h"}, "openai-responses:"),
        ({"model": "openai:a", "base_url": "http://localhost:1/v1", "background": True}, "openai-responses:"),
        ({"model": ["openai:a", "openai:b"], "completion_window": "8h"}, "one model"),
        ({"driver": lambda state: "x", "completion_window": "8h"}, "driver sells none"),
        ({"model": "openai:gpt-5-mini", "window_failed": "later"}, "'fail' or 'live'"),
        ({"model": "openai:gpt-5-mini", "completion_window": "8h", "background": True}, "give one of them"),
        ({"model": "anthropic:claude-haiku-4-5", "background": True}, "OpenAI's responses"),
        ({"driver": lambda state: "x", "background": True}, "OpenAI's responses"),
    ],
)
def test_a_window_that_is_not_sold_is_refused_where_the_agent_is_written(fields: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Agent("report", **fields)
