"""docs/step.md names files and functions of the code; each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "step.md").read_text(encoding="utf-8")
PLACES = sorted(set(re.findall(r"`([\w/]+\.py):([\w.]+)`", PAGE)))


def definitions(node: ast.AST, prefix: str = "") -> set[str]:
    """Names of functions and classes, those of methods behind their class."""
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found |= {prefix + child.name, *definitions(child, f"{prefix}{child.name}.")}
    return found


@pytest.mark.parametrize(("file", "name"), PLACES, ids=[":".join(place) for place in PLACES])
def test_a_place_on_the_page_exists(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in definitions(tree)


def test_the_way_has_at_most_twenty_five_hops() -> None:
    hops = [int(number) for number in re.findall(r"^(\d+)\. ", PAGE, re.MULTILINE)]
    assert hops == list(range(1, len(hops) + 1))
    assert 15 <= len(hops) <= 25


def test_the_protocol_links_to_the_page() -> None:
    assert "(step.md)" in (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
