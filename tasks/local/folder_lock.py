"""A lock on a data folder: two servers that append to the same file would destroy it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Final

from ...worker.errors import ConfigurationError

_NAME: Final = "lock"
_POLL_SECONDS: Final = 0.1


class FolderLock:
    """A lock that this process and the children that inherit it hold until the last of them has ended.

    Args:
        folder: An existing folder, when `acquire` is called.
        patience_seconds: How long to wait for another holder. A server whose starter was killed ends in three seconds.
    """

    def __init__(self, folder: Path, patience_seconds: float = 5.0) -> None:
        self._folder = folder
        self._patience_seconds = patience_seconds
        self._descriptor: int | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """File descriptors that a child must inherit to hold the lock too."""
        return () if self._descriptor is None else (self._descriptor,)

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            ConfigurationError: Another process holds it.
        """
        descriptor = os.open(self._folder / _NAME, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + self._patience_seconds
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise ConfigurationError(
                    f"the data folder {str(self._folder)!r} is in use by another celery-agents; end that one, or give "
                    "another --data-dir"
                )
            time.sleep(_POLL_SECONDS)
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back, as far as this process is concerned."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
