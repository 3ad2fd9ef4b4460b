"""Time zones by their names."""

from __future__ import annotations

from functools import lru_cache
from zoneinfo import ZoneInfo

from ..errors import InvalidInput


@lru_cache(256)
def read_zone(zone: str, field: str = "Schedule.zone") -> ZoneInfo:
    """Find a time zone by its name.

    Raises:
        InvalidInput: There is none of this name.
    """
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError, TypeError):
        advice = "give a name of the time zone database, such as Europe/Berlin, or UTC."
        raise InvalidInput(field, zone, advice) from None
