"""The exceptions that end an execution: by code of users, and by a tool whose error is one of the execution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

from ..redaction import redact
from ..state.execution.signals import StopReason, StopSignal
from ..state.values.error_info import ErrorInfo
from ..state.values.frozen import FrozenDict
from .results import to_json_value

# The most that is kept of a stop.
_MESSAGE_CHARS: Final = 4_000
_CONTEXT_CHARS: Final = 4_000
_NAME_CHARS: Final = 64


FAILS_EXECUTION: Final = "fails_execution"
"""The detail of a call's error that fails the execution, also where another worker reads it in the journal."""


class FailExecution(Exception):
    """Fails the execution with a tool call: the call is an error, and no other call of the answer begins.

    Attributes:
        error: Of the call and of the execution; its details have `FAILS_EXECUTION`.
    """

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__(error.message)
        self.error = error


class StopExecution(Exception):
    """Ends the execution with this step, wherever a tool, a hook, a guard or a driver raises it.

    Everything obtained until then is kept. Where it is raised before the model call, no call is made.

    Attributes:
        signal: The stop signal that the execution gets; the engine names its source.
        result: What a tool call itself returns, recorded and shown as any other result; elsewhere without meaning.
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
            result: What a tool call returns.
            reason: Why, from the closed set. Completed ends it as a success, anything else as stopped.
            context: More, as JSON.
        """
        super().__init__(message or "the execution was asked to stop")
        self.signal = StopSignal(reason=StopReason(reason), message=message, context=FrozenDict(context or {}))
        self.result = result

    @classmethod
    def of(cls, signal: StopSignal) -> Self:
        """The exception with a signal that another one had."""
        stop = cls(signal.message)
        stop.signal = signal
        return stop

    def signal_from(self, source: str) -> StopSignal:
        """The signal, redacted and cut, with the name of the tool, hook, guard or driver that raised it."""
        signal = self.signal
        context = to_json_value(dict(signal.context), _CONTEXT_CHARS)
        return StopSignal(
            reason=signal.reason,
            message=redact(signal.message)[:_MESSAGE_CHARS],
            context=FrozenDict(context if isinstance(context, dict) else {"beginning": context}),  # pyright: ignore[reportUnknownArgumentType]
            source=(signal.source or source)[:_NAME_CHARS],
        )
