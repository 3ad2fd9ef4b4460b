"""Effect classes and `sequential` of pydantic-ai's tools, wherever a toolset has them from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import CombinedToolset, RunContext, Tool
from pydantic_ai.capabilities import PrepareTools, Toolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, WrapperToolset

from celery_agents import CeleryDurability
from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.tools.effect import Effect

from support.engine import WorkerDied
from support.pydantic_found import found, submitted

CALLS: list[int] = []


def act(x: int) -> str:
    """Act, and die the first time."""
    CALLS.append(x)
    if len(CALLS) == 1:
        raise WorkerDied
    return "acted"


def toolset(effect: str | None) -> FunctionToolset[None]:
    metadata = None if effect is None else {"celery": {"effect": effect}}
    return FunctionToolset([Tool(act, metadata=metadata)])


class Quiet(WrapperToolset[None]):
    """A wrapper of the user's own."""


async def all_of_them(ctx: RunContext[None], definitions: list[ToolDefinition]) -> list[ToolDefinition]:
    return [replace(each, description="prepared") for each in definitions]


async def declared_unsafe(ctx: RunContext[None], definitions: list[ToolDefinition]) -> list[ToolDefinition]:
    return [replace(each, metadata={"celery": {"effect": "unsafe"}}) for each in definitions]


Wrap = Callable[[AbstractToolset[None]], Any]
WRAPPED: dict[str, tuple[str, Wrap]] = {
    "bare": ("act", lambda given: given),
    "prefixed": ("p_act", lambda given: given.prefixed("p")),
    "renamed": ("do", lambda given: given.renamed({"do": "act"})),
    "prefixed and renamed": ("do", lambda given: given.prefixed("p").renamed({"do": "p_act"})),
    "filtered": ("act", lambda given: given.filtered(lambda ctx, definition: True)),
    "prepared": ("act", lambda given: given.prepared(all_of_them)),
    "with approval": ("act", lambda given: given.approval_required(lambda ctx, definition, args: False)),
    "combined": ("p_act", lambda given: CombinedToolset([FunctionToolset(), given.prefixed("p")])),
    "own wrapper": ("act", Quiet),
    "dynamic": ("act", lambda given: lambda ctx: given),
}


def once(tool: str) -> FunctionModel:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) > 1:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart(tool, {"x": 1}, tool_call_id="c")])

    return FunctionModel(answer)


def runs_after_a_crash(agent: PydanticAgent[Any, Any]) -> int:
    """How often the tool runs when the worker dies in its first run."""
    CALLS.clear()
    with submitted(agent) as (bench, session):
        with pytest.raises(WorkerDied):
            bench.run(session)
        bench.clock.go_on(3600)
        bench.run(session)
        assert bench.execution(session).status == "completed"
    return len(CALLS)


@pytest.mark.parametrize(("declared", "default", "runs"), [
    ("keyed", "unsafe", 2), ("unsafe", "pure", 1), (None, "unsafe", 1), (None, "keyed", 2),
])  # fmt: skip
@pytest.mark.parametrize("way", WRAPPED)
def test_a_declared_effect_holds_in_each_toolset(way: str, declared: str | None, default: str, runs: int) -> None:
    name, wrap = WRAPPED[way]
    agent = PydanticAgent(
        once(name), name="wrapped", toolsets=[wrap(toolset(declared))], capabilities=[CeleryDurability(effect=default)]
    )
    assert runs_after_a_crash(agent) == runs


def test_the_effect_is_unsafe_without_a_word() -> None:
    agent = PydanticAgent(once("act"), name="silent", toolsets=[toolset(None)], capabilities=[CeleryDurability()])
    assert runs_after_a_crash(agent) == 1


@pytest.mark.parametrize("declared", [Effect.KEYED, Effect.UNSAFE])
def test_a_capability_may_bring_tools_and_change_their_effect(declared: Effect) -> None:
    changed = [PrepareTools(declared_unsafe)] if declared is Effect.UNSAFE else []
    agent = PydanticAgent(
        once("act"),
        name="capable",
        capabilities=[CeleryDurability(effect="pure"), Toolset(toolset("keyed")), *changed],
    )
    assert runs_after_a_crash(agent) == (1 if declared is Effect.UNSAFE else 2)


def test_the_tools_of_wrapped_toolsets_are_known_by_the_names_that_the_model_reads() -> None:
    sets = [wrap(toolset("keyed")).prefixed(f"n{n}") for n, (_, wrap) in enumerate(list(WRAPPED.values())[:-1])]
    ours = found(PydanticAgent(TestModel(), name="listed", toolsets=sets, capabilities=[CeleryDurability()]))
    expected = [f"n{n}_{name}" for n, (name, _) in enumerate(list(WRAPPED.values())[:-1])]
    assert [tool.name for tool in ours.toolset] == expected
    assert {tool.effect for tool in ours.toolset} == {Effect.KEYED}


@pytest.mark.parametrize("way", list(WRAPPED)[:-1])
def test_a_wrong_effect_in_a_wrapped_toolset_is_refused_when_the_agent_is_found(way: str) -> None:
    name, wrap = WRAPPED[way]
    agent = PydanticAgent(
        TestModel(), name="odd", toolsets=[wrap(toolset("sometimes"))], capabilities=[CeleryDurability()]
    )
    with pytest.raises(ConfigurationError, match=f"agent 'odd': tool {name}: effect 'sometimes'"):
        found(agent)


def test_a_wrong_effect_that_shows_in_a_run_ends_it_before_a_call() -> None:
    CALLS.clear()
    with submitted(
        PydanticAgent(
            once("act"), name="odd", toolsets=[lambda ctx: toolset("sometimes")], capabilities=[CeleryDurability()]
        )
    ) as (bench, session):
        bench.run(session)
        assert "tool act: effect 'sometimes' must be" in str(bench.record(session).errors)
    assert CALLS == []


# --- sequential ---------------------------------------------------------------------------------------------------


def sequenced(wrap: Wrap, *names: str) -> tuple[PydanticAgent[None, str], list[str]]:
    """An agent whose model calls these tools at once, and the log of their beginnings and ends."""
    log: list[str] = []

    async def work(ctx: RunContext[None], x: int) -> str:
        log.append(f"+{x}")
        await _meet_companions(names, x, log)
        log.append(f"-{x}")
        return f"{x}"

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) > 1:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart(n, {"x": x}, tool_call_id=f"c{x}") for x, n in enumerate(names)])

    tools = FunctionToolset(
        [Tool(work, name="alone", sequential=True), Tool(work, name="beside"), Tool(work, name="other")]
    )
    capabilities = [CeleryDurability(effect="pure")]
    return PydanticAgent(
        FunctionModel(answer), name="sequenced", toolsets=[wrap(tools)], capabilities=capabilities
    ), log


async def _meet_companions(names: tuple[str, ...], x: int, log: list[str]) -> None:
    """Wait until the calls that run beside this one have begun; alone, let others begin that should not."""
    if names[x] == "alone":
        for _ in range(100):
            await asyncio.sleep(0)
        return
    first = max((y + 1 for y in range(x) if names[y] == "alone"), default=0)
    end = next((y for y in range(x, len(names)) if names[y] == "alone"), len(names))
    async with asyncio.timeout(20):
        while not all(f"+{y}" in log for y in range(first, end)):
            await asyncio.sleep(0)


@pytest.mark.parametrize("wrap", [lambda given: given, lambda given: lambda ctx: given], ids=["known", "dynamic"])
@pytest.mark.parametrize(
    "names",
    [
        ("alone", "alone", "alone"),
        ("beside", "other", "beside"),
        ("beside", "other", "alone", "beside", "other"),
        ("alone", "beside", "other"),
        ("beside", "alone"),
    ],
)
def test_a_sequential_tool_runs_alone_as_in_a_run_of_its_own(wrap: Wrap, names: tuple[str, ...]) -> None:
    agent, log = sequenced(wrap, *names)
    agent.run_sync("go")
    own = list(log)
    log.clear()
    with submitted(agent) as (bench, session):
        bench.run(session)
        assert bench.execution(session).status == "completed"
    assert _segments(log) == _segments(own)


def _segments(log: list[str]) -> list[set[str]]:
    """The calls that ran side by side, in order."""
    segments: list[set[str]] = []
    going: set[str] = set()
    for entry in log:
        if entry[0] == "+":
            if not going:
                segments.append(set())
            segments[-1].add(entry[1:])
            going.add(entry[1:])
        else:
            going.discard(entry[1:])
    return segments
