"""The values of reservations: a request that asks whether it may go, the answer, and how it is settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ...flow.values import Dimension, ModelEndpoint, ProviderFacts, ProviderLimit

Why = Literal["zero", "not_before", "quota", "breaker", "window", "rate"]
"""Why a request may not go now: its limit is 0, the provider asked to wait, a quota is used up, the breaker is open,
too many are in flight after a refusal, or the rate is used up."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A request to a provider, from before it is sent until it is settled.

    Attributes:
        id: Unique; names the claim's lease, without which the reservation counts as ended.
        limit: The limit that was set for the bucket.
        cost: What was reserved, by dimension.
        at_ms: When it was admitted (Redis ms). 0: it was sent without a reservation.
        is_probe: It finds out whether a provider is back.
    """

    bucket: ModelEndpoint
    id: str
    session_id: str
    limit: ProviderLimit | None = None
    cost: Mapping[Dimension, float] = field(default_factory=dict[Dimension, float])
    at_ms: int = 0
    is_probe: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The request may not go now. Its session keeps an appointment, at which it may ask again.

    Attributes:
        wait_ms: Until the appointment; at least 1, at most a day.
        at_ms: Redis time of the answer.
        dimension: For "rate" and "zero": which limit is used up.
        per_minute: That limit.
        source: Where it comes from: "set", "header", "text" or "refusals".
        since_ms: For "breaker": since when it is open; for "not_before" and "quota": until when.
    """

    why: Why
    wait_ms: int
    at_ms: int
    dimension: Dimension | None = None
    per_minute: float = 0.0
    source: str = ""
    since_ms: int = 0


@dataclass(frozen=True, slots=True)
class CallCounts:
    """The calls to a bucket as one worker has counted them.

    Attributes:
        worker: Its name.
        last_minute: Its calls that ended within the last minute, this one included; after a row of failures,
            those alone.
        accepted: Its answers since it was last idle, for its first refusal; 0 where it has told them before.
        busy_seconds: Time since it was last idle: since no call of it was in flight for 5 s.
    """

    worker: str
    last_minute: int = 1
    accepted: int = 0
    busy_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Settled:
    """The changes that a settlement made.

    Attributes:
        opened: It opened the breaker.
        closed: The bucket holds nothing back any more, which it did before: sessions that were put off may come now.
        learned: A limit was learned, or became another.
        refused: The refusal was a new one; False for one of a request that was in flight at the last refusal.
    """

    opened: bool = False
    closed: bool = False
    learned: bool = False
    refused: bool = False


@dataclass(slots=True)
class Settlement:
    """How a request ended. `record_answer` and `record_auxiliary` take it along; else `settle` writes it.

    Attributes:
        used: What it has used, by dimension. None: not known, and all that was reserved counts.
        facts: What the provider told.
        settled: What it changed; None while it is not written.
    """

    reservation: Reservation
    facts: ProviderFacts
    counts: CallCounts
    used: Mapping[Dimension, float] | None = None
    settled: Settled | None = None
