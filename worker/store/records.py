"""The values that the store takes and gives: small, frozen, and with closed sets of answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

from ..errors import StateUnreadable
from ..state import AgentState
from ..unique import unique_hex
from .cache import CachedSession


@dataclass(frozen=True, slots=True)
class StepRef:
    """A reference to a step, as a step message holds it: this step may be due.

    Attributes:
        retries: How often the execution was retried; part of the task's id only.
    """

    session_id: str
    execution_id: str
    step: int
    retries: int = 0

    @property
    def task_id(self) -> str:
        """Id of the step's Celery task: the same for every delivery, another one after a retry."""
        suffix = f".r{self.retries}" if self.retries else ""
        return f"{self.execution_id}.{self.step}{suffix}"


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
class BeginRecord:
    """Record of a tool call that was begun: by whom, when (Redis ms) and with which timeout (ms)."""

    claim: str
    at_ms: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal of a step: what it has obtained before its commit.

    Attributes:
        answer: The driver's raw answer, or None.
        begun: Tool calls that were begun, by index.
        results: Results of tool calls, by index.
        auxiliary: Raw answers of auxiliary calls, by key.
    """

    answer: bytes | None = None
    begun: Mapping[int, BeginRecord] = field(default_factory=dict[int, BeginRecord])
    results: Mapping[int, bytes] = field(default_factory=dict[int, bytes])
    auxiliary: Mapping[str, bytes] = field(default_factory=dict[str, bytes])

    @property
    def was_paid_for(self) -> bool:
        """Whether the step has cost anything, so that a worker has to commit it even when it is stopped."""
        return self.holds_something or bool(self.auxiliary)

    @property
    def holds_something(self) -> bool:
        """Whether the step has obtained anything that its commit must keep."""
        return self.answer is not None or bool(self.begun) or bool(self.results)


@dataclass(frozen=True, slots=True)
class LoadedSession:
    """A session as it stood at one version, with what its current step has obtained.

    Attributes:
        session: The session itself, which the worker holds until the step has ended.
        cancel: The execution, when somebody asked it to stop.
        delays: How often the step was delayed; `delayed_since_ms` says since when (Redis ms, 0 never).
        started_ms: Redis time at which the execution was claimed first.
    """

    session: CachedSession
    journal: Journal
    cancel: str | None
    attempts: int
    delays: int
    delayed_since_ms: int
    started_ms: int
    now_ms: int

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
        NOT_YET: The step was delayed, and the delay has not passed.
        RESTARTED: Redis started less than one lease ago, and the worker of the stored claim may still be alive.
    """

    MISSING = "missing"
    STALE = "stale"
    AHEAD = "ahead"
    BUSY = "busy"
    ENDED = "ended"
    WAITING = "waiting"
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
        at_ms: Redis time.
    """

    id: str
    type: str
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
    """

    state: AgentState
    inbox: tuple[Operation, ...]
    entries: int
    now_ms: int
    cancel: str | None


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
    """

    state: AgentState
    ended: AgentState | None = None
    events: tuple[NewEvent, ...] = ()
    operations: tuple[str, ...] = ()
    keep_journal: bool = False
    dead: str | None = None
    definition: bytes | None = None
    notify: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])


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
    """

    version: int
    state: AgentState | None
    next: StepRef | None
    is_published: bool
    again: bool = False
    carried: Claimed | None = None


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to a heartbeat for one claim."""

    alive: bool
    cancel: str | None


@dataclass(frozen=True, slots=True)
class Header:
    """The facts of a session that a listing shows without loading it."""

    session_id: str
    agent: str
    status: str
    execution_id: str
    step: int
    version: int
    created_ms: int
    updated_ms: int
    problem: str | None = None


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
    """

    session_id: str
    execution_id: str
    status: str
    final_response: str
    output: Any
    stop_reason: str | None
    stop_message: str
    usage: Mapping[str, int]
    cost: float | None
    step_count: int
    errors: tuple[str, ...]
    operation_id: str | None = None
    retries: int = 0

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
            values: dict[str, Any] = {**data, "session_id": session_id, "errors": tuple(data["errors"])}
            return cls(**values)
        except (KeyError, TypeError):
            raise StateUnreadable("the record of an execution", "its fields are not those of a record") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """A callback to be made: somebody wants to know how an execution ended.

    Attributes:
        kind: "task" or "webhook".
        target: The task, or the webhook's URL, as given at submit.
        attempts: How often it failed before.
    """

    kind: str
    target: Any
    result: Result
    attempts: int

    @property
    def session_id(self) -> str:
        """Session of the execution that ended."""
        return self.result.session_id

    @property
    def execution_id(self) -> str:
        """Execution that ended."""
        return self.result.execution_id


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of a pass over the due index.

    Attributes:
        at_ms: Redis time of the pass; messages of the lost steps have to carry it, since the pass has stored it.
    """

    lost: tuple[StepRef, ...] = ()
    live: int = 0
    queued: int = 0
    at_ms: int = 0


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
