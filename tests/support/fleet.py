"""A fleet of workers and a provider on virtual time: the verbs of limits are the product's, all else is a stand-in.

A worker has slots. A request that may not go waits in its slot for up to 2 s, else its session is put off and comes back
with the sweep before its time, and waits for the rest. A killed worker's sessions come back when their leases have ended.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from celery_agents.config.settings import Settings
from celery_agents.flow import ModelEndpoint, ProviderLimit
from celery_agents.worker.flow.values import ProviderFacts
from celery_agents.worker.store import Claim, StepRef, Store
from celery_agents.worker.store.clock import RedisClock
from celery_agents.worker.store.context import Publisher
from celery_agents.worker.store.flow.records import CallCounts, Reservation, Settlement
from celery_agents.worker.store.memory.database import MemoryDatabase

from support.lua_scripts import SCRIPTS

M: Final = ModelEndpoint("m")
START: Final = 1_000_000.0
SWEEP: Final = 0.5
LEASE: Final = 6.0
REFUSED_AFTER: Final = 0.01
IDLE: Final = 5.0


class StubProvider:
    """A token bucket of requests, which says when to come again, and may be away for a while.

    Args:
        size: Requests that it takes at once; the same number in `seconds`.
        retry: How Retry-After is told: "seconds" (whole), "ms" or None.
        away: From when to when, in seconds.
        at_random: The share of the requests that it refuses whatever their rate, as one whose capacity others use up.
        by_clock: It counts from each multiple of `seconds`, as gateways do, and is no token bucket.
    """

    def __init__(
        self,
        size: int,
        seconds: float,
        *,
        retry: str | None = "seconds",
        headers: bool = False,
        away: tuple[float, float] = (0, 0),
        at_random: float = 0,
        by_clock: bool = False,
    ) -> None:
        self.size, self.rate = size, size / seconds
        self._by_clock = by_clock
        self._retry, self._headers, self._away, self._at_random = retry, headers, away, at_random
        self._chance = random.Random(1)
        self._left, self._at = float(size), 0.0
        self.refused = 0
        self.outages: list[float] = []

    def ask(self, now: float) -> ProviderFacts:
        if self._away[0] <= now < self._away[1]:
            self.outages.append(now)
            return ProviderFacts(kind="outage")
        if self._chance.random() < self._at_random:
            return ProviderFacts(kind="rate_limit", retry_after=0.3)
        wait = self._wait(now)
        told: dict[str, Any] = {}
        if self._headers:
            told = {
                "limits": {"requests": self.rate * 60},
                "remaining": {"requests": max(0, math.floor(self._left * 60 * self.rate / self.size))},
            }
        if wait > 1e-9:
            self.refused += 1
            says = {"seconds": max(1, math.ceil(wait)), "ms": math.ceil(wait * 1000) / 1000, None: None}[self._retry]
            return ProviderFacts(kind="rate_limit", retry_after=says, **told)
        self._left -= 1
        return ProviderFacts(**told)

    def _wait(self, now: float) -> float:
        """Count what has become free; the seconds until a request may pass."""
        before, self._at = self._at, now
        seconds = self.size / self.rate
        if self._by_clock:
            if now // seconds > before // seconds:
                self._left = self.size
            return 0 if self._left >= 1 else seconds - now % seconds
        self._left = min(self.size, self._left + (now - before) * self.rate)
        return (1 - self._left) / self.rate


@dataclass
class Worker:
    """A worker and its own counts."""

    name: str
    free: int
    is_alive: bool = True
    accepted: int = 0
    in_flight: int = 0
    busy_from: float = 0.0
    last: float = float("-inf")
    ended: list[float] = field(default_factory=list[float])


@dataclass
class Running:
    """A claimed session."""

    worker: Worker
    job: int
    claim: Claim
    calls: int = 0


class Fleet:
    """Runs jobs of one request each until all are done."""

    def __init__(
        self,
        provider: StubProvider,
        *,
        jobs: int = 200,
        workers: int = 2,
        slots: int = 16,
        latency: float = 0.2,
        limit: ProviderLimit | None = None,
        seed: int = 0,
    ) -> None:
        self.now = 0.0
        self._chance = random.Random(seed)
        database = MemoryDatabase(lambda: round((START + self.now) * 1000), SCRIPTS)
        self.store = Store(database, Settings.build(), clock=RedisClock(lambda: self.now), publisher=Publisher())
        self.provider, self.limit, self._slots, self._latency = provider, limit, slots, latency
        self._workers = [Worker(f"w{n}", slots) for n in range(workers)]
        self._queue = list(range(jobs))
        self._jobs = jobs
        self._put_off: dict[int, int] = {}
        self._running: dict[str, Running] = {}
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self.done: list[float] = []
        self.asked = 0

    def at(self, seconds: float, what: Callable[..., None], *args: Any) -> None:
        """Let something happen so many seconds from now."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), what, args))

    def run(self) -> float:
        """Run to the end; the seconds that it took."""
        self._claim()
        while len(self.done) < self._jobs:
            self.now, _, what, args = heapq.heappop(self._events)
            what(*args)
            self._claim()
        return self.done[-1]

    def kill(self, number: int) -> None:
        """Kill a worker; another one starts a second later."""
        victim = self._workers[number]
        victim.is_alive = False
        for claim_id, running in list(self._running.items()):
            if running.worker is victim:
                del self._running[claim_id]
                self.at(LEASE, self._end_lease, running)
        self.at(1, self._workers.append, Worker(f"{victim.name}'", self._slots))

    def set_limit(self, limit: ProviderLimit) -> None:
        self.limit = limit
        self.store.flow.set_value(limit)
        self._bring_forward()

    def _claim(self) -> None:
        for worker in self._chance.sample(self._workers, len(self._workers)):
            while worker.is_alive and worker.free and self._queue:
                worker.free -= 1
                job = self._queue.pop(0)
                claim = Claim(f"c{next(self._numbers)}", worker.name, StepRef(f"s{job}", "e", 1), 1, 0)
                self._command("SET", self._lease(claim), "w")
                self._running[claim.id] = Running(worker, job, claim)
                self._begin(claim.id)

    def _begin(self, claim_id: str) -> None:
        running = self._running.get(claim_id)
        if running is None:
            return
        running.calls += 1
        flow, claim, call = self.store.flow, running.claim, str(running.calls)
        if self.limit is None and not flow.view().must_reserve(M):
            self._send(running, flow.unreserved(claim, M, call=call))
            return
        self.asked += 1
        found = flow.reserve(claim, M, self.limit, call=call, cost={}, lease_ms=600_000)
        if isinstance(found, Reservation):
            self._send(running, found)
        elif found.wait_ms <= 2_000:
            self.at(found.wait_ms / 1000, self._begin, claim_id)
        else:
            number = self._put_off[running.job] = next(self._numbers)
            due = math.ceil((self.now + found.wait_ms / 1000 - SWEEP) / SWEEP) * SWEEP
            self.at(due - self.now + 0.02, self._come_back, running.job, number)
            self._release(running)

    def _send(self, running: Running, reservation: Reservation) -> None:
        worker = running.worker
        if not worker.in_flight and self.now - worker.last > IDLE:
            worker.busy_from, worker.accepted = self.now, 0
        worker.in_flight += 1
        facts = self.provider.ask(self.now)
        takes = self._latency * (1 + 0.2 * self._chance.random()) if facts.kind == "ok" else REFUSED_AFTER
        self.at(takes, self._end, running, reservation, facts)

    def _end(self, running: Running, reservation: Reservation, facts: ProviderFacts) -> None:
        if running.claim.id not in self._running:
            return
        worker, is_ok = running.worker, facts.kind == "ok"
        worker.in_flight, worker.last, worker.accepted = worker.in_flight - 1, self.now, worker.accepted + is_ok
        worker.ended = [*(each for each in worker.ended if each > self.now - 60), self.now]
        if not is_ok or self.limit is not None or facts.limits or self.store.flow.view().must_reserve(M):
            counts = CallCounts(worker.name, len(worker.ended), worker.accepted, self.now - worker.busy_from)
            settled = self.store.flow.settle(Settlement(reservation, facts, counts, used={"requests": 1}))
            if settled.closed:
                self._bring_forward()
        if is_ok:
            self.done.append(self.now)
            self._release(running)
        else:
            self.at(0.25 if facts.kind == "outage" else 0, self._begin, running.claim.id)

    def _release(self, running: Running) -> None:
        del self._running[running.claim.id]
        self._command("DEL", self._lease(running.claim))
        running.worker.free += 1

    def _end_lease(self, running: Running) -> None:
        self._command("DEL", self._lease(running.claim))
        self._queue.append(running.job)

    def _come_back(self, job: int, number: int) -> None:
        if self._put_off.get(job) == number:
            del self._put_off[job]
            self._queue.append(job)

    def _bring_forward(self) -> None:
        self._queue += self._put_off
        self._put_off.clear()

    def _lease(self, claim: Claim) -> str:
        return self.store.context.keys(claim.ref.session_id).shard.lease(claim.id)

    def _command(self, *command: Any) -> None:
        self.store.context.database.pipeline("fleet", [command])
