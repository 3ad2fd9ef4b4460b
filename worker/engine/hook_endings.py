"""Takes over what hooks have changed, and the end of the execution where they have decided it.

A hook ends an execution by a stop signal or by the status of the state that it returns. The run carries that end to the
commit, which makes it like any other end: with its events, its hooks, and the messages that came meanwhile.
"""

from __future__ import annotations

from typing import Final

from ..hooks import HookContext, HookPoint
from ..state.agent_state import AgentState
from ..state.execution.execution import ExecutionState
from ..state.execution.signals import StopReason, StopSignal
from ..state.execution.status import ExecutionStatus
from ..state.values.error_info import ErrorInfo
from .run import Run

_HOOK_FAILED: Final = ErrorInfo(kind="hook", message="a hook failed the execution")


def run_state_hooks(run: Run, point: HookPoint) -> Run:
    """Run the hooks of a point before or around the model call that may change only the state."""
    stack = run.agent.hook_stack
    return adopt_hook_context(run, stack.run(run.hook_context(point, run.state))) if stack.at(point) else run


def adopt_hook_context(run: Run, context: HookContext) -> Run:
    """The run with the state that hooks have made; stopping or failing, where they end the execution."""
    before, state = run.execution, context.state
    run = run.changed(state=state)
    has_answered = context.point is HookPoint.BEFORE_STEP and context.response is not None
    if has_answered and run.obtained.response is None and run.journal.answer is None:
        run = run.with_response(context.response, is_given=True)
    if context.stop_signals:
        run = run.stopping(*context.stop_signals)
    execution = state.execution
    if execution is None or not execution.status.is_terminal():
        return run
    reopened = execution.with_end_taken_back(before.errors)
    run = run.changed(state=state.with_context_and_execution(state.context, reopened))
    if execution.status is ExecutionStatus.FAILED:
        errors = execution.errors[len(before.errors) :]
        return run.failing(errors[-1] if errors else _HOOK_FAILED, StopReason.ERROR_FORBADE)
    return run.stopping(*signals_of_end(execution)).with_ending(status=execution.status)


def error_of_end(state: AgentState) -> ErrorInfo | None:
    """The error by which a hook has failed the execution of a state; None when it has not failed."""
    if state.status is not ExecutionStatus.FAILED:
        return None
    return state.errors[-1] if state.errors else _HOOK_FAILED


def signals_of_end(execution: ExecutionState) -> tuple[StopSignal, ...]:
    """The signal of an execution that a hook has stopped without saying why."""
    if execution.status is not ExecutionStatus.STOPPED or execution.continuation.stop_signals:
        return ()
    message = "a hook ended the execution"
    return (StopSignal(reason=StopReason.STOP_REQUESTED, message=message, source="hook"),)
