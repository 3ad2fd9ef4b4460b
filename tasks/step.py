"""The step task: it runs one step of an agent and tells Celery how that ended."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Final, assert_never

from celery import Celery, Task
from celery.app.task import Context
from celery.exceptions import Ignore, Retry

from ..config.logs import LoggedAs
from ..config.settings import Settings
from ..worker import crash_points
from ..worker.engine.outcome import Done, Moved, NothingToDo, Outcome, Parked, RetryLater, TakenOver, Waiting
from ..worker.errors import CeleryAgentsError, ExecutionFailed, StepDelayed, StoreFull, StoreUnavailable
from ..worker.state.execution.status import ExecutionStatus
from ..worker.store.records import StepRef
from .names import LANE_HEADER, STEP, TURN, sent_to
from .runtime import LazyRuntime, Runtime
from .step_message import MalformedStep, read_step

log = logging.getLogger(__name__)

_PAYLOAD_CHARS = 2000
# A soft limit, which a task without one has from its pool, would be an error of the agent. Celery takes no 0.
_NEVER_SECONDS: Final = 10.0**9


def register_step(app: Celery, settings: Settings, runtime: LazyRuntime) -> None:
    """Add the step task to an app."""
    # Celery's limits, retries and results are off: the engine has its own, which survive a worker.
    options: dict[str, Any] = {
        "ignore_result": True, "acks_late": True, "typing": False, "max_retries": 0,
        "on_bound": sent_to(settings.queue, _NEVER_SECONDS), "bind": True, "store_errors_even_if_ignored": False,
        "shared": False,  # as of the control tasks: Celery gives shared ones to each app of the process
        "throws": (ExecutionFailed,),  # an agent that fails is no error of the worker: no traceback in its log
    }  # fmt: skip

    @app.task(name=STEP, **options)  # pyright: ignore[reportUntypedFunctionDecorator]
    def step(self: Task[Any, Any], *args: Any, **kwargs: Any) -> str:  # pyright: ignore[reportUnusedFunction]
        """Run one step of an agent, if it is due and no other worker runs it."""
        try:
            ref = read_step(args, kwargs)
        except MalformedStep as error:
            runtime().store.housekeeping.quarantine(repr(kwargs)[:_PAYLOAD_CHARS], str(error))
            raise Ignore from error
        with LoggedAs(session_id=ref.session_id, execution_id=ref.execution_id, step=ref.step):
            queue = settings.queue_name((self.request.delivery_info or {}).get("routing_key")) or ""
            ref = replace(ref, queue=queue, lane=_lane_of(self.request))
            return report_outcome(_run_step(runtime(), ref), runtime())


def _lane_of(request: Context) -> str:
    """The lane that a step's message names; a worker that knows no lanes runs the step of a turn without one."""
    named: object = getattr(request, LANE_HEADER, "")
    return named if isinstance(named, str) and named != TURN else ""


def _run_step(runtime: Runtime, ref: StepRef) -> Outcome:
    try:
        outcome = runtime.runner.run_step(ref)
        runtime.observers.delivered(outcome)
        return outcome
    except (StoreUnavailable, StoreFull) as error:
        runtime.observers.delivered(None)
        log.warning("step %s of session %s stays due: %s", ref.step, ref.session_id, error)
        raise Ignore from error


def report_outcome(outcome: Outcome, runtime: Runtime) -> str:
    """Publish what follows a step, and tell Celery its outcome.

    Returns:
        The line that Flower shows as the step's result.
    Raises:
        Ignore: There was nothing to do; the row of the step in Flower stays as it is.
        Retry: The step is tried again later; Flower shows RETRY with the reason. The store publishes its message then.
        ExecutionFailed: The execution failed with this step; its text is redacted.
    """
    match outcome:
        case Done():
            _publish(runtime, outcome.publish)
            if outcome.status is ExecutionStatus.FAILED:
                log.warning("session %s: execution failed: %s", outcome.ref.session_id, outcome.error)
                raise ExecutionFailed(outcome.ref.execution_id, (outcome.error,))
            return outcome.summary
        case Waiting():
            for child in outcome.publish:
                _publish(runtime, child)
            log.info("step %s of session %s %s", outcome.ref.step, outcome.ref.session_id, outcome.summary)
            return outcome.summary
        case NothingToDo():
            log.debug("step %s of %s: %s", outcome.ref.step, outcome.ref.session_id, outcome.reason)
            raise Ignore
        case RetryLater():
            _publish(runtime, outcome.publish)
            log.info(
                "step %s of session %s is delayed for %.1f s: %s",
                outcome.ref.step, outcome.ref.session_id, outcome.seconds, outcome.reason,
            )  # fmt: skip
            seconds: Any = outcome.seconds
            raise Retry(outcome.reason, StepDelayed(outcome.reason, seconds), seconds)
        case Moved():
            _publish(runtime, outcome.publish)
            log.debug("step %s of %s: moved to queue %s", outcome.ref.step, outcome.ref.session_id, outcome.queue)
            raise Ignore
        case TakenOver():
            log.info("step %s of session %s was taken over", outcome.ref.step, outcome.ref.session_id)
            raise Ignore
        case Parked():
            log.error("session %s is parked: %s", outcome.ref.session_id, outcome.reason)
            raise ExecutionFailed(outcome.ref.execution_id, (f"parked: {outcome.reason}",))
        case _ as never:
            assert_never(never)


def _publish(runtime: Runtime, ref: StepRef | None) -> None:
    if ref is None:
        return
    try:
        runtime.publish(ref)
    except CeleryAgentsError as error:
        log.warning("step %s of session %s waits for the sweep: %s", ref.step, ref.session_id, error)
        return
    crash_points.at("c9")
