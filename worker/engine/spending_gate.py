"""Keeps spend caps: what a model call may cost is reserved before it is made, and settled by what it has cost."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..drivers.protocol import InferenceRequest
from ..errors import ConfigurationError, DriverError, ModelCallRefused, PutOff, StoreUnavailable, UnusableAnswer
from ..flow.caps import CapPart, nanos
from ..state.execution.signals import StopReason, StopSignal
from ..store.flow.caps import Overspent
from ..store.steps.provider_jobs import JobEntry
from ..unique import unique_hex
from .flow_texts import describe_no_price, describe_overspent, describe_share
from .provider_gate import LOOK_AGAIN_SECONDS
from .run import Run

if TYPE_CHECKING:
    from .services import EngineServices

log = logging.getLogger(__name__)

_MOST_CHANGES: Final = 5
_CHARS_OF_A_TOKEN: Final = 4
_FIRST_ANSWER: Final = 500
"""Tokens of an answer, where the session has none yet."""
_SHARES: Final = (1.0, 0.8)
"""Shares of a cap of which the log tells when they are reached."""


@dataclass(slots=True)
class Spending:
    """The money that a model call has reserved under caps.

    Attributes:
        now_ms: When it was reserved (Redis ms).
        is_of_job: Its answer outlives the call, and is settled by `SpendingGate.settle_job`.
    """

    agent: str
    reservation: str
    parts: tuple[CapPart, ...]
    nanos: int
    now_ms: int
    is_of_job: bool = False


class SpendingGate:
    """Spend caps, as one worker keeps them.

    Attributes:
        waits: How often a call was refused, by the name of the cap.
    """

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self._flow = services.store.flow
        self._costs: dict[str, float] = {}  # of the last call of each agent here
        self.waits: Counter[str] = Counter()

    def begin(self, run: Run, request: InferenceRequest, job: JobEntry | None = None) -> Spending | None:
        """Reserve what a call may cost; None where no cap holds for it, which is known without asking Redis.

        Args:
            job: At a provider, by which `settle_job` finds the reservation; None for a call that ends with its run.
        Raises:
            PutOff: A cap has not so much left, or the price is not known.
            ModelCallRefused: The same, where the cap stops executions.
            StoreUnavailable: Redis is away, and the step has to end.
        """
        gate = self._services.gate
        if not gate.view.caps:
            return None
        found = self._reserve(run, request, job)
        for _ in range(_MOST_CHANGES):
            if not isinstance(found, Overspent):
                return found
            known = found.part.cap
            gate.refresh()  # it may not have heard of a higher cap
            is_over = job is None and found.part.ends_ms <= self._services.redis_ms(run)
            if gate.view.caps.get(known.name) == known and not is_over:
                break
            found = self._reserve(run, request, job)
        if isinstance(found, Overspent):
            self.waits[found.part.cap.name] += 1
            raise self._refusal(found, self._services.redis_ms(run))
        return found

    def settle_job(self, job: JobEntry, cost: float | None) -> None:
        """Count what a job at a provider has cost, under the caps that there are now; see `settle`.

        Its session may have been deleted since, or its labels be others.
        """
        view = self._services.gate.view
        parts = view.cap_parts_to_settle(job.agent, self._labels_of(job.session_id), job.since_ms)
        if parts:
            known = Spending(agent=job.agent, reservation=job.key, parts=parts, nanos=0, now_ms=job.since_ms)
            self.settle(known, cost)

    def settle(self, spending: Spending | None, cost: float | None) -> None:
        """Count what a call has cost. Where Redis is away, what was reserved stays spent.

        Args:
            cost: US dollars; None: not known, so that it has cost what was reserved.
        """
        if spending is None:
            return
        if cost:
            self._costs[spending.agent] = cost
        exact = None if cost is None else nanos(cost)
        try:
            spent = self._flow.settle_spending(spending.parts, spending.reservation, exact, spending.now_ms)
        except StoreUnavailable as error:
            log.warning("a model call was not settled under %s: %s", spending.parts[0].words, error)
            return
        added = spending.nanos if exact is None else exact
        for part, now in zip(spending.parts, spent, strict=False):
            reached = next((share for share in _SHARES if now - added < share * part.most <= now), None)
            if reached is not None:
                log.warning("spend cap %s", describe_share(part, now))

    def fail(self, spending: Spending | None, error: BaseException) -> None:
        """Count a call without an answer: nothing where its provider has answered with an error, else what it reserved.

        Behind a timeout or a lost connection the provider may have answered, and charged. What outlives the call is
        left as it is.
        """
        if spending is None or spending.is_of_job:
            return
        if isinstance(error, UnusableAnswer):
            self.settle(spending, error.cost)
        else:
            is_refused = isinstance(error, DriverError) and error.status is not None
            self.settle(spending, 0.0 if is_refused else None)

    def _labels_of(self, session_id: str) -> Mapping[str, str]:
        """The labels of a session, where a cap asks for them."""
        has_labels = any(cap.label for cap in self._services.gate.view.caps.values())
        return self._flow.labels_of(session_id) if has_labels else {}

    def _reserve(self, run: Run, request: InferenceRequest, job: JobEntry | None) -> Spending | Overspent | None:
        """Reserve under the caps that are known now; None: none of them holds.

        A job that is created later than it was intended needs no room in a period that is over.
        """
        present_ms = self._services.redis_ms(run)
        now_ms = present_ms if job is None else job.since_ms
        labels = self._labels_of(run.ref.session_id)
        parts = self._services.gate.view.cap_parts(run.agent.name, labels, now_ms)
        parts = tuple(part for part in parts if part.ends_ms > present_ms)
        if not parts:
            return None
        spending = Spending(
            agent=run.agent.name,
            reservation=f"{run.claim.id} {unique_hex()[:12]}" if job is None else job.key,
            parts=parts,
            nanos=self._estimate(run, request, parts[0]),
            now_ms=now_ms,
        )

        def reserve() -> Overspent | None:
            return self._flow.reserve_spending(parts, spending.reservation, spending.nanos, now_ms)

        refused = self._services.ask_store(run, reserve, "money under a spend cap", holds_something=False)
        return spending if refused is None else refused

    def _estimate(self, run: Run, request: InferenceRequest, part: CapPart) -> int:
        """Estimate a call in billionths of a US dollar: by the last one of its session, else of its agent here.

        Where the price of its tokens is more, it is that.

        Raises:
            PutOff: The price is not known.
        """
        driver: Any = run.agent.answering
        try:
            is_known = driver.knows_price(request.settings)
        except ConfigurationError:
            is_known = False
        if not is_known:
            raise PutOff(describe_no_price(part, run.model), LOOK_AGAIN_SECONDS, part.cap.cause)
        last = run.execution.last_step
        response = None if last is None else last.inference_response
        price: Callable[..., float | None] | None = getattr(driver, "estimate_cost", None)
        known = (response.cost if response is not None else None) or self._costs.get(run.agent.name, 0.0)
        if price is None:
            return nanos(known)
        usage = None if response is None else response.usage
        read = sum(len(message.content) for message in request.messages) // _CHARS_OF_A_TOKEN
        sent = read if usage is None else max(read, usage.sent)
        received = _FIRST_ANSWER if usage is None else max(usage.received, 1)
        return nanos(max(known, price(request.settings, sent, received) or 0.0))

    def _refusal(self, refused: Overspent, now_ms: int) -> PutOff | ModelCallRefused:
        part = refused.part
        text = describe_overspent(refused)
        if part.cap.then == "stop":
            context: Any = {"cap": part.words, "limit": part.cap.amount_for(part.value)}
            signal = StopSignal(reason=StopReason.COST_LIMIT_REACHED, message=text, context=context, source="SpendCap")
            return ModelCallRefused(text, (signal,))
        seconds = max(0.0, (part.ends_ms - now_ms) / 1000)
        return PutOff(text, min(seconds, LOOK_AGAIN_SECONDS), part.cap.cause)
