"""The lease of a running step, and the interruptions that reach the step through it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from enum import StrEnum

from ..concurrency import fibers
from ..store import Claim


class Interruption(StrEnum):
    """Why a running step has to end, or, for `CALL`, the plain function that the step runs in its own thread."""

    CANCEL = "cancel"
    LOST = "lost"
    DEADLINE = "deadline"
    LIMIT = "limit"
    CALL = "call"
    DRAIN = "drain"


class ActiveLease:
    """The lease of a claim that this process holds, as its step sees it.

    Attributes:
        deadline: `monotonic()` at which the step has to end.
        budget_ends: `monotonic()` at which the budget's time is over; None when it has no end.
        call_deadline: `monotonic()` at which the plain function in the step's own thread has to end; None without one.
        blocked_since: `monotonic()` at which a plain function began in the step's own thread; None without one.
        on_give_up: Called before the claim is given back because of that function.
        followed_until_ms: Redis time until which somebody follows the session's live text; 0: nobody does.
        on_abandon: Called when the keeper stops counting on the step's thread, which does not react.
    """

    def __init__(self, claim: Claim, now: float, deadline: float) -> None:
        self.claim = claim
        self.renewed_at = now
        self.deadline = deadline
        self.budget_ends: float | None = None
        self.call_deadline: float | None = None
        self.on_give_up: Callable[[], object] | None = None
        self.interruption: Interruption | None = None
        self.interrupted_at = 0.0
        self.blocked_since: float | None = None
        self.is_abandoned = False
        self.followed_until_ms = 0
        self.on_abandon: Callable[[], object] | None = None
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []

    def interrupt(self, why: Interruption, now: float) -> None:
        """Tell the step to end; the first reason stays, except that a lost claim replaces every other."""
        with self._lock:
            # A late function may still end by itself; every other reason ends the whole step.
            is_replaceable = self.interruption is None or (
                self.interruption is Interruption.CALL and why is not Interruption.CALL
            )
            if is_replaceable or why is Interruption.LOST:
                self.interruption = why
                self.interrupted_at = now
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def on_interrupt(self, callback: Callable[[], object]) -> None:
        """Call back at the interruption; at once when there was one already."""
        with self._lock:
            if self.interruption is None:
                self._callbacks.append(callback)
                return
        callback()

    def end_call(self) -> None:
        """Note that the plain function has returned, in time or not: the step goes on."""
        with self._lock:
            self.call_deadline = self.on_give_up = self.blocked_since = None
            if self.interruption is Interruption.CALL:
                self.interruption = None

    def wait(self, seconds: float) -> bool:
        """Sleep for `seconds`; True when an interruption ended the sleep early."""
        interrupted: Future[None] = Future()
        self.on_interrupt(lambda: interrupted.set_result(None))
        fibers.wait((interrupted,), seconds)
        return interrupted.done()

    def overdue(self, now: float) -> Interruption | None:
        """The reason for which the step has to end by now; None without one."""
        if now >= self.deadline:
            return Interruption.DEADLINE
        if self.budget_ends is not None and now >= self.budget_ends:
            return Interruption.LIMIT
        return Interruption.CALL if self.call_deadline is not None and now >= self.call_deadline else None
