"""The agents of the simulation with every capability of `state.run`, and what their parts must hold at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import (
    Condition,
    LoopDetection,
    MaxIterations,
    Reasoning,
    Reflexion,
    TerminalTools,
    Termination,
    TextMention,
    TimeLimit,
    ToolCalled,
)
from celery_agents.worker.capability import Capability
from celery_agents.worker.state import AgentState, StepExecution, ToolExecution, ToolOutcome

from support.run_parts import problems_of_parts

if TYPE_CHECKING:
    from .simulation import Simulation

_CALLED: Final = "unsafe"
_ENDS: Final[Condition] = (
    MaxIterations(30) | (ToolCalled(_CALLED) & TextMention("p1")) | (TimeLimit(3600) & ~ToolCalled("pure"))
)


def with_capabilities(agents: Sequence[Agent]) -> Sequence[Agent]:
    """The same agents with all capabilities, and with tools that give recorded results again."""
    return tuple(_with_capabilities(each) for each in agents)


def _with_capabilities(agent: Agent) -> Agent:
    every: list[Capability] = [Reasoning(), Reflexion(), LoopDetection(), Termination(_ENDS)]
    if agent.name == "async":
        every.append(TerminalTools({"lookup"}))
    tools: list[Any] = [replace(each, idempotent=True) for each in agent.tools]  # type: ignore[type-var]
    return replace(agent, tools=tools, capabilities=every)


def check_parts(sim: Simulation, session: str, state: AgentState) -> None:
    """The parts of the last execution are those that its steps make one after another, each once."""
    execution, world = state.execution, sim.world
    if execution is None:
        return
    name, steps = f"{session} {execution.execution_id}", execution.step_executions
    for problem in problems_of_parts(state):
        world.expect(False, "parts", f"{name}: {problem}")
    called = any(_succeeded(each, _CALLED) for each in steps[execution.steps_before_retry :])
    found = ToolCalled(_CALLED).check(state).stop
    world.expect(found == called, "parts", f"{name} remembers {_CALLED} as {found}, its steps say {called}")
    _count_ends(sim, state)


def check_hit(sim: Simulation, name: str, hit: ToolExecution, others: Sequence[ToolExecution]) -> None:
    """A hit has the result of an equal call of the same answer: in other answers each call has other arguments."""
    same = [each for each in others if each.index < hit.index and each.tool_call.name == hit.tool_call.name]
    is_told = bool(same) and (same[0].value, same[0].outcome) == (hit.value, hit.outcome)
    sim.world.expect(is_told, "parts", f"{name} call {hit.index} is a hit, and no equal call has its result")
    sim.world.tally.answers["recorded result given again"] += 1


def _succeeded(done: StepExecution, tool: str) -> bool:
    return any(each.outcome is ToolOutcome.OK and each.tool_call.name == tool for each in done.step.tool_executions)


def _count_ends(sim: Simulation, state: AgentState) -> None:
    sim.world.tally.answers[f"run ended {state.run.reason}"] += 1
