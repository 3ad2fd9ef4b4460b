"""Transitions as functions: from a session as it is stored now to the one that an action saves."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.worker.engine import FirstExecution, first_state, operation_transition, stop_transition
from celery_agents.worker.engine.arrivals import apply_at_end, apply_to_running
from celery_agents.worker.engine.transitions import check_operation, retry_transition
from celery_agents.worker.errors import InvalidInput, StateUnreadable
from celery_agents.worker.state import AgentState, ExecutionBudget, ExecutionStatus, Message
from celery_agents.worker.store import InboxKind, Operation
from celery_agents.worker.store.records import MessageQueue, Snapshot

from support.states import NOON, at, running

NOW_MS = round(NOON.timestamp() * 1000) + 1_000
HUGE = "x" * 1_100_000
NOTHING_SPENT = {"steps": 0, "tokens": 0, "cost": None, "error": ""}


def said(name: str, text: str = "more", **payload: Any) -> Operation:
    return Operation(
        name, InboxKind.MESSAGE, {"message": Message.user(text).to_dict(), **payload}, payload.get("key", "")
    )


def noted(name: str, key: str, value: Any) -> Operation:
    return Operation(name, InboxKind.METADATA, {"key": key, "value": value})


def snapshot(*inbox: Operation, state: AgentState | None = None, **fields: Any) -> Snapshot:
    return Snapshot(state or running(), inbox, len(inbox), NOW_MS, None, **fields)


def ended() -> AgentState:
    return running().with_execution_completed(now=at(1))


def kinds(events: Any) -> list[tuple[str, Any]]:
    return [(each.type.value, dict(each.data)) for each in events]


def test_a_submit_makes_a_session_with_a_pending_execution() -> None:
    message, budget = Message.user("hello"), ExecutionBudget(max_steps=3)
    plain = first_state(AgentState.fresh(now=NOON), message, FirstExecution("e", "op"), NOON)
    assert (plain.operations, plain.notify, plain.fingerprints) == (("op",), {}, {})
    assert kinds(plain.events) == [("execution_submitted", {"operation": "op"})]
    assert plain.state.status is ExecutionStatus.PENDING
    full = FirstExecution("e", "op", budget, fingerprint="1:abc", notify={"task": "t"})
    made = first_state(AgentState.fresh(now=NOON), message, full, NOON)
    assert (made.notify, made.fingerprints) == ({"op": {"task": "t"}}, {"op": "1:abc"})
    assert made.state.execution is not None
    assert made.state.execution.budget == budget


def test_a_stop_ends_the_execution_and_holds_the_messages_that_came_before_it() -> None:
    alone = stop_transition(snapshot())
    assert (alone.ended, alone.state.status) == (None, ExecutionStatus.STOPPED)
    assert kinds(alone.events) == [
        ("execution_stopped", {**NOTHING_SPENT, "status": "stopped", "reason": "user_requested"})
    ]
    waiting = MessageQueue((said("q", when="queue"),))
    held = stop_transition(snapshot(said("op", notify={"task": "t"}), queue=waiting))
    assert (held.ended, held.state.status) == (None, ExecutionStatus.STOPPED)
    assert (held.operations, held.undelivered, held.notify) == ((), ("op",), {})
    assert held.queue is not None
    assert ([each.id for each in held.queue.messages], held.queue.held) == (["op", "q"], "stopped")
    assert kinds(held.events)[1:] == [("queue_held", {"reason": "stopped", "messages": 2})]
    followed = stop_transition(snapshot(said("op", notify={"task": "t"}, after_stop=True), queue=waiting))
    assert followed.ended is not None
    assert (followed.ended.status, followed.state.status) == (ExecutionStatus.STOPPED, ExecutionStatus.PENDING)
    assert (followed.operations, followed.notify) == (("op",), {"op": {"task": "t"}})
    assert followed.queue == MessageQueue(waiting.messages, "stopped")
    noted_only = stop_transition(snapshot(noted("op", "a", 1)))
    assert noted_only.ended is not None
    assert noted_only.state.metadata == {"a": 1}


def test_an_operation_joins_what_runs_and_starts_what_has_ended() -> None:
    joined = operation_transition(snapshot(said("op", key="1:k")))
    assert kinds(joined.events) == [("message_joined", {"operation": "op", "started": False})]
    assert (joined.fingerprints, joined.operations) == ({"op": "1:k"}, ("op",))
    started = operation_transition(
        snapshot(said("a", budget={"max_steps": 2}), said("b", budget={"max_steps": 9}), state=ended())
    )
    assert [data["started"] for _, data in kinds(started.events)] == [True, False]
    execution = started.state.execution
    assert execution is not None
    assert (execution.budget, execution.status) == (ExecutionBudget(max_steps=2), ExecutionStatus.PENDING)
    assert started.fingerprints == {}
    fresh = operation_transition(snapshot(said("op"), state=AgentState.fresh(now=NOON)))
    assert fresh.state.status is ExecutionStatus.PENDING


def test_a_child_has_one_execution() -> None:
    inbox = snapshot(said("op"), state=ended(), is_child=True)
    arrivals = apply_at_end(ended(), inbox, at(2), has_unseen=True)
    assert (arrivals.state.status, arrivals.state.messages[-1].content) == (ExecutionStatus.COMPLETED, "more")
    assert [data["started"] for _, data in kinds(arrivals.events)] == [False]


@pytest.mark.parametrize("has_unseen", [True, False])
def test_a_message_that_no_answer_has_seen_starts_the_next_execution(has_unseen: bool) -> None:
    before = ended()
    arrivals = apply_at_end(before, snapshot(state=before), at(2), has_unseen=has_unseen)
    assert (arrivals.state is not before, arrivals.events) == (has_unseen, ())


def test_a_queued_message_follows_an_answer_with_an_execution_of_its_own() -> None:
    queue = MessageQueue((said("q1", "one"), said("q2", "two")))
    arrivals = apply_at_end(ended(), snapshot(queue=queue), at(2))
    assert arrivals.state.status is ExecutionStatus.PENDING
    assert [each.content for each in arrivals.state.messages][-1:] == ["one"]
    assert arrivals.queue is not None
    assert [each.id for each in arrivals.queue.messages] == ["q2"]
    steered = apply_at_end(ended(), snapshot(said("s"), said("t"), queue=queue), at(2))
    assert ([each.id for each in steered.applied], steered.queue) == (["s", "t"], None)
    held = MessageQueue(queue.messages, "failed")
    assert apply_at_end(ended(), snapshot(queue=held), at(2)).state.status is ExecutionStatus.COMPLETED


def test_a_demoted_message_is_placed_by_its_arrival() -> None:
    queue = MessageQueue((said("front", at_ms=9), said("a", when="queue", at_ms=2), said("b", when="queue", at_ms=5)))
    placed = queue.with_message(said("c", when="queue", at_ms=3))
    assert [each.id for each in placed.messages] == ["front", "a", "c", "b"]
    assert MessageQueue((said("a"),), "failed").without("a") == MessageQueue()


def test_metadata_that_finds_no_room_is_dropped_with_an_event_and_the_rest_is_kept() -> None:
    inbox = (noted("a", "k" * 150, HUGE), noted("b", "color", "red"), said("c"))
    arrivals = apply_to_running(running(), snapshot(*inbox), at(2))
    assert kinds(arrivals.events) == [
        ("metadata_refused", {"operation": "a", "key": "k" * 100}),
        ("message_joined", {"operation": "c", "started": False}),
    ]
    assert arrivals.state.metadata == {"color": "red"}
    with pytest.raises(InvalidInput, match="metadata"):
        operation_transition(snapshot(*inbox))
    check_operation(running(), said("c", HUGE))


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (InboxKind.MESSAGE, {}), (InboxKind.METADATA, {"key": 7, "value": 1}), (InboxKind.METADATA, {}),
        (InboxKind.SYSTEM_PROMPT, {"prompt": 7}), (InboxKind.MODEL, {"model": 7}), (InboxKind.REVOKE_GRANT, {"grant": None}),
    ],
)  # fmt: skip
def test_a_damaged_operation_makes_the_session_unreadable(kind: InboxKind, payload: dict[str, Any]) -> None:
    inbox = snapshot(Operation("op", kind, payload))
    with pytest.raises(StateUnreadable, match="operation op is damaged"):
        apply_to_running(running(), inbox, at(2))


@pytest.mark.parametrize("by", [None, "ada"])
def test_a_retry_goes_on_behind_the_last_step(by: str | None) -> None:
    stopped = stop_transition(snapshot()).state
    made = retry_transition(ExecutionBudget(max_steps=4), by)(snapshot(state=stopped))
    assert kinds(made.events) == [("step_retried", {"retries": 1} | ({} if by is None else {"by": by}))]
    assert made.events[0].step == 1
    assert made.state.execution is not None
    assert made.state.execution.budget.max_steps == 4
