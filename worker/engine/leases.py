"""Keeps the leases of this process's claims alive and interrupts steps that have to end.

One thread renews all leases of a process in one round trip. A claim that was taken over, a stop, the step's deadline
and the end of the budget's time reach the running step as an interruption, which cancels async code. A plain function
cannot be cancelled, nor a hook: the keeper gives its claim back, so that another worker runs the step, and counts the
thread as abandoned until the function returns.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from enum import StrEnum
from functools import partial
from math import inf
from typing import Any, Final

from ...config.settings import Settings
from ..concurrency import fibers
from ..errors import CeleryAgentsError, StoreFull, StoreUnavailable
from ..redaction import describe_exception
from ..state.execution.budget import ExecutionBudget
from ..store.records import Claim, StepRef
from ..store.store import Store


class Interruption(StrEnum):
    """Why a running step has to end, or, for `CALL`, the plain function that the step runs in its own thread.

    `HOLDER`: what it holds of a concurrency limit went to another step while this process was paused.
    """

    CANCEL = "cancel"
    LOST = "lost"
    DEADLINE = "deadline"
    LIMIT = "limit"
    CALL = "call"
    DRAIN = "drain"
    HOLDER = "holder"


class CallInterrupted(Exception):
    """An interruption ended a model call or the pause before it, or kept it from beginning."""


class ActiveLease:
    """The lease of a claim that this process holds, as its step sees it.

    Attributes:
        renewed_at: `monotonic()` of its last renewal.
        steady_since: `monotonic()` since which no renewal has come later than a lease lives: the store was there.
        deadline: `monotonic()` at which the step has to end.
        budget_ends: `monotonic()` at which the budget's time is over; None when it has no end.
        call_deadline: `monotonic()` at which the plain function in the step's own thread has to end; None without one.
        blocked_since: `monotonic()` at which a plain function began in the step's own thread; None without one.
        on_give_up: Called before the claim is given back because of that function.
        on_overtime: Called before the claim is given back because it goes on though the step's time is over.
        followed_until_ms: Redis time until which a client follows the session's live text; 0: none does.
        budget: The budget that the last renewal has found; None: as it was at the claim.
        is_cut: A message waits that interrupts the step: what can be left off ends, and the step commits without it.
        on_abandon: Called when the keeper stops counting on the step's thread, which does not react.
    """

    def __init__(self, claim: Claim, now: float, deadline: float) -> None:
        self.claim = claim
        self.renewed_at = self.steady_since = now
        self.deadline = deadline
        self.budget_ends: float | None = None
        self.call_deadline: float | None = None
        self.on_give_up: Callable[[], object] | None = None
        self.on_overtime: Callable[[], object] | None = None
        self.interruption: Interruption | None = None
        self.interrupted_at = 0.0
        self.blocked_since: float | None = None
        self.is_abandoned = False
        self.followed_until_ms = 0
        self.budget: ExecutionBudget | None = None
        self.is_cut = False
        self._left_of: Callable[[ExecutionBudget], float | None] = lambda _: None
        self._time_since = now
        self.on_abandon: Callable[[], object] | None = None
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []
        self._cut_callbacks: list[Callable[[], object]] = []

    def count_time(
        self, budget: ExecutionBudget, left_of: Callable[[ExecutionBudget], float | None], *, since: float
    ) -> None:
        """Set when the budget's time is over.

        Args:
            left_of: Seconds that a budget leaves at `since`; None when it has no end.
            since: As of `monotonic()`.
        """
        self._left_of, self._time_since = left_of, since
        left = left_of(budget)
        self.budget_ends = None if left is None else since + left

    def change_budget(self, budget: ExecutionBudget) -> None:
        """Note that the budget was changed while the step runs: its time ends earlier or later."""
        if budget != self.budget:
            self.budget = budget
            self.count_time(budget, self._left_of, since=self._time_since)

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

    def cut(self) -> None:
        """Tell the step that a message waits which interrupts it."""
        with self._lock:
            self.is_cut = True
            callbacks, self._cut_callbacks = self._cut_callbacks, []
        for callback in callbacks:
            callback()

    def on_cut(self, callback: Callable[[], object]) -> None:
        """Call back when a message interrupts the step; at once when one has."""
        with self._lock:
            if not self.is_cut:
                self._cut_callbacks.append(callback)
                return
        callback()

    def end_call(self) -> None:
        """Note that the plain function has returned, in time or not: the step continues."""
        with self._lock:
            self.call_deadline = self.on_give_up = self.blocked_since = None
            if self.interruption is Interruption.CALL:
                self.interruption = None

    def wait(self, seconds: float, *, by_cut: bool) -> bool:
        """Sleep for `seconds`; True when an interruption ended the sleep early, or with `by_cut` such a message."""
        interrupted: Future[None] = Future()
        for listen in (self.on_interrupt, self.on_cut) if by_cut else (self.on_interrupt,):
            listen(lambda: interrupted.done() or interrupted.set_result(None))
        fibers.wait((interrupted,), seconds)
        return interrupted.done()

    def overdue(self, now: float) -> Interruption | None:
        """The reason for which the step has to end by now; None without one."""
        if now >= self.deadline:
            return Interruption.DEADLINE
        if self.budget_ends is not None and now >= self.budget_ends:
            return Interruption.LIMIT
        return Interruption.CALL if self.call_deadline is not None and now >= self.call_deadline else None


log = logging.getLogger(__name__)

# No call begins later than this share of a lease after its last renewal.
_FRESH_SHARE: Final = 0.75
_SHORTEST_TIMEOUT_SECONDS: Final = 0.001
# How long a driver or a tool that is a plain function may continue after an interruption before its step is given away.
_PATIENCE_SECONDS: Final = 0.5
_LAST_MOMENT_SECONDS: Final = 0.1


class LeaseKeeper:
    """Renews leases: `tick` is one round, `start` begins a thread that calls it.

    Attributes:
        publish: Publishes a step, where the store does not; without it, the sweep does.
        keep_holders: Keeps the holders of concurrency limits alive: those of a claim, or all for "". Called behind the
            renewal of the leases.
        holders_kept_at: From the id of a claim to `monotonic()` before the oldest of its holders was kept.
    """

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
        self.publish = publish or _leave_to_the_sweep
        self.keep_holders: Callable[[str], None] = lambda _: None
        self.holders_kept_at: Callable[[str], float] = lambda _: inf
        self._monotonic = monotonic
        self._leases: dict[int, ActiveLease] = {}
        self._abandoned_leases: set[int] = set()
        self._abandoned_calls: dict[Future[Any], float] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()
        self._renewing: set[str] = set()
        self._wake_up = threading.Event()

    def keep(self, claim: Claim, seconds: float, sent_at: float) -> ActiveLease:
        """Keep the lease of a claim that was just taken.

        Args:
            seconds: The step's deadline from now.
            sent_at: `monotonic()` before the claim was sent; its lease is no younger than that.
        """
        now = self._monotonic()
        lease = ActiveLease(claim, sent_at, now + seconds)
        with self._lock:
            self._leases[id(lease)] = lease
        return lease

    def drop(self, lease: ActiveLease) -> None:
        """Stop renewing a lease: its step has ended, whatever came of it."""
        with self._lock:
            self._leases.pop(id(lease), None)
            self._abandoned_leases.discard(id(lease))

    def is_fresh(self, lease: ActiveLease) -> bool:
        """Whether a call may begin: no interruption, time is left, and lease and holders were renewed lately."""
        now = self._monotonic()
        why = lease.overdue(now)
        if why is not None:
            lease.interrupt(why, now)
        holders_kept = now - self.holders_kept_at(lease.claim.id) < self._settings.lease_seconds * _FRESH_SHARE
        return lease.interruption is None and holders_kept and self.is_held(lease)

    def is_held(self, lease: ActiveLease) -> bool:
        """Whether no other worker can have the step: the lease was renewed lately, and the claim is not lost."""
        is_lost = lease.interruption is Interruption.LOST
        return not is_lost and self._monotonic() - lease.renewed_at < self._settings.lease_seconds * _FRESH_SHARE

    def confirm(self, lease: ActiveLease) -> bool:
        """Renew one lease and its holders now, and return whether a call may begin."""
        self._renew_at_once([lease])
        self.keep_holders(lease.claim.id)
        return self.is_fresh(lease)

    def remaining(self, lease: ActiveLease) -> float:
        """Seconds until the step's deadline."""
        return max(0.0, lease.deadline - self._monotonic())

    def time_left(self, lease: ActiveLease) -> float:
        """Seconds that a call may take: until the step's deadline, or until the budget's time is over."""
        ends = lease.deadline if lease.budget_ends is None else min(lease.deadline, lease.budget_ends)
        return max(0.0, ends - self._monotonic())

    def call_timeout(self, lease: ActiveLease) -> float:
        """Seconds that a call which begins now may take; above 0, as libraries want it."""
        return max(_SHORTEST_TIMEOUT_SECONDS, self.time_left(lease))

    def abandon(self, call: Future[Any], deadline: float) -> None:
        """Count a plain function that its step has left running, until it returns.

        Args:
            deadline: `monotonic()` at which its own time is over.
        """
        with self._lock:
            self._abandoned_calls[call] = deadline
        call.add_done_callback(self._forget_call)

    def _forget_call(self, call: Future[Any]) -> None:
        with self._lock:
            self._abandoned_calls.pop(call, None)

    @property
    def running(self) -> int:
        """How many steps run in this process."""
        return len(self._leases)

    @property
    def abandoned(self) -> int:
        """How many abandoned plain functions still run."""
        return len(self._abandoned_leases) + len(self._abandoned_calls)

    @property
    def overdue(self) -> int:
        """How many of them have used up their own time, too, so that they may never return.

        The others were interrupted. A failover that forgets claims does that to all steps of a process at once, and
        their functions return in their time.
        """
        now = self._monotonic()
        with self._lock:
            leases = [lease for key, lease in self._leases.items() if key in self._abandoned_leases]
            calls = sum(now >= deadline for deadline in self._abandoned_calls.values())
        return calls + sum(lease.overdue(now) is not None for lease in leases)

    def wake(self, claim_id: str) -> None:
        """Interrupt the step of this claim: a client asked for a stop. Any other word makes all leases renew now."""
        for lease in self._all():
            if lease.claim.id == claim_id:
                lease.interrupt(Interruption.CANCEL, self._monotonic())
        self._wake_up.set()

    def interrupt_all(self, why: Interruption) -> None:
        """Interrupt every step of this process."""
        for lease in self._all():
            lease.interrupt(why, self._monotonic())

    def tick(self) -> None:
        """Run one round: renew leases, pass on stops and deadlines, abandon functions that do not react."""
        now = self._monotonic()
        current = self._current()
        for lease in current:
            why = lease.overdue(now)
            if why is not None:
                lease.interrupt(why, now)
        self._renew([lease for lease in current if lease.interruption is not Interruption.LOST])
        self._renew_holders()
        for lease in current:
            self._abandon_if_blocked(lease)

    def start(self) -> None:
        """Call `tick` in a thread until `close`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="celery-agents-leases", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread; leases that are left expire."""
        self._is_closed.set()
        self._wake_up.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._is_closed.is_set():
            self._wake_up.wait(self._pause())
            self._wake_up.clear()
            try:
                self.tick()
            except Exception as error:  # noqa: BLE001 - whatever it is, the other leases need this thread
                log.warning("leases were not renewed: %s", describe_exception(error).message)

    def _pause(self) -> float:
        """Half the interval of renewals; shorter while an interrupted plain function has its last moment."""
        half = self._settings.lease_renew_seconds / 2
        current = self._current()
        is_urgent = any(lease.blocked_since is not None and lease.interruption is not None for lease in current)
        return min(half, _LAST_MOMENT_SECONDS) if is_urgent else half

    def _current(self) -> list[ActiveLease]:
        return [lease for lease in self._all() if not lease.is_abandoned]

    def _all(self) -> list[ActiveLease]:
        with self._lock:
            return list(self._leases.values())

    def _renew(self, current: list[ActiveLease]) -> None:
        servers: dict[str, list[ActiveLease]] = {}
        for lease in current:
            servers.setdefault(self._store.steps.place(lease.claim), []).append(lease)
        for place, leases in servers.items():
            if not place:
                self._renew_at_once(leases)
            else:  # of a cluster: a node that does not answer holds up no other
                self._begin_aside(place, partial(self._renew_at_once, leases))

    def _renew_holders(self) -> None:
        if self._store.context.fleet.is_apart:
            self._begin_aside("", partial(self.keep_holders, ""))
        else:
            self.keep_holders("")

    def _begin_aside(self, place: str, renew: Callable[[], None]) -> None:
        """Renew what is on one node of a cluster in a thread of its own, unless one is still at it."""
        if place not in self._renewing:
            self._renewing.add(place)
            name = f"celery-agents-leases-{place}"
            threading.Thread(target=self._renew_aside, args=(place, renew), name=name, daemon=True).start()

    def _renew_aside(self, place: str, renew: Callable[[], None]) -> None:
        try:
            renew()
        except CeleryAgentsError as error:
            log.warning("leases on %s were not renewed: %s", place or "the fleet's node", error)
        finally:
            self._renewing.discard(place)

    def _renew_at_once(self, current: list[ActiveLease]) -> None:
        sent_at = self._monotonic()
        renewals = self._store.steps.renew([lease.claim for lease in current])
        for lease, renewal in zip(current, renewals, strict=True):
            if renewal is None:
                continue
            if renewal.alive or self._store.steps.restore(lease.claim):
                if sent_at - lease.renewed_at > self._settings.lease_seconds:
                    lease.steady_since = sent_at
                lease.renewed_at = sent_at
            else:
                lease.interrupt(Interruption.LOST, sent_at)
            lease.followed_until_ms = renewal.followed_until_ms
            if renewal.budget is not None:
                lease.change_budget(renewal.budget)
            if renewal.is_interrupted:
                lease.cut()
            if renewal.cancel is not None:
                lease.interrupt(Interruption.CANCEL, sent_at)

    def _abandon_if_blocked(self, lease: ActiveLease) -> None:
        """Count no more on a step that does not end though it has to.

        A driver or a tool that is a plain function has a moment. A hook, a guard or the engine is not told of the
        interruption: it has as long as a lease, behind an outage of the store, for which the engine may wait.
        """
        if lease.interruption is None:
            return
        is_blocked = lease.blocked_since is not None
        if is_blocked or lease.interruption is Interruption.LOST:
            waited = self._monotonic() - lease.interrupted_at
        else:
            waited = lease.renewed_at - max(lease.interrupted_at, lease.steady_since)
        if waited < (_PATIENCE_SECONDS if is_blocked else self._settings.lease_seconds):
            return
        with self._lock:
            if id(lease) not in self._leases:
                return
            self._abandoned_leases.add(id(lease))
        lease.is_abandoned = True
        if lease.on_abandon is not None:
            lease.on_abandon()
        ref = lease.claim.ref
        log.warning("step %s of session %s does not react; its slot is lost until it does", ref.step, ref.session_id)
        if lease.interruption is Interruption.LOST:
            return
        try:
            self._give_away(lease, is_blocked=is_blocked)
        except (StoreUnavailable, StoreFull) as error:
            log.warning("step %s of session %s is given away later: %s", ref.step, ref.session_id, error)
            lease.is_abandoned = False  # its lease is renewed until then

    def _give_away(self, lease: ActiveLease, *, is_blocked: bool) -> None:
        """Give the claim of an abandoned step back, behind what its next worker has to know."""
        if lease.on_give_up is not None and lease.interruption is Interruption.CALL:
            lease.on_give_up()
        is_overtime = lease.interruption is Interruption.DEADLINE
        if lease.on_overtime is not None and is_overtime and is_blocked:
            lease.on_overtime()
        publish = self._store.steps.release(lease.claim, delay_ms=None, give_back=not is_overtime)
        if publish is not None:
            self.publish(publish)


def _leave_to_the_sweep(ref: StepRef) -> None:
    """Publish nothing: the step is due, and the sweep publishes it."""
    del ref
