"""Notice changes of Python files, for `celery-agents up --reload`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"})
_MOST_FILES: Final = 5_000
_LOOK_SECONDS: Final = 0.5


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
