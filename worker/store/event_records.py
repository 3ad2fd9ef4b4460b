"""Events of sessions as values: their types, and what is written and read of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from ..moments import moment


class EventType(StrEnum):
    """The types of events. A newer version of this package may write others; a reader gets their names as plain text.

    Attributes:
        EXECUTION_SUBMITTED: A submit created the session with its first execution. `operation`: the submit's id.
        EXECUTION_STARTED: A worker claimed the first step.
        EXECUTION_COMPLETED: The execution has ended with an answer. `status`, `reason`, `steps`, `tokens`, `cost`,
            `error`; `finish_reason` where the answer is cut short; and where the model had not answered, `in_step`: the
            step that was not committed, with `worker` and `since_ms` of its attempt, and `asked`: a model was asked
            in it, and no event tells how that call has failed.
        EXECUTION_STOPPED: A stop, a limit, a guard, a hook or a tool ended the execution. Data as above.
        EXECUTION_FAILED: An error ended the execution; `error` says which. Data as above.
        MESSAGE_RECEIVED: A message arrived while a step was running, and waits in the inbox. `operation`, `queued`;
            `placed`: `queued` or `held`, where it waits for an execution of its own.
        MESSAGE_JOINED: The message became part of an execution. `operation`; `started`: it started this execution.
        MESSAGE_UNDELIVERED: A message that waited was taken back. `operation`; `reason`: `withdrawn`, or `cleared` by a
            stop; `by` where it is known.
        QUEUE_HELD: An execution has ended otherwise than with an answer, so that no queued message follows by itself.
            `reason`: its status; `messages`: how many wait.
        QUEUE_RELEASED: A client lets the queued messages follow again. `by` where it is known.
        MODEL_CALL_FAILED: A model call gave no usable answer, and is made again within the step. `model`: the one that
            was asked; `kind`, `message`, `status`, `code` and `request_id` of the provider, `transient`,
            `next_try_ms`: Redis time of the next try.
        STEP_COMMITTED: A step was committed. `tools`: name and outcome of each call; `tokens`, `finish_reason`,
            `model`, `text`: the beginning of the answer; `worker`, `attempt`: by whom, and at which attempt.
        STEP_DELAYED: A step was delayed: the provider is away, a guard delays it, or it cannot run here. `reason`,
            `next_try_ms`: Redis time of the next try, `delays`: how often it was delayed; `worker`, `since_ms`: the
            attempt that ended so, and when it began (Redis time); `at_provider`: its answer comes later; `answered`:
            the model has answered; `failed_model`: the model whose call failed last in this attempt.
        STEP_RESUMED: A worker claimed a step that had been delayed. `delays`, `worker`.
        STEP_RECOVERED: A worker carries on a step whose worker was lost, or whose time was over. `attempt`, `worker`.
            Of the attempt before: `lost_worker`; `since_ms`: Redis time at which it began, null where the model had
            answered before; `answered`: the model has answered; `begun`: Redis times at which it began calls that have
            no result.
        HISTORY_LOST: Redis has forgotten the end of the session's history, in a failover or with its last second; the
            session goes on from what is stored. `known_version`, `found_version`, `common_version` (null: none is
            known); `steps`: numbers of the lost steps; `calls`: their calls of tools that are not pure, each with
            `step`, `tool` and `outcome`: these have happened, and may happen again. `worker` has found it, and tells
            what it has seen of the session.
        STEP_RETRIED: A client retried the execution, or put a parked session back. `retries`; `by` where it is
            known; `parked`.
        STOP_REQUESTED: A stop was requested. `by`.
        METADATA_REFUSED: Metadata that waited for a running step found no room. `operation`, `key`.
        WAITING_FOR_WORKER: No live worker offers the agent. `agent`.
        WORKER_FOUND: A worker that offers the agent has registered, and the session continues. `agent`.
        PARKED: No worker can carry the session on. `reason`.
        REQUEST_OPENED: A step asks for an approval, an answer or a result. The fields of `RequestSummary`.
        REQUEST_ANSWERED: An answer came. `id`, `kind`, `tool`, `verb`, `status`, `by`, `after_ms`: its age.
        REQUEST_EXPIRED: No answer came in time; `verb` says what counts as the answer. Data as above.
        REQUEST_CANCELLED: The execution was stopped, or a message came, before an answer did. Data as above.
        EXECUTION_WAITING: The step waits for answers. `requests`: their ids; `until_ms`: Redis time of the next look;
            `worker`, `since_ms`: the attempt that ended so, and when it began (Redis time).
        EXECUTION_RESUMED: A waiting step continues, or a hold was ended. `cause`: answer, child, time, stop, resume,
            budget or retry; `by` where it is known.
        CHILD_STARTED: A step has started a child. `session`, `agent`, `tool`, `depth`.
        CHILD_ENDED: A child has ended, and the step continues. `session`, `tool`, `status`, `reason`, and what it and
            its own children used: `steps`, `tokens`, `cost`; `left_out` names what was too large to bring.
        AGENT_CHANGED: The execution was handed over to another agent. `agent`, `by`: the one before.
        BUDGET_CHANGED: The budget of the execution was changed. `budget`: the new limits; `before`: the old ones; `by`.
        EXECUTION_SUSPENDED: The session was suspended. `reason`, `by`, `until_ms`: Redis time of the hold's end.
        REWOUND: The session was taken back to an earlier step. `to`: the step, as `<execution>:<step>`; `from`: the
            last step before, in the same way, null without one; `version`: that it has now; `by`.
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
    MESSAGE_UNDELIVERED = "message_undelivered"
    QUEUE_HELD = "queue_held"
    QUEUE_RELEASED = "queue_released"
    MODEL_CALL_FAILED = "model_call_failed"
    STEP_COMMITTED = "step_committed"
    STEP_DELAYED = "step_delayed"
    STEP_RESUMED = "step_resumed"
    STEP_RECOVERED = "step_recovered"
    HISTORY_LOST = "history_lost"
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
    EXECUTION_WAITING = "execution_waiting"
    EXECUTION_RESUMED = "execution_resumed"
    EXECUTION_SUSPENDED = "execution_suspended"
    BUDGET_CHANGED = "budget_changed"
    CHILD_STARTED = "child_started"
    CHILD_ENDED = "child_ended"
    AGENT_CHANGED = "agent_changed"
    REWOUND = "rewound"
    SESSION_SAVED = "session_saved"
    ATTEMPT_VOIDED = "attempt_voided"
    CAPABILITY = "capability"


EXECUTION_ENDS: Final = frozenset(
    {EventType.EXECUTION_COMPLETED, EventType.EXECUTION_STOPPED, EventType.EXECUTION_FAILED}
)
"""The types of the event that ends an execution."""


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event for watchers, to be written in the transaction that makes it true."""

    type: EventType
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
        return moment(self.at_ms)
