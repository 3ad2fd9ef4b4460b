"""What is asked of an engine, and how its client process is asked: one JSON object a line on stdin and stdout.

Only the standard library is used here: every peer's own environment imports this module.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Load:
    """One measurement.

    Args:
        sessions: How many there are.
        steps: K, of each session.
        latency: Seconds the model takes.
        at_once: All sessions are submitted at once; else each when the one before has ended.
    """

    sessions: int
    steps: int
    latency: float = 0.0
    at_once: bool = True

    @property
    def total_steps(self) -> int:
        return self.sessions * self.steps

    @property
    def title(self) -> str:
        how = "at once" if self.at_once else "in turn"
        latency = f", {self.latency * 1000:.0f} ms a model call" if self.latency else ""
        return f"{self.sessions} sessions {how}, K = {self.steps}{latency}"


def serve(run: Callable[[Load], Callable[[], None] | None]) -> None:
    """Answer loads from stdin until it is closed.

    `run` returns when every session of the load has ended; what it returns, if anything, is called afterwards, untimed,
    and checks that they were carried out in full. What libraries print goes to stderr.
    """
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    replies.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        load = Load(**json.loads(line))
        started = time.perf_counter()
        check = run(load)
        seconds = time.perf_counter() - started
        if check is not None:
            check()
        replies.write(json.dumps({"seconds": seconds}) + "\n")


def in_waves(load: Load, submit: Callable[[int], None], wait: Callable[[int], None]) -> None:
    """Submit the load's sessions, numbered from 0, at once or in turn; `wait(n)` returns when n more have ended."""
    waves = [range(load.sessions)] if load.at_once else [range(n, n + 1) for n in range(load.sessions)]
    for wave in waves:
        for number in wave:
            submit(number)
        wait(len(wave))
