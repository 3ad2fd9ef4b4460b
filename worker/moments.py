"""Unix times in milliseconds, as Redis and the store have them, as datetimes."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(unix_ms: int) -> datetime:
    """Convert a time in Unix milliseconds; `fields.milliseconds` lets only times through that a datetime can hold."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC)


def unix_ms(time: datetime) -> int:
    """Convert a datetime to Unix time in milliseconds."""
    return round(time.timestamp() * 1000)
