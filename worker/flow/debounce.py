"""Debouncing: messages that come close together begin one execution."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Final

from ..errors import InvalidInput
from ..state.values.field_types import Count, Text
from ..state.values.value import Value, skip_when_reading

_MOST_CHARS: Final = 200
_LONGEST: Final = timedelta(days=30)


class Debounce(Value):
    """How long a job waits for further messages under the same key, which join it as long as it has not begun.

    The messages that one job takes are a *burst*. The first one begins a session of its own.

    Attributes:
        key: By which messages belong together, for one agent: 1 to 200 characters.
        quiet_ms: The job begins when no message has come for so long (milliseconds).
        at_most_ms: It begins at the latest so long after the first one.
    """

    key: Text
    quiet_ms: Count
    at_most_ms: Count

    @skip_when_reading
    def __init__(self, key: str, *, quiet: timedelta, at_most: timedelta) -> None:
        """Raises `InvalidInput`, which names the field, for a value that cannot be used."""
        if not isinstance(key, str) or not 1 <= len(key) <= _MOST_CHARS:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput("Debounce.key", key, f"give a text of 1 to {_MOST_CHARS} characters.")
        for name, time in (("quiet", quiet), ("at_most", at_most)):
            if not isinstance(time, timedelta) or not timedelta(milliseconds=1) <= time <= _LONGEST:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidInput(f"Debounce.{name}", time, f"give a timedelta up to {_LONGEST.days} days.")
        if at_most < quiet:
            raise InvalidInput("Debounce.at_most", str(at_most), f"give at least `quiet`, which is {quiet}.")
        super().__init__(key=key, quiet_ms=milliseconds(quiet), at_most_ms=milliseconds(at_most))

    def burst_of(self, agent: str) -> str:
        """The name under which the store keeps the session of the present burst."""
        return hashlib.sha256(f"{agent}\n{self.key}".encode()).hexdigest()[:32]

    def start_ms(self, first_ms: int, now_ms: int) -> int:
        """When a job begins that got its first message at `first_ms`, and another one now (Unix milliseconds)."""
        return max(now_ms, min(now_ms + self.quiet_ms, first_ms + self.at_most_ms))


def milliseconds(time: timedelta) -> int:
    """A time in milliseconds."""
    return round(time.total_seconds() * 1000)
