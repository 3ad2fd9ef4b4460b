"""An agent that writes 50 pieces a second for as long as its message says; each piece holds the time of its emit."""

from __future__ import annotations

import asyncio
import time

from celery_agents import Agent
from celery_agents.worker.drivers import Delta, FunctionDriver, InferenceRequest
from celery_agents.worker.state import AgentState, InferenceResponse

PIECES_A_SECOND = 50


class Writer(FunctionDriver):
    """Writes at its pace, whether somebody follows or not."""

    def __init__(self) -> None:
        super().__init__(self._never)
        self.is_async = True

    async def infer(self, request: InferenceRequest) -> bytes:
        seconds = float(request.messages[-1].content)
        begun = asyncio.get_running_loop().time()
        pieces: list[str] = []
        for number in range(int(seconds * PIECES_A_SECOND)):
            piece = f"{time.time():.6f} "
            pieces.append(piece)
            if request.emit is not None:
                request.emit(Delta(piece))
            left = begun + (number + 1) / PIECES_A_SECOND - asyncio.get_running_loop().time()
            await asyncio.sleep(max(0.0, left))
        return InferenceResponse(content="".join(pieces)).to_json()

    @staticmethod
    def _never(state: AgentState) -> str:
        raise AssertionError(f"the driver answers by itself, not from {state}")


writer = Agent("writer", driver=Writer())
