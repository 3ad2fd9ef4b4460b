"""A folder that tools may read: nothing outside it, no binary files, never more than fits in an answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Final

# What people keep in a folder and do not mean when they ask about "the files".
SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "node_modules", "build", "dist", "venv", "site-packages"})
MAX_FILES: Final = 5_000
"""Files looked at in one folder; a tree with more is cut, and the listing says so."""
MAX_SEARCHED_BYTES: Final = 1_000_000
"""A larger file is not searched (it can still be read by lines)."""
MAX_LINE_CHARS: Final = 1_000
"""Longer lines are cut, with a marker."""
_SNIFFED_BYTES: Final = 8_192


class NotReadable(ValueError):
    """The path is outside the folder, missing, or no text. The message says which, in words for the model."""


@dataclass(frozen=True)
class TextFile:
    """One text file below a folder."""

    name: str
    """Path relative to the folder, with forward slashes."""
    path: Path
    size: int
    """Bytes."""
    modified_ns: int


@dataclass(frozen=True)
class Folder:
    """Read access to the text files below `root`."""

    root: Path

    @classmethod
    def at(cls, path: str | Path) -> Folder:
        """The folder at `path`.

        Raises:
            NotReadable: There is no folder.
        """
        root = Path(path).expanduser()
        if not root.is_dir():
            raise NotReadable(f"there is no folder {str(path)!r}; give the path of a folder with text files")
        return cls(root.resolve())

    def files(self, pattern: str = "*") -> tuple[TextFile, ...]:
        """Text files whose relative path or name matches the shell pattern, by name; at most `MAX_FILES`."""
        return tuple(islice((file for file in self._walk() if _matches(file.name, pattern)), MAX_FILES))

    def file(self, name: str) -> TextFile:
        """One text file by its relative path.

        Raises:
            NotReadable: It is outside the folder, missing, not a regular file, or binary.
        """
        path = self._inside(name)
        if not path.is_file():
            raise NotReadable(f"there is no file {name!r}; list_files names the files there are")
        file = self._described(path)
        if file is None:
            raise NotReadable(f"{name!r} is a binary file; only text can be read")
        return file

    def lines(self, file: TextFile, first: int = 1, count: int | None = None) -> list[str]:
        """Lines of a file from line `first` (from 1), `count` of them (None: all); each at most `MAX_LINE_CHARS` long.

        Raises:
            NotReadable: The file has gone or may not be read.
        """
        try:
            with file.path.open(encoding="utf-8", errors="replace", newline="\n") as stream:
                stop = None if count is None else first - 1 + count
                return [_shortened(line) for line in islice(stream, first - 1, stop)]
        except OSError as error:
            raise NotReadable(f"{file.name!r} cannot be read: {error.strerror}") from None

    def _inside(self, name: str) -> Path:
        if "\0" in name:
            raise NotReadable("a file name cannot hold a NUL character")
        try:
            path = (self.root / name).resolve()
            path.exists()
        except (OSError, RuntimeError):  # too long, or links in a circle
            raise NotReadable(f"{name[:100]!r} cannot be followed to a file") from None
        if not path.is_relative_to(self.root):
            raise NotReadable(f"{name!r} is outside the folder; only paths that list_files names can be read")
        return path

    def _walk(self) -> Iterator[TextFile]:
        for folder, subfolders, names in os.walk(self.root):
            subfolders[:] = sorted(name for name in subfolders if not _is_skipped(name))
            for name in sorted(names):
                file = None if name.startswith(".") else self._described(Path(folder) / name)
                if file is not None:
                    yield file

    def _described(self, path: Path) -> TextFile | None:
        """None: not a readable text file of this folder (a link that leads out, a socket, a picture, an odd name)."""
        name = path.relative_to(self.root).as_posix()
        if not _is_unicode(name):
            return None
        try:
            if not path.resolve().is_relative_to(self.root) or not path.is_file() or _is_binary(path):
                return None
            status = path.stat()
        except (OSError, RuntimeError):  # gone, not allowed, or links in a circle
            return None
        return TextFile(name=name, path=path, size=status.st_size, modified_ns=status.st_mtime_ns)


def _matches(name: str, pattern: str) -> bool:
    return fnmatch(name, pattern) or fnmatch(name.rsplit("/", 1)[-1], pattern)


def _is_skipped(name: str) -> bool:
    return name.startswith(".") or name in SKIPPED_FOLDERS or name.endswith(".egg-info")


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_binary(path: Path) -> bool:
    with path.open("rb") as stream:
        return b"\0" in stream.read(_SNIFFED_BYTES)


def _shortened(line: str) -> str:
    line = line.rstrip("\r\n")
    left_out = len(line) - MAX_LINE_CHARS
    return line if left_out <= 0 else f"{line[:MAX_LINE_CHARS]} [… {left_out} characters left out]"
