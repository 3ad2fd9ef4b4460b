"""Ending a worker process that cannot end by itself, or that is worth more restarted."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Final

from ...config.settings import Settings
from ..runtime import LazyRuntime

log = logging.getLogger(__name__)

FORCE_MARGIN_SECONDS: Final = 5.0
"""How much longer than the drain time a process may take to end."""

_LOOK_SECONDS: Final = 1.0


def exit_after(seconds: float) -> None:
    """End the process with exit code 0 after `seconds`, if it has not ended by then."""

    def leave() -> None:
        time.sleep(seconds)
        log.warning("steps are still running after the drain time; their leases end with this process")
        os._exit(0)

    threading.Thread(target=leave, name="celery-agents-exit", daemon=True).start()


def exit_when_slots_are_lost(runtime: LazyRuntime, settings: Settings) -> None:
    """Drain the worker and end it with exit code 1 when too many slots hold functions that never end.

    A function whose step was interrupted, and that may still return in its own time, is none of them.
    """

    def watch() -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            current = runtime.current
            if current is None or current.keeper.overdue <= settings.abandoned_share * settings.concurrency:
                continue
            log.error("%d of %d slots are lost; draining and exiting", current.keeper.overdue, settings.concurrency)
            current.drain()
            time.sleep(settings.drain_seconds)
            os._exit(1)

    threading.Thread(target=watch, name="celery-agents-abandoned", daemon=True).start()
