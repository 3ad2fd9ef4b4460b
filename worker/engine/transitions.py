"""Transitions: functions from the session as stored now to the session that a commit or an action saves.

The store calls a transition within a transaction, and calls it again when another one saved the session in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..moments import moment
from ..state.agent_state import AgentState
from ..state.conversation.messages import Message
from ..state.execution.budget import ExecutionBudget
from ..state.execution.status import ExecutionStatus
from ..store.event_records import EventType, NewEvent
from ..store.records import InboxKind, NextState, Snapshot, Transition
from .applied_step import AppliedStep, end_execution
from .arrivals import apply_at_end, apply_to_idle, apply_to_running, check_operation
from .asked import describe_asked
from .delegating import hand_over
from .endings import user_stop_signal
from .run import Run
from .step_texts import capability_events, end_event, end_facts, execution_event, step_event


def step_transition(run: Run, applied: AppliedStep) -> Transition:
    """The transition of a step's commit, which also takes in whatever arrived while the step ran."""

    asked = describe_asked(run)

    def transition(snapshot: Snapshot) -> NextState:
        now = moment(snapshot.now_ms)
        state, has_ended = applied.state, applied.has_ended
        if snapshot.is_child and applied.going_on is not None and _has_message(run, snapshot):
            # A child has one execution, so what came with its final step makes it continue.
            state, has_ended = applied.going_on, False
        if snapshot.cancel is not None and not has_ended:
            stopped = state.with_stop_signal(user_stop_signal(), now=now)
            # Nothing new begins, so that the hooks of the end ask no model.
            state, has_ended = end_execution(run.with_ending(is_stopping=True), stopped, now), True
        events: list[NewEvent] = []
        if run.obtained.response is not None:
            events.append(step_event(run, run.obtained.response))
        if has_ended:
            arrivals = apply_at_end(state, snapshot, now, has_unseen=_has_unseen_message(run))
        else:
            arrivals = apply_to_running(state, snapshot, now)
        events += capability_events(run, state)
        if has_ended:
            events.append(end_event(run, applied.failure, state))
        has_failed = state.status is ExecutionStatus.FAILED
        next_state = NextState(
            state=state,
            ended=state if arrivals.state is not state and has_ended else None,
            events=tuple(events),
            keep_journal=has_ended and not applied.has_answer,
            dead=applied.failure.message if has_failed and applied.failure and run.is_poison else None,
            definition=run.agent.stored_definition if run.ref.step == 1 else None,
            asked=asked,
        )
        next_state = arrivals.save(next_state)
        return next_state if run.next_agent is None else hand_over(run, next_state, now)

    return transition


def _has_message(run: Run, snapshot: Snapshot) -> bool:
    """Whether the session holds or gets a message that the answer has not seen."""
    return _has_unseen_message(run) or any(each.kind is InboxKind.MESSAGE for each in snapshot.inbox)


def _has_unseen_message(run: Run) -> bool:
    """Whether a message was stored after the driver's request; it must not stay without an answer."""
    if not run.progress.is_reloaded:
        return False
    return any(extent != run.stored_extents.get(name) for name, extent in run.loaded.state.store.extents.items())


def stop_transition(snapshot: Snapshot) -> NextState:
    """End an execution that no worker runs and whose step has obtained nothing."""
    now = moment(snapshot.now_ms)
    state = snapshot.state.with_stop_signal(user_stop_signal(), now=now).with_execution_completed(now=now)
    execution = state.execution
    assert execution is not None
    arrivals = apply_at_end(state, snapshot, now)
    event = execution_event(EventType.EXECUTION_STOPPED, execution, end_facts(execution))
    ended = state if arrivals.state is not state else None
    return arrivals.save(NextState(state=state, ended=ended, events=(event,)))


def operation_transition(snapshot: Snapshot) -> NextState:
    """Apply an operation to a session whose step no worker runs.

    Raises (when called):
        InvalidInput: The session has no room for the metadata.
    """
    now = moment(snapshot.now_ms)
    for operation in snapshot.inbox:
        check_operation(snapshot.state, operation)
    execution = snapshot.state.execution
    is_idle = execution is None or execution.status.is_terminal()
    arrivals = apply_to_idle(snapshot, now) if is_idle else apply_to_running(snapshot.state, snapshot, now)
    fingerprints = {each.id: each.fingerprint for each in snapshot.inbox if each.fingerprint}
    return arrivals.save(NextState(snapshot.state, fingerprints=fingerprints))


def retry_transition(budget: ExecutionBudget | None, by: str | None = None) -> Transition:
    """The transition that continues a failed or stopped execution where it ended.

    Args:
        by: Who asked for it, for the event; None: unknown.

    Raises (when called):
        InvalidTransition: It did not fail and was not stopped.
    """

    def transition(snapshot: Snapshot) -> NextState:
        state = snapshot.state.for_retry(budget, now=moment(snapshot.now_ms))
        execution = state.execution
        assert execution is not None
        event = NewEvent(
            type=EventType.STEP_RETRIED,
            execution_id=execution.execution_id,
            step=execution.step_count + 1,
            data={"retries": execution.retries} | ({} if by is None else {"by": by}),
        )
        return NextState(state, events=(event,))

    return transition


@dataclass(frozen=True, slots=True)
class FirstExecution:
    """The execution that a submit starts.

    Attributes:
        operation_id: The id of the submit.
        budget: None: the agent's, else the default limit of steps.
        fingerprint: Digest of what was sent under the idempotency key of the submit; "" without a key.
        notify: Whom to notify of the execution's end. None: no receiver.
        expires_at: As in `ExecutionState`.
        completion_window: As in `ExecutionState`.
    """

    execution_id: str
    operation_id: str
    budget: ExecutionBudget | None = None
    fingerprint: str = ""
    notify: Mapping[str, Any] | None = None
    expires_at: datetime | None = None
    completion_window: str | None = None


def first_state(state: AgentState, message: Message, execution: FirstExecution, now: datetime) -> NextState:
    """A new session with its first execution pending."""
    operation_id = execution.operation_id
    state = state.with_user_message(message, now=now)
    state = state.with_execution(
        execution.execution_id, execution.budget, operation_id, now=now, expires_at=execution.expires_at,
        completion_window=execution.completion_window,
    )  # fmt: skip
    data = {"operation": operation_id}
    event = NewEvent(type=EventType.EXECUTION_SUBMITTED, execution_id=execution.execution_id, step=0, data=data)
    notify = {operation_id: execution.notify} if execution.notify else {}
    return NextState(
        state,
        events=(event,),
        operations=(operation_id,),
        notify=notify,
        fingerprints={operation_id: execution.fingerprint} if execution.fingerprint else {},
    )
