"""Counting what a worker did not take from its broker, for `doctor` and the metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Final

log = logging.getLogger(__name__)

ELEMENT: Final = "element"
REDELIVERY: Final = "redelivery"
REMOTE_CONTROL: Final = "remote control"
FETCH: Final = "fetch"
TURNS: Final = "turns"
SOURCES: Final = (ELEMENT, REDELIVERY, REMOTE_CONTROL, FETCH, TURNS)

_LONGEST_REASON: Final = 300
_LOG_PAUSE_SECONDS: Final = 1.0


class Refusals:
    """Counts by source, each with the latest reason. Its size does not grow with what is refused."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._reasons: dict[str, str] = {}
        self._logged_at: dict[str, float] = {}

    def record(self, source: str, reason: str) -> None:
        """Count a refusal, and log it at most once a second for each source."""
        self._counts[source] = self._counts.get(source, 0) + 1
        self._reasons[source] = reason[:_LONGEST_REASON]
        now = time.monotonic()
        if now - self._logged_at.get(source, float("-inf")) >= _LOG_PAUSE_SECONDS:
            self._logged_at[source] = now
            log.warning("refused (%s, %d so far): %s", source, self._counts[source], self._reasons[source])

    @property
    def counts(self) -> Mapping[str, int]:
        """How many were refused, by source."""
        return dict(self._counts)

    @property
    def facts(self) -> dict[str, dict[str, Any]]:
        """Count and latest reason by source, as JSON for the registry of workers."""
        counts = self.counts
        return {source: {"count": count, "reason": self._reasons[source]} for source, count in counts.items()}


refusals: Final = Refusals()
"""The refusals of this process."""
