"""The reference pages say what the code says: they are generated from it, and every part of it is on a page."""

from __future__ import annotations

import ast
import importlib.util
import sys
from types import ModuleType
from typing import get_args

import pytest

from celery_agents.worker.store import EventType
from celery_agents.worker.store.requests.events import RequestEventType

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


def test_every_event_that_the_code_writes_is_a_type_of_event() -> None:
    written: set[str] = set()
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("NewEvent", "execution_event"):
                kinds = [keyword.value for keyword in node.keywords if keyword.arg == "type"] or node.args[:1]
                written.update(kind.value for kind in kinds if isinstance(kind, ast.Constant))
    ends = {"execution_completed", "execution_stopped", "execution_failed"}  # named by their status
    scripted = {"worker_found"}  # written by `offer.lua`
    closed = set(get_args(RequestEventType))
    assert written | ends | scripted | closed == {kind.value for kind in EventType}
