"""Unix times in milliseconds, as Redis and the store have them, as datetimes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

LAST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, the last year that a datetime knows."""


def moment(unix_ms: int) -> datetime:
    """Convert a time in Unix milliseconds; of one behind the year 9999, which somebody has stored, its end."""
    return datetime.fromtimestamp(min(unix_ms, LAST_MS) / 1000, UTC)


def unix_ms(time: datetime) -> int:
    """Convert a datetime to Unix time in milliseconds; the last one is not rounded up into the year 10 000."""
    return min(round(time.timestamp() * 1000), LAST_MS)
