"""Agents whose calls are worked on by further agents; the message is the plan, and so is each prompt.

    from support.agents import call, plan
    client.submit("node", plan([delegate(plan([call("keyed", work="a")]))]))

Every effect and every model call is written into the ledger, as those of `support.agents` are.
"""

from __future__ import annotations

import os
import random
from datetime import timedelta
from typing import Any

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities.approvals import Approvals, Rule
from celery_agents.worker.capabilities.subagents import Subagent, Subagents
from celery_agents.worker.drivers import FunctionDriver, InferenceRequest
from celery_agents.worker.state import AgentState, InferenceResponse, InferenceUsage, ToolCall
from celery_agents.worker.tools import AgentTool, Ask, ToolContext, tool

from .agents import _follow, call, driver_key, keyed, pure, unsafe
from .ledger import LEDGER_URL, post_effect
from .waiting_agents import approved_unsafe


def delegate(prompt: str, name: str = "delegate") -> dict[str, Any]:
    """A call in a plan that another agent works on, by its own plan."""
    return call(name, prompt=prompt)


@tool(effect="keyed")
def survey(ctx: ToolContext, prompts: list[str]) -> str:
    """Start a child for each prompt, and join what they answer."""
    ends = ctx.spawn("node", prompts)
    return " + ".join(end.response for end in ends)


_EFFECTS = (pure, keyed, unsafe, approved_unsafe, survey)
_DELEGATING = (
    AgentTool("node", name="delegate"),
    AgentTool("node", name="race", join="first"),
    AgentTool("node", name="fail_fast", on_failure="fail_fast"),
    AgentTool("node", name="hurry", expires=timedelta(seconds=3)),
    AgentTool("elsewhere", name="delegate_elsewhere"),
    AgentTool("nowhere", name="delegate_nowhere", expires=timedelta(seconds=3)),
)

node = Agent("node", driver=_follow, tools=(*_EFFECTS, *_DELEGATING))
wide = Agent("wide", driver=_follow, tools=(*_EFFECTS, *_DELEGATING), max_children=64)
elsewhere = Agent("elsewhere", driver=_follow, tools=_EFFECTS, queue="other")
careful = Agent(
    "careful",
    driver=_follow,
    tools=_EFFECTS,
    capabilities=[Approvals([Rule("unsafe", then=Ask(to="operators"))]), Subagents([Subagent("assistant")])],
)


# --- trees that spend money -----------------------------------------------------------------------------------------

DEEPEST = 3
MOST_PER_CALL = 0.02


@tool(effect="pure")
def weigh(level: int) -> str:
    """Have no effect."""
    return f"weighed at level {level}"


def _spend(state: AgentState) -> InferenceResponse:
    """Pay for an answer; first start three children, unless they would be too deep, then weigh a few times."""
    assert state.execution is not None
    execution_id, step = state.execution.execution_id, state.execution.step_count + 1
    level = next(int(each.content.split()[1]) for each in state.messages if each.content.startswith("level"))
    chance = random.Random(f"{execution_id}:{step}")
    cost = round(chance.uniform(0.2, 1.0) * MOST_PER_CALL, 4)
    post_effect(os.environ[LEDGER_URL], driver_key(execution_id, step), kind="driver", cost=cost)
    names, count = ("spend", 3) if step == 1 and level < DEEPEST else ("weigh", 1)
    calls = () if step > 3 + chance.randrange(4) else tuple(
        ToolCall(id=f"{step}-{n}", name=names, args={"prompt": f"level {level + 1}"} if count > 1 else {"level": level})
        for n in range(count)
    )  # fmt: skip
    return InferenceResponse(content=f"level {level}, step {step}", tool_calls=calls, cost=cost)


# Two at once: the third is made when one of them has ended, and has used more than its share.
spender = Agent("spender", driver=_spend, tools=(weigh, AgentTool("spender", name="spend")), max_children=2)


class _Adviser(FunctionDriver):
    """Pays for its answers with one model, and beside its steps with another; starts a spender in its first step."""

    def infer(self, request: InferenceRequest) -> bytes:
        key = driver_key(request.execution_id, request.step) + request.purpose
        post_effect(os.environ[LEDGER_URL], key, kind="driver", cost=0.03 if request.purpose else 0.01)
        if request.purpose:
            usage = InferenceUsage(input=7, reasoning=2)
            return InferenceResponse(content="little", usage=usage, cost=0.03, model="second").to_json()
        asked = ("advise", {}), ("spend", {"prompt": "level 2"})
        calls = [ToolCall(id=name, name=name, args=args) for name, args in asked if request.step == 1]
        usage, model = InferenceUsage(input=100, output=10), f"model-{request.step}"
        return InferenceResponse(tool_calls=tuple(calls), usage=usage, cost=0.01, model=model).to_json()


@tool(effect="pure")
def advise(ctx: ToolContext) -> str:
    """Ask the model beside the step."""
    return ctx.ask_model_sync("advice", "how much?").content


adviser = Agent("adviser", driver=_Adviser(lambda _: ""), tools=(advise, AgentTool("spender", name="spend")))
