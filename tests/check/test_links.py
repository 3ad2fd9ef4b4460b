"""Links of the README and the pages lead to files and headings, and docs/code.md names code that exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.product import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
CODE_PAGE = ROOT / "docs" / "code.md"
DECISION_PARTS = ["Context", "Decision", "Consequences", "Tried and left"]


def prose(text: str) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Each relative link of a page as (file, anchor); an empty file is the page itself."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text(encoding="utf-8"))):
        if "://" not in target and not target.startswith("mailto:"):
            file, _, anchor = target.partition("#")
            yield file, anchor


def anchors(page: Path) -> set[str]:
    """The anchors that a renderer makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def problems(page: Path) -> Iterator[str]:
    """A sentence for each link of a page that leads nowhere."""
    for file, anchor in links(page):
        target = (page.parent / file).resolve() if file else page
        if not target.exists():
            yield f"{page.name} points to {file}, which does not exist"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{page.name} points to #{anchor}, which {target.name} has no heading for"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert list(problems(page)) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One heading\n[a](#one-heading) [b](#no-heading) [c](gone.md) [d](https://example.com/x)\n")
    assert list(problems(page)) == [
        "page.md points to #no-heading, which page.md has no heading for",
        "page.md points to gone.md, which does not exist",
    ]


def test_the_list_of_decisions_has_the_title_of_each_and_all_have_the_same_parts() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^\| \[(\d+)\]\((.+?)\) \| (.+?) \|", (folder / "README.md").read_text(), re.MULTILINE)
    pages = sorted(page for page in folder.glob("*.md") if page.name != "README.md")
    titles = [page.read_text(encoding="utf-8").partition("\n")[0] for page in pages]
    assert [(name, f"# {number}. {title}") for number, name, title in listed] == [
        (page.name, title) for page, title in zip(pages, titles, strict=True)
    ]
    for page in pages:
        parts = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert parts in (DECISION_PARTS, DECISION_PARTS[:3]), page.name


def named_places() -> list[tuple[str, str]]:
    """What docs/code.md names as `file.py` or `file.py:Name` or `file.py:Class.method`."""
    found = re.findall(r"`([\w./]+\.(?:py|lua))(?::([\w.]+))?`", CODE_PAGE.read_text(encoding="utf-8"))
    return sorted(set(found))


def defined_names(path: Path) -> set[str]:
    """Functions, classes, methods (`Class.method`) and constants at the top of a module."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            names.update(f"{node.name}.{each.name}" for each in inner)
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names.update(target.id for target in targets if isinstance(target, ast.Name))
    return names


@pytest.mark.parametrize(("file", "name"), named_places())
def test_the_code_page_names_what_exists(file: str, name: str) -> None:
    path = ROOT / file
    assert path.is_file(), f"docs/code.md names {file}"
    assert not name or name in defined_names(path), f"docs/code.md names {name} in {file}"


def test_the_code_page_names_every_room() -> None:
    text = CODE_PAGE.read_text(encoding="utf-8")
    rooms = [path.parent for top in ("worker", "tasks") for path in (ROOT / top).glob("*/__init__.py")]
    assert [str(room.relative_to(ROOT)) for room in rooms if f"`{room.relative_to(ROOT)}/`" not in text] == []


def test_the_code_page_lists_each_module_that_asks_for_the_broker() -> None:
    listed = CODE_PAGE.read_text(encoding="utf-8").partition("## Places that know the broker")[2]
    asks = re.compile(r"(?<!def )\b(?:is_redis|takes_steps_itself|shares_a_database)\((?!port)")
    modules = [path for top in ("config", "tasks", "worker") for path in (ROOT / top).rglob("*.py")]
    asking = [str(path.relative_to(ROOT)) for path in modules if asks.search(path.read_text(encoding="utf-8"))]
    assert len(asking) > 10
    assert [name for name in asking if f"`{name}" not in listed] == []


def test_the_glossary_has_each_word_once_and_sorts_its_groups() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    groups = [re.findall(r"^\| \*\*(.+?)\*\* \|", group, re.MULTILINE) for group in text.split("\n## ")[1:]]
    words = [[word.casefold() for word in group] for group in groups]
    assert [group for group in words if group != sorted(group)] == []
    every = [word for group in words for word in group]
    assert [word for word in every if every.count(word) > 1] == []
