"""Keeping the leases of this process's claims alive, and passing on what their holders must hear.

One thread a process renews all leases in one round trip. A claim that was taken over, a stop, the step's deadline and
the end of the budget's time reach the running step as an interruption: what is async is cancelled. A plain function
cannot be: its claim is given back, so that another worker carries the step on, and its thread is counted as abandoned
until it returns.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from enum import StrEnum
from typing import Any, Final

from ...config.settings import Settings
from ..concurrency import fibers
from ..redaction import describe_exception
from ..store import Claim, StepRef, Store

log = logging.getLogger(__name__)

# No call begins later than this share of a lease after its last renewal.
_FRESH_SHARE: Final = 0.75
# How long a plain function may go on after an interruption before its step is given to another worker.
_PATIENCE_SECONDS: Final = 0.5
_LAST_MOMENT_SECONDS: Final = 0.1


class Interruption(StrEnum):
    """Why a running step has to end, or, for `CALL`, the plain function it runs in its own thread."""

    CANCEL = "cancel"
    LOST = "lost"
    DEADLINE = "deadline"
    LIMIT = "limit"
    CALL = "call"
    DRAIN = "drain"


class ActiveLease:
    """A claim this process holds, as its step sees it.

    Attributes:
        deadline: `monotonic()` at which the step has to end.
        limit: The same for the budget's time; None when it has none.
        call_ends: The same for the plain function that runs in the step's own thread; None when none does.
        given_up: Called before the claim is given back because of that function.
        on_abandon: Called when the step's thread does not react and is counted on no more.
    """

    def __init__(self, claim: Claim, now: float, deadline: float) -> None:
        self.claim = claim
        self.renewed_at = now
        self.deadline = deadline
        self.limit: float | None = None
        self.call_ends: float | None = None
        self.given_up: Callable[[], object] | None = None
        self.interruption: Interruption | None = None
        self.interrupted_at = 0.0
        self.stuck_since: float | None = None
        self.abandoned = False
        self.on_abandon: Callable[[], object] | None = None
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []

    def interrupt(self, why: Interruption, now: float) -> None:
        """Tell the step to end; the first reason stays, except that a lost claim beats all."""
        with self._lock:
            # A function that is late may end by itself; any other reason is one for the whole step.
            weak = self.interruption is None or (
                self.interruption is Interruption.CALL and why is not Interruption.CALL
            )
            if weak or why is Interruption.LOST:
                self.interruption = why
                self.interrupted_at = now
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def on_interrupt(self, callback: Callable[[], object]) -> None:
        """Call back at an interruption; at once if there was one."""
        with self._lock:
            if self.interruption is None:
                self._callbacks.append(callback)
                return
        callback()

    def call_ended(self) -> None:
        """The plain function returned, in time or not: the step goes on."""
        with self._lock:
            self.call_ends = self.given_up = self.stuck_since = None
            if self.interruption is Interruption.CALL:
                self.interruption = None

    def wait(self, seconds: float) -> bool:
        """Sleep; True when an interruption ended it early."""
        told: Future[None] = Future()
        self.on_interrupt(lambda: told.set_result(None))
        fibers.wait((told,), seconds)
        return told.done()

    def overdue(self, now: float) -> Interruption | None:
        """Why it has to end by now."""
        if now >= self.deadline:
            return Interruption.DEADLINE
        if self.limit is not None and now >= self.limit:
            return Interruption.LIMIT
        return Interruption.CALL if self.call_ends is not None and now >= self.call_ends else None


class LeaseKeeper:
    """Renews leases; `tick` is one round, `start` makes a thread do it."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        publish: Callable[[StepRef], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._settings = settings
        self._publish = publish or _leave_to_the_sweep
        self._monotonic = monotonic
        self._held: dict[int, ActiveLease] = {}
        self._abandoned: set[int] = set()
        self._loose: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._look = threading.Event()

    def hold(self, claim: Claim, seconds: float, asked: float) -> ActiveLease:
        """Keep a claim that was just taken.

        Args:
            seconds: The step's deadline from now.
            asked: `monotonic()` before the claim was asked for; its lease is no younger than that.
        """
        now = self._monotonic()
        held = ActiveLease(claim, asked, now + seconds)
        with self._lock:
            self._held[id(held)] = held
        return held

    def drop(self, held: ActiveLease) -> None:
        """The step has ended, whatever came of it."""
        with self._lock:
            self._held.pop(id(held), None)
            self._abandoned.discard(id(held))

    def is_fresh(self, held: ActiveLease) -> bool:
        """Whether a call may begin: nobody interrupted, time is left, the lease was renewed lately by this clock."""
        now = self._monotonic()
        why = held.overdue(now)
        if why is not None:
            held.interrupt(why, now)
        return held.interruption is None and now - held.renewed_at < self._settings.lease_seconds * _FRESH_SHARE

    def confirm(self, held: ActiveLease) -> bool:
        """Renew one lease now and hear whether a call may begin."""
        self._renew([held])
        return self.is_fresh(held)

    def remaining(self, held: ActiveLease) -> float:
        """Seconds until the step's deadline."""
        return max(0.0, held.deadline - self._monotonic())

    def time_left(self, held: ActiveLease) -> float:
        """Seconds that a call may take: until the step's deadline, or until the budget's time is over."""
        ends = held.deadline if held.limit is None else min(held.deadline, held.limit)
        return max(0.0, ends - self._monotonic())

    def abandon(self, thread: Future[Any]) -> None:
        """Count a plain function that was given up beside its step, until it returns."""
        with self._lock:
            self._loose.add(thread)
        thread.add_done_callback(self._loose.discard)

    @property
    def running(self) -> int:
        """Steps of this process."""
        return len(self._held)

    @property
    def abandoned(self) -> int:
        """Plain functions that were given up and still run."""
        return len(self._abandoned) + len(self._loose)

    def wake(self, claim_id: str) -> None:
        """Somebody asked the step of this claim to stop."""
        for held in self._all():
            if held.claim.id == claim_id:
                held.interrupt(Interruption.CANCEL, self._monotonic())
        self._look.set()

    def interrupt_all(self, why: Interruption) -> None:
        """Tell every step of this process to end."""
        for held in self._all():
            held.interrupt(why, self._monotonic())

    def tick(self) -> None:
        """One round: renew, pass on stops and deadlines, give up what does not react."""
        now = self._monotonic()
        current = self._current()
        for held in current:
            why = held.overdue(now)
            if why is not None:
                held.interrupt(why, now)
        self._renew([held for held in current if held.interruption is not Interruption.LOST])
        for held in current:
            self._give_up_if_stuck(held)

    def start(self) -> None:
        """Tick in a thread until `close`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="celery-agents-leases", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread; leases that are left end by themselves."""
        self._ended.set()
        self._look.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._look.wait(self._pause())
            self._look.clear()
            try:
                self.tick()
            except Exception as error:  # noqa: BLE001 - whatever it is, the other leases need this thread
                log.warning("leases were not renewed: %s", describe_exception(error).message)

    def _pause(self) -> float:
        """Twice as often as leases need it; soon, while a plain function is given its last moment."""
        half = self._settings.lease_renew_seconds / 2
        is_awaited = any(held.stuck_since is not None and held.interruption is not None for held in self._current())
        return min(half, _LAST_MOMENT_SECONDS) if is_awaited else half

    def _current(self) -> list[ActiveLease]:
        return [held for held in self._all() if not held.abandoned]

    def _all(self) -> list[ActiveLease]:
        with self._lock:
            return list(self._held.values())

    def _renew(self, current: list[ActiveLease]) -> None:
        if not current:
            return
        asked_at = self._monotonic()
        renewals = self._store.steps.renew([held.claim for held in current])
        for held, renewal in zip(current, renewals, strict=True):
            if renewal.alive or self._store.steps.restore(held.claim):
                held.renewed_at = asked_at
            else:
                held.interrupt(Interruption.LOST, asked_at)
            if renewal.cancel is not None:
                held.interrupt(Interruption.CANCEL, asked_at)

    def _give_up_if_stuck(self, held: ActiveLease) -> None:
        stuck = held.stuck_since is not None and held.interruption is not None
        if not stuck or self._monotonic() - held.interrupted_at < _PATIENCE_SECONDS:
            return
        with self._lock:
            if id(held) not in self._held:
                return
            self._abandoned.add(id(held))
        held.abandoned = True
        if held.on_abandon is not None:
            held.on_abandon()
        ref = held.claim.ref
        log.warning("step %s of session %s does not react; its slot is lost until it does", ref.step, ref.session_id)
        if held.interruption is Interruption.LOST:
            return
        if held.given_up is not None and held.interruption is Interruption.CALL:
            held.given_up()
        give_back = held.interruption is not Interruption.DEADLINE
        publish = self._store.steps.release(held.claim, delay_ms=None, give_back=give_back)
        if publish is not None:
            self._publish(publish)


def _leave_to_the_sweep(ref: StepRef) -> None:
    """The step is due; whoever sweeps publishes it."""
    del ref
