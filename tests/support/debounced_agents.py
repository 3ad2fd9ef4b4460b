"""An agent that answers with the messages of the execution, after a moment."""

from __future__ import annotations

import os
import time

from celery_agents import Agent
from celery_agents.worker.state import AgentState

SECONDS = float(os.environ.get("TEST_PUSH_SECONDS", "0"))


def think(state: AgentState) -> str:
    """Give all that users have said."""
    time.sleep(SECONDS)
    return "read: " + " | ".join(each.content for each in state.messages if each.role == "user")


push = Agent("push", driver=think)
