"""The verb of a client that changes the budget of an execution."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from ...worker.state.execution.budget import ExecutionBudget
from .budgets import change_budget
from .connection import ClientConnection
from .verbs import BY, Scope, verb

BEYOND_AGENT: Final = Field(description="The budget may be above the agent's own; needs the scope admin.")


class BudgetingVerbs(ClientConnection):
    """Changes budgets."""

    @verb(
        "POST", "/v1/sessions/{session_id}/budget", "change_budget", scope=Scope.SUBMIT,
        body=("ChangeBudget", "Other limits for an execution that runs or waits."),
        http={
            "budget": Field(description="All limits. A missing one is the agent's own, or none."),
            "execution_id": Field(description="Only of this execution. None: of the one that runs or waits."),
            "beyond_agent": BEYOND_AGENT, "by": BY,
        },
        service_only=("budget",), needs={("beyond_agent", True): Scope.ADMIN},
        task=("session_id", "budget", "execution_id", "by"), reads_session=False,
    )  # fmt: skip
    def change_budget(
        self,
        session_id: str,
        budget: ExecutionBudget,
        *,
        execution_id: str | None = None,
        by: str | None = None,
        beyond_agent: bool = False,
    ) -> bool:
        """Change the limits of an execution that runs or waits; what it has used counts against the new ones.

        The running step is held against them at its end, and its time at the next heartbeat. A session that waits looks
        at them at once. Children whose reservations a lowered limit does not cover any more are stopped.

        Args:
            budget: All limits, in place of the present ones. A limit that is None is the agent's own, or there is none.
            execution_id: Only of this execution. None: of the one that runs or waits when this is written.
            by: Who asks; kept in the event `budget_changed`.
            beyond_agent: The budget may be above the agent's own.
        Returns:
            False when the execution has this budget already.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: No such execution runs or waits, or it is being stopped; or the session is a child, whose
                limits can only be lowered.
            InvalidInput: A limit is above that of the agent.
        """
        applied = change_budget(
            self.store, session_id, budget, execution_id=execution_id, by=by, beyond_agent=beyond_agent
        )
        self._publish(applied.publish)
        return applied.outcome == "changed"
