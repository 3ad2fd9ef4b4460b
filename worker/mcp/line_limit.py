"""A limit of the log lines that are written about something which others may repeat without end."""

from __future__ import annotations

import time
from typing import Final

LINES_A_SECOND: Final = 20


class LineLimit:
    """Counts the lines of the present second.

    Attributes:
        left_out: Lines that were refused; the caller sets it back when it has told of them.
    """

    def __init__(self, most: int = LINES_A_SECOND) -> None:
        self._most = most
        self._count = 0
        self._since = time.monotonic()
        self.left_out = 0

    def take(self) -> bool:
        """Whether one more line may be written."""
        now = time.monotonic()
        if now - self._since >= 1:
            self._since, self._count = now, 0
        self._count += 1
        if self._count <= self._most:
            return True
        self.left_out += 1
        return False
