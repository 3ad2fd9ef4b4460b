"""The interface by which metrics and traces follow what steps do."""

from __future__ import annotations

from typing import Protocol

from ..state.execution.inference import InferenceResponse
from .outcome import Outcome
from .run import Run


class StepObserver(Protocol):
    """Follows the steps of a worker.

    The engine calls these methods in the step's own thread, in this order. They must not raise, and must return
    quickly. Without an observer each point costs one comparison with None.
    """

    def step_begun(self, run: Run) -> None:
        """A step was claimed."""
        ...

    def driver_called(self, run: Run, seconds: float, response: InferenceResponse | None, error: str) -> None:
        """A driver call has ended, with a response or with the kind of its error.

        An answer that was paid for and cannot be used has both: the response holds its usage and price only.
        """
        ...

    def tools_called(self, run: Run) -> None:
        """The step's tool calls have ended. `new_records` tells which of them this attempt made."""
        ...

    def step_ended(self, run: Run, outcome: Outcome | None) -> None:
        """A step has ended that had begun as `run`; the outcome is None when an exception ended it."""
        ...


def new_records(run: Run) -> list[int]:
    """Indices of the calls that this attempt made."""
    return [index for index in sorted(run.obtained.records) if index not in run.loaded.journal.results]


__all__ = ["StepObserver", "new_records"]
