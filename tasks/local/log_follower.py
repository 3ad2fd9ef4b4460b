"""Copy a growing log file to the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO


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
