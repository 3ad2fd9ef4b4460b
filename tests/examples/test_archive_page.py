"""docs/archive.md: the example of a session's price follows from its parts, and these from what was measured."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.product import ROOT

PAGE = (ROOT / "docs" / "archive.md").read_text(encoding="utf-8")
MEASURED = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
SAID = 2_000


def parts() -> dict[str, Any]:
    (code,) = re.findall(r"```python\n(# bytes\n.*?)```", PAGE, re.DOTALL)
    found: dict[str, Any] = {}
    exec(code, found)
    return found


def measured(title: str) -> int:
    """A figure of English text, which comes first."""
    found = re.search(rf"^\| {re.escape(title)} \|[^|]*\| (\d+)", MEASURED, re.MULTILINE)
    assert found is not None, title
    return int(found[1])


def row(title: str) -> list[int]:
    found = re.search(rf"^\| {re.escape(title)} \| ([\d ]+) \| (\d+) \| (\d+) \|", PAGE, re.MULTILINE)
    assert found is not None, title
    return [int(each.replace(" ", "")) for each in found.groups()]


@pytest.mark.parametrize(
    ("title", "place", "dollars"),
    [
        ("in Redis, without an archive", "redis_bytes", 10),
        ("in Redis, until they move", "redis_bytes", 10),
        ("their marks", "MARK", 10),
        ("in the archive", "archive_bytes", 0.10),
    ],
)
def test_the_example_follows_from_the_parts(title: str, place: str, dollars: float) -> None:
    found = parts()
    size = found["MARK"] if place == "MARK" else found[place](20, SAID)
    shown, days, price = row(title)
    assert shown == size
    assert price == round(found["price"](1_000_000 * size * days, dollars))


def test_the_sums_are_those_of_the_rows() -> None:
    rows = ("in Redis, until they move", "their marks", "in the archive")
    with_archive = sum(row(title)[2] for title in rows)
    assert f"{row('in Redis, without an archive')[2]} dollars in place of {with_archive}" in PAGE


@pytest.mark.parametrize(
    ("title", "place"),
    [("… in Redis, compressed", "redis_bytes"), ("… in the archive's file of SQLite, with its words", "archive_bytes")],
)
def test_the_parts_give_what_was_measured_with_fifty_steps(title: str, place: str) -> None:
    said = measured("content, English text")
    assert parts()[place](50, said) / 50 == pytest.approx(measured(title), rel=0.05)
