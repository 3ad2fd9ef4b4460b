"""Whether this worker still takes messages: what its main thread can tell, and a probe in another process reads.

The thread that tells others of this worker is not the one that takes messages. One may live while the other stands
still, waiting for a broker or hung in somebody's signal handler; so the main loop leaves its own sign of life.
"""

from __future__ import annotations

import time
from typing import Any, Final

from celery import bootsteps
from celery.signals import task_received

BEAT_SECONDS: Final = 1.0


class Liveness:
    """When the loop that takes messages last turned, and when it last took one."""

    def __init__(self) -> None:
        self._turned = self._took = time.monotonic()

    def beat(self) -> None:
        """The loop has turned."""
        self._turned = time.monotonic()

    def took(self, **_: Any) -> None:
        """A message was taken."""
        self._took = time.monotonic()

    @property
    def facts(self) -> dict[str, float]:
        """Seconds since each, for the worker's entry in the registry."""
        now = time.monotonic()
        return {"turned": round(now - self._turned, 1), "took": round(now - self._took, 1)}

    def step(self) -> type[bootsteps.StartStopStep]:
        """A part of Celery's consumer: begun again with each connection to the broker, since its timers are not."""
        liveness = self

        class Beating(bootsteps.StartStopStep):
            requires = ("celery.worker.consumer.tasks:Tasks",)

            def __init__(self, parent: Any, **kwargs: Any) -> None:
                super().__init__(parent, **kwargs)
                self._entry: Any = None

            def start(self, parent: Any) -> None:
                task_received.connect(liveness.took, weak=False, dispatch_uid=f"celery-agents-pulse-{id(liveness)}")
                self._entry = parent.timer.call_repeatedly(BEAT_SECONDS, liveness.beat)

            def stop(self, parent: Any) -> None:
                if self._entry is not None:
                    self._entry.cancel()

        return Beating
