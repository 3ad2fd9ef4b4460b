"""The store's clock: Redis's own, asked in the round trip that needs the time.

The store never compares the clocks of two machines. A simulation derives its clock from this one, and thereby decides
what time it is and when a lease ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ..concurrency import fibers
from . import fields
from .database import Command, Reply

# Two clocks that are off by a thousandth, which is more than any are, part by less than the slack of the sweep.
_ESTIMATE_SECONDS: Final = 60.0


class RedisClock:
    """Makes the commands that read the time and that start and renew leases: `TIME`, and keys with a time to live."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            monotonic: This machine's clock, in seconds.
        """
        self._monotonic = monotonic
        self._ahead_ms = 0.0
        self._estimates_until = 0.0  # by this machine's clock
        # Redis's id of its run, and when it was first seen by this machine's clock.
        self._run: tuple[str | None, float] = (None, 0.0)
        self._others: dict[str, RedisClock] = {}

    def at(self, place: str) -> RedisClock:
        """The clock of one server of a cluster; this one for "", the only server."""
        return self._others.setdefault(place, RedisClock(self._monotonic)) if place else self

    def now(self) -> Command:
        """`TIME`; `milliseconds` understands its reply."""
        return ("TIME",)

    def milliseconds(self, reply: Reply) -> int:
        """Parse seconds and microseconds, and set the estimate by them."""
        now_ms = int(reply[0]) * 1000 + int(reply[1]) // 1000
        here = self._monotonic()
        self._ahead_ms = now_ms - here * 1000
        self._estimates_until = here + _ESTIMATE_SECONDS
        return now_ms

    def estimate_ms(self) -> int | None:
        """Estimate Redis's time, from its last answer and this machine's clock; behind by what that took to arrive.

        None: there is no answer yet, or it is too old.
        """
        here = self._monotonic()
        return round(self._ahead_ms + here * 1000) if here < self._estimates_until else None

    def forget(self) -> None:
        """Forget the estimate: the next answer may come from another server, whose clock is another one."""
        self._estimates_until = 0.0
        for other in list(self._others.values()):
            other.forget()

    def uptime(self) -> Command:
        """`INFO server`; `uptime_seconds` understands its reply."""
        return ("INFO", "server")

    def uptime_seconds(self, reply: Reply) -> float:
        """Parse the line `uptime_in_seconds`; at least the time since this process first saw the same run of Redis.

        Leases may have ended while Redis was down.

        Redis subtracts two readings of its machine's clock. When that was set back, the difference is too small, or
        negative, for as long as the clock went back.
        """
        lines = fields.info_lines(reply)
        if "uptime_in_seconds" not in lines:
            return float("inf")
        run, here = lines.get("run_id", ""), self._monotonic()
        if self._run[0] != run:
            self._run = (run, here)
        return max(float(lines["uptime_in_seconds"]), here - self._run[1])

    def start_lease(self, key: str, worker: str, lease_ms: int) -> Command:
        """`SET … PX`: create or replace a lease."""
        return ("SET", key, worker, "PX", lease_ms)

    def renew_lease(self, key: str, lease_ms: int) -> Command:
        """`PEXPIRE`: unconditional, so that no compare is needed; the reply is 0 where the lease has ended."""
        return ("PEXPIRE", key, lease_ms)

    def pause(self, seconds: float) -> None:
        """Wait before Redis is asked again, by this machine's clock; a fiber lets the others of its loop run."""
        fibers.sleep(seconds)
