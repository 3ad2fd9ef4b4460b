"""Charges an execution for what a step has used besides its answer: other answers that were paid for, and children.

Auxiliary answers belong to hooks and tools. Rejected answers could not be used: they are counted, and the model is told
what was wrong with them. The journal keeps both, so that a worker that runs the step again counts each once and asks
with the same corrections. The usage of a step's children becomes usage of the execution that waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from pydantic import ValidationError

from ..drivers.protocol import InferenceRequest
from ..errors import ModelCallRefused
from ..guards import budget_signals
from ..state.agent_state import AgentState
from ..state.execution.budget import ExecutionBudget
from ..state.execution.children import ChildEnd
from ..state.execution.execution import ExecutionState
from ..state.execution.requests import Request
from ..state.execution.status import ExecutionStatus
from ..state.execution.usage import InferenceUsage
from ..store.journal import Journal
from .driver_calls import read_paid
from .run import Run
from .run_values import RejectedAnswer


def journaled_answers(run: Run) -> Mapping[str, bytes]:
    """The raw auxiliary answers of the step: those of earlier attempts, and those of this one.

    A copy: calls that run side by side add to them.
    """
    return {**run.loaded.journal.auxiliary, **run.memory.auxiliary}


def charge(run: Run, state: AgentState) -> AgentState:
    """The state with every auxiliary and rejected answer of the step charged to its execution, each once."""
    if state.execution is None or not (run.memory.rejected or run.memory.auxiliary or run.loaded.journal.auxiliary):
        return state
    charged = charge_execution(run, state.execution)
    return state if charged is state.execution else state.with_context_and_execution(state.context, charged)


def charge_execution(run: Run, execution: ExecutionState) -> ExecutionState:
    """The execution with every auxiliary and rejected answer of the step charged, each once."""
    for number, each in enumerate(run.memory.rejected):
        execution = execution.with_auxiliary_charge(run.ref.step, f"rejected:{number}", each.usage, each.cost)
    for key, raw in journaled_answers(run).items():
        answer = read_paid(run, raw)
        execution = execution.with_auxiliary_charge(run.ref.step, key, answer.usage, answer.cost)
    return execution


def check_budget(execution: ExecutionState, now: datetime) -> None:
    """Refuse a model call that no budget covers any more.

    Raises:
        ModelCallRefused: A limit is reached.
    """
    signals = tuple(budget_signals(execution.budget, execution, now))
    if signals:
        raise ModelCallRefused(signals[0].message, signals)


def read_rejected(journal: Journal) -> list[RejectedAnswer]:
    """The rejected answers that earlier attempts have journaled; one that cannot be read counts nothing."""
    return [_read_record(raw) for raw in journal.rejected]


def with_corrections(request: InferenceRequest, rejected: list[RejectedAnswer]) -> InferenceRequest:
    """The question, followed by the rejected answers and what was wrong with them."""
    exchange = [message for each in rejected for message in each.messages()]
    return request.with_messages((*request.messages, *exchange)) if exchange else request


def charge_children(run: Run, execution: ExecutionState, *, reserved: bool) -> ExecutionState:
    """Charge the execution for all children of this step.

    Args:
        reserved: Children that have not ended count with their whole reservation.
    """
    longest = 0.0
    for request in run.journal.child_requests:
        used = used_by(run, request, reserved=reserved)
        execution = execution.with_child_charge(used.usage, used.cost, used.steps)
        longest = max(longest, used.seconds)
    return execution.with_child_time(longest) if longest else execution


def used_by(run: Run, request: Request, *, reserved: bool) -> ChildEnd:
    """Tell what a child has used: without an end its whole reservation, if it was made or is still to be made."""
    order, end = request.child, run.child_end(request)
    assert order is not None
    if end is not None:
        return end
    counts = reserved if run.journal.answer_to(request) is None else request.place in run.journal.made
    budget = order.budget if counts else ExecutionBudget()
    return ChildEnd(
        session_id=order.session_id,
        status=ExecutionStatus.STOPPED,
        steps=budget.max_steps or 0,
        usage=InferenceUsage(input=budget.max_tokens or 0),
        cost=budget.max_cost,
    )


def _read_record(raw: bytes) -> RejectedAnswer:
    try:
        return RejectedAnswer.from_json(raw)
    except ValidationError:
        return RejectedAnswer()
