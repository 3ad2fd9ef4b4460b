"""The values that the store takes and gives: small, frozen, and with closed sets of answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Literal, TypeVar

from ..errors import StateUnreadable
from ..state import AgentState, ExecutionStatus, FinishReason, Request, StopReason
from ..unique import unique_hex
from .cache import CachedSession
from .journal import Journal

LAST_STEP: Final = 2**31
"""Steps are numbered below this; no message of a further step is taken."""


@dataclass(frozen=True, slots=True)
class StepRef:
    """A reference to a step, as a step message holds it: this step may be due.

    Attributes:
        retries: How often the execution was retried; part of the task's id only.
        queue: Name of the queue that its message is for, or came from; "" is the common one.
        legs: How often the step has waited; part of the task's id only.
        root_task, parent_task: Celery task ids in the message of a child's step: of the task at the root of its tree,
            and of the task that made it. "": they follow from the execution.
    """

    session_id: str
    execution_id: str
    step: int
    retries: int = 0
    legs: int = 0
    queue: str = ""
    root_task: str = field(default="", compare=False)
    parent_task: str = field(default="", compare=False)

    @property
    def has_parent_task(self) -> bool:
        """Whether the step's message names a task before it: the step before, or the one that made the child."""
        return self.step > 1 or bool(self.parent_task)

    @property
    def task_id(self) -> str:
        """Id of the step's Celery task: the same for every delivery, another one after a retry and for each leg."""
        retried = f".r{self.retries}" if self.retries else ""
        waited = f".w{self.legs}" if self.legs else ""
        return f"{self.execution_id}.{self.step}{retried}{waited}"


@dataclass(frozen=True, slots=True)
class Claim:
    """One worker's right to run a step, as long as its lease lives.

    Attributes:
        id: Fresh for every attempt, kept when a lost reply makes the worker ask again.
        attempt: 1 for the first claim of the step.
        now_ms: Redis time of the claim.
    """

    id: str
    worker: str
    ref: StepRef
    attempt: int
    now_ms: int


def new_claim_id() -> str:
    """A fresh claim id."""
    return unique_hex()


@dataclass(frozen=True, slots=True)
class Hold:
    """A session that is held: nothing of it begins until somebody resumes it.

    Attributes:
        until_ms: Redis time at which the hold ends by itself, and the execution with it.
        by: Who suspended it.
        since_ms: Redis time at which it was suspended.
    """

    until_ms: int
    by: str
    reason: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class LoadedSession:
    """A session as it stood at one version, with what its current step has obtained.

    Attributes:
        session: The session itself, which the worker holds until the step has ended.
        cancel: The execution, when somebody asked it to stop.
        delays: How often the step was delayed; `delayed_since_ms` says since when (Redis ms, 0 never).
        started_ms: Redis time at which the execution was claimed first.
        legs: How often this step has waited; 0 for a step that asked nobody.
        hold: The hold of the session. A claim gets one only when its time is over, or under a stop: nothing begins.
        watched_ms: Redis time until which somebody follows the session's live text; 0: nobody does.
    """

    session: CachedSession
    journal: Journal
    cancel: str | None
    attempts: int
    delays: int
    delayed_since_ms: int
    started_ms: int
    now_ms: int
    legs: int = 0
    hold: Hold | None = None
    watched_ms: int = 0

    @property
    def state(self) -> AgentState:
        """The session's state."""
        return self.session.state

    @property
    def version(self) -> int:
        """The version that the session stood at."""
        return self.session.version

    @property
    def agent(self) -> str:
        """The name of the session's agent."""
        return self.session.agent


class NotClaimedReason(StrEnum):
    """Why a step could not be claimed.

    Attributes:
        MISSING: The session does not exist or has expired.
        STALE: The session is at a later step or at another execution.
        AHEAD: The session is at an earlier step: Redis lost a commit, or the message is forged.
        BUSY: A lease is alive, the session changed at each try, or the step is left to another worker.
        ENDED: The execution has ended.
        WAITING: The execution waits for the answer of a person or a child.
        HELD: Somebody suspended the session.
        NOT_YET: The step was delayed, and the delay has not passed.
        RESTARTED: Redis started less than one lease ago, and the worker of the stored claim may still be alive.
    """

    MISSING = "missing"
    STALE = "stale"
    AHEAD = "ahead"
    BUSY = "busy"
    ENDED = "ended"
    WAITING = "waiting"
    HELD = "held"
    NOT_YET = "not_yet"
    RESTARTED = "restarted"


@dataclass(frozen=True, slots=True)
class Claimed:
    """The step belongs to this worker now.

    Attributes:
        waiting: Messages in the queue at the time of the claim; None: not known.
    """

    claim: Claim
    loaded: LoadedSession
    waiting: int | None = None


@dataclass(frozen=True, slots=True)
class Suspect:
    """The step ended its processes too often; claim it again when nothing else runs in this process."""

    attempts: int


@dataclass(frozen=True, slots=True)
class NotClaimed:
    """The step was not claimed, and nothing was changed."""

    reason: NotClaimedReason


ClaimResult = Claimed | Suspect | NotClaimed


class InboxKind(StrEnum):
    """The kinds of operations that may arrive while a step runs."""

    MESSAGE = "message"
    METADATA = "metadata"
    SYSTEM_PROMPT = "system_prompt"
    MODEL = "model"
    REVOKE_GRANT = "revoke_grant"


@dataclass(frozen=True, slots=True)
class Operation:
    """A change that somebody else makes to a session.

    Attributes:
        id: Made by the caller and the same when it is sent again, so that it is applied once.
        payload: JSON values of the change.
    """

    id: str
    kind: InboxKind
    payload: Mapping[str, Any]


class EventType(StrEnum):
    """The types of events. A newer version of this package may write others; a reader gets their names as plain text.

    Attributes:
        EXECUTION_SUBMITTED: A submit created the session with its first execution. `operation`: the submit's id.
        EXECUTION_STARTED: A worker claimed the first step.
        EXECUTION_COMPLETED: The execution has ended with an answer. `status`, `reason`, `steps`, `tokens`, `cost`,
            `error`; and `finish_reason` where the answer is cut short.
        EXECUTION_STOPPED: A stop, a limit, a guard, a hook or a tool ended the execution. Data as above.
        EXECUTION_FAILED: An error ended the execution; `error` says which. Data as above.
        MESSAGE_RECEIVED: A message arrived while a step was running, and waits in the inbox. `operation`, `queued`.
        MESSAGE_JOINED: The message became part of an execution. `operation`; `started`: it started this execution.
        MODEL_CALL_FAILED: A model call gave no usable answer, and is made again within the step. `kind`, `message`,
            `status`, `code` and `request_id` of the provider, `transient`, `next_try_ms`: Redis time of the next try.
        STEP_COMMITTED: A step was committed. `tools`: name and outcome of each call; `tokens`, `finish_reason`,
            `model`, `text`: the beginning of the answer.
        STEP_DELAYED: A step was put off: the provider is away, a guard delays it, or it cannot run here. `reason`,
            `next_try_ms`: Redis time of the next try, `delays`: how often it was put off.
        STEP_RESUMED: A worker claimed a step that had been put off. `delays`, `worker`.
        STEP_RECOVERED: A worker carries on a step whose worker was lost. `attempt`, `worker`.
        STEP_RETRIED: A client retried the execution, or put a parked session back. `retries`; `by` where somebody is
            named; `parked`.
        STOP_REQUESTED: Somebody asked for a stop. `by`.
        METADATA_REFUSED: Metadata that waited for a running step found no room. `operation`, `key`.
        WAITING_FOR_WORKER: No live worker offers the agent. `agent`.
        WORKER_FOUND: A worker that offers the agent has registered, and the session goes on. `agent`.
        PARKED: No worker can carry the session on. `reason`.
        REQUEST_OPENED: A step asks for an approval, an answer or a result. The fields of `RequestSummary`.
        REQUEST_ANSWERED: Somebody answered. `id`, `kind`, `tool`, `verb`, `status`, `by`, `after_ms`: its age.
        REQUEST_EXPIRED: Nobody answered in time; `verb` says what counts as the answer. Data as above.
        REQUEST_CANCELLED: The execution was stopped before anybody answered. Data as above.
        REQUEST_USED: The step that asked is committed with the answer. Data as above.
        EXECUTION_WAITING: The step waits for answers. `requests`: their ids; `until_ms`: Redis time of the next look.
        EXECUTION_RESUMED: A waiting step goes on, or a hold was ended. `cause`: answer, child, time, stop, resume or
            retry; `by` where somebody did it.
        CHILD_STARTED: A step has started a child. `session`, `agent`, `tool`, `depth`.
        CHILD_ENDED: A child has ended, and the step goes on. `session`, `tool`, `status`, `reason`, and what it and its
            own children used: `steps`, `tokens`, `cost`.
        AGENT_CHANGED: The execution was handed over to another agent. `agent`, `by`: the one before.
        EXECUTION_SUSPENDED: Somebody suspended the session. `reason`, `by`, `until_ms`: Redis time of the hold's end.
        SESSION_SAVED: The session runtime has created or saved the session. `version`, and its `status` over all
            executions.
        ATTEMPT_VOIDED: Live text of this step is void: its attempt was abandoned, or its model call failed. `attempt`;
            `call`: the call whose text is void, 0: all of the attempt; `keeps_answer`: the model's text stays valid.
        CAPABILITY: A capability reports what a step has changed, such as a plan. `type`: the kind of the report; its
            other data are the capability's.
    """

    EXECUTION_SUBMITTED = "execution_submitted"
    EXECUTION_STARTED = "execution_started"
    EXECUTION_COMPLETED = "execution_completed"
    EXECUTION_STOPPED = "execution_stopped"
    EXECUTION_FAILED = "execution_failed"
    MESSAGE_RECEIVED = "message_received"
    MESSAGE_JOINED = "message_joined"
    MODEL_CALL_FAILED = "model_call_failed"
    STEP_COMMITTED = "step_committed"
    STEP_DELAYED = "step_delayed"
    STEP_RESUMED = "step_resumed"
    STEP_RECOVERED = "step_recovered"
    STEP_RETRIED = "step_retried"
    STOP_REQUESTED = "stop_requested"
    METADATA_REFUSED = "metadata_refused"
    WAITING_FOR_WORKER = "waiting_for_worker"
    WORKER_FOUND = "worker_found"
    PARKED = "parked"
    REQUEST_OPENED = "request_opened"
    REQUEST_ANSWERED = "request_answered"
    REQUEST_EXPIRED = "request_expired"
    REQUEST_CANCELLED = "request_cancelled"
    REQUEST_USED = "request_used"
    EXECUTION_WAITING = "execution_waiting"
    EXECUTION_RESUMED = "execution_resumed"
    EXECUTION_SUSPENDED = "execution_suspended"
    CHILD_STARTED = "child_started"
    CHILD_ENDED = "child_ended"
    AGENT_CHANGED = "agent_changed"
    SESSION_SAVED = "session_saved"
    ATTEMPT_VOIDED = "attempt_voided"
    CAPABILITY = "capability"


class SessionState(StrEnum):
    """The status of a session in a listing: that of its execution, or why it has none that can run.

    Attributes:
        IDLE: It has no execution.
        PARKED: No worker can carry it on; `retry` puts it back when the cause is gone.
        UNREADABLE: What is stored of it is damaged.
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


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event for watchers, to be written in the transaction that makes it true."""

    type: str
    execution_id: str
    step: int
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a session, as watchers read it.

    Attributes:
        id: Position in the session's stream; give it back to resume after it.
        type: An `EventType`; plain text for one that this version does not know.
        at_ms: Redis time.
    """

    id: str
    type: EventType | str
    at_ms: int
    session_id: str
    execution_id: str
    step: int
    data: Mapping[str, Any]

    @property
    def at(self) -> datetime:
        """When it happened, by Redis's clock."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The session as stored now, from which a transition computes its next state.

    Attributes:
        inbox: Operations that arrived while the step ran and were not applied before.
        entries: Number of stored inbox entries these came from; exactly so many are trimmed.
        is_child: The session is a child: it has one execution.
    """

    state: AgentState
    inbox: tuple[Operation, ...]
    entries: int
    now_ms: int
    cancel: str | None
    is_child: bool = False


@dataclass(frozen=True, slots=True)
class NextState:
    """A session as a commit or an action makes it.

    Attributes:
        state: The session afterwards. What is due next follows from its execution's status.
        ended: The session at the end of the claimed execution, when `state` already holds the next execution.
        events: Written for watchers in the same transaction.
        operations: Ids of the operations applied.
        keep_journal: The step did not commit an answer and may be retried: its journal stays with the session.
        dead: Reason for an entry in the list of dead steps; None for none.
        definition: The agent's definition, as JSON, where it is stored with this save.
        notify: Callbacks to make when an execution ends, by the operation that starts it.
        agent: The name of the agent that goes on, and of its queue; None: the same one.
    """

    state: AgentState
    ended: AgentState | None = None
    events: tuple[NewEvent, ...] = ()
    operations: tuple[str, ...] = ()
    keep_journal: bool = False
    dead: str | None = None
    definition: bytes | None = None
    notify: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    agent: tuple[str, str] | None = None


Transition = Callable[[Snapshot], NextState]


@dataclass(frozen=True, slots=True)
class Committed:
    """A step that was committed.

    Attributes:
        state: The session afterwards; None when the commit had been applied before (`again`).
        next: The step that follows; None when the session needs none.
        is_published: The next message left with the commit; otherwise the caller has to publish it.
        again: This claim had committed before; the reply was lost.
        carried: The claim of the next step, when the commit kept the claim.
        woken: The step of the parent that the end of this child has woken, where the caller has to publish it.
    """

    version: int
    state: AgentState | None
    next: StepRef | None
    is_published: bool
    again: bool = False
    carried: Claimed | None = None
    woken: StepRef | None = None


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to a heartbeat for one claim; `watched_ms` as in `LoadedSession`."""

    alive: bool
    cancel: str | None
    watched_ms: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """The facts of a session that a listing shows without loading it.

    Attributes:
        problem: Why the session cannot be read; None when it can.
        unoffered_since_ms: Since when the session waits for a worker that offers its agent (Redis ms); 0: it does not.
        not_before_ms: Nothing of it begins before this Redis time: a later start, a delay, or the next expiry of a
            session that waits; 0: at once.
        hold: Who suspended it; None: nobody.
        session_status: The status of the session over all its executions: active, suspended, completed, failed or
            deleted. Only actions and controllers change it.
        forked_from: The session that it is a fork of; "" for any other.
    """

    session_id: str
    agent: str
    status: SessionState | str
    execution_id: str
    step: int
    version: int
    created_ms: int
    updated_ms: int
    problem: str | None = None
    unoffered_since_ms: int = 0
    not_before_ms: int = 0
    hold: Hold | None = None
    session_status: str = "active"
    forked_from: str = ""


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

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values, in the order of their declaration."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return values | {"usage": dict(self.usage), "errors": list(self.errors)}

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
        first_message: The beginning of its first message; "" where that was replaced.
        steps: Steps of its execution that are done.
        cost: US dollars of its execution; None when the price is not known.
    """

    first_message: str
    steps: int
    cost: float | None


_Reason = TypeVar("_Reason", bound=StrEnum)


def _read_reason(kind: type[_Reason], name: str | None, otherwise: _Reason) -> _Reason | None:
    """Read the name of a reason; a newer version may have written one that is not known here."""
    if not name:
        return None
    return kind(name) if name in tuple(kind) else otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedStep:
    """A step that was put off.

    Attributes:
        reason: Why, for people; redacted.
        next_try_ms: When it is tried again (Redis ms).
        delays: How often it was put off since it obtained something last.
    """

    session_id: str
    step: int
    reason: str
    next_try_ms: int
    delays: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """Facts of the step that a session waits for, at one moment.

    Attributes:
        phase: "run", "wait", "end" or "parked".
        claimed: Whether a worker has claimed the step.
        worker: The worker that has claimed it; "" when none has.
        lease_ms: How long its lease still lives; None when it has ended.
        attempts: How often the step was claimed.
        delays: How often it was put off.
        not_before_ms: When it may be claimed at the earliest (Redis ms); 0 when at once.
        due_ms: When the sweep looks at it (Redis ms); None when no worker has to look at it.
        reason: Why it was put off last; "" when it was not.
        now_ms: Redis's time.
        is_stopping: Somebody has asked the execution to stop.
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


REQUEST_TASK: Final = "request_task"
REQUEST_WEBHOOK: Final = "request_webhook"
REQUEST_KINDS: Final = (REQUEST_TASK, REQUEST_WEBHOOK)
"""The kinds of callbacks that are made for a request; the others are made at the end of an execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """A callback to be made: somebody wants to know how an execution ended, or what it waits for.

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


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of a pass over the due index.

    Attributes:
        at_ms: Redis time of the pass; messages of the lost steps have to carry it, since the pass has stored it.
        left: Names of queues from which sessions were moved: no worker that offers their agents takes these.
    """

    lost: tuple[StepRef, ...] = ()
    live: int = 0
    queued: int = 0
    at_ms: int = 0
    left: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ActionResult:
    """The result of an operation.

    Attributes:
        outcome: "joined" a running execution at once, "queued" behind its running step, "started" an execution,
            "changed" the session, "again" when it had been applied before.
        execution_id: The execution that it joined or started; "" while that is not known.
        publish: A step to publish, where the transaction could not.
    """

    outcome: Literal["joined", "queued", "started", "changed", "again"]
    execution_id: str
    version: int
    publish: StepRef | None = None
