"""The values that the store takes and gives: small, frozen, and with closed sets of answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Literal

from ..errors import ClaimLost, IdempotencyMismatch
from ..state.agent_state import AgentState
from ..state.execution.budget import ExecutionBudget
from ..state.execution.execution import ExecutionState
from ..state.execution.status import ExecutionStatus
from .asked import Asked
from .cache import CachedSession
from .event_records import NewEvent
from .journal import NOTHING_JOURNALED, Journal


def is_active(state: AgentState) -> bool:
    """Whether an execution of the session runs or waits."""
    return state.execution is not None and not state.execution.status.is_terminal()


LAST_STEP: Final = 2**31
"""Steps are numbered below this; no message of a further step is taken."""


@dataclass(frozen=True, slots=True)
class StepRef:
    """A reference to a step, as a step message holds it: this step may be due.

    Attributes:
        retries: How often the execution was retried; part of the task's id only.
        queue: Name of the queue that its message is for, or came from; "" is the common one.
        legs: How often the step has waited; part of the task's id only.
        lane: The lane in which it waits for its turn, see `worker.flow.shares.lane_of`; "" for none.
        root_task, parent_task: Celery task ids in the message of a child's step: of the task at the root of its tree,
            and of the task that made it. "": they follow from the execution.
    """

    session_id: str
    execution_id: str
    step: int
    retries: int = 0
    legs: int = 0
    queue: str = ""
    lane: str = field(default="", compare=False)
    root_task: str = field(default="", compare=False)
    parent_task: str = field(default="", compare=False)

    @classmethod
    def due_in(cls, session_id: str, state: AgentState, queue: str = "", lane: str = "") -> StepRef | None:
        """Name the step that is due in a session, with queue and lane for its message; None when nothing runs."""
        execution = state.execution
        if execution is None or execution.status.is_terminal() or execution.status is ExecutionStatus.WAITING:
            return None
        step, retries = execution.step_count + 1, execution.retries
        return cls(session_id, execution.execution_id, step, retries=retries, queue=queue, lane=lane)

    @property
    def has_parent_task(self) -> bool:
        """Whether the step's message names a task before it: the step before, or the one that made the child."""
        return self.step > 1 or bool(self.parent_task)

    def follows(self, execution: ExecutionState | None) -> bool:
        """Whether this is the step after those that an execution has committed."""
        if execution is None:
            return False
        return (execution.execution_id, execution.step_count + 1) == (self.execution_id, self.step)

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


def claim_lost(claim: Claim) -> ClaimLost:
    """The error for a worker whose claim is no longer valid."""
    return ClaimLost(f"step {claim.ref.step} of session {claim.ref.session_id} has another claim by now")


@dataclass(frozen=True, slots=True)
class Hold:
    """A session that is held: nothing of it begins until it is resumed.

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
    """A session as it was at one version, with what its current step has obtained.

    Attributes:
        session: The session itself, which the worker keeps until the step has ended.
        cancel: The execution, when it was asked to stop.
        delays: How often the step was delayed; `delayed_since_ms` says since when (Redis ms, 0 never), and
            `tried_since_ms` as if the time had not been in which it was due and nobody ran it.
        started_ms: Redis time at which the execution was claimed first.
        legs: How often this step has waited; 0 for a step that made no request.
        hold: The hold of the session. A claim gets one only when its time is over, or under a stop: nothing begins.
        followed_until_ms: Redis time until which a client follows the session's live text; 0: none does.
        budget: The budget that was set since the state was saved; None: that of the state holds.
        is_interrupted: A message waits that interrupts the step.
        carries_on: The claim before was lost with its worker, or its time was over.
    """

    session: CachedSession
    attempts: int
    started_ms: int
    now_ms: int
    journal: Journal = NOTHING_JOURNALED
    cancel: str | None = None
    delays: int = 0
    delayed_since_ms: int = 0
    tried_since_ms: int = 0
    legs: int = 0
    hold: Hold | None = None
    followed_until_ms: int = 0
    budget: ExecutionBudget | None = None
    is_interrupted: bool = False
    carries_on: bool = False

    @property
    def state(self) -> AgentState:
        """The session's state."""
        return self.session.state

    @property
    def version(self) -> int:
        """The version of the session."""
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
        HELD: The session is suspended.
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


class MessageMode(StrEnum):
    """When a message is delivered, as its sender asks for it.

    Attributes:
        STEER: In front of the next model call of the execution that runs or waits; behind a final answer, as the start
            of the next execution. Starts an execution where none runs.
        QUEUE: As the start of an execution of its own, behind the one that runs and what is queued.
        INTERRUPT: As `STEER`, in front of all others; the running step leaves off what can be left off for it.
        REFUSE: As `STEER` where no execution runs or waits; else it is refused, and nothing is written.
    """

    STEER = "steer"
    QUEUE = "queue"
    INTERRUPT = "interrupt"
    REFUSE = "refuse"


class Placement(StrEnum):
    """The place to which a message went when it was sent.

    Attributes:
        STARTS: It has started an execution.
        JOINS: It is part of the execution that runs or waits, or waits for its step.
        QUEUED: It waits for an execution of its own.
        HELD: As `QUEUED`, and the queue is held: it goes on when it is released, or with a retry.
    """

    STARTS = "starts"
    JOINS = "joins"
    QUEUED = "queued"
    HELD = "held"


class InboxKind(StrEnum):
    """The kinds of operations that may arrive while a step runs."""

    MESSAGE = "message"
    METADATA = "metadata"
    SYSTEM_PROMPT = "system_prompt"
    MODEL = "model"
    REVOKE_GRANT = "revoke_grant"


@dataclass(frozen=True, slots=True)
class Operation:
    """A change to a session that comes from outside its steps.

    Attributes:
        id: Made by the caller and the same when it is sent again, so that it is applied once.
        payload: JSON values of the change.
        fingerprint: A digest of what the caller sends under an idempotency key, as `<version>:<digest>`; "" without a
            key. The same id with another digest of the same version is refused.
    """

    id: str
    kind: InboxKind
    payload: Mapping[str, Any]
    fingerprint: str = ""

    @property
    def mode(self) -> MessageMode:
        """When a message is delivered; one of an earlier version steers."""
        return MessageMode(self.payload.get("when", MessageMode.STEER))

    @property
    def text(self) -> str:
        """The text of a message; "" for an operation that is none."""
        message: Mapping[str, Any] = self.payload.get("message") or {}
        return str(message.get("content", ""))

    @property
    def by(self) -> str:
        """The sender of a message; "" where nobody has said who it is."""
        return str(self.payload.get("by", ""))

    @property
    def at_ms(self) -> int:
        """Redis time at which a message was taken; 0: an earlier version has taken it."""
        return int(self.payload.get("at_ms", 0))

    @property
    def is_after_stop(self) -> bool:
        """Whether a message was taken after the stop of the execution that was running then had been asked for."""
        return bool(self.payload.get("after_stop"))

    def taken(self, **facts: Any) -> Operation:
        """The operation with facts about how it was taken, in its payload; those that are False are left out."""
        payload = {name: value for name, value in {**self.payload, **facts}.items() if value is not False}
        return replace(self, payload=payload)

    def check_fingerprint(self, session_id: str, stored: str) -> None:
        """Compare with what was sent under this id before; "" where an earlier version has kept nothing.

        Raises:
            IdempotencyMismatch: It was something else.
        """
        version, _, digest = self.fingerprint.partition(":")
        stored_version, _, stored_digest = stored.partition(":")
        if digest and version == stored_version and digest != stored_digest:
            raise IdempotencyMismatch(
                f"session {session_id} got another message or budget under this idempotency key; use another key, or "
                "repeat the request exactly"
            )


@dataclass(frozen=True, slots=True)
class MessageQueue:
    """The messages that wait for an execution of their own, in the order of their executions.

    Attributes:
        held: Why no execution follows by itself: the status in which the last one has ended. "": it is not held.
    """

    messages: tuple[Operation, ...] = ()
    held: str = ""

    def without(self, operation_id: str) -> MessageQueue:
        """The queue without a message; one that is empty is not held."""
        left = tuple(each for each in self.messages if each.id != operation_id)
        return MessageQueue(left, self.held if left else "")

    def with_message(self, operation: Operation) -> MessageQueue:
        """The queue with a message behind those that were queued before it arrived."""
        place = len(self.messages)
        while place and self._is_later(self.messages[place - 1], operation):
            place -= 1
        return replace(self, messages=(*self.messages[:place], operation, *self.messages[place:]))

    @staticmethod
    def _is_later(queued: Operation, operation: Operation) -> bool:
        return queued.mode is MessageMode.QUEUE and queued.at_ms > operation.at_ms

    @property
    def next(self) -> Operation | None:
        """The message whose execution follows; None: there is none, or the queue is held."""
        return self.messages[0] if self.messages and not self.held else None


NO_QUEUE: Final = MessageQueue()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The session as stored now, from which a transition computes its next state.

    Attributes:
        inbox: Operations that arrived while the step ran and were not applied before.
        entries: Number of stored inbox entries these came from; exactly this number is trimmed.
        is_child: The session is a child: it has one execution.
        queue: The messages that wait for an execution of their own.
    """

    state: AgentState
    inbox: tuple[Operation, ...]
    entries: int
    now_ms: int
    cancel: str | None
    is_child: bool = False
    queue: MessageQueue = NO_QUEUE


@dataclass(frozen=True, slots=True)
class NextState:
    """A session as a commit or an action makes it.

    Attributes:
        state: The session afterwards. The step that is due next follows from its execution's status.
        ended: The session at the end of the claimed execution, when `state` already holds the next execution.
        events: Written for watchers in the same transaction.
        operations: Ids of the operations applied.
        keep_journal: The step did not commit an answer and may be retried: its journal stays with the session.
        dead: Reason for an entry in the list of dead steps; None for none.
        definition: The agent's definition, as JSON, where it is stored with this save.
        notify: Callbacks to make when an execution ends, by the operation that starts it.
        agent: The name of the agent that continues, and of its queue; None: the same one.
        fingerprints: Digests of what was sent under the idempotency keys of operations, by their ids.
        asked: What the step has asked the model; None where no step is committed.
        queue: The queued messages afterwards; None: as they were.
        undelivered: Operations of the inbox that were not applied, because they are queued now.
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
    fingerprints: Mapping[str, str] = field(default_factory=dict[str, str])
    asked: Asked | None = None
    queue: MessageQueue | None = None
    undelivered: tuple[str, ...] = ()


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
class ActionResult:
    """The result of an operation.

    Attributes:
        outcome: "joined" a running execution at once, "queued" behind its running step, "started" an execution,
            "changed" the session, "again" when it had been applied before, "idle" when it is for an execution that
            runs or waits, and the session has none.
        execution_id: The execution that it joined or started; "" while that is not known.
        publish: A step to publish, where the transaction could not.
        placed: Where a message went, when it was sent first; None: not known any more, or it is no message.
    """

    outcome: Literal["joined", "queued", "started", "changed", "again", "idle"]
    execution_id: str
    version: int
    publish: StepRef | None = None
    placed: Placement | None = None
