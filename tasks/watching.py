"""Metrics and traces put together, as far as the settings want them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..config.settings import Settings
from ..worker.engine import Outcome, Watching
from ..worker.state import InferenceResponse
from .metrics import Metrics
from .tracing import Tracing

if TYPE_CHECKING:
    from ..worker.engine.run import Run


class Observers(Watching):
    """What one process measures.

    Attributes:
        metrics: None when they are off.
        tracing: None when it is off.
    """

    def __init__(self, settings: Settings) -> None:
        """
        Raises:
            MissingExtra: A setting asks for what is not installed.
        """
        self.metrics = Metrics() if settings.metrics_port is not None else None
        self.tracing = Tracing() if settings.traces else None
        self._all: tuple[Watching, ...] = tuple(each for each in (self.metrics, self.tracing) if each is not None)

    @property
    def watching(self) -> Watching | None:
        """For the engine: None when nobody wants to know."""
        return self if self._all else None

    def delivered(self, outcome: Outcome | None) -> None:
        """What came of a message of a step; None when Redis was not there."""
        if self.metrics is not None:
            self.metrics.delivered(outcome)

    def close(self) -> None:
        """Send what has not been sent yet."""
        if self.tracing is not None:
            self.tracing.close()

    def step_begun(self, run: Run) -> None:
        """See `Watching`."""
        for each in self._all:
            each.step_begun(run)

    def driver_called(self, run: Run, seconds: float, response: InferenceResponse | None, error: str) -> None:
        """See `Watching`."""
        for each in self._all:
            each.driver_called(run, seconds, response, error)

    def tools_called(self, run: Run) -> None:
        """See `Watching`."""
        for each in self._all:
            each.tools_called(run)

    def step_ended(self, run: Run, outcome: Outcome | None) -> None:
        """See `Watching`."""
        for each in reversed(self._all):
            each.step_ended(run, outcome)
