"""The outcomes of running a step: a closed set that the Celery task only translates."""

from __future__ import annotations

from dataclasses import dataclass

from ..state.agent_state import AgentState
from ..state.execution.requests import Request
from ..state.execution.status import ExecutionStatus
from ..store.records import NotClaimedReason, StepRef


@dataclass(frozen=True, slots=True)
class Done:
    """The step was committed.

    Attributes:
        publish: The next step, where its message did not go out with the commit.
        next: The next step, published or not; None when none is due.
        status: The status of the execution that this step belongs to.
        error: Why the execution failed, redacted; "" when it has not.
        summary: A line about the step, for people.
    """

    ref: StepRef
    publish: StepRef | None
    next: StepRef | None
    status: ExecutionStatus
    summary: str
    error: str = ""
    state: AgentState | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """The step waits for answers from outside; it holds no claim, no lease and no message meanwhile.

    Attributes:
        requests: The requests that it waits for.
        until_ms: Redis time at which a worker looks at it again, at the latest.
        summary: A line about what it waits for, for people.
        publish: Steps of children, where their messages did not go out with the wait.
    """

    ref: StepRef
    requests: tuple[Request, ...]
    until_ms: int
    summary: str
    publish: tuple[StepRef, ...] = ()


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """The delivery was stale, early, doubled or forged; nothing was changed."""

    ref: StepRef
    reason: NotClaimedReason


@dataclass(frozen=True, slots=True)
class RetryLater:
    """The step was given back, to be tried again after `seconds`."""

    ref: StepRef
    seconds: float
    reason: str
    publish: StepRef | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """The step was moved to a queue of a worker that offers its agent; this one does not.

    Attributes:
        queue: Name of that queue.
        publish: The step, where its message did not go out with the move.
    """

    ref: StepRef
    queue: str
    publish: StepRef | None = None


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Another worker has the step now; what this one obtained is in the journal."""

    ref: StepRef


@dataclass(frozen=True, slots=True)
class Parked:
    """The session cannot be carried on by any worker; it was taken out of the due index, with this reason."""

    ref: StepRef
    reason: str


Outcome = Done | Waiting | NothingToDo | RetryLater | Moved | TakenOver | Parked
