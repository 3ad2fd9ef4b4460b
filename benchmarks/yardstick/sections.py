"""Sections of docs/benchmarks.md that are measured by themselves; `run.py` writes the rest, and keeps them."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from .environments import BENCHMARKS

DOCUMENT: Final = BENCHMARKS.parent / "docs" / "benchmarks.md"

_WIDTH: Final = 120

_TITLES: Final = (
    "Sessions that wait",
    "Agents that call agents",
    "Agents of pydantic-ai",
    "Live text",
    "Streams over HTTP",
    "Providers that limit",
    "Shares and caps",
    "Late steps",
    "Bytes of a step",
    "The archive",
    "Forks",
)
"""The sections of this kind, in the order of the page, before its last section."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A figure of a section.

    Attributes:
        key: Its name among the figures.
        at_most: The most that it may be; None: no such target.
        at_least: The least that it should be; None: no such target.
    """

    title: str
    key: str
    at_most: float | None = None
    at_least: float | None = None

    def line(self, value: object) -> str:
        """Write the row; a target that is missed says so."""
        known = isinstance(value, int | float)
        missed = known and (
            (self.at_most is not None and value > self.at_most) or (self.at_least is not None and value < self.at_least)
        )
        target = f"≤ {self.at_most:g}" if self.at_most is not None else ""
        target = f"≥ {self.at_least:g}" if self.at_least is not None else target
        return f"| {self.title} | {target} | {value if known else 'not measured'}{' (missed)' if missed else ''} |"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table of figures under a title of `_TITLES`, after a text that says what was done."""

    title: str
    text: str
    rows: Sequence[Row]

    def run(
        self, parser: argparse.ArgumentParser, name: str, measure: Callable[[argparse.Namespace], dict[str, object]]
    ) -> dict[str, object]:
        """Measure as the command line asks, print the figures in a line behind a name, and write them with `--write`.

        Args:
            parser: The options of the measurement.
            measure: Takes them; returns the figures.
        """
        parser.add_argument("--write", action="store_true", help="put the figures into docs/benchmarks.md")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        asked = parser.parse_args()
        figures = measure(asked)
        print(f"{name} {json.dumps(figures)}")
        if asked.write:
            self.write(figures)
        return figures

    def write(self, figures: Mapping[str, object]) -> None:
        """Put the section into the document in place of the old one."""
        assert self.title in _TITLES, self.title
        text = DOCUMENT.read_text(encoding="utf-8")
        found = {**kept_sections(text), self.title: self._markdown(figures)}
        others = [part for part in _split(text) if _title(part) not in _TITLES]
        own = [found[title] for title in _TITLES if title in found]
        DOCUMENT.write_text("".join([*others[:-1], *own, others[-1]]), encoding="utf-8")

    def _markdown(self, figures: Mapping[str, object]) -> str:
        load = ", ".join(f"{part:.1f}" for part in os.getloadavg())
        head = ["| figure | target | measured |", "|---|---|---|"]
        rows = [row.line(figures.get(row.key)) for row in self.rows]
        measured = f"Measured {datetime.now(UTC):%Y-%m-%d}; load average at the end {load}."
        text = textwrap.fill(" ".join(self.text.split()), _WIDTH)
        return "\n".join([f"## {self.title}\n", f"{text}\n", f"{measured}\n", *head, *rows]) + "\n\n"


def kept_sections(text: str) -> dict[str, str]:
    """The sections of this kind that a document has, by title, in the order of the page."""
    found = {_title(part): part for part in _split(text)}
    return {title: found[title] for title in _TITLES if title in found}


def _split(text: str) -> list[str]:
    return re.split(r"(?m)^(?=## )", text)


def _title(part: str) -> str:
    return part.partition("\n")[0].removeprefix("## ")
