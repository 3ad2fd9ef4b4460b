"""Spending under caps: reserved before a model call, settled behind it, by the script `caps`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...errors import StoreForbidden, StoreFull
from ...flow.caps import NANOS, CapPart, CapSpending, CapStatus, SpendCap, period_of
from .. import fields
from ..context import StorePart
from ..database import Command, Word

_AFTER_MS: Final = 86_400_000
"""How long behind its end a period is known, for calls that began in it."""
_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class Overspent:
    """A part of a cap has not so much left.

    Attributes:
        spent: Billionths of a US dollar that are spent and reserved.
    """

    part: CapPart
    spent: int


class CapVerbs(StorePart):
    """Reserving and settling what model calls cost."""

    def reserve_spending(self, parts: Sequence[CapPart], reservation: str, nanos: int, now_ms: int) -> Overspent | None:
        """Reserve what a call may cost, of all parts or of none; one round trip. Asking again reserves once.

        A user who may run no scripts, and a full Redis, end no step: the call is made, and not counted.

        Args:
            reservation: Unique for each call.
            now_ms: Redis time.
        Returns:
            The first part that has not so much left; None: it is reserved.
        Raises:
            StoreUnavailable: No answer in time; asking again is safe.
        """
        try:
            reply = self._spend("caps.reserve", parts, {"op": "reserve", "id": reservation, "nanos": nanos}, now_ms)
        except (StoreForbidden, StoreFull):
            return None
        return None if reply[0] else Overspent(parts[int(reply[1]) - 1], int(reply[2]))

    def settle_spending(self, parts: Sequence[CapPart], reservation: str, nanos: int | None, now_ms: int) -> list[int]:
        """Put what a call has cost in the place of what was reserved; once, however often it is sent.

        Args:
            nanos: None: not known, so that it counts as it was reserved.
        Returns:
            What is spent of each part now (billionths of a US dollar).
        Raises:
            StoreUnavailable: No answer in time; asking again is safe. Without it, what was reserved is spent.
        """
        asked = {"op": "settle", "id": reservation, "nanos": -1 if nanos is None else nanos}
        try:
            return [int(each) for each in self._spend("caps.settle", parts, asked, now_ms)]
        except (StoreForbidden, StoreFull):
            return []

    def spent_of(self, parts: Sequence[CapPart]) -> list[int]:
        """Read what is spent and reserved of parts (billionths of a US dollar)."""
        fleet = self._context.fleet
        reads: list[Command] = [("ZSCORE", fleet.cap(part.cap.name, part.window).spent, part.value) for part in parts]
        replies = self._context.database.pipeline("caps.spent", reads) if reads else []
        return [int(float(spent or 0)) for spent in replies]

    def spending_of(self, caps: Sequence[SpendCap], now_ms: int) -> list[CapStatus]:
        """Read what was spent of caps in the present period."""
        periods = [period_of(cap.per, cap.zone, now_ms) for cap in caps]
        reads: list[Command] = []
        for cap, (begins, _) in zip(caps, periods, strict=True):
            spent = self._context.fleet.cap(cap.name, cap.window_of(begins)).spent
            reads.append(("ZREVRANGEBYSCORE", spent, "+inf", "-inf", "WITHSCORES", "LIMIT", 0, _SHOWN))
        replies = self._context.database.pipeline("caps.spent", reads) if reads else []
        found: list[CapStatus] = []
        for cap, (_, ends_ms), flat in zip(caps, periods, replies, strict=True):
            pairs = ((fields.any_text(name), spent) for name, spent in zip(flat[::2], flat[1::2], strict=True))
            spent = tuple(CapSpending(name, float(nanos) / NANOS, cap.amount_for(name)) for name, nanos in pairs)
            found.append(CapStatus(cap, spent, ends_ms))
        return found

    def _spend(self, point: str, parts: Sequence[CapPart], asked: dict[str, Any], now_ms: int) -> list[Any]:
        fleet = self._context.fleet
        keys = [key for part in parts for key in fleet.cap(part.cap.name, part.window).all]
        each = [
            {"value": part.value, "most": part.most, "life": max(0, part.ends_ms - now_ms) + _AFTER_MS}
            for part in parts
        ]
        words: list[Word] = [fields.to_json({**asked, "parts": each})]
        return self._context.database.script(point, "caps", keys, words)
