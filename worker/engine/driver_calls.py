"""One attempt at a driver call: the driver is called, and its raw answer is journaled before anything else happens."""

from __future__ import annotations

import concurrent.futures
import json
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

from ..concurrency import fibers
from ..drivers.answers import answer_too_large
from ..drivers.protocol import Driver, InferenceRequest
from ..errors import DriverError, UnusableAnswer
from ..redaction import describe_exception
from ..state.execution.inference import FinishReason, InferenceResponse
from ..store.flow.records import Settlement
from ..store.steps.provider_jobs import JobEntry
from ..tools.stop import StopExecution
from .leases import CallInterrupted
from .provider_gate import Call
from .run import Run, milliseconds
from .run_values import paid_for
from .services import EngineServices
from .spending_gate import Spending
from .step_texts import failed_call_event

R = TypeVar("R")

# Begins the raw form of an answer that the engine has made of what there was; no driver parses it. A worker of an
# earlier version finds it unusable, and asks again.
_INTERRUPTED: Final = b"!interrupted "
# A call that begins later than this after its claim was sent confirms the lease first.
_RECHECK_SECONDS: Final = 0.5


class Admission(NamedTuple):
    """The permission for a driver call.

    Attributes:
        call: By its provider's limits; None where the driver asks no provider.
        spending: By the spend caps; None where none holds.
    """

    call: Call | None
    spending: Spending | None


class Owed(NamedTuple):
    """The rest of a driver call that is to be settled when its answer is journaled.

    Attributes:
        settlement: Of the request to its provider, to be written with the answer; None: nothing.
        spending: What the call has reserved under spend caps; None: nothing.
        call: The question, and the seconds until its answer, for the observer; None: there was no call.
    """

    settlement: Settlement | None = None
    spending: Spending | None = None
    call: tuple[InferenceRequest, float] | None = None


NOTHING_OWED: Final = Owed()


class DriverCaller:
    """Decides whether a run may call its driver, and journals what that returns."""

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self._steps = services.store.steps
        self._keeper = services.keeper

    def may_begin(self, run: Run) -> bool:
        """Whether the claim still holds, as read with the claim itself; it is read again when that was long ago."""
        if self._services.monotonic() - run.times.sent_at < _RECHECK_SECONDS:
            return self._keeper.is_fresh(run.lease)
        return self._keeper.confirm(run.lease)

    def journal_answer(self, run: Run, raw: bytes, owed: Owed = NOTHING_OWED) -> bytes:
        """Journal a raw answer and return the stored one, which may be another worker's.

        Args:
            owed: What its call has left to settle; the settlement of the request is written with the answer.
        """
        steps = self._steps
        stored = self._services.ask_store(
            run, lambda: steps.record_answer(run.claim, raw, owed.settlement), "an answer"
        )
        finish_call(run, self._services, raw, owed)
        return stored

    def journal_failure(
        self, run: Run, request: InferenceRequest, error: DriverError, pause_seconds: float | None
    ) -> None:
        """Journal an attempt that gave no usable answer, without anything of the provider's body.

        Args:
            pause_seconds: Time until the model is asked again within this step, which watchers are told. None: it
                is not.
        """
        described = describe_exception(error)
        facts: dict[str, Any] = {"kind": described.kind, "transient": error.transient}
        facts |= {name: described.details.get(name) for name in ("status", "code", "request_id")}
        void = run.live.void_call()
        events = [] if void is None else [void]
        model = request.own_model or run.model
        run.memory.failed_model = model if pause_seconds is None else ""
        if pause_seconds is not None:
            next_try_ms = self._services.redis_ms(run) + milliseconds(pause_seconds)
            events.append(failed_call_event(run, described, {**facts, "model": model}, next_try_ms))
            run.memory.has_asked = False
        self._steps.record_failure(run.claim, time.time_ns(), json.dumps(facts).encode(), events)


def admit(run: Run, services: EngineServices, request: InferenceRequest, job: JobEntry | None = None) -> Admission:
    """Wait until a call may be made.

    Args:
        job: At a provider; see `SpendingGate.begin`.
    Raises:
        PutOff: It may not be made now.
        ModelCallRefused: A spend cap stops the execution.
        CallInterrupted: The run was interrupted meanwhile.
        StoreUnavailable: Redis is away, and the step has to end.
    """
    spending = services.spending.begin(run, request, job)
    try:
        return Admission(services.gate.begin(run, request), spending)
    except BaseException:
        if job is None or services.keeper.is_held(run.lease):  # else another worker may have created the job
            services.spending.settle(spending, 0.0)
        raise


def finish_call(run: Run, services: EngineServices, raw: bytes, owed: Owed) -> None:
    """Settle a call whose answer is journaled, and tell the observer of it."""
    services.gate.finish(owed.settlement)
    if owed.spending is None and services.observer is None:
        return  # nobody asks for what the answer has cost
    result = _read(run, raw)
    services.spending.settle(owed.spending, _paid_part(result).cost)
    if owed.call is not None:
        _report(run, services, *owed.call, result=result)


def read_paid(run: Run, raw: bytes) -> InferenceResponse:
    """Parse a raw answer for its usage and price; of one that cannot be used, the response has nothing else."""
    return _paid_part(_read(run, raw))


def _read(run: Run, raw: bytes) -> InferenceResponse | UnusableAnswer:
    try:
        return parse_answer(run, raw)
    except UnusableAnswer as error:
        return error


def _paid_part(result: InferenceResponse | UnusableAnswer) -> InferenceResponse:
    return paid_for(result) if isinstance(result, UnusableAnswer) else result


def _report(
    run: Run,
    services: EngineServices,
    request: InferenceRequest,
    seconds: float,
    result: InferenceResponse | DriverError,
) -> None:
    """Tell the observer what came of a driver call."""
    if services.observer is not None:
        response = _paid_part(result) if isinstance(result, (InferenceResponse, UnusableAnswer)) else None
        error = result.kind if isinstance(result, DriverError) else ""
        services.observer.driver_called(run, request, seconds, response, error)


def call_driver(
    run: Run, services: EngineServices, request: InferenceRequest, admission: Admission
) -> tuple[bytes, Owed]:
    """Call the run's driver.

    Returns:
        The raw answer, and what is to be settled behind it.
    Raises:
        CallInterrupted: The run was interrupted during the call, also by a message, where the driver is async.
        DriverError: There is no answer.
        StopExecution: The driver ends the execution.
    """
    call, spending = admission
    if call is not None:
        request = replace(request, observe=call.observe)
    asked_at = services.monotonic()
    try:
        raw = _call(run, services, request)
    except BaseException as error:
        if call is not None:
            services.gate.fail(run, call, error)
        services.spending.fail(spending, error)
        if isinstance(error, DriverError):
            _report(run, services, request, services.monotonic() - asked_at, error)
        raise
    called = (request, services.monotonic() - asked_at)
    return raw, Owed(None if call is None else services.gate.settle(run, call), spending, called)


def _call(run: Run, services: EngineServices, request: InferenceRequest) -> bytes:
    driver = run.agent.answering
    raw = run_verb(run, services, request, lambda: driver.infer(request))
    if not isinstance(raw, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DriverError("not_bytes", f"a driver gives bytes, not a {type(raw).__name__}", transient=False)
    if len(raw) > request.max_answer_bytes:
        raise answer_too_large(driver.name, request.max_answer_bytes)
    if raw.startswith(_INTERRUPTED):  # text of a model, which no hook would judge
        raise UnusableAnswer("it begins like an answer that a message has interrupted")
    return raw


def run_verb(
    run: Run,
    services: EngineServices,
    request: InferenceRequest,
    verb: Callable[[], Awaitable[R] | R],
    last_seconds: float = 0.0,
) -> R:
    """Run a verb of the run's driver: a coroutine on the loop, a plain function in a thread.

    Args:
        request: The question that the verb is about, with the time that it may take.
        last_seconds: Time that a coroutine has behind an interruption to end by itself; 0: it is cancelled at once.
    Raises:
        CallInterrupted: The run was interrupted meanwhile, also by a message, where the driver is async.
        DriverError: The provider did not answer, or refused.
        StopExecution: The driver ends the execution.
    """
    driver, lease = run.agent.answering, run.lease
    is_auxiliary = bool(request.purpose)  # a hook or a tool calls it, whose own time counts
    blocks_step = not (driver.is_async or is_auxiliary)
    if blocks_step:
        lease.blocked_since = services.monotonic()
    try:
        if driver.is_async:
            future = services.loop.submit(lambda: cast("Awaitable[R]", verb()), request.timeout)
            cancel = partial(_cancel_later, future, last_seconds) if last_seconds else future.cancel
            lease.on_interrupt(cancel)
            if not is_auxiliary:
                lease.on_cut(cancel)
            return fibers.result(future)
        return cast("R", fibers.run_users_code(verb))
    except (DriverError, StopExecution):
        raise
    except Exception as error:
        was_cancelled = isinstance(error, concurrent.futures.CancelledError) and driver.is_async
        if was_cancelled and (lease.interruption is not None or lease.is_cut):
            raise CallInterrupted from error
        raise _as_driver_error(error, driver, request) from error
    finally:
        if blocks_step:
            lease.blocked_since = None


def _cancel_later(future: concurrent.futures.Future[Any], seconds: float) -> None:
    """Cancel a coroutine that has not ended by then."""
    timer = threading.Timer(seconds, future.cancel)
    timer.daemon = True
    timer.start()


def check_answer_of_hook(response: InferenceResponse, most_bytes: int) -> None:
    """Refuse an answer that a hook has made and that is larger than a driver's may be.

    Raises:
        DriverError: It has more bytes.
    """
    if len(response.to_json()) > most_bytes:
        raise answer_too_large("a hook", most_bytes)


def interrupted_answer(text: str, model: str) -> bytes:
    """The raw form of an answer that a message has interrupted.

    Args:
        text: What had arrived of it.
    """
    response = InferenceResponse(content=text, finish_reason=FinishReason.INTERRUPTED, model=model)
    return _INTERRUPTED + response.to_json()


def parse_answer(run: Run, raw: bytes) -> InferenceResponse:
    """Parse a raw answer by the run's driver; no two calls of it have the same id.

    Raises:
        UnusableAnswer: The driver cannot parse it.
    """
    try:
        if raw.startswith(_INTERRUPTED):
            return InferenceResponse.from_json(raw.removeprefix(_INTERRUPTED))
        found = run.agent.answering.parse(raw).with_unique_call_ids()
        if found.finish_reason is FinishReason.INTERRUPTED:  # by no message: hooks judge it, and it may be the last
            return found.model_copy(update={"finish_reason": FinishReason.OTHER})
        return found
    except UnusableAnswer:
        raise
    except Exception as error:  # a driver of the user's
        raise UnusableAnswer(describe_exception(error).message) from error


def _as_driver_error(error: BaseException, driver: Driver, request: InferenceRequest) -> DriverError:
    if driver.is_async and isinstance(error, TimeoutError):
        return DriverError("timeout", f"no answer within {request.timeout:.0f} s", transient=True)
    described = describe_exception(error)
    transient = isinstance(error, (TimeoutError, ConnectionError))
    return DriverError(described.kind, described.message, transient=transient)
