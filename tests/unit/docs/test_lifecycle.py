"""docs/lifecycle.md draws the table of transitions, every edge of it and no other."""

from __future__ import annotations

import re
from pathlib import Path

from celery_agents.worker.state import TRANSITIONS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "lifecycle.md").read_text(encoding="utf-8")
ALL = {(before.value, after.value) for before, following in TRANSITIONS.items() for after in following}


def test_the_drawing_has_every_edge_of_the_table_and_no_other() -> None:
    drawn = set(re.findall(r"^ +(\w+) --> (\w+):", PAGE, re.MULTILINE))
    assert {edge for edge in drawn if edge[0] != edge[1]} == ALL


def test_the_table_of_causes_has_every_edge_and_no_other() -> None:
    rows = re.findall(r"^\| ([a-z, ]+) \| ([a-z ]+) \| .+ \| .+ \|$", PAGE, re.MULTILINE)
    listed = {(a.replace(" ", "_"), b.replace(" ", "_")) for froms, b in rows for a in froms.split(", ") if a != "from"}
    assert {edge for edge in listed if edge[0] != edge[1]} == ALL
