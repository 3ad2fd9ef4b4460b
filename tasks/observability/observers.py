"""`Observers`: passes what the engine reports to metrics and traces, where the settings enable them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ...config.settings import Settings
from ...worker.engine.outcome import Outcome
from ...worker.engine.services import StepObserver
from ...worker.redaction import describe_exception
from ...worker.state.execution.inference import InferenceResponse
from .metrics import Metrics
from .tracing import Tracing

if TYPE_CHECKING:
    from ...worker.drivers.protocol import InferenceRequest
    from ...worker.engine.run import Run

log = logging.getLogger(__name__)


class Observers(StepObserver):
    """Metrics and traces of one process.

    Attributes:
        metrics: None when they are off.
        tracing: None when it is off.
    """

    def __init__(self, settings: Settings, agents: Iterable[str] = ()) -> None:
        """
        Args:
            agents: Names of those that the process runs.
        Raises:
            MissingExtra: A setting enables an extra that is not installed.
        """
        self.metrics = Metrics(agents) if settings.metrics_port is not None else None
        self.tracing = Tracing() if settings.traces else None
        self._all: tuple[StepObserver, ...] = tuple(each for each in (self.metrics, self.tracing) if each is not None)

    @property
    def observer(self) -> StepObserver | None:
        """Observer for the engine; None when metrics and traces are off."""
        return self if self._all else None

    def delivered(self, outcome: Outcome | None) -> None:
        """Count the outcome of a step message; None when Redis did not answer."""
        if self.metrics is not None:
            self.metrics.delivered(outcome)

    def close(self) -> None:
        """Send the spans that are not sent yet."""
        if self.tracing is not None:
            self.tracing.close()

    def step_begun(self, run: Run) -> None:
        """See `StepObserver`."""
        self._notify(lambda each: each.step_begun(run))

    def driver_called(
        self, run: Run, request: InferenceRequest, seconds: float, response: InferenceResponse | None, error: str
    ) -> None:
        """See `StepObserver`."""
        self._notify(lambda each: each.driver_called(run, request, seconds, response, error))

    def job_answered(self, run: Run, request: InferenceRequest, seconds: float, response: InferenceResponse) -> None:
        """See `StepObserver`."""
        self._notify(lambda each: each.job_answered(run, request, seconds, response))

    def tools_called(self, run: Run) -> None:
        """See `StepObserver`."""
        self._notify(lambda each: each.tools_called(run))

    def step_ended(self, run: Run, outcome: Outcome | None) -> None:
        """See `StepObserver`."""
        self._notify(lambda each: each.step_ended(run, outcome))

    def _notify(self, call: Callable[[StepObserver], None]) -> None:
        """Call each observer; its error must not fail the step."""
        for each in self._all:
            try:
                call(each)
            except Exception as error:  # noqa: BLE001 - whatever a library for metrics or traces raises
                log.warning("%s missed an event of a step: %s", type(each).__name__, describe_exception(error).message)
