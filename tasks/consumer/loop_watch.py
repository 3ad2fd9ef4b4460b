"""Notices that the loop on which steps take turns stands still.

An async driver or tool that computes or blocks, a `time.sleep` in the place of `asyncio.sleep`, keeps every step of its
worker waiting, and the worker from reading messages. Nothing is lost by it: leases are renewed by a thread. But nobody
else may take the steps either, so a worker whose loop stands for long is worth more restarted: its leases end, and
other workers carry its steps on.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from typing import Final

from ...worker.engine import EventLoopThread

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
_WARN_SECONDS: Final = 3.0
# The last calls of the stack: where it stands, and who called it.
_FRAMES: Final = 8


class LoopWatch:
    """Asks the loop to turn once a second; says where it stands when it does not, and ends the process in the end."""

    def __init__(self, loop: EventLoopThread, limit_seconds: float) -> None:
        """
        Args:
            loop: A running one.
            limit_seconds: The process ends with exit code 1 when the loop has stood for so long. Looks are counted and
                not the clock, so that a process which was stopped altogether does not end when it goes on.
        """
        self._loop = loop
        self._limit = limit_seconds
        self._ended = threading.Event()
        self._turned = threading.Event()
        threading.Thread(target=self._run, name="celery-agents-loop-watch", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._ended.set()

    def _run(self) -> None:
        stood = 0.0
        warned = False
        self._turned.set()
        while not self._ended.wait(_LOOK_SECONDS):
            if self._turned.is_set():
                stood, warned = 0.0, False
                self._turned.clear()
                self._loop.call_soon(self._turned.set)
                continue
            stood += _LOOK_SECONDS
            if stood >= self._limit:
                log.error("the event loop has stood still for %.0f s; this worker ends\n%s", stood, self._stack())
                logging.shutdown()
                os._exit(1)
            if stood >= _WARN_SECONDS and not warned:
                warned = True
                log.warning(
                    "the event loop stands still, and with it every step of this worker; async drivers and tools must "
                    "not block (make them plain functions, which get a thread)\n%s",
                    self._stack(),
                )

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._loop.thread_id or 0)  # pyright: ignore[reportPrivateUsage]
        return "".join(traceback.format_stack(frame)[-_FRAMES:]) if frame is not None else ""
