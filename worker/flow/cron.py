"""The times of a cron expression in a time zone, by the library `cronsim`: daylight saving time as in Debian's cron."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Final

from cronsim import CronSim, CronSimError

from ..errors import InvalidInput
from .zones import read_zone

_LOOKED_AHEAD: Final = 100
_MINUTE, _HOUR = 60, 3600


def iterate_slots(cron: str, zone: str, after: datetime) -> Iterator[datetime]:
    """Yield the times of a cron expression behind a moment, in UTC; none where there is none within 50 years.

    A time that the clock leaves out comes as soon as the clock shows a later one, and of a repeated hour a fixed time
    comes once. With six fields, of which the first is the second, neither rule holds.

    Raises:
        InvalidInput: It is no cron expression.
    """
    last = after
    for found in _iterate(cron, after.astimezone(read_zone(zone))):
        # Of a repeated hour the library may name a time that has passed.
        if (slot := found.astimezone(UTC)) > last:
            last = slot
            yield slot


def check_cron(cron: str, zone: str, after: datetime) -> None:
    """Check that a cron expression can be read, and has a time to come.

    Raises:
        InvalidInput: It is none, or it never fires.
    """
    if next(iterate_slots(cron, zone, after), None) is None:
        raise InvalidInput("Schedule.cron", cron, "it never fires: no day within 50 years fits. Give one that does.")


def shortest_interval(cron: str, zone: str, after: datetime) -> timedelta:
    """The shortest time between two of the next hundred times; a day at least where there are not two of them."""
    slots = list(islice(iterate_slots(cron, zone, after), _LOOKED_AHEAD))
    return min((later - sooner for sooner, later in pairwise(slots)), default=timedelta(days=1))


class _Times(CronSim):
    """The library's times, also where the clock is shifted by half an hour, or at midnight.

    By itself it goes by whole hours, and begins each day at 00:00, also one that begins later.
    """

    def advance_hour(self) -> bool:
        """Go to an hour that fits, on a day that begins at 01:00 not from 00:00, which would be an hour behind it."""
        if self.dt.tzinfo is not None and self.dt.hour not in self.hours:
            self.dt = self.dt.astimezone(UTC).astimezone(self.dt.tzinfo)
        return super().advance_hour()

    def tick(self, seconds: int = 1) -> None:
        """Go forward: by an hour no further than to the next full one, and by more than a minute to no later shift."""
        before = self.dt
        super().tick(seconds - before.minute * _MINUTE if seconds == _HOUR else seconds)
        if seconds > _MINUTE and self.dt.utcoffset() != before.utcoffset():
            self.dt = before
            while self.dt.utcoffset() == before.utcoffset():
                super().tick(_MINUTE)


def _iterate(cron: str, after: datetime) -> Iterator[datetime]:
    try:
        # Times of a schedule have no fraction of a second, which the library would drop.
        # A range of one value is that value, also with a step; the library would go on from it to the end.
        yield from _Times(re.sub(r"\b(\w+)-\1/0*[1-9]\d*\b", r"\1", cron), after.replace(microsecond=0))
    except (CronSimError, ValueError) as error:  # also a number of more digits than Python reads
        fields = "minute, hour, day of the month, month and day of the week, with the second in front if there are six"
        advice = f"{str(error).lower()}; give {fields}, such as '0 2 * * *'."
        if str(error) == "Bad day-of-month":
            advice = f"no month has such a day, or it is none, so it never fires; give {fields}, such as '0 2 * * *'."
        raise InvalidInput("Schedule.cron", cron, advice) from None
