"""Asks the models of an agent: each as often as the settings allow within a step, one after another."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Final, TypeVar

from ...config.settings import Settings
from ..drivers.protocol import InferenceRequest
from ..errors import ConfigurationError, DriverError, PutOff, UnusableAnswer
from ..state.conversation.context import LLMConfig
from .leases import CallInterrupted
from .run import Run
from .services import EngineServices

R = TypeVar("R")

_MOST_DOUBLINGS: Final = 16


NoteFailure = Callable[[InferenceRequest, DriverError, float | None], object]
"""Takes a question and its failure, with the seconds until a model is asked again within the step; None: none is."""


def ask_models(
    run: Run,
    services: EngineServices,
    request: InferenceRequest,
    *,
    attempt: Callable[[InferenceRequest], R],
    note: NoteFailure,
) -> R:
    """Ask until there is a usable answer.

    Args:
        attempt: Asks once.
        note: Is called for each request that has failed.
    Raises:
        CallInterrupted: An interruption ended a call or a pause.
        DriverError: The failure that decides what becomes of the step: of what only has to wait, what waits least.
    """
    failures: list[DriverError] = []
    questions = list(_questions(run, request))
    while True:
        question = questions.pop(0)
        try:
            return _ask_model(run, services, question, attempt, note)
        except DriverError as error:
            failures.append(error)
            falls_back = bool(questions) and _allows_fallback(failures)
            if not isinstance(error, PutOff):
                note(question, error, 0.0 if falls_back else None)
            if not falls_back:
                break
    put_off = [each for each in failures if isinstance(each, PutOff)]
    raise min(put_off, key=lambda each: each.seconds, default=failures[0])


def _ask_model(
    run: Run,
    services: EngineServices,
    request: InferenceRequest,
    attempt: Callable[[InferenceRequest], R],
    note: NoteFailure,
) -> R:
    for number in count(1):
        try:
            return attempt(request)
        except PutOff:
            raise
        except DriverError as error:
            rejected = 0 if request.purpose else _rejected(run, services.settings)
            pause = _pause_after(error, max(number, rejected), services.settings)
            if pause is None:
                raise
            note(request, error, pause)
        if run.lease.wait(min(pause, services.keeper.time_left(run.lease)), by_cut=not request.purpose):
            raise CallInterrupted
        request = replace(request, timeout=services.keeper.call_timeout(run.lease))
    raise AssertionError("the loop ends with an answer or an error")


def _rejected(run: Run, settings: Settings) -> int:
    """Count the rejected answers of a step, so many fewer as its earlier tries could ask for.

    What puts a step off, as a job or a limit does, lets each leg begin with its first attempt.
    """
    return len(run.memory.rejected) - settings.driver_attempts * run.execution.retries


def _pause_after(error: DriverError, attempts: int, settings: Settings) -> float | None:
    """Seconds until the same model is asked again; None: it is not, within this step.

    Full jitter (Brooker, "Exponential Backoff And Jitter", AWS 2015), or what the provider asked for. Where its limits
    are known, the next attempt waits until it is admitted.
    """
    requested, longest = error.retry_after or 0.0, settings.retry_delay_max_seconds
    if attempts >= settings.driver_attempts or not (error.is_limited or (error.transient and requested <= longest)):
        return None
    backoff = doubled(settings.retry_delay_seconds, attempts - 1, longest)
    return 0.0 if error.is_limited else max(requested, random.uniform(0.0, backoff))


def doubled(seconds: float, times: int, longest: float) -> float:
    """Double a pause for each one before it, up to the longest."""
    return min(seconds * 2 ** min(times, _MOST_DOUBLINGS), longest)


def _questions(run: Run, request: InferenceRequest) -> Iterator[InferenceRequest]:
    """The question, and the same one for each further model; not for a session with a model of its own."""
    yield request
    own = request.settings or LLMConfig()
    for model in run.agent.models[1:] if own.model is None else ():
        yield replace(request, settings=LLMConfig(model=model, settings=own.settings))


def _allows_fallback(failures: Sequence[DriverError]) -> bool:
    """Whether the next model is asked: the first one may answer later, or one in its place could not at all.

    An answer that cannot be used was paid for, and counts as one.
    """
    last = failures[-1]
    return not isinstance(last, UnusableAnswer) and (len(failures) > 1 or last.transient or last.kind == "quota")


def check_prices(run: Run) -> None:
    """Refuse, before the first call, a cost limit that cannot be kept.

    Raises:
        ConfigurationError: A model that may be asked has no known price.
    """
    limit, own = run.execution.budget.max_cost, run.state.llm_config
    if limit is None:
        return
    driver = run.agent.answering
    others = () if own is not None and own.model is not None else run.agent.models[1:]
    unknown = next((model for model in others if not driver.knows_price(LLMConfig(model=model))), None)
    if unknown is None and driver.knows_price(own):
        return
    option = "Agent(price=TokenPrice(…))"
    if not run.agent.models:
        option = getattr(driver, "price_option", "PydanticAIDriver(…, price=TokenPrice(…))")
    advice = f"Give it one, {option}, or" if unknown is None else "Take another fallback, or"
    raise ConfigurationError(
        f"agent {run.agent.name!r} has max_cost={limit:g}, and {unknown or run.model!r} has no known price. "
        f"{advice} limit tokens instead of cost."
    )
