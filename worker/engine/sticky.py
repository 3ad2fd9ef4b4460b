"""Sessions that stay with their worker for a while.

A step that follows at once is claimed by the commit of the one before. Its task need not travel then: the worker takes
it from itself. A session stays when it came while the worker had a slot for everybody in the queue, and no longer than
the settings say; then it goes through the queue once, where any other worker may take it.

Temporal calls it sticky execution. There a worker has a queue of its own for it; here nothing is queued, since what a
dead worker kept is found by its lease's end, like every other step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ...config.settings import Settings
from ..redaction import describe_exception
from ..store import Claimed, StepRef

log = logging.getLogger(__name__)

Deliver = Callable[[StepRef, int], bool]
_Place = tuple[str, str, int]

# For so long no session stays after a task that this worker could not take from itself.
_REFUSED_SECONDS: Final = 60.0
# For each slot.
_MOST_KEPT: Final = 2


@dataclass(frozen=True, slots=True)
class StickyStep:
    """A step that is claimed and waits for its task.

    Attributes:
        asked: `monotonic()` before the claim was asked for; its lease is no younger than that.
        until: `monotonic()` until when the session stays.
    """

    claimed: Claimed
    asked: float
    until: float


class StickySessions:
    """Which sessions stay, and the steps they wait with.

    Attributes:
        deliver: Delivers a step (and its message's time, Redis ms) to this process; False: its task will not begin.
            None: this process cannot, and no session stays.
        has_room: Whether somebody who comes now would find a slot; a full worker keeps nobody.
    """

    def __init__(self, settings: Settings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._kept: dict[_Place, StickyStep] = {}
        self._refused_until = float("-inf")
        self.deliver: Deliver | None = None
        self.has_room: Callable[[], bool] = lambda: True

    def stays_until(self, waiting: int | None, *, others: int) -> float:
        """Until when (`monotonic()`) a session stays that has just come.

        Args:
            waiting: Messages in the queue behind it; None: not known, and it does not stay.
            others: Other steps that run in this process.
        """
        now, settings = self._monotonic(), self._settings
        has_slots = waiting is not None and waiting < settings.concurrency - others
        return now + settings.sticky_seconds if has_slots else now

    def may_stay(self, until: float) -> bool:
        """Whether a session that stays until this time is carried on here now."""
        if self.deliver is None or max(self._refused_until, self._monotonic()) >= until:
            return False
        return self.has_room()

    def keep(self, claimed: Claimed, asked: float, until: float) -> bool:
        """Take the task of a claimed step from this worker itself; False: it will not begin, and nothing is kept."""
        ref = claimed.claim.ref
        if self.deliver is None:
            return False
        if len(self._kept) >= _MOST_KEPT * self._settings.concurrency:  # of tasks that never came
            del self._kept[next(iter(self._kept))]
        self._kept[_place(ref)] = StickyStep(claimed, asked, until)
        try:
            if self.deliver(ref, claimed.claim.now_ms):
                return True
        except Exception as error:  # noqa: BLE001 - of Celery or of a project's callbacks; the step before is committed
            log.warning("sessions go through the queue: %s", describe_exception(error).message)
        self._refused_until = self._monotonic() + _REFUSED_SECONDS
        self._kept.pop(_place(ref), None)
        return False

    def take(self, ref: StepRef) -> StickyStep | None:
        """What was kept for a step whose task begins; its lease may have ended meanwhile."""
        return self._kept.pop(_place(ref), None)


def _place(ref: StepRef) -> _Place:
    """A message does not say how often its execution was retried."""
    return ref.session_id, ref.execution_id, ref.step
