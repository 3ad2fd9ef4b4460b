"""The page's files: nothing that could make markup of a text, small modules, all of them loaded at once, licences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celery_agents.tasks.http.page_files import PageFile

from support.product import ROOT

PAGE = ROOT / "tasks" / "http" / "page"
MODULES = sorted(PAGE.glob("*.js"))
VENDORED = sorted((PAGE / "vendor").glob("*.mjs"))
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write|\beval\(|new Function"
    r"|createContextualFragment|DOMParser|\bsrcdoc\b|\bstyle=\"|\son[a-z]+=\""
)
_MOST_LINES = 200
_MOST_COLUMNS = 120
_MOST_MODULES = 37
_MOST_KILOBYTES = 107


def imported(module: Path) -> set[str]:
    """The modules that one imports, by their paths below the page."""
    found = re.findall(r'from "(\./[^"]+)"', module.read_text(encoding="utf-8"))
    return {(module.parent / name).resolve().relative_to(PAGE).as_posix() for name in found}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_a_module_is_small_and_makes_no_markup(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert MARKUP.findall(text) == []
    assert len(lines) <= _MOST_LINES
    assert [line for line in lines if len(line) > _MOST_COLUMNS] == []
    assert lines[0].startswith("// "), "the first line says what the module is"


def test_no_module_is_left_over_and_all_are_loaded_at_once() -> None:
    own = {path.name for path in MODULES}
    reached, rest = set[str](), {"main.js"}
    while rest:
        name = rest.pop()
        reached.add(name)
        rest |= imported(PAGE / name) - reached
    assert reached == own | {f"vendor/{path.name}" for path in VENDORED}
    # A module that only its importer names is asked for when that has arrived: each level would take a round trip.
    preloaded = re.findall(r'rel="modulepreload" href="\{up\}page/([^"]+)"', (PAGE / "index.html").read_text())
    assert set(preloaded) == reached - {"main.js"}


def test_what_is_vendored_has_its_licence_and_its_version_beside_it() -> None:
    readme = (PAGE / "vendor" / "README.md").read_text(encoding="utf-8")
    for path in VENDORED:
        assert f"| {path.name} |" in readme
    licences = re.findall(r"LICENSE-[a-z]+", readme)
    assert {path.name for path in (PAGE / "vendor").glob("LICENSE-*")} == set(licences)


def test_the_page_is_small() -> None:
    files = [*MODULES, *VENDORED, PAGE / "style.css", PAGE / "index.html"]
    size = sum(len(PageFile.of(path.read_bytes(), path.suffix).compressed) for path in files)
    assert len(MODULES) <= _MOST_MODULES
    assert size <= _MOST_KILOBYTES * 1024, f"{size / 1024:.1f} kB compressed"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_nothing_but_comments_is_left_out_of_what_is_sent(module: Path) -> None:
    """No line is changed where a template is open: what looks like a comment there would be a text."""
    is_inside = False
    for line in module.read_text(encoding="utf-8").splitlines():
        sent = PageFile.of(line.encode(), ".js").content.decode()
        assert sent == line or not is_inside, line
        is_inside ^= len(re.findall(r"(?<!\\)`", re.sub(r" // .*$", "", sent))) % 2 == 1
    assert not is_inside
