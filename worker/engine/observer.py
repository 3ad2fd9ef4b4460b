"""Who is told what steps do, for metrics and traces. Nobody, by default: then each point costs a look at None."""

from __future__ import annotations

from typing import Protocol

from ..state import InferenceResponse
from .outcome import Outcome
from .run import Run


class StepObserver(Protocol):
    """Told in the step's own thread, in this order. It must not raise, and must not take long."""

    def step_begun(self, run: Run) -> None:
        """A step was claimed."""
        ...

    def driver_called(self, run: Run, seconds: float, response: InferenceResponse | None, error: str) -> None:
        """A driver call has ended, with a response or with the kind of its error."""
        ...

    def tools_called(self, run: Run) -> None:
        """The step's tool calls have ended; those of `run.records` that the journal did not hold before are new."""
        ...

    def step_ended(self, run: Run, outcome: Outcome | None) -> None:
        """What came of the step that had begun as `run`; None when an exception ended it."""
        ...


def new_records(run: Run) -> list[int]:
    """Indices of the calls that this attempt made."""
    return [index for index in sorted(run.records) if index not in run.loaded.journal.results]


__all__ = ["StepObserver", "new_records"]
