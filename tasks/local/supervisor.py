"""Keep the parts of a development stack running: start what has ended again, with growing pauses."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from .child_processes import Child, ChildEnded

_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0
_STEADY_SECONDS: Final = 20.0


@dataclass
class SupervisedPart:
    """A child process that is started again whenever it has ended.

    Attributes:
        name: For messages, such as `worker`.
        start: Starts the process again; it may raise `ChildEnded`, and is called again after a pause.
        discard: Cleans up after the process that has ended.
        child: The process that was started last.
        say: Takes a line for people.
    """

    name: str
    start: Callable[[], Child]
    discard: Callable[[Child], None]
    child: Child
    say: Callable[[str], None]
    _pause_seconds: float = field(default=_FIRST_PAUSE_SECONDS, init=False)
    _started_at: float = field(default_factory=time.monotonic, init=False)
    _restart_at: float | None = field(default=None, init=False)

    def check(self) -> bool:
        """Look at the process, and start it again when its pause is over.

        Returns:
            Whether a process was started by this call.
        """
        now = time.monotonic()
        if self._restart_at is None:
            if not self.child.is_alive:
                self._plan_restart(now, self.child.describe_end())
            return False
        if now < self._restart_at:
            return False
        try:
            self.restart()
        except ChildEnded as error:
            self._plan_restart(time.monotonic(), str(error))
            return False
        return True

    def restart(self) -> None:
        """Discard the process and start another one now.

        Raises:
            ChildEnded: It did not start.
        """
        self.discard(self.child)
        self._restart_at, self._started_at = None, time.monotonic()
        self.child = self.start()

    def stop_restarting(self) -> None:
        """Do not start the process again before `restart` is called."""
        self._restart_at = float("inf")

    def _plan_restart(self, now: float, end: str) -> None:
        if now - self._started_at >= _STEADY_SECONDS:
            self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._restart_at = now + self._pause_seconds
        self.say(f"{self.name} {end}; it starts again in {self._pause_seconds:g} s")
        self._pause_seconds = min(self._pause_seconds * 2, _LONGEST_PAUSE_SECONDS)
