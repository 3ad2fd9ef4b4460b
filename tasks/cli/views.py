"""Texts and JSON that the command line prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from ...config.escaping import escape, escape_json

T = TypeVar("T")

_MAX_LINE: Final = 160


def clean(text: str) -> str:
    """Escape control characters: a text of a model or a tool must not move the cursor of a terminal."""
    return escape(text)


def one_line(text: str, limit: int = _MAX_LINE) -> str:
    """Put a text on one line, cut at `limit` characters."""
    flat = clean(" ".join(text.split()))
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def as_json(value: Any) -> str:
    """Write a value as one line of JSON, times in ISO 8601."""
    return escape_json(json.dumps(value, ensure_ascii=False, default=_write_other))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write rows as lines of aligned columns, two spaces between them."""
    cells = [list(head), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def print_values(values: Sequence[dict[str, Any]], cursor: str | None = None) -> None:
    """Print the JSON values of a page, each on a line; where there are more, the last one holds the cursor."""
    for number, value in enumerate(values, 1):
        print(as_json({**value, "cursor": cursor} if cursor and number == len(values) else value))


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], cursor: str | None = None) -> None:
    """Print a page as a table; where there are more, a line says how to go on."""
    for line in [*table(head, rows), *([f"more with: --cursor {cursor}"] if cursor else [])]:
        print(line)


def print_found(
    head: Sequence[str], found: Sequence[T], *, json: bool, value: Callable[[T], Any], row: Callable[[T], Sequence[str]]
) -> None:
    """Print a list as a table, or with `json` a value a line.

    Args:
        value, row: What is printed of an entry, as JSON or in the table.
    """
    if json:
        print_values([value(each) for each in found])
    else:
        print_table(head, [[clean(cell) or "-" for cell in row(each)] for each in found])


def say_unread(unread: int) -> None:
    """Say on standard error that a listing is not whole."""
    if unread:
        parts = "a part" if unread == 1 else f"{unread} parts"
        print(f"{parts} of the store could not be read: a node of the cluster is away; see doctor", file=sys.stderr)


def plural(number: int, noun: str) -> str:
    """`1 step`, `3 steps`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def age(then: datetime, now: datetime | None = None) -> str:
    """How long ago, in one unit: 12s, 5m, 3h, 2d."""
    seconds = max(0.0, ((now or datetime.now(UTC)) - then).total_seconds())
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def seconds(value: float) -> str:
    """A duration for people: 0.25 s, 42 s, 12 min, 3.5 h."""
    if value < 600:
        return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7_200 else f"{value / 3_600:.1f} h"


def _write_other(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)


def print_notes(notes: Sequence[str], done: str, json: bool) -> None:
    """Say that it is done; what may not be meant goes to standard error."""
    for note in () if json else notes:
        print(f"note: {one_line(note, 1000)}", file=sys.stderr)
    print_done({"notes": list(notes)}, done, json)


def print_done(value: Mapping[str, Any], text: str, json: bool) -> None:
    """Print what was done: a text, or with `json` its value."""
    print(as_json(value) if json else text)


def print_removed(removed: bool, otherwise: str, json: bool) -> None:
    """Say that it was removed, or what is so otherwise."""
    print_done({"changed": removed}, "removed" if removed else otherwise, json)
