"""Children of a session in the store, as the step of its parent makes them and their own steps end them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery_agents.worker.engine import FirstExecution, first_state
from celery_agents.worker.moments import moment
from celery_agents.worker.state import (
    AgentState,
    ChildOrder,
    ExecutionBudget,
    Message,
    ParentLink,
    Request,
    RequestKind,
    child_ids,
)
from celery_agents.worker.store import ChildPlan, Claimed, NewChild, NextState

from .asking import a_request, commit_leg, open_requests, waiting_transition
from .store import Bench


def child_request(bench: Bench, index: int = 0, *, merge: tuple[str, ...] = ()) -> Request:
    """A request for the end of a child."""
    session_id, execution_id = child_ids(bench.session, bench.execution, 1, (index, 0))
    order = ChildOrder(session_id=session_id, execution_id=execution_id, agent="agent", prompt="work", merge=merge)
    return a_request(bench, index, kind=RequestKind.CHILD, child=order)


def new_child(bench: Bench, request: Request) -> NewChild:
    """The child of a request, with its first state."""
    order = request.child
    assert order is not None
    link = ParentLink(
        session_id=bench.session,
        execution_id=bench.execution,
        step=1,
        index=request.index,
        request_id=request.id,
        merge=order.merge,
        task_id=f"{bench.execution}.1",
        root_task_id=f"{bench.execution}.1",
        root_execution_id=bench.execution,
    )

    def start(at_ms: int) -> NextState:
        state = AgentState.fresh(parent_agent_id="parent", now=moment(at_ms))
        execution = FirstExecution(order.execution_id, request.id, ExecutionBudget.unlimited())
        return first_state(state, Message.user("work"), execution, moment(at_ms))

    return NewChild(request=request, link=link, queue="", start=start)


def wait_for_children(
    bench: Bench, claimed: Claimed, *requests: Request, made: int | None = None, waits_for_all: bool = False
) -> Any:
    """Let a step wait, and make the first of these children."""
    journal = open_requests(bench, claimed, *requests)
    return bench.store.steps.wait(
        claimed.claim,
        claimed.loaded,
        waiting_transition(claimed, journal.open_requests),
        seen=journal,
        results={},
        plan=ChildPlan(new=tuple(new_child(bench, each) for each in requests[:made]), waits_for_all=waits_for_all),
    )


@contextmanager
def as_child(bench: Bench, request: Request) -> Iterator[None]:
    """The bench with the child of a request as its session."""
    order, parent = request.child, (bench.session, bench.execution)
    assert order is not None
    bench.session, bench.execution = order.session_id, order.execution_id
    yield
    bench.session, bench.execution = parent


def end_child(bench: Bench, request: Request, **options: Any) -> None:
    """Claim the child's first step, and end its execution with it."""
    with as_child(bench, request):
        commit_leg(bench, bench.claim(), **({"final": True} | options))
