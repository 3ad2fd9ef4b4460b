"""A time to come, in words."""

from __future__ import annotations

from typing import Final

from ...worker.moments import LAST_MS, moment

_AT_ONCE_MS: Final = 500


def read_time(value: object) -> int | None:
    """Read a time of an event's data in Unix milliseconds; None for what is none, since anybody may have stored it."""
    return value if type(value) is int and 0 <= value <= LAST_MS else None


def describe_next_try(next_try_ms: int, now_ms: int) -> str:
    """Write a time to come for people: "in 12 s (12:00:30 UTC)", with its date unless it is today.

    Less than half a second is "at once".
    """
    if next_try_ms - now_ms < _AT_ONCE_MS:
        return "at once"
    at = moment(next_try_ms)
    date = "" if at.date() == moment(now_ms).date() else f"{at:%Y-%m-%d} "
    return f"in {(next_try_ms - now_ms) / 1000:.0f} s ({date}{at:%H:%M:%S} UTC)"
