"""The statuses of an execution, and the transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class ExecutionStatus(StrEnum):
    """The status of an execution."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    WAITING = "waiting"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"

    def is_terminal(self) -> bool:
        """It has ended; a stopped or failed one can still be retried."""
        return self in (ExecutionStatus.COMPLETED, ExecutionStatus.STOPPED, ExecutionStatus.FAILED)

    def may_become(self, after: ExecutionStatus) -> bool:
        """Tell whether `TRANSITIONS` allows the change to that status."""
        return after in TRANSITIONS[self]


_S = ExecutionStatus
TRANSITIONS: Mapping[ExecutionStatus, frozenset[ExecutionStatus]] = MappingProxyType(
    {
        _S.PENDING: frozenset({_S.IN_PROGRESS, _S.STOPPED, _S.FAILED}),
        _S.IN_PROGRESS: frozenset({_S.WAITING, _S.COMPLETED, _S.STOPPED, _S.FAILED}),
        _S.WAITING: frozenset({_S.IN_PROGRESS, _S.STOPPED, _S.FAILED}),
        _S.COMPLETED: frozenset(),
        _S.STOPPED: frozenset({_S.IN_PROGRESS}),
        _S.FAILED: frozenset({_S.IN_PROGRESS}),
    }
)
"""Every allowed change of status. Stopped and failed become in progress by a retry only."""

ADVICE: Mapping[ExecutionStatus, str] = MappingProxyType(
    {
        ExecutionStatus.COMPLETED: "It is done; send another message to start the next one.",
        ExecutionStatus.STOPPED: "Retry it to carry it on.",
        ExecutionStatus.FAILED: "Retry it to carry it on.",
        ExecutionStatus.PENDING: "It has not started.",
    }
)
"""Advice for an execution of this status that refuses a change."""
