"""Keeps what people and providers allow: it is asked before each request to a provider, and told after it."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from ..agent import Agent
from ..concurrency import fibers
from ..drivers.protocol import InferenceRequest
from ..errors import DriverError, PutOff, StoreFull, StoreUnavailable, UnusableAnswer
from ..flow.values import (
    EMPTY_VIEW,
    Dimension,
    FactKind,
    FlowView,
    ModelEndpoint,
    Pause,
    PauseKind,
    ProviderFacts,
    ProviderLimit,
    provider_of,
)
from ..state.conversation.context import LLMConfig
from ..store.flow.records import CallCounts, Refused, Reservation, Settled, Settlement
from ..unique import unique_hex
from .flow_texts import describe_pause, describe_refusal
from .leases import CallInterrupted
from .run import Run

if TYPE_CHECKING:
    from .services import EngineServices

log = logging.getLogger(__name__)

_MINUTE: Final = 60.0
_IDLE_SECONDS: Final = 5.0
LOOK_AGAIN_SECONDS: Final = 900.0
"""A step that is put off without an end looks again then, should nothing bring it forward."""
_SCARCE: Final = 0.5
"""Share of a limit; below it, what is left of a limit is told to the fleet."""
_SHARE_OF_NEWEST: Final = 0.2
_ROW_OF_FAILURES: Final = 10
_CHARS_OF_A_TOKEN: Final = 4
_NOTHING_TOLD: Final = ProviderFacts()
_MOST_ENDPOINTS: Final = 1_000
_KINDS: Final[Mapping[str, FactKind]] = {
    "rate_limit": "rate_limit",
    "quota": "quota",
    **dict.fromkeys(("overloaded", "unavailable", "server_error", "timeout", "connection"), "outage"),
}
"""The kinds of errors that say something about a provider's limits or health."""


@dataclass(slots=True)
class _Load:
    """This worker's count of the requests to one endpoint; tokens are moving averages.

    Attributes:
        failures: Requests in a row that failed as in an outage.
    """

    in_flight: int = 0
    failures: int = 0
    accepted: int = 0
    busy_since: float = 0.0
    idle_since: float = float("-inf")
    read: float = 0.0
    written: float = 0.0
    ended: deque[float] = field(default_factory=deque[float])

    def begin(self, now: float) -> None:
        """Count a request that begins."""
        if self.in_flight == 0 and now - self.idle_since > _IDLE_SECONDS:
            self.busy_since, self.accepted = now, 0
        self.in_flight += 1

    @property
    def recent(self) -> int:
        """Calls that ended within a minute. After a row of failures these alone: an outage is seen at any load."""
        return self.failures if self.failures >= _ROW_OF_FAILURES else len(self.ended)

    def end(self, now: float, facts: ProviderFacts, *, accepted: bool) -> None:
        """Count a request that has ended."""
        self.in_flight -= 1
        self.accepted += accepted
        self.failures = 0 if accepted else self.failures + (facts.kind == "outage")
        self.idle_since = now
        self.ended.append(now)
        while self.ended[0] < now - _MINUTE:
            self.ended.popleft()
        self.read = _averaged(self.read, facts.used.get("input_tokens"))
        self.written = _averaged(self.written, facts.used.get("output_tokens"))


def _averaged(before: float, newest: float | None) -> float:
    return before if newest is None else newest if before == 0 else before + (newest - before) * _SHARE_OF_NEWEST


@dataclass(slots=True)
class Call:
    """A request to a provider, from its admission to its settlement.

    Attributes:
        reservation: None: it had to reserve nothing.
        name: Unique within the claim.
        facts: What its provider has told so far.
    """

    endpoint: ModelEndpoint
    load: _Load
    reservation: Reservation | None
    name: str
    facts: ProviderFacts = _NOTHING_TOLD

    def observe(self, facts: ProviderFacts) -> None:
        """Take what the provider tells: the headers of its answers, and what these have used."""
        known = self.facts
        self.facts = replace(
            facts,
            limits={**known.limits, **facts.limits},
            remaining={**known.remaining, **facts.remaining},
            reset_seconds={**known.reset_seconds, **facts.reset_seconds},
            used=facts.used or known.used,
        )


class ProviderGate:
    """Limits, pauses and the health of providers, as one worker sees them.

    Attributes:
        view: What is set and what was learned; replaced as a whole.
        waits: How often a step waited or was put off, by model and reason.
        refused: How often a provider refused or failed, by model.
    """

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self._flow = services.store.flow
        self._settings = services.settings
        self._monotonic = services.monotonic
        self._lock = threading.Lock()
        self._finding = threading.Lock()
        self._endpoints: dict[tuple[str, str | None, str | None], ModelEndpoint | None] = {}
        self._loads: dict[ModelEndpoint, _Load] = {}
        self.view: FlowView = EMPTY_VIEW
        self.waits: Counter[tuple[str, str]] = Counter()
        self.refused: Counter[str] = Counter()

    # --- what is known ----------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read limits, pauses and buckets again.

        Raises:
            StoreUnavailable: No answer in time; what was known stays.
        """
        self.view = self._flow.view()

    def find_pause(self, now_ms: int, *places: tuple[PauseKind, str]) -> Pause | None:
        """The pause of one of these, by kind and name; None: none is paused. It is read again, since it may have ended.

        Raises:
            StoreUnavailable: Redis is away.
        """
        if self._pause_in_view(now_ms, places) is None:
            return None
        self.refresh()
        return self._pause_in_view(now_ms, places)

    def _pause_in_view(self, now_ms: int, places: Iterable[tuple[PauseKind, str]]) -> Pause | None:
        found = (self.view.pause_of(kind, name, now_ms) for kind, name in places)
        return next((each for each in found if each is not None), None)

    def put_off_by(self, pause: Pause, now_ms: int) -> PutOff:
        """Put a step off until a pause ends."""
        left = LOOK_AGAIN_SECONDS if pause.until_ms is None else (pause.until_ms - now_ms) / 1000
        self.waits[pause.name, "paused"] += 1
        return PutOff(describe_pause(pause), min(left, LOOK_AGAIN_SECONDS), pause.field)

    # --- requests ---------------------------------------------------------------------------------------------

    def begin(self, run: Run, request: InferenceRequest) -> Call | None:
        """Wait until a request may be made; None where its driver asks no provider.

        Raises:
            PutOff: It may not be made now, and not within a wait in the slot.
            CallInterrupted: The run was interrupted meanwhile.
            StoreUnavailable: Redis is away, and the step has to end.
        """
        if getattr(run.agent.answering, "endpoint", None) is None:
            return None
        endpoint = self._endpoint_of(run.agent, request.settings)
        if endpoint is None:
            return None
        load, name = self._load_of(endpoint), unique_hex()[:12]
        reservation = None if self.view.is_empty else self._admit(run, request, endpoint, name)
        with self._lock:
            load.begin(self._monotonic())
        return Call(endpoint=endpoint, load=load, reservation=reservation, name=name)

    def settle(self, run: Run, call: Call) -> Settlement | None:
        """End a request that was answered; the settlement is written with the answer. None: it tells nothing."""
        facts = call.facts
        self._end(call, facts, accepted=True)
        scarce = any(facts.remaining.get(name, limit) < _SCARCE * limit for name, limit in facts.limits.items())
        if call.reservation is None and not scarce and not self.view.must_reserve(call.endpoint):
            return None  # else it was sent before the bucket had learned something, and counts for that
        return self._settlement(run, call, replace(facts, kind="ok"))

    def fail(self, run: Run, call: Call, error: BaseException) -> None:
        """End a request without an answer, and tell the fleet what its failure says about the provider."""
        facts = _facts_of(call, error)
        is_answered = facts.kind in ("ok", "other") and isinstance(error, DriverError)
        self._end(call, facts, accepted=is_answered)
        if facts.kind in ("rate_limit", "quota", "outage"):
            self.refused[call.endpoint.model] += 1
        elif call.reservation is None:
            return
        settled = self.finish(self._settlement(run, call, facts))
        if isinstance(error, DriverError) and settled is not None:
            error.is_limited = facts.kind in ("rate_limit", "quota") or settled.opened

    def _admit(self, run: Run, request: InferenceRequest, endpoint: ModelEndpoint, name: str) -> Reservation | None:
        """Reserve a request, after a wait where it is short; None where nothing has to be reserved."""
        now_ms = self._services.redis_ms(run)
        paused = self.find_pause(now_ms, ("model", endpoint.model), ("provider", provider_of(endpoint.model)))
        if paused is not None:
            raise self.put_off_by(paused, now_ms)
        left = self._settings.retry_delay_max_seconds
        while self.view.must_reserve(endpoint):
            limit = self.view.limit_of(endpoint)
            admission = self._reserve(run, request, endpoint, name, limit)
            if isinstance(admission, Reservation):
                return admission
            seconds = admission.wait_ms / 1000
            if seconds > left:
                self.refresh()
                if self.view.limit_of(endpoint) != limit:
                    continue  # this worker had not heard of the new one, by which the step was brought forward
            self.waits[endpoint.model, admission.why] += 1
            if seconds > left:
                # Back a little early: the sweep comes once in a while, and the rest is waited for exactly.
                early = min(self._settings.sweep_seconds, self._settings.retry_delay_max_seconds)
                raise PutOff(describe_refusal(endpoint, admission), max(0.0, seconds - early), endpoint.digest)
            left -= seconds
            if run.lease.wait(seconds, by_cut=not request.purpose):
                raise CallInterrupted
        return None

    def _reserve(
        self, run: Run, request: InferenceRequest, endpoint: ModelEndpoint, name: str, limit: ProviderLimit | None
    ) -> Reservation | Refused:
        cost, lease_ms = self._cost(run, request, endpoint), round(request.timeout * 1000)

        def reserve() -> Reservation | Refused:
            return self._flow.reserve(run.claim, endpoint, limit, call=name, cost=cost, lease_ms=lease_ms)

        return self._services.ask_store(run, reserve, "a request to a provider", holds_something=False)

    def _cost(self, run: Run, request: InferenceRequest, endpoint: ModelEndpoint) -> Mapping[Dimension, float]:
        """Estimate a request: the input of the session's last one, else that of others, and their output."""
        load, last = self._load_of(endpoint), run.execution.last_step
        usage = None if last is None else last.inference_response.usage
        read = load.read if usage is None else usage.sent
        read = read or sum(len(message.content) for message in request.messages) / _CHARS_OF_A_TOKEN
        return {"requests": 1, "tokens": read + load.written, "input_tokens": read, "output_tokens": load.written}

    def _end(self, call: Call, facts: ProviderFacts, *, accepted: bool) -> None:
        with self._lock:
            call.load.end(self._monotonic(), facts, accepted=accepted)

    def _settlement(self, run: Run, call: Call, facts: ProviderFacts) -> Settlement:
        load = call.load
        reservation = call.reservation or self._flow.unreserved(run.claim, call.endpoint, call=call.name)
        busy = self._monotonic() - load.busy_since
        counts = CallCounts(worker=run.claim.worker, last_minute=load.recent, accepted=load.accepted, busy_seconds=busy)
        used: dict[Dimension, float] = {"requests": 1, **facts.used}
        return Settlement(reservation=reservation, facts=facts, counts=counts, used=used if facts.used else None)

    def finish(self, settlement: Settlement | None) -> Settled | None:
        """Write a settlement, unless an answer took it along, and act on it; None where Redis is away."""
        if settlement is None:
            return None
        try:
            settled = settlement.settled or self._flow.settle(settlement)
            if settlement.facts.kind == "quota" or settled != Settled():
                self.refresh()
            brought = self._flow.bring_forward(settlement.reservation.bucket.digest) if settled.closed else ()
            self._services.publish_all(ref for ref in brought if ref is not None)
        except (StoreUnavailable, StoreFull) as error:
            log.warning("a request to %s was not settled: %s", settlement.reservation.bucket.model, error)
            return None
        return settled

    def _load_of(self, endpoint: ModelEndpoint) -> _Load:
        with self._lock:
            return self._loads.setdefault(endpoint, _Load())

    def _endpoint_of(self, agent: Agent, config: LLMConfig | None) -> ModelEndpoint | None:
        """The endpoint of a model, found once: a client has to be made for it."""
        place = (agent.name, None, None) if config is None else (agent.name, config.model, config.base_url)
        if place not in self._endpoints:
            fibers.run_in_thread(self._find_endpoint, agent, config, place)
        return self._endpoints.get(place)

    def _find_endpoint(self, agent: Agent, config: LLMConfig | None, place: tuple[str, str | None, str | None]) -> None:
        with self._finding:
            if place in self._endpoints:
                return
            driver: Any = agent.answering
            found: ModelEndpoint | None = driver.endpoint(config)
            if found is not None and agent.provider_group is not None:
                found = replace(found, group=agent.provider_group)
            if len(self._endpoints) >= _MOST_ENDPOINTS:  # sessions may name any models and addresses
                self._endpoints.clear()
                self._loads = {each: load for each, load in self._loads.items() if load.in_flight}
            self._endpoints[place] = found


def _facts_of(call: Call, error: BaseException) -> ProviderFacts:
    """Read what a failure says: its kind, and the numbers in its headers and its text."""
    if not isinstance(error, DriverError) or isinstance(error, UnusableAnswer):
        return replace(call.facts, kind="other")
    facts = call.facts
    kind = "quota" if facts.kind == "quota" else _KINDS.get(error.kind, "other")
    limits: Any = facts.limits or error.limits
    retry_after = facts.retry_after if error.retry_after is None else error.retry_after
    source = "header" if facts.limits else "text"
    return replace(facts, limits=limits, retry_after=retry_after, kind=kind, source=source)
