"""The limits of the provider: token buckets of requests and of tokens for each model and key, and an outage.

The part "limits" of a plan:

    "requests": n, "seconds": s (1)    n requests in s seconds; as many at once
    "by_clock": true                   they count from each multiple of s seconds, as many gateways do
    "tokens": n                        a minute; a request takes what its messages and its answer have
    "retry_after": "seconds" (whole, rounded up, from 1) | "ms" | "date" | null (says nothing)
    "headers": "openai" | "anthropic"  on every answer
    "text": true                       the refusal names the limit, as OpenAI's does

The part "outage": {"after": s, "seconds": s, "code": 503, "model": name}, counted from the plan, of this model or of
all; a refusal is not paid.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Final

Plan = dict[str, Any]

_MINUTE: Final = 60.0


@dataclass(eq=False)
class TokenBucket:
    """So many units in a time, and as many at once.

    Attributes:
        by_clock: They are all there again at each multiple of the time, and none before.
    """

    size: float
    seconds: float
    left: float
    at: float
    by_clock: bool = False

    @classmethod
    def full(cls, size: float, seconds: float, now: float, *, by_clock: bool = False) -> TokenBucket:
        return cls(size, seconds, size, now, by_clock)

    def wait(self, units: float, now: float) -> float:
        """Seconds until so many units are there; 0 when they are."""
        before, self.at = self.at, now
        if self.by_clock:
            self.left = self.size if now // self.seconds > before // self.seconds else self.left
            return 0.0 if self.left >= min(units, self.size) else self.seconds - now % self.seconds
        self.left = min(self.size, self.left + (now - before) * self.size / self.seconds)
        return max(0.0, (min(units, self.size) - self.left) * self.seconds / self.size)

    def reset_seconds(self) -> float:
        return (self.size - self.left) * self.seconds / self.size


class Limits:
    """What the plan allows; asked under the lock of the records, so that it is exact."""

    def __init__(self, plan: Plan) -> None:
        self._began = time.monotonic()
        self._limits: Plan = plan.get("limits") or {}
        self._outage: Plan = plan.get("outage") or {}
        self._buckets: dict[tuple[str, str, str], TokenBucket] = {}

    def fault(self, model: str, key: str, tokens: float) -> Plan | None:
        """The refusal of a request that may not be answered now; None for one that is counted."""
        now, outage = time.monotonic(), self._outage
        if (
            outage
            and outage.get("model", model) == model
            and 0 <= now - self._began - outage.get("after", 0) < outage["seconds"]
        ):
            return {"fault": "status", "code": outage.get("code", 503), "outage": True}
        if not self._limits:
            return None
        costs = {bucket: (bucket.wait(cost, now), cost) for bucket, cost in self._of(model, key, tokens, now)}
        wait = max(wait for wait, _ in costs.values())
        if wait > 0:
            return self._refusal(wait) | {"headers": self._retry_headers(wait) | self.headers(model, key)}
        for bucket, (_, cost) in costs.items():
            bucket.left -= min(cost, bucket.size)
        return None

    def headers(self, model: str, key: str) -> dict[str, str]:
        """The headers that tell limits, what is left, and when all is."""
        kind, found = self._limits.get("headers"), dict[str, str]()
        for (dimension, *place), bucket in self._buckets.items() if kind else ():
            if tuple(place) != (model, key):
                continue
            size = bucket.size * _MINUTE / bucket.seconds
            left = max(0, math.floor(bucket.left * _MINUTE / bucket.seconds))
            if kind == "openai":
                reset = f"{bucket.reset_seconds():.3f}s"
                values = {"limit": round(size), "remaining": left, "reset": reset}
                found |= {f"x-ratelimit-{name}-{dimension}": str(value) for name, value in values.items()}
            else:
                at = datetime.now(UTC) + timedelta(seconds=bucket.reset_seconds())
                values = {"limit": round(size), "remaining": left, "reset": at.isoformat(timespec="seconds")}
                found |= {f"anthropic-ratelimit-{dimension}-{name}": str(value) for name, value in values.items()}
        return found

    def _of(self, model: str, key: str, tokens: float, now: float) -> list[tuple[TokenBucket, float]]:
        limits = self._limits
        wanted = {"requests": (limits.get("requests"), limits.get("seconds", 1.0), 1.0)}
        wanted["tokens"] = (limits.get("tokens"), _MINUTE, tokens)
        found: list[tuple[TokenBucket, float]] = []
        for dimension, (size, seconds, cost) in wanted.items():
            if size is not None:
                by_clock = bool(limits.get("by_clock"))
                full = TokenBucket.full(size, seconds, now, by_clock=by_clock)
                bucket = self._buckets.setdefault((dimension, model, key), full)
                found.append((bucket, cost))
        return found

    def _refusal(self, wait: float) -> Plan:
        said = "Rate limit reached"
        if self._limits.get("text"):
            rpm = round(self._limits["requests"] * _MINUTE / self._limits.get("seconds", 1.0))
            said += (
                f" on requests per min (RPM): Limit {rpm}, Used {rpm}, Requested 1. Please try again in {wait:.3f}s."
            )
        return {"fault": "status", "code": 429, "text": said, "limited": True}

    def _retry_headers(self, wait: float) -> dict[str, str]:
        match self._limits.get("retry_after", "seconds"):
            case "seconds":
                return {"Retry-After": str(max(1, math.ceil(wait)))}
            case "ms":
                return {"retry-after-ms": str(math.ceil(wait * 1000))}
            case "date":
                at = datetime.now(UTC) + timedelta(seconds=math.ceil(wait) + 1)
                return {"Retry-After": format_datetime(at, usegmt=True)}
            case _:
                return {}
