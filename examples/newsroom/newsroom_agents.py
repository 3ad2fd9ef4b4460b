"""An editor that lets others work: two researchers side by side, a photographer who needs a licence, a proofreader.

    celery-agents up --agents newsroom_agents
    celery-agents submit editor "Write about the sea." --session edition-1
    celery-agents show edition-1 --tree
    celery-agents requests                                   (the photographer asks for money)
    celery-agents approve edition-1 --by publisher
    celery-agents watch edition-1 --tree

While they work, the editor waits without a worker. Each of them is a session of its own, so each survives the death of
its worker; the editor's budget holds for all of them. What the photographer asks is answered at the editor's session.
"""

from __future__ import annotations

import json
import os
import urllib.request

from celery_agents import (
    Agent,
    AgentState,
    Approvals,
    Ask,
    ExecutionBudget,
    Hook,
    HookContext,
    HookPoint,
    Rule,
    Subagents,
    ToolCall,
    ToolContext,
    tool,
)
from celery_agents.worker.state.reducers import append_list

TOPICS = ("tides", "whales")
FOR_RESEARCH = ExecutionBudget(max_steps=4, max_cost=0.20)


@tool(effect="keyed", timeout=20)
def read_archive(ctx: ToolContext, topic: str) -> str:
    """Order an article of the archive, which costs a fee.

    Args:
        topic: A word.
    """
    post("ARCHIVE_URL", {"key": ctx.idempotency_key, "topic": topic}, ctx)
    return f"three articles about {topic}"


@tool(effect="keyed", timeout=20)
def buy_photo(ctx: ToolContext, subject: str, cents: int) -> str:
    """Buy the licence of a photo.

    Args:
        subject: What it shows.
        cents: The price.
    """
    post("LICENCES_URL", {"key": ctx.idempotency_key, "subject": subject, "cents": cents}, ctx)
    return f"a photo of {subject}"


def post(setting: str, body: dict[str, object], ctx: ToolContext) -> None:
    """Post JSON to the service whose address is in this environment variable; without one nothing is sent."""
    url = os.environ.get(setting)
    if url:
        data = json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=ctx.remaining_seconds()).close()


# What models would decide; in the place of `driver=` give `model="openai:gpt-5-mini"`.


def look_up(state: AgentState) -> str | ToolCall:
    """The researcher: one article, then what is in it."""
    if state.step_count == 0:
        return ToolCall(id="read", name="read_archive", args={"topic": asked(state)})
    return state.steps[-1].tool_executions[0].as_message()


def take_photo(state: AgentState) -> str | ToolCall:
    """The photographer: buy a photo, or do without."""
    if state.step_count == 0:
        return ToolCall(id="buy", name="buy_photo", args={"subject": asked(state), "cents": 4000})
    bought = state.steps[-1].tool_executions[0]
    return "no photo" if bought.has_error() else bought.as_message()


def edit(state: AgentState) -> str | list[ToolCall]:
    """The editor: research and photo at once, then the proofreader, then the article."""
    if state.step_count == 0:
        research = [ToolCall(id=topic, name="research", args={"prompt": topic}) for topic in TOPICS]
        return [*research, ToolCall(id="photo", name="photograph", args={"prompt": "the sea"})]
    if state.step_count == 1:
        draft = "; ".join(each.as_message() for each in state.steps[0].tool_executions)
        return [ToolCall(id="proof", name="spawn_subagent", args={"subagent": "proofreader", "prompt": draft})]
    return state.steps[-1].tool_executions[0].as_message()


def proofread(state: AgentState) -> str:
    """The proofreader: the draft, corrected."""
    return f"{asked(state).capitalize()}."


def note_topic(context: HookContext) -> HookContext:
    """Keep what was researched in the metadata, which the editor merges."""
    return context.changed(state=context.state.with_metadata("topics", [asked(context.state)]))


def asked(state: AgentState) -> str:
    """The last message of the user, or of the agent above."""
    return next(message.content for message in reversed(state.messages) if message.role == "user")


researcher = Agent(
    "researcher",
    driver=look_up,
    description="Finds sources in the archive.",
    tools=[read_archive],
    hooks=[Hook(HookPoint.AFTER_STEP, note_topic)],
)
photographer = Agent(
    "photographer",
    driver=take_photo,
    description="Finds a photo.",
    tools=[buy_photo],
    capabilities=[Approvals([Rule("buy_photo", then=Ask(to="publisher", text="A licence costs money."))])],
)
proofreader = Agent("proofreader", driver=proofread, description="Corrects a text.")
editor = Agent(
    "editor",
    driver=edit,
    budget=ExecutionBudget(max_steps=20, max_cost=1.0),
    tools=[
        researcher.as_tool("research", budget=FOR_RESEARCH, merge={"topics": append_list}),
        photographer.as_tool("photograph", on_failure="tell"),
    ],
    capabilities=[Subagents([proofreader], max_depth=2)],
)
