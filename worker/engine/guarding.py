"""The guard phase: decides, before the driver is called, whether the step runs, stops its execution, or is delayed."""

from __future__ import annotations

from collections.abc import Callable

from ..guards import Delay, GuardPoint, GuardView, StopWith, ask_guards, time_left
from ..hooks import HookPoint
from ..redaction import redact
from ..state import ErrorInfo, ExecutionStatus, StopReason
from .applied_step import new_signals
from .auxiliary_calls import charge
from .interruptions import user_stop_signal
from .releases import release_and_retry
from .run import Run, moment
from .services import EngineServices


def guard_run(run: Run, services: EngineServices, on_hook_error: Callable[[Run, Exception], Run]) -> Run:
    """Run the hooks before the step and ask the guards.

    Args:
        on_hook_error: Gives the run after a hook or a guard raised.
    Returns:
        The run; stopping, where a client, a guard or too many attempts end its execution; decided, where a guard
        delays the step.
    """
    loaded = run.loaded
    if loaded.attempts > services.settings.attempts_limit:
        message = f"step {run.ref.step} ended {loaded.attempts - 1} times without an answer"
        return run.failing(ErrorInfo(kind="poison", message=message), StopReason.RETRY_LIMIT_REACHED)
    if loaded.cancel is not None:
        return run.stopping(user_stop_signal())
    try:
        run = run_before_hooks(run)
        charged = charge(run, run.state)
        run = run if charged is run.state else run.changed(state=charged)
        verdict = ask_guards(run.agent.all_guards, _view_of(run))
    except Exception as error:  # noqa: BLE001 - a guard or hook of the user's
        return on_hook_error(run, error)
    # A step that has obtained something is not delayed: what was paid for is committed first.
    if isinstance(verdict, Delay):
        return run if loaded.journal.holds_something else _delay_step(run, services, verdict)
    signals = new_signals(run.execution, verdict.signals) if isinstance(verdict, StopWith) else ()
    continuation = run.execution.continuation
    if continuation.is_continuation_requested:  # a hook overrides the limits, for this step
        return run.changed(signals=(*run.signals, *signals))
    stops = isinstance(verdict, StopWith) or continuation.should_stop()
    return run.stopping(*signals) if stops else run


def run_before_hooks(run: Run) -> Run:
    """Run the hooks before the execution, at its first step, and those before the step.

    Raises:
        Exception: Whatever a hook raises.
    """
    if run.agent.hook_stack.is_empty:
        return run
    state = run.state
    stored = run.loaded.state.execution
    if stored is not None and stored.status is ExecutionStatus.PENDING:
        state = run.run_state_hooks(HookPoint.BEFORE_EXECUTION, state)
    state = run.run_state_hooks(HookPoint.BEFORE_STEP, state)
    return run.changed(state=state, seen_extents=state.store.extents)


def _view_of(run: Run) -> GuardView:
    return GuardView(
        point=GuardPoint.BEFORE_CALL,
        state=run.state,
        session_id=run.ref.session_id,
        execution=run.execution,
        now=moment(run.loaded.now_ms),
    )


def _delay_step(run: Run, services: EngineServices, verdict: Delay) -> Run:
    left = time_left(run.execution, moment(run.loaded.now_ms))
    seconds = verdict.seconds if left is None else min(verdict.seconds, left)
    why = redact(verdict.reason)
    return run.decide(release_and_retry(services.store, run.claim, why, delay_seconds=seconds))
