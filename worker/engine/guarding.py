"""The guard phase: decides, before the driver is called, whether the step runs, stops its execution, or is delayed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ...config.settings import Settings
from ..errors import PutOff
from ..guards import (
    Delay,
    GuardPoint,
    GuardView,
    StopWith,
    ask_guards,
    expiry_signal,
    longest_wait,
    time_left,
    time_signals,
)
from ..hooks import HookPoint
from ..moments import moment
from ..redaction import describe_exception, redact
from ..state.execution.signals import StopReason, StopSignal
from ..state.values.error_info import ErrorInfo
from .applied_step import new_signals
from .charges import charge
from .children import adopt_ending
from .driver_calls import check_answer_of_hook
from .endings import delay_step, hold_signal, put_off, run_state_hooks, user_stop_signal
from .run import Run
from .services import EngineServices

log = logging.getLogger(__name__)

_MOST_ENDS: Final = 2
"""Attempts to end a poison step: one with hooks, one without them."""


class StepNotEnded(Exception):
    """A poison step that cannot even be ended. Its session is parked, until a retry."""


def guard_run(run: Run, services: EngineServices, on_hook_error: Callable[[Run, Exception], Run]) -> Run:
    """Run the hooks before the step and ask the guards.

    Args:
        on_hook_error: Gives the run after a hook or a guard raised.
    Returns:
        The run; stopping, where a client, a guard or too many attempts end its execution; decided, where a guard
        delays the step, or where a pause or a concurrency limit puts it off.
    """
    run = _decide_at_once(run, services)
    if run.outcome is not None or run.ending.is_stopping:
        return _repeat_before_hooks(run)
    try:
        prepared = run_before_hooks(run)
        if prepared.obtained.is_given and prepared.obtained.response is not None:
            check_answer_of_hook(prepared.obtained.response, services.settings.max_answer_bytes)
        run = prepared.changed(state=charge(prepared, prepared.state))
        if run.ending.is_stopping or run.obtained.is_given:  # a hook has ended it, or has answered
            return run
        verdict = ask_guards(run.agent.all_guards, _view_of(run))
    except Exception as error:  # noqa: BLE001 - a guard or hook of the user's
        return on_hook_error(run, error)
    # A step that has obtained something is not delayed: what was paid for is committed first.
    if isinstance(verdict, Delay):
        return run if run.loaded.journal.holds_something else _delay_step(run, services, verdict)
    execution = run.execution
    signals = new_signals(execution, verdict.signals) if isinstance(verdict, StopWith) else ()
    continuation = execution.continuation
    if continuation.is_continuation_requested:  # a hook overrides the limits, for this step
        return run.with_ending(signals=(*run.ending.signals, *signals))
    stops = isinstance(verdict, StopWith) or continuation.should_stop()
    return run.stopping(*signals) if stops else run


def _decide_at_once(run: Run, services: EngineServices) -> Run:
    """Stop a run before hooks and guards are asked: it may not run, or a client stops it; or put it off."""
    refused = _find_refusal(run, services.settings)
    if refused is not None:
        return run.failing(*refused)
    if run.journal.ending is not None:  # an earlier leg has ended it, and waited for its children
        return adopt_ending(run, run.journal.ending)
    requested = _requested_stop(run)
    if requested is not None:
        return run.stopping(requested)
    gate, now_ms = services.gate, services.redis_ms(run)
    paused = gate.find_pause(now_ms, ("agent", run.agent.name), ("queue", run.agent.queue or ""))
    try:
        if paused is not None:
            raise gate.put_off_by(paused, now_ms)
        services.concurrency.enter(run)
    except PutOff as error:
        now = moment(now_ms)
        if time_left(run.execution, now) == 0:  # no guard would see it before it may go
            return run.stopping(*time_signals(run.execution, now))
        return put_off(run, services, error)
    return run


def run_before_hooks(run: Run) -> Run:
    """Run the hooks before the execution, until its first step is committed, and those before the step.

    A step that waits stores nothing that hooks have changed, so each of its legs runs them again.

    Raises:
        Exception: Any exception of a hook.
    """
    if run.agent.hook_stack.is_empty:
        return run
    stored = run.loaded.state.execution
    if stored is not None and stored.step_count == 0 and stored.retries == 0:
        run = run_state_hooks(run, HookPoint.BEFORE_EXECUTION)
    run = run_state_hooks(run, HookPoint.BEFORE_STEP)
    return run.changed(seen_extents=run.state.store.extents)


def _repeat_before_hooks(run: Run) -> Run:
    """Repeat what hooks have changed before the answer that the journal has, though the execution ends.

    Nothing new is asked. A step that is put off runs them when it comes back; one that has killed its processes is left
    alone: a hook may be what kills them.
    """
    if run.outcome is not None or run.journal.answer is None or run.is_poison:
        return run
    try:
        return run_before_hooks(run)
    except Exception as error:  # noqa: BLE001 - a hook of the user's, or a question that may not be asked any more
        described = describe_exception(error).message
        log.warning("session %s ends without the changes of a hook: %s", run.ref.session_id, described)
        return run


def _find_refusal(run: Run, settings: Settings) -> tuple[ErrorInfo, StopReason] | None:
    """Why the step must not run at all; None when it may.

    Raises:
        StepNotEnded: The attempts to end it have ended their processes, too.
    """
    loaded, weight = run.loaded, run.loaded.session.weight
    if (over := loaded.attempts - settings.attempts_limit) > 0:
        if over > _MOST_ENDS:
            ended = f"{loaded.attempts - 1} attempts have ended without an answer"
            raise StepNotEnded(f"step {run.ref.step} cannot be ended: {ended}")
        message = f"step {run.ref.step} ended {loaded.attempts - 1} times without an answer"
        return ErrorInfo(kind="poison", message=message), StopReason.RETRY_LIMIT_REACHED
    if weight > settings.max_session_bytes:
        message = (
            f"the session takes about {weight} bytes of memory, and the limit is {settings.max_session_bytes} "
            "(CELERY_AGENTS_MAX_SESSION_BYTES); begin a new session"
        )
        return ErrorInfo(kind="session_too_large", message=message), StopReason.ERROR_FORBADE
    return None


def spare_hooks(run: Run, settings: Settings) -> Run:
    """The run without hooks, where the attempt to end a poison step with them has not ended it: they may be why."""
    is_spared = run.is_poison and run.loaded.attempts > settings.attempts_limit + 1
    return run.changed(agent=run.agent.without_hooks()) if is_spared else run


def _requested_stop(run: Run) -> StopSignal | None:
    """The stop that a person asked for, or that the end of a hold or its expiry brings; None without one."""
    if run.loaded.cancel is not None:
        return user_stop_signal()
    # Before its time is over, no worker gets a claim of a held session.
    if run.loaded.hold is not None:
        return hold_signal(run.loaded.hold)
    return None if run.loaded.journal.was_paid_for else expiry_signal(run.execution, moment(run.loaded.now_ms))


def _view_of(run: Run) -> GuardView:
    return GuardView(
        point=GuardPoint.BEFORE_CALL,
        state=run.state,
        session_id=run.ref.session_id,
        execution=run.execution,
        now=moment(run.loaded.now_ms),
        model=run.model,
    )


def _delay_step(run: Run, services: EngineServices, verdict: Delay) -> Run:
    left = longest_wait(run.execution, moment(run.loaded.now_ms))
    seconds = verdict.seconds if left is None else min(verdict.seconds, left)
    why = redact(verdict.reason)
    return delay_step(run, services.store, why, seconds)
