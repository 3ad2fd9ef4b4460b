"""An agent whose tools are those of an MCP server. It asks before it deletes.

    pip install 'celery-agents[mcp,embedded]'
    celery-agents up --agents notes_agents
    celery-agents submit notes "write milk; write bread; delete milk; list" --wait
    celery-agents requests

No model is needed: the agent does what the message says, one thing in each step. With a model, replace `driver=` by
`model="openai:gpt-5-mini"`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from celery_agents import Agent, AgentState, Approvals, CallTool, MCPServer, Role, Rule

SERVER = Path(__file__).with_name("notes_server.py")


def follow(state: AgentState) -> str | CallTool:
    """Do the next thing of the message; at the end, answer with the last result."""
    assert state.execution is not None
    messages = [message for message in state.messages if message.role is Role.USER]
    wishes = [wish.strip() for wish in (messages[-1].content or "").split(";")]
    if state.execution.step_count < len(wishes):
        verb, _, text = wishes[state.execution.step_count].partition(" ")
        return CallTool(f"notes_{verb}", text=text) if text else CallTool(f"notes_{verb}")
    return state.steps[-1].tool_executions[0].as_message()


notes = Agent(
    "notes",
    driver=follow,
    mcp=[
        MCPServer(
            command=[sys.executable, str(SERVER)],
            name="notes",
            env={"NOTES": os.environ.get("NOTES", "notes.json")},
            trust="annotations",
        )
    ],
    capabilities=[Approvals([Rule(destructive=True)])],
)
