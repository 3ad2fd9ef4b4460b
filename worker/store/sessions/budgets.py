"""Changing the budget of an execution that runs or waits.

    WATCH session, ctl · read · check · MULTI budget, mark, event · wake or due · EXEC

The budget is a control field. Claims, waits, commits and renewals of leases read it before that of the state; the next
wait or commit takes it into the state.
"""

from __future__ import annotations

from typing import Any, Final

from ...errors import ActionRefused
from ...moments import unix_ms
from ...state.codec.join import read_head
from ...state.execution.budget import ExecutionBudget
from ...state.execution.execution import ExecutionState
from ..context import SessionScope, StorePart
from ..control import LONGEST_WAIT_MS, ControlFields, budget_commands
from ..database import Command
from ..event_records import EventType
from ..events import tell
from ..records import ActionResult, StepRef
from ..waking import wake
from .loading import require_head
from .watched_sessions import WatchedSession

_NAMES: Final = ("max_steps", "max_tokens", "max_seconds", "max_cost", "deadline")


class BudgetVerbs(StorePart):
    """Changing budgets."""

    def change_budget(
        self, session_id: str, budget: ExecutionBudget, *, execution_id: str | None = None, by: str = ""
    ) -> ActionResult:
        """Change the budget of the execution that runs or waits. A session that waits is woken, and looks at it.

        Args:
            execution_id: Only of this execution. None: of the one that is active when this is written.
        Returns:
            "changed"; "again" when it has this budget already.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: The execution has ended or is being stopped; or a child would get more than it has.
        """
        scope = self._context.session(session_id)
        return scope.act_once(lambda: _change(scope, budget, execution_id, by), "get another budget")


def _change(scope: SessionScope, budget: ExecutionBudget, execution_id: str | None, by: str) -> ActionResult:
    keys = scope.keys
    # Its head tells the budget of the state; its conversation is not read.
    reads: list[Command] = [*WatchedSession.reads(scope), ("HGET", keys.session, "head")]
    with scope.database.watch("budget.read", (keys.session, keys.ctl), reads) as watched:
        *session, head = watched.replies
        found = WatchedSession.parse(scope, session)
        control = found.control
        _refuse_unless_active(found, execution_id)
        execution = found.check_execution(read_head(require_head(head)).state)
        assert execution is not None, "an execution is active"
        before = control.changed_budget or execution.budget
        if _holds_already(control, execution, budget):
            return ActionResult("again", control.execution, found.version)
        _refuse_more_for_child(found, before, budget)
        limits, old = budget.to_dict(), before.to_dict()
        data = {"budget": limits, "before": old, "by": by}
        commands = [
            *budget_commands(keys, control, budget),
            *tell(scope, found.step, EventType.BUDGET_CHANGED, data),
        ]
        more, publish = _look_again(found, before, budget)
        watched.commit("budget.exec", [*commands, *more])
        return ActionResult("changed", control.execution, found.version, publish=publish)


def _refuse_unless_active(found: WatchedSession, execution_id: str | None) -> None:
    session_id, control = found.scope.session_id, found.control
    if control.phase == "end" or execution_id not in (None, control.execution):
        which = "no execution" if execution_id is None else f"no execution {execution_id}"
        raise ActionRefused(
            f"session {session_id}: {which} runs or waits; give the budget with the next message, or with a retry"
        )
    if control.requested_stop is not None:
        raise ActionRefused(f"session {session_id} is being stopped; a budget changes nothing any more")


def _refuse_more_for_child(found: WatchedSession, before: ExecutionBudget, budget: ExecutionBudget) -> None:
    """Refuse a child more than it has: its parent has reserved no more for it."""
    link = found.bookkeeping.link
    above = [name for name in _NAMES if _is_above(getattr(budget, name), getattr(before, name))]
    if link is not None and above:
        raise ActionRefused(
            f"session {found.scope.session_id} is a child of {link.session_id}, which has reserved its budget: "
            f"{', '.join(above)} can only be lowered here"
        )


def _is_above(limit: Any, than: Any) -> bool:
    """Whether a limit, or a deadline, allows more than another one; None is no limit."""
    return than is not None and (limit is None or bool(limit > than))


def _holds_already(control: ControlFields, execution: ExecutionState, budget: ExecutionBudget) -> bool:
    """Whether nothing but this budget limits the execution: no default limit of steps either."""
    if control.changed_budget is not None:
        return control.changed_budget == budget
    return execution.budget == budget and execution.default_steps == 0


def _look_again(
    found: WatchedSession, before: ExecutionBudget, budget: ExecutionBudget
) -> tuple[list[Command], StepRef | None]:
    """Commands that let a worker look at the session in time; and the step, where the caller has to publish it.

    A step that is claimed needs nothing: its lease is renewed soon, and its commit reads the budget.
    """
    scope, control = found.scope, found.control
    due, deadline_ms = scope.keys.shard.due, _deadline_ms(budget)
    if control.hold is not None:
        until_ms = control.hold.until_ms
        if until_ms == _deadline_ms(before):  # the hold itself was to last longer
            until_ms = control.hold.since_ms + LONGEST_WAIT_MS
        until_ms = max(1, int(min(until_ms, deadline_ms)))
        entry: list[Command] = [] if control.claim else [("ZADD", due, "XX", until_ms, scope.session_id)]
        return [("HSET", scope.keys.ctl, "held", until_ms), *entry], None
    if control.claim:
        return [], None
    if control.phase == "wait":
        woken = wake(scope, control, found.now_ms, {"cause": "budget"})
        return woken.commands, woken.publish
    if control.phase == "run" and control.not_before_ms > max(found.now_ms, deadline_ms):
        at_ms = max(found.now_ms, int(deadline_ms))
        return [
            ("HSET", scope.keys.ctl, "not_before", at_ms),
            ("ZADD", scope.keys.shard.delayed, "XX", at_ms, scope.session_id),
            ("ZADD", due, "XX", at_ms, scope.session_id),
        ], None
    return [], None


def _deadline_ms(budget: ExecutionBudget) -> float:
    """The deadline as Redis time; infinite without one."""
    return float("inf") if budget.deadline is None else unix_ms(budget.deadline)
