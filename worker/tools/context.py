"""The context that a running tool call receives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..errors import ModelCallRefused
from ..state import InferenceResponse


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Handed to a tool that has a parameter annotated `ToolContext`; the model does not see that parameter.

    Attributes:
        session_id: The session the call belongs to.
        execution_id: The execution the call belongs to.
        step: Number of the step, from 1.
        index: Position of the call among the calls of its step, from 0.
        idempotency_key: The same for every attempt at this call, different for every other call. Hand it to a service
            that deduplicates.
        deadline: When the call must have ended, with timezone. An async tool is cancelled then; a plain function looks.
        cancelled: True once nobody wants the result any more: a stop, the deadline, or a lost lease.
        ask: Makes auxiliary model calls; None outside of a worker. Call `ask_model` or `ask_model_sync`.
    """

    session_id: str
    execution_id: str
    step: int
    index: int
    idempotency_key: str
    deadline: datetime
    cancelled: Callable[[], bool] = _never
    ask: Callable[[str, Any], InferenceResponse] | None = None

    async def ask_model(self, key: str, request: Any) -> InferenceResponse:
        """Ask the agent's model from an async tool; see `ask_model_sync`."""
        return await asyncio.to_thread(self.ask_model_sync, key, request)

    def ask_model_sync(self, key: str, request: Any) -> InferenceResponse:
        """Ask the agent's model from a plain tool, and wait for the answer.

        The answer is journaled under the key, which belongs to this call, before it is returned: when the call runs
        again, the same answer comes back and nothing is paid. It is charged to the execution.

        Args:
            request: A text, or an `AuxiliaryRequest`.
        Raises:
            ModelCallRefused: A limit is reached, the execution is being stopped, or the claim is gone.
            DriverError: There is no answer.
        """
        if self.ask is None:
            raise ModelCallRefused("this context belongs to no worker")
        return self.ask(key, request)

    def remaining_seconds(self) -> float:
        """Seconds until the deadline, never below 0; made for the timeout of an HTTP client."""
        return max(0.0, (self.deadline - datetime.now(UTC)).total_seconds())
