"""Cleaning up behind jobs at providers: those that no step waits for are cancelled, and copies of answers deleted.

A worker does so for the agents that it offers, since it has their drivers and keys. Two that do the same at once do no
harm.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final, cast

from ...worker import crash_points
from ...worker.concurrency.event_loop import EventLoopThread
from ...worker.errors import CeleryAgentsError, DriverError, NotYetKnown, SessionNotFound, StateUnreadable
from ...worker.redaction import describe_exception
from ...worker.store.housekeeping.provider_jobs import PastJob

if TYPE_CHECKING:
    from ...worker.agent import AgentRegistry
    from ...worker.engine.spending_gate import SpendingGate
    from ...worker.state.execution.inference import InferenceResponse
    from ...worker.store.steps.provider_jobs import JobEntry
    from ...worker.store.store import Store

log = logging.getLogger(__name__)

_SECONDS: Final = 120.0
"""For one job."""
_KEPT_MS: Final = 30 * 86_400_000
"""After so long no provider has what it was told to keep."""
_MAY_COME_RIGHT: Final = (401, 403, 408, 409, 425, 429)
"""Statuses of refusals that are retried: another key, or another time."""


class JobCleaner:
    """Cleans up in a thread of its own: a provider may take its time."""

    def __init__(self, store: Store, agents: AgentRegistry, *, loop: EventLoopThread, spending: SpendingGate) -> None:
        self._store = store
        self._agents = agents
        self._loop = loop
        self._spending = spending
        self._thread: threading.Thread | None = None
        self._begins_at = 0.0

    def begin(self) -> None:
        """Clean up in a thread, unless one is still at it, or has been at it just now."""
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or time.monotonic() < self._begins_at or not self._able():
            return
        self._begins_at = time.monotonic() + 2 * self._store.context.settings.job_poll_seconds
        self._thread = threading.Thread(target=self.run, name="celery-agents-jobs", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Clean up once. What fails is logged, and done again by a later pass."""
        try:
            for past in self._store.housekeeping.past_jobs(self._store.context.shards, self._able()):
                self._clean(past)
        except CeleryAgentsError as error:
            log.warning("jobs at providers are cleaned up later: %s", error)

    def _able(self) -> set[str]:
        return {agent.name for agent in self._agents if hasattr(agent.answering, "clean_job")}

    def _clean(self, past: PastJob) -> None:
        entry = past.entry
        try:
            answered = self._ask(entry, is_open=past.is_open)
            if past.is_open:
                crash_points.at("p3")
                self._charge(entry, answered)
                if answered is not None:
                    self._ask(entry, is_open=False)
        except NotYetKnown as error:
            log.info("job %s of session %s is cleaned up later: %s", entry.id, entry.session_id, error)
            return
        except Exception as error:  # noqa: BLE001 - a driver of the user's
            said = describe_exception(error).message
            is_final = isinstance(error, DriverError) and error.status is not None and not error.transient
            is_final = is_final and cast("DriverError", error).status not in _MAY_COME_RIGHT
            is_final = is_final or self._store.context.now_ms() > entry.due_ms + _KEPT_MS
            end = "it is forgotten" if is_final else "this is tried again"
            log.warning("job %s of session %s was not cleaned up, and %s: %s", entry.id, entry.session_id, end, said)
            if not is_final:
                return
            if past.is_open:
                self._charge(entry, None)
        self._store.housekeeping.forget_job(entry)

    def _ask(self, entry: JobEntry, *, is_open: bool) -> InferenceResponse | None:
        """Cancel a job, or delete its copy; see `AnswersLater.clean_job`."""
        driver = cast("Any", self._agents[entry.agent].answering)
        if driver.is_async:
            return self._loop.submit(lambda: driver.clean_job(entry.handle, is_open=is_open), _SECONDS).result()
        return driver.clean_job(entry.handle, is_open=is_open)

    def _charge(self, entry: JobEntry, answered: InferenceResponse | None) -> None:
        """Charge caps and session for what a job had answered; None: not known, so that the caps keep the reservation.

        Both do so once, however often it is said. Where the session is gone, the caps alone are charged.
        """
        self._spending.settle_job(entry, None if answered is None else answered.cost)
        if answered is not None:
            with contextlib.suppress(SessionNotFound, StateUnreadable):
                self._store.sessions.charge_job(entry.session_id, entry, answered)
