"""Listens on the wake-up channel of this worker: clients publish there which claims they stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from ..config.settings import Settings
from ..worker.store.keys import WAKE_CHANNEL
from ..worker.store.redis.wake_ups import wake_ups

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0


class WakeUpListener:
    """A thread that subscribes to the worker's wake-up channel.

    While the connection is lost nothing is heard. The heartbeat of the leases finds a stop too, only later.
    """

    def __init__(self, settings: Settings, worker: str, wake: Callable[[str], object]) -> None:
        """
        Args:
            worker: The worker's name in the registry.
            wake: Called in the thread with the id of a claim whose session was asked to stop.
        """
        self._settings = settings
        self._channel = WAKE_CHANNEL + worker
        self._wake = wake
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="celery-agents-wake", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Let the thread end within a second."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                for claim_id in wake_ups(self._settings, self._channel, self._ended):
                    self._wake(claim_id)
            except Exception as error:  # noqa: BLE001 - whatever ends a subscription, it is made again
                log.debug("the wake-up channel was lost: %s", error)
                self._ended.wait(_RETRY_SECONDS)
