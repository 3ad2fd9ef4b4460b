"""The table of stored forms in docs/operating.md names each form that the code writes, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from celery_agents.worker.state.agent_fields import PACKED_SCHEMA_VERSION

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
# How a module names a stored form: `_FORMAT: Final = "x/1"`, `PLAIN_SCHEMA_VERSION = 1`, `format_version: Literal[1]`.
CONSTANT = re.compile(
    r'^ *(?P<name>_FORMAT|_VERSION|[A-Z_]*SCHEMA_VERSION|format_version)\b[^=\[]*(?:=|\[) *"?(?P<form>[\w/.-]+)"?\]?$',
    re.MULTILINE,
)


def read_table() -> set[tuple[str, str]]:
    rows = re.findall(r"^\| .+ \| (.+) \| `([^`]+)` \| .+ \|$", PAGE, re.MULTILINE)
    return {(place.strip("`"), form) for place, form in rows}


def read_constants() -> set[tuple[str, str]]:
    found = set[tuple[str, str]]()
    for path in (ROOT / "worker").rglob("*.py"):
        for match in CONSTANT.finditer(path.read_text(encoding="utf-8")):
            place = {"_FORMAT": "format", "_VERSION": "its beginning"}.get(match["name"], match["name"])
            found.add(("schema_version" if "SCHEMA" in place else place, match["form"]))
    return found


def test_the_table_names_each_stored_form_and_no_other() -> None:
    assert read_constants() == read_table()


def test_the_table_ends_with_the_newest_state() -> None:
    versions = {int(form) for place, form in read_table() if place == "schema_version"}
    assert versions == set(range(1, PACKED_SCHEMA_VERSION + 1))
