"""The reference pages say what the code says: they are generated from it, and every part of it is on a page."""

from __future__ import annotations

import ast
import importlib.util
import sys
from types import ModuleType

import pytest

from celery_agents.worker.store import EventType

from support.product import ROOT, modules


def _reference() -> ModuleType:
    path = ROOT / "docs" / "reference.py"
    spec = importlib.util.spec_from_file_location("docs_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


REFERENCE = _reference()
PAGES = ("command-line.md", "errors.md", "events.md", "guards.md", "hooks.md", "results.md", "settings.md")


def test_the_reference_has_its_pages() -> None:
    assert [page.name for page in REFERENCE.pages()] == sorted(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_the_code_says(name: str) -> None:
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert REFERENCE.render(page) == page, "run: python docs/reference.py"


def test_every_part_is_on_a_page() -> None:
    text = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in PAGES)
    assert [name for name in REFERENCE.PARTS if f"<!-- generated: {name} -->" not in text] == []


# Which argument is the type of the event, where it has no name.
PLACE_OF_TYPE = {"NewEvent": 0, "execution_event": 0, "tell": 2}


def test_every_type_of_event_is_written_and_none_as_plain_text() -> None:
    written: set[str] = set()
    plain: list[str] = []
    for name, path in modules().items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for call in (each for each in calls if getattr(each.func, "id", "") in PLACE_OF_TYPE):
            place = PLACE_OF_TYPE[getattr(call.func, "id", "")]
            kinds = [keyword.value for keyword in call.keywords if keyword.arg == "type"] or call.args[
                place : place + 1
            ]
            plain += [f"{name}:{call.lineno}" for kind in kinds if isinstance(kind, ast.Constant)]
            used = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
            written |= {node.attr for node in used if getattr(node.value, "id", "") == "EventType"}
    assert plain == []
    ends = {"EXECUTION_COMPLETED", "EXECUTION_STOPPED", "EXECUTION_FAILED"}  # named by their status
    scripted = {"WORKER_FOUND"}  # written by `offer.lua`
    assert written | ends | scripted == {kind.name for kind in EventType}
