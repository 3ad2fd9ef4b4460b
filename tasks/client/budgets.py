"""Budgets as clients and their jobs change them: with the limits of the agent, and within them."""

from __future__ import annotations

from typing import Any, Final

from ...worker.errors import InvalidInput
from ...worker.state.execution.budget import UNLIMITED, ExecutionBudget
from ...worker.state.values.ids import ChildSessionId, SessionId, read_session_id
from ...worker.store.records import ActionResult
from ...worker.store.store import Store
from .inputs import check_budget, check_caller

_LIMITS: Final = tuple(ExecutionBudget.model_fields)


def change_budget(
    store: Store,
    session_id: str,
    budget: ExecutionBudget,
    *,
    execution_id: str | None,
    by: str | None,
    beyond_agent: bool,
) -> ActionResult:
    """Change the budget of an execution that runs or waits; see `AgentClient.change_budget`.

    Returns:
        "changed" or "again", with a step that the caller has to publish.
    """
    if budget is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise InvalidInput("budget", None, "give an ExecutionBudget(…); ExecutionBudget.unlimited() for no limits.")
    check_budget(budget)
    check_caller(by)
    session = read_session_id(session_id)
    limits = complete_budget(store, session, budget, beyond_agent=beyond_agent)
    return store.sessions.change_budget(session, limits, execution_id=execution_id, by=by or "")


def complete_budget(
    store: Store, session: SessionId | ChildSessionId, budget: ExecutionBudget, *, beyond_agent: bool
) -> ExecutionBudget:
    """The budget with the limits of the session's agent, as its workers register them, in place of those that are None.

    Raises:
        SessionNotFound: There is no such session, or it has expired.
        InvalidInput: A limit is above that of the agent, and beyond_agent is False.
    """
    agent = store.sessions.header(session).agent
    own = store.registry.budget_of(agent) or UNLIMITED
    if not beyond_agent:
        _refuse_beyond(agent, own, budget)
    given: dict[str, Any] = {name: getattr(budget, name) for name in _LIMITS}
    return ExecutionBudget(**{name: getattr(own, name) if limit is None else limit for name, limit in given.items()})


def _refuse_beyond(agent: str, own: ExecutionBudget, budget: ExecutionBudget) -> None:
    for name in _LIMITS:
        limit, most = getattr(budget, name), getattr(own, name)
        if limit is not None and most is not None and limit > most:
            more = "beyond_agent=True (--beyond-agent; over HTTP with the scope admin)"
            advice = f"agent {agent} has {name} {most}; give no more, or {more}."
            raise InvalidInput(f"budget.{name}", limit, advice)
