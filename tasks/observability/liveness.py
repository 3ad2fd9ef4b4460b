"""`Liveness`: when the loops of a worker that take messages last turned, and when one was last taken, for probes.

The sweeper's thread writes the registry, and it may run while such a loop hangs, waiting for a broker or in a signal
handler. So each loop records its own sign of life: Celery's, and the one that fetches steps.
"""

from __future__ import annotations

import time
from typing import Any, Final

from celery import bootsteps
from celery.signals import task_received

BEAT_SECONDS: Final = 1.0


class Liveness:
    """Records when each loop that takes messages last turned, and when one was last taken."""

    def __init__(self) -> None:
        self._took_at = time.monotonic()
        self._turned_at = {"": self._took_at}

    def record_turn(self, loop: str = "") -> None:
        """Record that a loop has turned; "" is Celery's."""
        self._turned_at[loop] = time.monotonic()

    def forget_loop(self, loop: str) -> None:
        """Count a loop no more: it was told to end."""
        self._turned_at.pop(loop, None)

    def record_message(self, **_: Any) -> None:
        """Record that a message was taken."""
        self._took_at = time.monotonic()

    @property
    def facts(self) -> dict[str, float]:
        """Seconds since each loop has turned, and since a message was taken, for the worker's entry in the registry."""
        now = time.monotonic()
        return {"turned": round(now - min(self._turned_at.copy().values()), 1), "took": round(now - self._took_at, 1)}

    def step(self) -> type[bootsteps.StartStopStep]:
        """Make a bootstep of Celery's consumer; it starts again with each connection, whose end stops timers."""
        liveness = self

        class LivenessStep(bootsteps.StartStopStep):
            requires = ("celery.worker.consumer.tasks:Tasks",)

            def __init__(self, parent: Any, **kwargs: Any) -> None:
                super().__init__(parent, **kwargs)
                self._entry: Any = None

            def start(self, parent: Any) -> None:
                task_received.connect(
                    liveness.record_message, weak=False, dispatch_uid=f"celery-agents-liveness-{id(liveness)}"
                )
                self._entry = parent.timer.call_repeatedly(BEAT_SECONDS, liveness.record_turn)

            def stop(self, parent: Any) -> None:
                if self._entry is not None:
                    self._entry.cancel()

        return LivenessStep
