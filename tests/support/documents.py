"""Code blocks of the documentation, by the file names in their first lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Document:
    """One page.

    Attributes:
        files: Python blocks, by the name in their first line.
        commands: Lines of shell blocks.
        outputs: Text blocks, in order.
    """

    files: dict[str, str]
    commands: tuple[str, ...]
    outputs: tuple[str, ...]

    def write(self, folder: Path) -> None:
        """Put its Python files into a folder."""
        for name, text in self.files.items():
            (folder / name).write_text(text)


def read_document(name: str) -> Document:
    """A page of the repository; every Python block must name its file."""
    blocks = _BLOCK.findall((ROOT / name).read_text())
    files: dict[str, str] = {}
    for kind, text in blocks:
        if kind == "python":
            first = text.splitlines()[0]
            assert re.fullmatch(r"# \w+\.py", first), f"{name}: a Python block begins with {first!r}, not with its file"
            files[first.removeprefix("# ")] = text
    lines = [line for kind, text in blocks if kind == "sh" for line in text.splitlines()]
    outputs = tuple(text for kind, text in blocks if kind == "text")
    return Document(files, tuple(line.split("  #")[0].rstrip() for line in lines if line), outputs)
