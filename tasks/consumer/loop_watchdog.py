"""A watchdog for the event loop on which steps take turns.

An async driver or tool that computes or blocks, such as `time.sleep` in the place of `asyncio.sleep`, keeps every step
of its worker waiting, and the worker from reading messages. Nothing is lost: a thread renews the leases. But no other
worker may take the steps either. So a worker whose loop is blocked for long ends: its leases expire, and other workers
carry on with its steps.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final

from ...worker.concurrency.event_loop import EventLoopThread

log = logging.getLogger(__name__)

_CHECK_SECONDS: Final = 1.0
_WARN_SECONDS: Final = 3.0
# The innermost calls of the stack.
_FRAMES: Final = 8
_LOG_SECONDS: Final = 2.0


class LoopWatchdog:
    """Asks the loop to call it once a second; logs the stack of a blocked loop, and ends the process in the end."""

    def __init__(self, loop: EventLoopThread, limit_seconds: float) -> None:
        """
        Args:
            loop: It must run.
            limit_seconds: The process ends with exit code 1 when the loop has been blocked for this time. Checks are
                counted and not the clock, so that a process which was paused altogether does not end when it goes on.
        """
        self._loop = loop
        self._limit = limit_seconds
        self._ended = threading.Event()
        self._turned = threading.Event()
        threading.Thread(target=self._run, name="celery-agents-loop-watch", daemon=True).start()

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()

    def _run(self) -> None:
        blocked = 0.0
        warned = False
        self._turned.set()
        while not self._ended.wait(_CHECK_SECONDS):
            if self._turned.is_set():
                blocked, warned = 0.0, False
                self._turned.clear()
                self._loop.call_soon(self._turned.set)
                continue
            blocked += _CHECK_SECONDS
            if blocked >= self._limit:
                text = f"the event loop has stood still for {blocked:.0f} s; this worker ends\n{self._stack()}"
                _log_aside(logging.ERROR, text, logging.shutdown)
                os._exit(1)
            if blocked >= _WARN_SECONDS and not warned:
                warned = True
                advice = (
                    "the event loop stands still, and with it every step of this worker; async drivers and tools must "
                    "not block (make them plain functions, which get a thread)"
                )
                _log_aside(logging.WARNING, f"{advice}\n{self._stack()}")

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._loop.thread_id or 0)  # pyright: ignore[reportPrivateUsage]
        return "".join(traceback.format_stack(frame)[-_FRAMES:]) if frame is not None else ""


def _log_aside(level: int, text: str, then: Callable[[], object] = lambda: None) -> None:
    """Log, but wait no longer than a moment: the loop may stand still because nobody reads the log."""

    def write() -> None:
        log.log(level, "%s", text)
        then()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    writer.join(_LOG_SECONDS)
