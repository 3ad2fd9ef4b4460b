"""Sticky sessions: a worker runs the next steps of a session itself for a short time, past the queue.

The commit of a step claims the step that follows at once, and the worker delivers that step's task to itself. A session
is sticky when it came while the worker had a free slot for every message in the queue, and for no longer than
`sticky_seconds`; then it goes through the queue once, where any other worker may take it.

Temporal calls this sticky execution. There a worker has its own queue; here nothing is queued, since a claimed
step of a dead worker is found by the end of its lease, like every other step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from ...config.settings import Settings
from ..redaction import describe_exception
from ..store.records import StepRef
from .run_values import TimedClaim

log = logging.getLogger(__name__)

_StepKey = tuple[str, str, int]

# After a delivery that this worker refused, no session is sticky for this time.
_REFUSED_SECONDS: Final = 60.0
_CLAIMS_FOR_EACH_SLOT: Final = 2


class StepDelivery(Protocol):
    """Delivers a step's task to the worker that runs this code."""

    def deliver(self, ref: StepRef, now_ms: int) -> bool:
        """Begin the step's task here as soon as a slot is free; False: it will not begin.

        Args:
            now_ms: The time of the step's message (Redis ms).
        """
        ...

    def has_room(self) -> bool:
        """Whether a task that comes now finds a slot; a full worker keeps no session."""
        ...


class StickySessions:
    """Decides which sessions are sticky, and keeps the claims of their next steps until the tasks begin."""

    def __init__(self, settings: Settings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._claims: dict[_StepKey, TimedClaim] = {}
        self._refused_until = float("-inf")
        self._delivery: StepDelivery | None = None

    def enable(self, delivery: StepDelivery) -> None:
        """Deliver steps to this worker itself from now on; before that, no session is sticky."""
        self._delivery = delivery

    def stays_until(self, waiting: int | None, *, others: int) -> float:
        """`monotonic()` until which a session is sticky that was claimed from the queue just now.

        Args:
            waiting: Messages in the queue behind it. None: not known, and the session is not sticky.
            others: Other steps that run in this process.
        """
        now, settings = self._monotonic(), self._settings
        has_slots = waiting is not None and waiting < settings.concurrency - others
        return now + settings.sticky_seconds if has_slots else now

    def may_keep(self, sticky_until: float) -> bool:
        """Whether this worker may run the next step of a session that is sticky until then."""
        if self._delivery is None or max(self._refused_until, self._monotonic()) >= sticky_until:
            return False
        return self._delivery.has_room()

    def keep(self, claim: TimedClaim) -> bool:
        """Keep a claim for the step's task, and deliver that task; False: it will not begin, and nothing is kept."""
        ref = claim.claimed.claim.ref
        if self._delivery is None:
            return False
        if len(self._claims) >= _CLAIMS_FOR_EACH_SLOT * self._settings.concurrency:  # of tasks that never came
            del self._claims[next(iter(self._claims))]
        self._claims[_step_key(ref)] = claim
        try:
            if self._delivery.deliver(ref, claim.claimed.claim.now_ms):
                return True
        except Exception as error:  # noqa: BLE001 - of Celery or of a project's callbacks; the step before is committed
            log.warning("sessions go through the queue: %s", describe_exception(error).message)
        self._refused_until = self._monotonic() + _REFUSED_SECONDS
        self._claims.pop(_step_key(ref), None)
        return False

    def take(self, ref: StepRef) -> TimedClaim | None:
        """Hand out the claim that was kept for a task that begins; its lease may have ended by now."""
        return self._claims.pop(_step_key(ref), None)


class KeepClaimPolicy:
    """Decides whether a commit claims the following step for this worker.

    It does in a burst, where one Celery task runs several steps, and for a sticky session, whose steps are tasks of
    their own. It does not when the worker must become free.
    """

    def __init__(
        self,
        settings: Settings,
        sticky: StickySessions,
        *,
        monotonic: Callable[[], float],
        must_become_free: Callable[[], bool],
    ) -> None:
        """
        Args:
            must_become_free: Whether the worker drains, or a suspect waits to run alone.
        """
        self._sticky = sticky
        self._monotonic = monotonic
        self._must_become_free = must_become_free
        self._burst_ends = monotonic() + settings.burst_milliseconds / 1000
        self._burst_steps = settings.steps_per_task

    def count_step(self) -> None:
        """Count a step that begins in this task."""
        self._burst_steps -= 1

    def is_burst(self) -> bool:
        """Whether the same Celery task runs the following step, too."""
        return self._burst_steps > 0 and self._monotonic() < self._burst_ends

    def keeps_claim(self, sticky_until: float) -> bool:
        """Whether to claim the following step of a session that is sticky until then."""
        if self._must_become_free():
            return False
        return self.is_burst() or self._sticky.may_keep(sticky_until)


def _step_key(ref: StepRef) -> _StepKey:
    """A step without its execution's retries, which a message does not tell."""
    return ref.session_id, ref.execution_id, ref.step
