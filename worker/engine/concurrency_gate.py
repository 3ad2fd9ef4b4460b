"""Keeps concurrency limits: steps and calls take holders before they begin, and give them back when they have ended."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, Final

from ..errors import CeleryAgentsError, PutOff
from ..flow.concurrency import LimitPart, undefined_cause
from ..store.flow.holders import Holder, NoneFree, Taken
from .call_records import PlannedCall
from .flow_texts import describe_none_free, describe_undefined
from .leases import ActiveLease, Interruption
from .provider_gate import LOOK_AGAIN_SECONDS
from .run import Run

if TYPE_CHECKING:
    from .services import EngineServices

log = logging.getLogger(__name__)

_MOST_CHANGES: Final = 5
_UNKNOWN: Final = -1


@dataclass(slots=True)
class _Held:
    """A holder of this process.

    Attributes:
        lease: Of the claim that it belongs to.
        kept_at: `monotonic()` before it was taken or kept last.
        others_wait: Somebody stood in a line when it was taken or kept last.
        outlived_by: Functions that were left running, and hold until they return.
        is_between: The claim is carried on, and its next step has not begun: nobody keeps the holder alive then.
        is_over: What it was taken for has ended.
    """

    holder: Holder
    lease: ActiveLease
    kept_at: float
    others_wait: bool
    outlived_by: int = 0
    is_between: bool = False
    is_over: bool = False


class ConcurrencyGate:
    """The holders of one worker.

    Attributes:
        waits: How often a step was put off, by the name of the limit.
    """

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self._flow = services.store.flow
        self._lease_ms = round(services.settings.lease_seconds * 1000)
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self.waits: Counter[str] = Counter()

    # --- steps ------------------------------------------------------------------------------------------------

    def enter(self, run: Run) -> None:
        """Take a holder for a step, or keep that of its claim.

        Raises:
            PutOff: None is free.
            StoreUnavailable: Redis is away, and the step has to end.
        """
        if run.agent.limited_by:
            self._enter(run, run.claim.id, run.agent.limited_by, stand=True)

    def must_yield(self, run: Run) -> bool:
        """Whether others wait for the holder of a step, so that its claim may not go on with the next one."""
        held = self._held.get(run.claim.id) if run.agent.limited_by else None
        return held is not None and held.others_wait

    def leave(self, run: Run) -> None:
        """Give back what the step of a run holds; a claim that is carried on keeps its holder for the next step."""
        if not self._held:
            return
        with self._lock:
            own = self._held_of(run.claim.id)
        for name, held in own:
            if run.next_claim is not None and name == run.claim.id:
                held.is_between = True
            else:
                self._give(name)

    # --- calls ------------------------------------------------------------------------------------------------

    def enter_calls(self, run: Run, calls: Sequence[PlannedCall]) -> tuple[list[PlannedCall], list[PlannedCall]]:
        """Take holders for calls: those that may begin, and those for which none is free."""
        free, full = list[PlannedCall](), list[PlannedCall]()
        for each in calls:
            try:
                self._enter_call(run, each, stand=False)
            except PutOff:
                full.append(each)
            else:
                free.append(each)
        return free, full

    def stand(self, run: Run, planned: PlannedCall) -> PutOff | None:
        """Put the step off until a holder is free for a call; None: it has one by now."""
        try:
            self._enter_call(run, planned, stand=True)
        except PutOff as put_off:
            return put_off
        return None

    def leave_call(self, run: Run, planned: PlannedCall) -> None:
        """Give back the holder of a call that has ended, or that did not begin."""
        if self._held:
            self._give(_call_name(run, planned))

    def outlive(self, run: Run, planned: PlannedCall, call: Future[Any]) -> None:
        """Keep the holders of a call whose function was left running, and of its step, until the function returns."""
        with self._lock:
            names = [name for name in (run.claim.id, _call_name(run, planned)) if name in self._held]
            for name in names:
                self._held[name].outlived_by += 1
        for name in names:
            call.add_done_callback(lambda _, name=name: self._give(name, returned=1))

    def _enter_call(self, run: Run, planned: PlannedCall, *, stand: bool) -> None:
        # Under a limit of its agent, the step itself holds.
        names = [name for name in planned.limited_by if name not in run.agent.limited_by]
        if names:
            self._enter(run, _call_name(run, planned), names, stand=stand)

    # --- holders ----------------------------------------------------------------------------------------------

    def kept_at(self, claim_id: str) -> float:
        """`monotonic()` before the oldest of a claim's holders was taken or kept last; infinite where it has none."""
        with self._lock:
            return min((held.kept_at for _, held in self._held_of(claim_id)), default=inf)

    def keep(self, claim_id: str = "") -> None:
        """Keep the holders of a claim, or of all that runs; a step whose holder went to another one has to end."""
        with self._lock:
            current = self._held_of(claim_id) if claim_id else [*self._held.items()]
        for name, held in current:
            if not held.is_between:
                sent_at = self._services.monotonic()
                kept = self._flow.keep_holder(held.holder, lease_ms=self._lease_ms) or self._take_again(name, held)
                held.others_wait = kept is None or kept.others_wait
                if kept is None:
                    held.lease.interrupt(Interruption.HOLDER, self._services.monotonic())
                else:
                    held.kept_at = sent_at
            elif self._services.monotonic() - held.lease.renewed_at > self._services.settings.lease_seconds:
                self._held.pop(name, None)  # the next step of its claim has not begun here

    def _held_of(self, claim_id: str) -> list[tuple[str, _Held]]:
        return [(name, held) for name, held in self._held.items() if name.partition(" ")[0] == claim_id]

    def _take_again(self, name: str, held: _Held) -> Taken | None:
        """Take a holder again that has ended while this process was paused; None: none is free."""
        if self._held.get(name) is not held:  # it was given back a moment ago
            return Taken(others_wait=False)
        answer = self._flow.take_holder(held.holder, lease_ms=self._lease_ms, stand=False, again=True)
        if self._held.get(name) is not held:  # it was given back meanwhile, before it was taken
            self._services.publish_all(self._flow.give_holder(held.holder))
        return answer if isinstance(answer, Taken) else None

    def call_waiting(self) -> None:
        """Call who may go now; for the sweep. Nothing is asked where no limit was ever set."""
        if self._services.gate.view.concurrency:
            self._services.publish_all(self._flow.call_waiting())

    def _enter(self, run: Run, name: str, limits: Sequence[str], *, stand: bool) -> None:
        known = self._held.get(name)
        holder = self._holder_of(run, name, limits) if known is None else known.holder
        for turn in range(_MOST_CHANGES):
            sent_at = self._services.monotonic()
            answer = self._take(run, replace(holder, claimed_ms=run.claim.now_ms), stand=stand)
            if answer is not None:
                break
            if known is not None and not turn:  # its parts may count no more
                self._services.publish_all(self._flow.give_holder(holder))
            self._services.gate.refresh()  # it has not heard of the limit that holds now
            holder = self._holder_of(run, name, limits)
        else:  # the limit changes all the time, or cannot be read
            raise _undefined(holder.parts[0].name)
        if isinstance(answer, Taken):
            outlived_by = 0 if known is None else known.outlived_by
            with self._lock:
                self._held[name] = _Held(
                    holder, run.lease, kept_at=sent_at, others_wait=answer.others_wait, outlived_by=outlived_by
                )
            return
        self._held.pop(name, None)
        self._services.publish_all(answer.publish)
        self.waits[answer.part.name] += stand
        if answer.most is None:
            raise _undefined(answer.part.name)
        raise PutOff(describe_none_free(answer), LOOK_AGAIN_SECONDS, answer.part.cause)

    def _take(self, run: Run, holder: Holder, *, stand: bool) -> Taken | NoneFree | None:
        def take() -> Taken | NoneFree | None:
            return self._flow.take_holder(holder, lease_ms=self._lease_ms, stand=stand)

        return self._services.ask_store(run, take, "a holder of a concurrency limit", holds_something=False)

    def _holder_of(self, run: Run, name: str, names: Sequence[str]) -> Holder:
        """The holder of all parts of limits that hold for a run, in the order in which all workers ask them."""
        gate = self._services.gate
        if not gate.view.concurrency.keys() >= set(names):
            gate.refresh()
        view = gate.view.concurrency
        limits = {each: view.get(each) for each in names}
        has_labels = any(limit.per for limit in limits.values() if limit is not None)
        labels = self._flow.labels_of(run.ref.session_id) if has_labels else {}
        parts: list[LimitPart] = []
        for each, limit in limits.items():
            parts += [LimitPart(each)] if limit is None else limit.parts_for(labels)
        parts.sort(key=lambda part: (not part.label, part))
        since = {each: 0 if limit is None else limit.since_ms for each, limit in limits.items()}
        since |= {each: _UNKNOWN for each in names if each not in view}
        since_ms = tuple(since[part.name] for part in parts)
        return Holder(name, run.ref.session_id, tuple(parts), since_ms=since_ms, claimed_ms=run.claim.now_ms)

    def _give(self, name: str, *, returned: int = 0) -> None:
        """Give a holder back, once no function holds it any more that was left running.

        Args:
            returned: So many of these have returned just now; 0: what it was taken for has ended.
        """
        with self._lock:
            held = self._held.get(name)
            if held is None:
                return
            held.is_over = held.is_over or not returned
            held.outlived_by -= returned
            if not held.is_over or held.outlived_by:
                return
            del self._held[name]
        try:
            self._services.publish_all(self._flow.give_holder(held.holder))
        except CeleryAgentsError as error:  # it ends with its lease, and the sweep calls the next one
            log.warning("a holder of %s was not given back: %s", held.holder.parts[0].name, error)


def _call_name(run: Run, planned: PlannedCall) -> str:
    return f"{run.claim.id} {planned.index}"


def _undefined(name: str) -> PutOff:
    return PutOff(describe_undefined(name), LOOK_AGAIN_SECONDS, undefined_cause(name))
