"""Agents that call agents: a child of some steps, and parents that call 64 of it in one step."""

import asyncio
import time

from engines.asking_agents import asking

from celery_agents import Agent, tool
from celery_agents.worker.drivers import FunctionDriver
from celery_agents.worker.state import AgentState, InferenceResponse, ToolCall
from celery_agents.worker.tools import AgentTool

CHILDREN = 64
STEPS = 10
MODEL_SECONDS = 0.05

__all__ = ["asking", "caller", "child", "few_at_a_time", "few_slow", "parent_of_one", "slow_child", "together"]


def work(state: AgentState) -> InferenceResponse:
    """Call the tool in each step but the last."""
    assert state.execution is not None
    number = state.execution.step_count + 1
    if number >= STEPS:
        return InferenceResponse(content="done")
    return InferenceResponse(tool_calls=(ToolCall(id=f"call_{number}", name="act", args={"step": number}),))


async def work_slowly(state: AgentState) -> InferenceResponse:
    """The same with a model that takes its time."""
    await asyncio.sleep(MODEL_SECONDS)
    return work(state)


def act(step: int) -> str:
    return f"step {step} is done"


def delegate(state: AgentState) -> InferenceResponse:
    """Start all children in the first step; say in the second one when the model was asked."""
    if state.step_count:
        return InferenceResponse(content=str(time.time()))
    calls = tuple(ToolCall(id=f"call_{n}", name="delegate", args={"prompt": f"part {n}"}) for n in range(CHILDREN))
    return InferenceResponse(tool_calls=calls)


def call_as_many(state: AgentState) -> InferenceResponse:
    """As many calls in each step as a parent has children; say when the model was asked."""
    if state.step_count >= STEPS:
        return InferenceResponse(content=str(time.time()))
    calls = tuple(ToolCall(id=f"call_{n}", name="act", args={"step": n}) for n in range(CHILDREN))
    return InferenceResponse(content=str(time.time()), tool_calls=calls)


def delegate_once(state: AgentState) -> InferenceResponse:
    """Start one child that asks a person."""
    if state.step_count:
        return InferenceResponse(content="done")
    return InferenceResponse(tool_calls=(ToolCall(id="call_1", name="ask", args={"prompt": "Do it."}),))


child = Agent("child", driver=FunctionDriver(work), tools=[tool(effect="pure", description="Act.")(act)])
slow_child = Agent(
    "slow_child", driver=FunctionDriver(work_slowly), tools=[tool(effect="pure", description="Act.")(act)]
)
few_slow = Agent("few_slow", driver=FunctionDriver(delegate), tools=[AgentTool("slow_child", name="delegate")])
caller = Agent("caller", driver=FunctionDriver(call_as_many), tools=[tool(effect="pure", description="Act.")(act)])
few_at_a_time = Agent("few_at_a_time", driver=FunctionDriver(delegate), tools=[AgentTool("child", name="delegate")])
together = Agent(
    "together", driver=FunctionDriver(delegate), tools=[AgentTool("child", name="delegate")], max_children=CHILDREN
)
parent_of_one = Agent("parent_of_one", driver=FunctionDriver(delegate_once), tools=[AgentTool("asking", name="ask")])
