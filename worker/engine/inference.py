"""Asking the driver: at most one answer is paid for, and it is on its way to the journal before anybody reads it.

Nothing is begun by what it says before the journal has it.
"""

from __future__ import annotations

import concurrent.futures
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import tenacity

from ...config.settings import Settings
from .. import crash_points
from ..concurrency import fibers
from ..concurrency.event_loop import EventLoopThread
from ..drivers import Driver, InferenceRequest
from ..errors import ConfigurationError, DriverError, StoreFull, StoreUnavailable, UnusableAnswer
from ..guards import time_left
from ..hooks import HookContext, HookPoint
from ..redaction import describe_exception
from ..state import AgentState, ErrorInfo, InferenceResponse, StopReason
from ..store import Store
from .interruptions import interrupted
from .leases import ActiveLease, Interruption, LeaseKeeper
from .observer import StepObserver
from .outcome import RetryLater, TakenOver
from .run import Run, milliseconds, moment

log = logging.getLogger(__name__)

# A claim read this long ago is looked at again before a call begins.
_RECHECK_SECONDS = 0.5


class Interrupted(Exception):
    """The call was ended from outside."""


class Inference:
    """The step's driver call."""

    def __init__(
        self,
        store: Store,
        keeper: LeaseKeeper,
        loop: EventLoopThread,
        settings: Settings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = fibers.sleep,
        observer: StepObserver | None = None,
    ) -> None:
        self._store = store
        self._keeper = keeper
        self._loop = loop
        self._settings = settings
        self._monotonic = monotonic
        self._pausing = sleep
        self._watching = observer

    def infer(self, run: Run) -> Run:
        """Adopt the journaled answer, or ask for one where that is allowed."""
        raw = run.loaded.journal.answer
        if raw is not None:
            return self._read(run, _Reading(run, raw))
        if run.forbidden:
            return run
        try:
            _check_price(run)
            run, request = self._request(run)
        except Exception as error:  # noqa: BLE001 - a hook of the user's, or a driver that cannot be made
            return run.failing(describe_exception(error), StopReason.ERROR_FORBADE)
        return self._asked(run, request)

    def shaped_again(self, run: Run) -> Run:
        """What the hooks around inference did to the session's state, on the state that is stored now.

        Raises:
            Exception: Whatever a hook raises.
        """
        if run.response is None or run.agent.hook_stack.is_empty:
            return run
        shaped, _ = self._request(run)
        return self._answered(shaped, run.response).changed(response=run.response)

    def _request(self, run: Run) -> tuple[Run, InferenceRequest]:
        request = InferenceRequest(
            state=_with_prompt(run),
            session_id=run.ref.session_id,
            execution_id=run.ref.execution_id,
            step=run.ref.step,
            tools=run.agent.toolset.specs(),
            timeout=self._timeout(run),
            compiler=run.agent.messages_from,
            settings=run.state.llm_config,
        )
        if not run.agent.hook_stack.at(HookPoint.BEFORE_INFERENCE):
            return run, request
        context = HookContext(
            HookPoint.BEFORE_INFERENCE, run.ref.session_id, run.ref.execution_id, run.ref.step, run.state, request
        )
        shaped = run.agent.hook_stack.run(context)
        return run.changed(state=shaped.state), shaped.request or request

    def _timeout(self, run: Run) -> float:
        return max(0.001, self._keeper.time_left(run.held))

    def _asked(self, run: Run, request: InferenceRequest) -> Run:
        """Ask until there is an answer that can be read, as often as the settings allow within this step."""
        try:
            return self._attempt(run, request)
        except Interrupted:
            return self._interrupted(run)
        except DriverError as error:
            return self._asked_again(run, request, error)

    def _asked_again(self, run: Run, request: InferenceRequest, first: DriverError) -> Run:
        """The first attempt is made without tenacity, whose machinery costs a tenth of a step that needs none of it."""
        errors = [first]

        def attempt() -> Run:
            if errors:
                raise errors.pop()
            return self._attempt(run, replace(request, timeout=self._timeout(run)))

        attempts = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self._settings.driver_attempts),
            wait=self._pause,
            retry=tenacity.retry_if_exception(self._is_worth_waiting_for),
            sleep=lambda seconds: self._sleep(run.held, seconds),
            reraise=True,
        )
        try:
            return attempts(attempt)
        except Interrupted:
            return self._interrupted(run)
        except DriverError as error:
            return self._gave_up(run, error)

    def _attempt(self, run: Run, request: InferenceRequest) -> Run:
        if not self._may_begin(run):
            raise Interrupted
        started = self._monotonic()
        try:
            raw = self._call(run, request)
            if not isinstance(raw, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise DriverError("not_bytes", f"a driver gives bytes, not a {type(raw).__name__}", transient=False)
            crash_points.at("c2")
            reading = _Reading(run, raw)
            stored = self._record(run, raw)
            answered = self._read(run, reading) if stored == raw else self._adopted(run, stored, raw)
            self._observe(run, started, answered.response, "")
            return answered
        except DriverError as error:
            self._observe(run, started, None, error.kind)
            self._note(run, error)
            raise

    def _adopted(self, run: Run, stored: bytes, raw: bytes) -> Run:
        """Another's answer was journaled first; when it turns out to be of no use, mine was paid for too."""
        try:
            return self._read(run, _Reading(run, stored))
        except UnusableAnswer:
            return self._read(run, _Reading(run, self._record(run, raw)))

    def _observe(self, run: Run, started: float, response: InferenceResponse | None, error: str) -> None:
        if self._watching is not None:
            self._watching.driver_called(run, self._monotonic() - started, response, error)

    def _may_begin(self, run: Run) -> bool:
        """The claim and the absence of a stop were read with the claim; later they are read again."""
        if self._monotonic() - run.asked < _RECHECK_SECONDS:
            return self._keeper.is_fresh(run.held)
        return self._keeper.confirm(run.held)

    def _call(self, run: Run, request: InferenceRequest) -> bytes:
        driver = run.agent.answering
        if driver.is_async:
            return self._call_on_loop(run.held, driver, request)
        run.held.stuck_since = self._monotonic()
        try:
            return cast("bytes", fibers.run_in_thread(driver.infer, request))
        except DriverError:
            raise
        except (Exception, SystemExit) as error:
            raise _foreign(error) from error
        finally:
            run.held.stuck_since = None

    def _call_on_loop(self, held: ActiveLease, driver: Driver, request: InferenceRequest) -> bytes:
        future = self._loop.submit(lambda: cast("Awaitable[bytes]", driver.infer(request)), request.timeout)
        held.on_interrupt(future.cancel)
        try:
            return fibers.result(future)
        except concurrent.futures.CancelledError as error:
            raise Interrupted from error
        except TimeoutError as error:
            raise DriverError("timeout", f"no answer within {request.timeout:.0f} s", transient=True) from error
        except DriverError:
            raise
        except Exception as error:
            raise _foreign(error) from error

    def _record(self, run: Run, raw: bytes) -> bytes:
        """A paid answer is kept until it is stored, as long as the step may live."""
        while True:
            try:
                return self._store.steps.record_answer(run.claim, raw)
            except (StoreFull, StoreUnavailable) as error:
                log.warning(
                    "the answer of step %s of session %s waits for Redis: %s", run.ref.step, run.ref.session_id, error
                )
                if self._keeper.remaining(run.held) <= 0 or run.held.interruption is Interruption.LOST:
                    raise
                self._pausing(0.2)

    def _read(self, run: Run, reading: _Reading) -> Run:
        try:
            response = reading.response()
        except UnusableAnswer as error:
            if run.forbidden or run.loaded.journal.holds_something:
                if self._store.steps.drop_answer(run.claim) and not run.forbidden:
                    return self.infer(_without_answer(run))
                return run.failing(describe_exception(error), StopReason.ERROR_FORBADE)
            self._store.steps.drop_answer(run.claim)
            raise
        return self._answered(run, response)

    def _answered(self, run: Run, response: InferenceResponse) -> Run:
        if not run.agent.hook_stack.at(HookPoint.AFTER_INFERENCE):
            return run.changed(response=response)
        context = HookContext(
            HookPoint.AFTER_INFERENCE, run.ref.session_id, run.ref.execution_id, run.ref.step, run.state,
            response=response,
        )  # fmt: skip
        shaped = run.agent.hook_stack.run(context)
        return run.changed(response=shaped.response or response, state=shaped.state)

    def _note(self, run: Run, error: DriverError) -> None:
        """Every attempt that gave no usable answer is recorded, without anything of the provider's body."""
        described = describe_exception(error)
        facts: dict[str, Any] = {"kind": described.kind, "transient": error.transient}
        facts |= {name: described.details.get(name) for name in ("status", "code", "request_id")}
        number = time.time_ns()
        self._store.steps.record_failure(run.claim, number, json.dumps(facts).encode())

    def _sleep(self, held: ActiveLease, seconds: float) -> None:
        if held.wait(min(seconds, self._keeper.time_left(held))):
            raise Interrupted

    def _pause(self, state: tenacity.RetryCallState) -> float:
        """Full jitter (Brooker, "Exponential Backoff And Jitter", AWS 2015), or what the provider asked for."""
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after if isinstance(error, DriverError) else None
        backoff = tenacity.wait_random_exponential(
            multiplier=self._settings.retry_delay_seconds, max=self._settings.retry_delay_max_seconds
        )(state)
        return max(asked or 0.0, backoff)

    def _is_worth_waiting_for(self, error: BaseException) -> bool:
        """Whether to ask again within this step; a long pause that the provider asks for does not keep a slot."""
        asked = error.retry_after if isinstance(error, DriverError) else None
        return _is_worth_retrying(error) and (asked or 0.0) <= self._settings.retry_delay_max_seconds

    def _interrupted(self, run: Run) -> Run:
        """Ended from outside: by a stop the step commits what it has, else another worker carries it on."""
        if run.held.interruption is Interruption.DEADLINE:
            error = ErrorInfo(kind="step_timeout", message="the step reached its deadline during the model call")
            return run.failing(error, StopReason.TIME_LIMIT_REACHED)
        if run.held.interruption is None:  # the lease could not be confirmed
            return run.changed(decided=TakenOver(run.ref))
        return interrupted(run, self._store, self._keeper)

    def _gave_up(self, run: Run, error: DriverError) -> Run:
        """Not in this step. Transient: later, up to a day; permanent: the execution fails."""
        if not _is_worth_retrying(error):
            return run.failing(describe_exception(error), StopReason.ERROR_FORBADE)
        if isinstance(error, UnusableAnswer):  # each was paid for; an outage is not
            return run.failing(describe_exception(error), StopReason.RETRY_LIMIT_REACHED)
        loaded = run.loaded
        waited_ms = loaded.now_ms - loaded.delayed_since_ms if loaded.delayed_since_ms else 0
        if waited_ms >= self._settings.retry_later_limit_seconds * 1000:
            return run.failing(describe_exception(error), StopReason.RETRY_LIMIT_REACHED)
        seconds = min(
            self._settings.retry_later_seconds * 2 ** min(loaded.delays, 16), self._settings.retry_later_max_seconds
        )
        seconds = max(seconds, error.retry_after or 0.0)
        seconds = min(seconds, self._settings.retry_later_limit_seconds, *self._budget_seconds(run))
        publish = self._store.steps.release(run.claim, delay_ms=milliseconds(seconds), give_back=True)
        return run.changed(
            decided=RetryLater(run.ref, seconds, f"{error.kind}: {describe_exception(error).message}", publish)
        )

    def _budget_seconds(self, run: Run) -> list[float]:
        left = time_left(run.execution, moment(run.redis_ms(self._monotonic())))
        return [] if left is None else [left]


def _check_price(run: Run) -> None:
    """A cost limit that nobody could keep is refused before the first call."""
    limit = run.execution.budget.max_cost
    driver = run.agent.answering
    if limit is None or driver.knows_price(run.state.llm_config):
        return
    override = run.state.llm_config
    model = (override.model if override else None) or driver.name
    raise ConfigurationError(
        f"agent {run.agent.name!r} has max_cost={limit:g}, and {model!r} has no known price. Give its driver one, "
        "PydanticAIDriver(…, price=TokenPrice(…)), or limit tokens instead of cost."
    )


class _Reading:
    """What an answer says, parsed once: when somebody wants to know, or while it is on its way to the journal."""

    def __init__(self, run: Run, raw: bytes) -> None:
        self._run = run
        self._raw = raw
        self._response: InferenceResponse | None = None
        self._error: UnusableAnswer | None = None

    def begin(self) -> None:
        if self._response is None and self._error is None:
            try:
                self._response = _parsed(self._run, self._raw)
            except UnusableAnswer as error:
                self._error = error

    def response(self) -> InferenceResponse:
        """
        Raises:
            UnusableAnswer: It cannot be parsed.
        """
        self.begin()
        if self._response is None:
            assert self._error is not None
            raise self._error
        return self._response


def _parsed(run: Run, raw: bytes) -> InferenceResponse:
    try:
        return run.agent.answering.parse(raw)
    except UnusableAnswer:
        raise
    except Exception as error:  # a driver of the user's
        raise UnusableAnswer(describe_exception(error).message) from error


def _with_prompt(run: Run) -> AgentState:
    """The agent's prompt stands in the state the driver sees; it is stored only where a session has its own."""
    if run.state.system_prompt or not run.agent.system_prompt:
        return run.state
    return run.state.with_system_prompt(run.agent.system_prompt, now=run.state.updated_at)


def _without_answer(run: Run) -> Run:
    journal = replace(run.loaded.journal, answer=None)
    return run.changed(loaded=replace(run.loaded, journal=journal))


def _is_worth_retrying(error: BaseException) -> bool:
    return isinstance(error, DriverError) and error.transient


def _foreign(error: BaseException) -> DriverError:
    described = describe_exception(error)
    transient = isinstance(error, (TimeoutError, ConnectionError))
    return DriverError(described.kind, described.message, transient=transient)
