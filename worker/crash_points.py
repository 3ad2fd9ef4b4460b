"""Crash points: the named places of docs/protocol.md at which tests kill or pause a worker.

`crash_points.at("c3")` does nothing unless a handler is armed. `CELERY_AGENTS_CRASH=point:probability:seed` arms one
that kills the process; a fourth part `stop=<seconds>` pauses it past its lease instead. Simulations install their own.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Final

POINTS: Final[dict[str, str]] = {
    "c0": "the message arrived, nothing was done",
    "c1": "claimed",
    "c2": "the driver answered, the answer exists only in memory",
    "c3": "the answer is journaled",
    "c4": "a tool call is recorded as begun",
    "c5": "the tool's effect is done, not yet recorded",
    "c6": "the tool's result is journaled",
    "c7": "the commit is applied, its reply not seen",
    "c8": "committed, the next message not yet published",
    "c9": "the next message is published",
}

WAITING_POINTS: Final[dict[str, str]] = {
    "w0": "a request is journaled",
    "w1": "the wait is applied, its reply not seen",
    "w2": "an answer is stored, its message perhaps not published",
    "w3": "a woken step is claimed",
}
"""The crash points of a step that waits, and of those who answer it."""

CHILD_POINTS: Final[dict[str, str]] = {
    "w4": "children are made with the wait, the reply not seen",
    "w5": "the end of a child is applied together with its parent's answer",
}
"""The crash points of a step that waits for children, and of their ends."""

ARCHIVE_POINTS: Final[dict[str, str]] = {
    "a0": "the row of a session is stored, and pending",
    "a1": "the session is removed from Redis, and its row still pending",
    "a2": "the mark has its life, and the row is still pending",
    "a3": "a session is restored from its row",
    "a4": "the row of a deleted session is a tombstone, and its entry in the outbox still there",
}
"""The crash points of moving sessions to the archive, restoring and deleting them."""

SCHEDULE_POINTS: Final[dict[str, str]] = {
    "s0": "a slot of a schedule is taken, its message not submitted",
    "s1": "the message of a slot is submitted, and not noted",
}
"""The crash points of submitting the messages of schedules."""

JOB_POINTS: Final[dict[str, str]] = {
    "p0": "a job at a provider is intended, and not created",
    "p1": "the job is created, its id exists only in memory",
    "p2": "the id of the job is journaled, the step not put off",
    "p3": "a job that no step waits for was cancelled, and its answer not charged",
}
"""The crash points of asking a provider that answers later, and of cleaning up behind it."""

Handler = Callable[[str], None]


def _nothing(point: str) -> None:
    """Do nothing: no handler is armed."""


_handler: Handler = _nothing


def at(point: str) -> None:
    """Pass a crash point, which calls the armed handler."""
    _handler(point)


def install(handler: Handler | None) -> None:
    """Call `handler` at every crash point of this process; None disarms."""
    global _handler  # noqa: PLW0603 - one switch a process, so that an unarmed point costs one call
    _handler = handler or _nothing


def arm(plan: str) -> None:
    """Arm the plan `point:probability:seed[:stop=<seconds>]` for this process.

    Raises:
        ValueError: The plan is malformed; the text says how it should look.
    """
    install(_parse(plan))


def _parse(plan: str) -> Handler:
    parts = plan.split(":")
    points = [*POINTS, *WAITING_POINTS, *CHILD_POINTS, *ARCHIVE_POINTS, *SCHEDULE_POINTS, *JOB_POINTS]
    if len(parts) not in (3, 4) or parts[0] not in points:
        raise ValueError(f"crash plan {plan!r}: write point:probability:seed[:stop=<seconds>], point one of {points}")
    wanted, probability, seed = parts[0], float(parts[1]), int(parts[2])
    pause = float(parts[3].removeprefix("stop=")) if len(parts) == 4 else None
    chance = random.Random(seed)

    def handler(point: str) -> None:
        if point == wanted and chance.random() < probability:
            _die(pause)

    return handler


def _die(pause: float | None) -> None:
    if pause is None:
        os.kill(os.getpid(), signal.SIGKILL)
        return
    # A stopped process cannot wake itself, so another process does.
    waker = f"import os,signal,time; time.sleep({pause}); os.kill({os.getpid()}, signal.SIGCONT)"
    subprocess.Popen([sys.executable, "-c", waker], start_new_session=True)
    # Sent to this thread: with a signal to the process this thread would go on until another one handles it.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
