"""Sessions as clients and operators read them: listings, results, the step that is due, and callbacks at an end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, TypeVar

from ..errors import StateUnreadable
from ..state.agent_state import AgentState
from ..state.execution.execution import ExecutionState
from ..state.execution.inference import FinishReason
from ..state.execution.requests import Request
from ..state.execution.signals import StopReason
from ..state.execution.status import ExecutionStatus
from .database import Word
from .history_losses import HistoryLoss
from .labels import NO_LABELS
from .records import Hold


class SessionState(StrEnum):
    """The status of a session in a listing: that of its execution, or why it has none that can run.

    Attributes:
        IDLE: It has no execution.
        PARKED: No worker can carry it on; `retry` puts it back when the cause is gone.
        UNREADABLE: Its stored data are damaged.
    """

    IDLE = "idle"
    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    WAITING = "waiting"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"
    PARKED = "parked"
    UNREADABLE = "unreadable"


ACTIVE: Final = "active"
"""The status of a session that no action has changed."""
SUSPENDED: Final = "suspended"
SESSION_STATUS: Final = "session_status"
FORKED_FROM: Final = "forked_from"
DEFINITION: Final = "session_definition"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A session in full, as clients and the session runtime have it.

    Attributes:
        status: Of the session over all its executions.
        definition: The plain-data form of its agent, as JSON; empty for a session that a client has submitted.
        forked_from: The session that it is a fork of; "" for any other.
        labels: By which it is found; a save leaves them as they are.
        version: 0 before it is stored.
        created_ms, updated_ms: Redis time; 0 before it is stored.
    """

    agent: str
    state: AgentState
    status: str = ACTIVE
    definition: bytes = b""
    forked_from: str = ""
    labels: Mapping[str, str] = NO_LABELS
    version: int = 0
    created_ms: int = 0
    updated_ms: int = 0

    def words(self) -> list[Word]:
        """The fields of the session's hash, and their values."""
        words: list[Word] = [SESSION_STATUS, self.status, DEFINITION, self.definition]
        return [*words, FORKED_FROM, self.forked_from] if self.forked_from else words


WholeSession = StoredSession
"""The name of `StoredSession` in earlier versions."""


@dataclass(frozen=True, slots=True)
class Header:
    """The facts of a session that a listing shows without loading it.

    Attributes:
        problem: Why the session cannot be read; None when it can.
        unoffered_since_ms: Since when the session waits for a worker that offers its agent (Redis ms); 0: it does not.
        not_before_ms: Nothing of it begins before this Redis time: a later start, a delay, or the next expiry of a
            session that waits; 0: at once.
        hold: Its hold; None: it is not suspended.
        session_status: The status of the session over all its executions: active, suspended, completed, failed or
            deleted. Only actions and controllers change it.
        forked_from: The session that it is a fork of; "" for any other.
        history_lost: The end of its history that Redis has lost, as it was found last; None: nothing is known to be.
        labels: By which it is found; see `AgentClient.label`.
        confirmed: Whether replicas are known to have how its execution has ended. None: it has not, or none have to.
        is_archived: It is in the archive, and not in Redis.
    """

    session_id: str
    agent: str
    status: SessionState | str
    execution_id: str = ""
    step: int = 0
    version: int = 0
    created_ms: int = 0
    updated_ms: int = 0
    problem: str | None = None
    unoffered_since_ms: int = 0
    not_before_ms: int = 0
    hold: Hold | None = None
    session_status: str = "active"
    forked_from: str = ""
    history_lost: HistoryLoss | None = None
    labels: Mapping[str, str] = NO_LABELS
    confirmed: bool | None = None
    is_archived: bool = field(default=False, compare=False)  # where a session is changes nothing of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How an execution ended.

    Attributes:
        status: completed, stopped or failed.
        final_response: The answer; "" when there is none.
        output: The answer as JSON, where the agent has an output type; None otherwise.
        stop_reason: Why it ended, such as completed, steps_limit or user_requested; None when nothing is recorded.
        stop_message: What the stop signal said; "" when there was none.
        usage: Tokens by kind.
        cost: US dollars; None when the price is not known.
        errors: Texts, redacted; those it recovered from too.
        operation_id: The submit or message that started the execution.
        retries: How often the execution was retried before it ended this way.
        finish_reason: Why the model ended its last answer: stop, length, tool_calls, content_filter, error or other;
            length means that the answer is cut off. None without an answer, and for results of older versions.
    """

    session_id: str
    execution_id: str
    status: ExecutionStatus
    final_response: str
    output: Any
    stop_reason: StopReason | None
    stop_message: str
    usage: Mapping[str, int]
    cost: float | None
    step_count: int
    errors: tuple[str, ...]
    operation_id: str | None = None
    retries: int = 0
    finish_reason: FinishReason | None = None

    @classmethod
    def of(cls, session_id: str, state: AgentState, execution: ExecutionState) -> Result:
        """Describe how an execution of the session has ended."""
        signal, last = execution.stop_signal, state.last_step
        return cls(
            session_id=session_id,
            execution_id=execution.execution_id,
            status=execution.status,
            final_response=state.final_response,
            output=last.inference_response.output if last is not None else None,
            stop_reason=execution.final_reason(),
            stop_message=signal.message if signal else "",
            usage=execution.usage.to_dict(),
            cost=execution.cost,
            step_count=execution.step_count,
            errors=tuple(error.message for error in state.errors),
            operation_id=execution.operation_id,
            retries=execution.retries,
            finish_reason=last.inference_response.finish_reason if last is not None else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values, in the order of their declaration."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return values | {"usage": dict(self.usage), "errors": list(self.errors)}

    def to_stored(self) -> dict[str, Any]:
        """The fields without the session's id, which is in the key."""
        return {name: value for name, value in self.to_dict().items() if name != "session_id"}

    @classmethod
    def from_dict(cls, session_id: str, data: Mapping[str, Any]) -> Result:
        """Read the fields as the store keeps them, without the id of the session that they are stored with.

        Raises:
            StateUnreadable: The fields are not those of a result.
        """
        try:
            known = {each.name for each in fields(cls)}
            values: dict[str, Any] = {name: value for name, value in data.items() if name in known}
            values |= {"session_id": session_id, "errors": tuple(data["errors"])}
            values["status"] = ExecutionStatus(data["status"])
            values["stop_reason"] = _read_reason(StopReason, data["stop_reason"], StopReason.UNKNOWN)
            values["finish_reason"] = _read_reason(FinishReason, data.get("finish_reason"), FinishReason.OTHER)
            return cls(**values)
        except (KeyError, TypeError, ValueError):
            raise StateUnreadable("the record of an execution", "its fields are not those of a record") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """The facts of a session that a listing shows besides its header.

    Attributes:
        first_message: The beginning of the first message that it has now; "" without one.
        steps: Steps of its execution that are done.
        tokens: Tokens of all kinds that its execution has used; None where they cannot be read.
        cost: US dollars of its execution; None when the price is not known.
    """

    first_message: str
    steps: int
    cost: float | None
    tokens: int | None = None


_Reason = TypeVar("_Reason", bound=StrEnum)


def _read_reason(kind: type[_Reason], name: str | None, otherwise: _Reason) -> _Reason | None:
    """Read the name of a reason; a newer version may have written one that is not known here."""
    if not name:
        return None
    return kind(name) if name in tuple(kind) else otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedStep:
    """A delayed step.

    Attributes:
        reason: Why, for people; redacted.
        next_try_ms: When it is tried again (Redis ms).
        delays: How often it was delayed since it obtained something last.
        put_off: The bucket's digest or the `Pause.field` by which it is put off; "" when it is not.
    """

    session_id: str
    step: int
    reason: str
    next_try_ms: int
    delays: int
    put_off: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """Facts of the step that a session waits for, at one moment.

    Attributes:
        phase: "run", "wait", "end" or "parked".
        claimed: Whether a worker has claimed the step.
        worker: The worker that has claimed it; "" when none has.
        lease_ms: How long its lease still lives; None when it has ended.
        attempts: How often the step was claimed.
        delays: How often it was delayed.
        not_before_ms: When it may be claimed at the earliest (Redis ms); 0 when at once.
        due_ms: When the sweep looks at it (Redis ms); None when no worker has to look at it.
        reason: Why it was delayed last; "" when it was not.
        now_ms: Redis's time.
        is_stopping: The execution was asked to stop.
        put_off: The bucket's digest or the `Pause.field` by which it is put off until then; "" when it is not.
    """

    execution_id: str
    step: int
    phase: str
    claimed: bool
    worker: str
    lease_ms: int | None
    attempts: int
    delays: int
    not_before_ms: int
    due_ms: int | None
    reason: str
    now_ms: int
    is_stopping: bool
    put_off: str = ""


REQUEST_TASK: Final = "request_task"
REQUEST_WEBHOOK: Final = "request_webhook"
REQUEST_KINDS: Final = (REQUEST_TASK, REQUEST_WEBHOOK)
"""The kinds of callbacks that are made for a request; the others are made at the end of an execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """A callback to be made, to tell how an execution ended or what it waits for.

    Attributes:
        kind: "task" or "webhook" for an end, "request_task" or "request_webhook" for a request.
        target: The task, or the webhook's URL, as given at submit.
        about: The result of the execution that ended, or the open request.
        attempts: How often it failed before.
        note: Its entry of the outbox.
    """

    kind: str
    target: Any
    about: Result | Request
    attempts: int
    note: str

    @property
    def session_id(self) -> str:
        """Session of the execution."""
        return self.about.session_id

    @property
    def execution_id(self) -> str:
        """Execution that ended or waits."""
        return self.about.execution_id

    @property
    def step(self) -> int:
        """Last step of the execution, or the step that asks."""
        return self.about.step if isinstance(self.about, Request) else self.about.step_count
