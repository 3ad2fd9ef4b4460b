"""Requests to the store that a running step repeats while Redis is full or away, for as long as the step may live."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from ..errors import StoreFull, StoreUnavailable
from .leases import Interruption
from .run import Run
from .services import EngineServices

log = logging.getLogger(__name__)

R = TypeVar("R")
_REDIS_PAUSE_SECONDS: Final = 0.2


def ask_store(
    run: Run,
    services: EngineServices,
    request: Callable[[], R],
    purpose: str,
    *,
    holds_something: bool = True,
) -> R:
    """Make a request that may be made again after a lost reply.

    Args:
        purpose: What waits for it, for the log.
        holds_something: The step would lose what the request keeps. Else a full Redis and any interruption end the
            wait, and not the loss of the claim alone.
    Raises:
        StoreFull, StoreUnavailable: There was no answer until the step's deadline, or an interruption ended the wait.
    """
    while True:
        try:
            return request()
        except (StoreFull, StoreUnavailable) as error:
            why = run.lease.interruption
            if why is Interruption.LOST or (not holds_something and (why is not None or isinstance(error, StoreFull))):
                raise
            wait_for_redis(run, services, error, purpose)


def wait_for_redis(run: Run, services: EngineServices, error: StoreFull | StoreUnavailable, purpose: str) -> None:
    """Pause before another attempt; after the step's deadline, raise the error instead."""
    log.warning("%s of step %s of session %s waits: %s", purpose, run.ref.step, run.ref.session_id, error)
    if services.keeper.remaining(run.lease) <= 0:
        raise error
    services.sleep(_REDIS_PAUSE_SECONDS)


def try_to_journal_results(run: Run, services: EngineServices) -> Run:
    """Journal the results that the run holds; it keeps them for its commit where Redis is full or away."""
    if not run.obtained.unjournaled:
        return run
    try:
        services.store.steps.record_results(run.claim, run.obtained.unjournaled)
    except (StoreFull, StoreUnavailable):
        return run
    return run.without_unjournaled()
