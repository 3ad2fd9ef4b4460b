"""Counts what sessions wait for whose executions have not ended: a worker, a person, another agent, a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ...worker.flow.caps import is_cap
from ...worker.flow.concurrency import is_concurrency
from ...worker.flow.values import AT_PROVIDER, REPLICAS, is_pause
from ...worker.moments import moment
from ...worker.state.execution.requests import CLOCK, RequestKind
from ...worker.store.event_records import EventType
from .next_try import read_time

if TYPE_CHECKING:
    from ...worker.store.sessions.waiting_reads import WaitingFacts
    from ...worker.store.store import Store

_MOST: Final = 20_000


class WaitingFor(StrEnum):
    """The reasons why an execution has not ended, each session counted once.

    Attributes:
        RUNNING: A worker has its step.
        QUEUE: Its step is due, and no worker has taken it yet, or the worker that had it is lost.
        PERSON: A person has to approve or answer.
        CHILD: A session that it has started goes on.
        SERVICE: A service has to bring a result.
        PROVIDER: A limit of its model's provider holds it, or its worker pauses after a failed model call.
        DELAY: Its step is delayed, or begins later.
        HELD: It is suspended.
        PAUSED: Its provider, model, agent, tool or queue is paused.
        CONCURRENCY: A concurrency limit is full, or nobody has defined it.
        SPEND_CAP: A spend cap is used up, or the price of its model is not known.
        AT_PROVIDER: Its model may answer late, for less, and has not answered yet.
        NO_WORKER: No live worker offers its agent.
        PARKED: No worker can carry it on.
    """

    RUNNING = "running"
    QUEUE = "queue"
    PERSON = "person"
    CHILD = "child"
    SERVICE = "service"
    PROVIDER = "provider"
    DELAY = "delay"
    HELD = "held"
    PAUSED = "paused"
    CONCURRENCY = "concurrency"
    SPEND_CAP = "spend_cap"
    AT_PROVIDER = "at_provider"
    NO_WORKER = "no_worker"
    PARKED = "parked"


_SENTENCES: Final[Mapping[WaitingFor, tuple[str, str]]] = {
    WaitingFor.RUNNING: ("runs on a worker", "run on a worker"),
    WaitingFor.QUEUE: ("waits for a free worker", "wait for a free worker"),
    WaitingFor.PERSON: ("waits for a person", "wait for a person"),
    WaitingFor.CHILD: ("waits for another agent", "wait for another agent"),
    WaitingFor.SERVICE: ("waits for the result of a service", "wait for the result of a service"),
    WaitingFor.PROVIDER: ("waits for its model's provider", "wait for their model's provider"),
    WaitingFor.DELAY: ("is delayed, or begins later", "are delayed, or begin later"),
    WaitingFor.HELD: ("is suspended", "are suspended"),
    WaitingFor.PAUSED: ("waits for the end of a pause", "wait for the end of a pause"),
    WaitingFor.CONCURRENCY: ("waits for a concurrency limit", "wait for a concurrency limit"),
    WaitingFor.SPEND_CAP: ("waits for money under a spend cap", "wait for money under a spend cap"),
    WaitingFor.AT_PROVIDER: ("waits for an answer at a lower price", "wait for answers at a lower price"),
    WaitingFor.NO_WORKER: ("waits for a worker that offers its agent", "wait for a worker that offers their agent"),
    WaitingFor.PARKED: ("is parked: no worker can carry it on", "are parked: no worker can carry them on"),
}


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """How many sessions wait for one thing."""

    reason: WaitingFor
    count: int

    @property
    def sentence(self) -> str:
        """The count in words: "93 run on a worker"."""
        one, many = _SENTENCES[self.reason]
        return f"{self.count} {one if self.count == 1 else many}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCounts:
    """How many sessions wait for what.

    Attributes:
        total: Sessions whose executions have not ended, of all agents.
        counted: How many of them were looked at.
        is_complete: Whether all were.
        now: Redis's time.
        reasons: Each reason, also with 0; those of one agent where one was asked for.
    """

    total: int
    counted: int
    is_complete: bool
    now: datetime
    reasons: tuple[ReasonCount, ...]

    def count(self, reason: WaitingFor) -> int:
        """How many sessions wait for this."""
        return next(each.count for each in self.reasons if each.reason is reason)


def count_waiting(store: Store, agent: str | None = None, *, most: int = _MOST) -> WaitingCounts:
    """Count what sessions wait for.

    Args:
        agent: Only sessions of this agent. None: all.
        most: Most sessions that are looked at, those that are due first.
    """
    workers = store.registry.workers().values()
    offered = {name for facts in workers for name in facts["agents"]}
    read = store.sessions.waiting(most)
    counts = Counter(classify(facts, offered, read.now_ms) for facts in read.sessions if agent in (None, facts.agent))
    return WaitingCounts(
        total=read.total,
        counted=read.counted,
        is_complete=read.is_complete,
        now=moment(read.now_ms),
        reasons=tuple(ReasonCount(reason, counts[reason]) for reason in WaitingFor),
    )


def classify(facts: WaitingFacts, offered: Collection[str], now_ms: int) -> WaitingFor:
    """Say what a session waits for, in the order in which `waiting_reason` does.

    Args:
        offered: The agents that live workers offer.
    """
    if facts.phase == "parked":
        return WaitingFor.PARKED
    if facts.is_held:
        return WaitingFor.HELD
    if facts.phase == "wait":
        return _classify_requests(facts)
    if facts.claim and facts.is_leased:
        return WaitingFor.PROVIDER if _pauses(facts, now_ms) else WaitingFor.RUNNING
    if not facts.claim and facts.not_before_ms > now_ms:
        return _classify_delay(facts.put_off)
    return WaitingFor.QUEUE if facts.agent in offered else WaitingFor.NO_WORKER


def _classify_delay(put_off: str) -> WaitingFor:
    if is_pause(put_off):
        return WaitingFor.PAUSED
    if is_concurrency(put_off):
        return WaitingFor.CONCURRENCY
    if is_cap(put_off):
        return WaitingFor.SPEND_CAP
    if put_off == AT_PROVIDER:
        return WaitingFor.AT_PROVIDER
    return WaitingFor.PROVIDER if put_off not in ("", REPLICAS) else WaitingFor.DELAY


def _classify_requests(facts: WaitingFacts) -> WaitingFor:
    """By its open requests; a child's end is no entry of their index."""
    people = [to for kind, to in facts.requests if kind in (RequestKind.APPROVAL, RequestKind.QUESTION)]
    if any(to != CLOCK for to in people):
        return WaitingFor.PERSON
    if any(kind == RequestKind.EXTERNAL for kind, _ in facts.requests):
        return WaitingFor.SERVICE
    return WaitingFor.DELAY if people else WaitingFor.CHILD


def _pauses(facts: WaitingFacts, now_ms: int) -> bool:
    event = facts.last_event
    if event is None or event.type != EventType.MODEL_CALL_FAILED:
        return False
    return (read_time(event.data.get("next_try_ms")) or 0) > now_ms
