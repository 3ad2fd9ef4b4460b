"""Submitting the messages of schedules whose slots have come.

A slot is *taken* first: one transaction moves the schedule to its next slot and stores what is to be submitted, if the
schedule is as it was read. Then it is submitted, with an idempotency key of name and slot, and noted. A worker that is
killed in between leaves a taken slot, which the next one submits again under the same key.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from ...worker import crash_points
from ...worker.errors import CeleryAgentsError, SessionNotFound, StoreFull, StoreUnavailable
from ...worker.flow.schedules import Schedule, ScheduleStatus
from ...worker.flow.slots import decide, look_at_ms, settle
from ...worker.redaction import describe_exception
from ...worker.store.flow.schedules import DueSchedule
from ...worker.store.store import Store
from ..client.client import AgentClient
from ..client.schedules import slot_key, submit_slot

log = logging.getLogger(__name__)

_PASS_SECONDS: Final = 2.0
"""The longest that a pass begins further slots: the sweep of lost steps is behind it."""
_AGAIN_MS: Final = 5000
"""After this time a schedule is looked at again that could not be carried on, as Redis was away or full."""
COUNTED: Final = ("submitted", "skipped", "missed", "refused")
"""What becomes of slots, as `ScheduleStatus` counts it."""
_ACTIVE: Final = ("pending", "in_progress", "waiting")
_DEPLOYMENT: Final = "deployment"


class ScheduleRunner:
    """Submits the messages of a store's schedules. Several workers may do it at once.

    Attributes:
        are_due: The sweep has seen a schedule that is due.
        counts: Slots that this worker has submitted, skipped, found missed, or found refused.
    """

    def __init__(self, store: Store, make_client: Callable[[], AgentClient]) -> None:
        """
        Args:
            make_client: Makes the client that submits; called when there is something to submit.
        """
        self._store, self._make_client = store, make_client
        self._made: AgentClient | None = None
        self.are_due = False
        self.counts: dict[str, int] = dict.fromkeys(COUNTED, 0)

    def deploy(self, schedules: Sequence[Schedule]) -> None:
        """Store the schedules of this worker's agents, where they are not as they were last deployed."""
        names = self._store.flow.deploy_schedules(schedules, _DEPLOYMENT)
        if names:
            log.info("schedules of this deployment were set: %s", ", ".join(names))

    def run_due(self) -> None:
        """Submit the messages of the slots that have come, as far as the sweep has seen that there are any."""
        ends = time.monotonic() + _PASS_SECONDS
        while self.are_due and time.monotonic() < ends:
            due = self._store.flow.due_schedules()
            self.are_due = bool(due)
            for each in due:
                self._run(each, ends)

    def close(self) -> None:
        """Close the connections."""
        if self._made is not None:
            self._made.close()

    @property
    def _client(self) -> AgentClient:
        if self._made is None:
            self._made = self._make_client()
        return self._made

    def _run(self, due: DueSchedule, ends: float) -> None:
        """Carry a schedule on until nothing of it is due."""
        current: DueSchedule | None = due
        while current is not None and time.monotonic() < ends:
            try:
                current = self._advance(current)
            except Exception as error:  # noqa: BLE001 - a zone that is not known here: the other schedules are to run
                name, why = current.status.schedule.name, describe_exception(error).message
                log.warning("schedule %s is tried again in %d s: %s", name, _AGAIN_MS // 1000, why)
                self._store.flow.put_off_schedule(current, _AGAIN_MS)
                return

    def _advance(self, due: DueSchedule) -> DueSchedule | None:
        """Take the slots that have come, or submit the one that was taken.

        Returns:
            The schedule as it is now. None: it is not due any more, or was changed by somebody else.
        """
        now_ms = due.now_ms
        if due.status.taken is not None:
            changed = self._submit(due.status, now_ms)
        else:
            changed = decide(due.status, now_ms, self._is_active)
        is_blocked = due.status.taken is None and changed.taken is None
        look_ms = look_at_ms(changed, now_ms, is_blocked=is_blocked)
        stored = self._change(due, changed, look_ms)
        return stored if look_ms is not None and look_ms <= now_ms else None

    def _change(self, due: DueSchedule, status: ScheduleStatus, look_ms: int | None) -> DueSchedule | None:
        changed = self._store.flow.change_schedule(due, status, look_ms)
        if changed is not None:
            for name in COUNTED:
                self.counts[name] += getattr(status, name) - getattr(due.status, name)
        return changed

    def _submit(self, status: ScheduleStatus, now_ms: int) -> ScheduleStatus:
        assert status.taken is not None
        name, slot = status.schedule.name, status.taken
        crash_points.at("s0")
        try:
            job = submit_slot(self._client, name, slot, slot_key(name, slot.slot_ms))
        except (StoreUnavailable, StoreFull):
            raise
        except CeleryAgentsError as error:
            log.warning("schedule %s: its slot was refused: %s", name, error)
            return settle(status, now_ms, refused=str(error))
        crash_points.at("s1")
        return settle(status, now_ms, session_id=job.session_id)

    def _is_active(self, session_id: str) -> bool:
        try:
            return self._store.sessions.header(session_id).status in _ACTIVE
        except SessionNotFound:
            return False
