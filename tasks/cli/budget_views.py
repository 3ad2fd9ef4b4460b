"""Budgets on the command line: read from options, and shown with what is used of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .views import as_json, print_table

if TYPE_CHECKING:
    from ...worker.state.execution.budget import ExecutionBudget
    from ...worker.state.execution.execution import ExecutionState


def read_budget(**limits: Any) -> ExecutionBudget | None:
    """Build a budget from the options; None when none is given, so that the agent's own budget holds."""
    from ...worker.state.execution.budget import ExecutionBudget

    given = {name: limit for name, limit in limits.items() if limit is not None}
    return ExecutionBudget(**given) if given else None


def merge_budgets(present: ExecutionBudget | None, given: ExecutionBudget | None) -> ExecutionBudget:
    """Put given limits in place of present ones; None is a budget without limits."""
    from ...worker.state.execution.budget import ExecutionBudget

    limits: dict[str, Any] = {}
    for budget in (present, given):
        limits |= {} if budget is None else {name: limit for name, limit in budget if limit is not None}
    return ExecutionBudget(**limits)


def print_budget(session_id: str, execution: ExecutionState | None, json: bool) -> None:
    """Print the limits of the last execution of a session, each with what is used of it."""
    if execution is None:
        print("no execution yet")
        return
    used = {
        "max_steps": execution.steps_used, "max_tokens": execution.usage.total, "max_cost": execution.cost,
        "max_seconds": round(execution.elapsed_seconds(), 3), "deadline": None,
    }  # fmt: skip
    if json:
        print(as_json({"session_id": session_id, "budget": execution.budget.to_dict(), "used": used}))
        return
    most = {name: _show(getattr(execution.budget, name)) for name in used}
    if execution.budget.max_steps is None and execution.default_steps:
        most["max_steps"] = f"{execution.default_steps} of its own, by default"
    print_table(("LIMIT", "USED", "MOST"), [(name, _show(value), most[name]) for name, value in used.items()])


def _show(value: object) -> str:
    return "-" if value is None else str(value)
