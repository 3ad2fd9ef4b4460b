"""Parts that have ended, Python files that change and a log that grows, for `celery-agents up`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO

from .child_processes import Child, ChildEnded

_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0
_STEADY_SECONDS: Final = 20.0
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"})
_MOST_FILES: Final = 5_000
_LOOK_SECONDS: Final = 0.5


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


class FileWatcher:
    """Compares the modification times of the Python files below a folder.

    Polling needs no further library and works in every file system; a look at a thousand files takes milliseconds.

    Args:
        folder: Files below it are watched, apart from hidden folders and installed packages.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._read_times()
        self._next_look = 0.0

    def find_changes(self) -> list[str]:
        """Return the files that have changed, appeared or gone since the last call, relative to the folder."""
        if time.monotonic() < self._next_look:
            return []
        self._next_look = time.monotonic() + _LOOK_SECONDS
        before, self._seen = self._seen, self._read_times()
        names = before.keys() | self._seen.keys()
        return sorted(name for name in names if before.get(name) != self._seen.get(name))

    def _read_times(self) -> Mapping[str, int]:
        return dict(list(self._walk())[:_MOST_FILES])

    def _walk(self) -> Iterator[tuple[str, int]]:
        for folder, subfolders, names in os.walk(self._folder):
            subfolders[:] = sorted(name for name in subfolders if not name.startswith(".") and name not in _SKIPPED)
            for name in names:
                path = Path(folder, name)
                if path.suffix == ".py":
                    try:
                        yield str(path.relative_to(self._folder)), path.stat().st_mtime_ns
                    except OSError:  # it has gone meanwhile
                        continue


class LogFollower:
    """Copies whole lines of a log file that were written since the last look.

    Args:
        path: The file; it may not exist yet.
        output: Receives the lines.
    """

    def __init__(self, path: Path, output: TextIO) -> None:
        self._path = path
        self._output = output
        self._position = 0

    def skip(self) -> None:
        """Leave out what was written up to now."""
        self._position = self._size()

    def copy(self) -> None:
        """Copy what was written since the last look, up to the end of the last whole line."""
        if self._size() <= self._position:
            return
        with self._path.open("rb") as stream:
            stream.seek(self._position)
            text = stream.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._position += len(whole)
        self._output.write(whole.decode(errors="replace"))
        self._output.flush()

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0
