"""An agent whose answers kill the process that reads one of them for the first time.

Every driver call is written into the ledger first, as `support.agents` does it.
"""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path
from typing import Final

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool, FunctionDriver
from celery_agents.worker.state import AgentState, InferenceResponse
from celery_agents.worker.tools import tool

from .agents import driver_key
from .ledger import LEDGER_URL, post_effect

STEPS: Final = 2
# The environment variable that names the folder where it notes which answers have been read.
READ: Final = "TEST_ANSWERS_READ"


class _Deadly(FunctionDriver):
    def parse(self, raw: bytes) -> InferenceResponse:
        noted = Path(os.environ[READ]) / hashlib.sha256(raw).hexdigest()
        if not noted.exists():
            noted.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().parse(raw)


async def _answer(state: AgentState) -> str | CallTool:
    assert state.execution is not None
    step = state.execution.step_count + 1
    post_effect(os.environ[LEDGER_URL], driver_key(state.execution.execution_id, step), kind="driver")
    return CallTool("look", number=step) if step < STEPS else "done"


@tool(effect="pure")
def look(number: int) -> int:
    """Look at a number."""
    return number


deadly = Agent("deadly", driver=_Deadly(_answer), tools=[look])
