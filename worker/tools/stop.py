"""A tool that ends the execution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..state import FrozenDict, StopReason, StopSignal


class StopExecution(Exception):
    """Raised by a tool to end the execution after this step. What the step has done until then is kept.

    Attributes:
        signal: The stop signal that the execution gets; its source is set to the tool's name by the engine.
        result: What the call itself returns, recorded and shown as any other result.
    """

    def __init__(
        self,
        message: str = "",
        *,
        result: Any = None,
        reason: StopReason = StopReason.STOP_REQUESTED,
        context: Mapping[str, Any] | None = None,
    ) -> None:
        """Ask for the end.

        Args:
            message: Why, for a person.
            result: What the call returns.
            reason: Why, from the closed set. Completed ends it as a success, anything else as stopped.
            context: More, as JSON.
        """
        super().__init__(message or "the tool asked to stop")
        self.signal = StopSignal(reason=StopReason(reason), message=message, context=FrozenDict(context or {}))
        self.result = result
