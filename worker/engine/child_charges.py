"""Charges: the usage of a step's children becomes usage of the execution that waits for them."""

from __future__ import annotations

from ..state.execution.budget import ExecutionBudget
from ..state.execution.children import ChildEnd
from ..state.execution.execution import ExecutionState
from ..state.execution.requests import Request
from ..state.execution.status import ExecutionStatus
from ..state.execution.usage import InferenceUsage
from .run import Run


def charge_children(run: Run, execution: ExecutionState, *, reserved: bool = False) -> ExecutionState:
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
