"""A text as passages (what a search ranks) and as statements (what an answer quotes), each with its line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

MAX_PASSAGE_LINES: Final = 15
_PROSE: Final = (".md", ".markdown", ".rst", ".txt", ".adoc")
_HEADING: Final = re.compile(r"^(#{1,6})\s+(.*?)\s*#*$")
_UNDERLINE: Final = re.compile(r"^(=+|-+)\s*$")
_FENCE: Final = re.compile(r"^\s*(```|~~~)")
_ITEM: Final = re.compile(r"^\s*([-*+•·]|\d+[.)])\s+")
_TABLE_RULE: Final = re.compile(r"^[\s|:+-]+$")
_DRAWING: Final = re.compile("[\u2500-\u257f]|-->")
_TABLE_ROW: Final = re.compile(r"^\s*\|.*\|\s*$")
_FEW_CELLS: Final = 4
# A sentence ends at . ! ? … before white space and something that can begin a sentence; not after abbreviations.
_SENTENCE_END: Final = re.compile(
    r"(?<=[.!?…])(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)(?<!vs\.)[\"”’)*_`]*\s+(?=[\"“‘(*_`\[]*[A-Z0-9])|\s+·\s+"
)


@dataclass(frozen=True)
class Line:
    """A line of a file."""

    number: int
    """From 1."""
    text: str


@dataclass(frozen=True)
class Passage:
    """Neighbouring lines that belong together."""

    file: str
    headings: str
    """The headings above it, outermost first, joined by ` › `."""
    lines: tuple[Line, ...]
    is_code: bool = False

    @property
    def text(self) -> str:
        """All of its lines."""
        return "\n".join(line.text for line in self.lines)

    @property
    def is_wide_row(self) -> bool:
        """Whether it is a table row of many cells, which says little without the titles of its columns."""
        return len(self.lines) == 1 and bool(_TABLE_ROW.match(self.text)) and len(_cells(self.text)) > _FEW_CELLS

    @property
    def first(self) -> int:
        """Number of its first line."""
        return self.lines[0].number

    @property
    def last(self) -> int:
        """Number of its last line."""
        return self.lines[-1].number


@dataclass(frozen=True)
class Statement:
    """A sentence, a list item, a table row or a line of code: something that can be quoted."""

    file: str
    line: int
    headings: str
    text: str
    is_code: bool = False


def passages(file: str, lines: Iterable[Line]) -> Iterator[Passage]:
    """Paragraphs, lists, tables and code blocks of a text, in order. Headings belong to what follows them."""
    if not is_prose(file):
        yield from _code_passages(file, lines)
        return
    trail: list[tuple[int, str]] = []
    for block in _blocks(lines):
        level, title = _heading(block)
        if level:
            trail = [*(entry for entry in trail if entry[0] < level), (level, title)]
            continue
        headings = " › ".join(title for _, title in trail)
        is_code = _is_code(block)
        for unit in [block] if is_code else _units(block):
            for part in _parts(unit):
                yield Passage(file=file, headings=headings, lines=tuple(part), is_code=is_code)


def is_prose(file: str) -> bool:
    """Whether the file's name says that it holds sentences; anything else is quoted line by line."""
    return file.lower().endswith(_PROSE) or "." not in file.rsplit("/", 1)[-1]


def is_fence(text: str) -> bool:
    """Whether the line opens or closes a fenced block."""
    return bool(_FENCE.match(text))


def statements(passage: Passage) -> Iterator[Statement]:
    """Yield the sentences, items, rows or lines of a passage that can be quoted, without markup."""
    blank = Statement(
        file=passage.file, line=passage.first, headings=passage.headings, text="", is_code=passage.is_code
    )
    lines = [line for line in passage.lines if line.text.strip() and not _is_markup(line.text)]
    for unit in [[line] for line in lines] if passage.is_code else [lines]:
        start = 0
        text = _joined(unit)
        whole = passage.is_code or _TABLE_ROW.match(text)
        ends = [] if whole else [match.end() for match in _SENTENCE_END.finditer(text)]
        for end in [*ends, len(text)]:
            sentence = text[start:end].strip(" ·")
            if sentence:
                yield replace(blank, line=_line_at(unit, start), text=_plain(sentence))
            start = end


def _code_passages(file: str, lines: Iterable[Line]) -> Iterator[Passage]:
    for is_text, group in groupby(lines, key=lambda line: bool(line.text.strip())):
        if is_text:
            for part in _parts(list(group)):
                yield Passage(file, "", tuple(part), is_code=True)


def _blocks(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Lines between blank lines; a fenced block is one block whatever it holds; a heading is a block of its own."""
    block: list[Line] = []
    fenced = False
    for line in lines:
        fence = bool(_FENCE.match(line.text))
        if fence and not fenced:
            if block:
                yield block
            block, fenced = [line], True
        elif fenced:
            block.append(line)
            if fence:
                yield block
                block, fenced = [], False
        elif not line.text.strip() or _HEADING.match(line.text):
            if block:
                yield block
            block = []
            if line.text.strip():
                yield [line]
        else:
            block.append(line)
    if block:
        yield block


def _heading(block: list[Line]) -> tuple[int, str]:
    """Level and title when the block is a heading; level 0 when it is not."""
    match = _HEADING.match(block[0].text)
    if len(block) == 1 and match:
        return len(match[1]), _plain(match[2])
    if len(block) == 2 and _UNDERLINE.match(block[1].text) and not _TABLE_ROW.match(block[0].text):
        return (1 if block[1].text[0] == "=" else 2), _plain(block[0].text.strip())
    return 0, ""


def _is_code(block: list[Line]) -> bool:
    """A fenced block, or one that is indented and no list."""
    first = block[0].text
    return bool(_FENCE.match(first)) or (first.startswith(("    ", "\t")) and not _ITEM.match(first))


def _parts(block: list[Line]) -> Iterator[list[Line]]:
    for start in range(0, len(block), MAX_PASSAGE_LINES):
        yield block[start : start + MAX_PASSAGE_LINES]


def _units(block: list[Line]) -> Iterator[list[Line]]:
    """Lines that are read as one: a paragraph, one list item, one table row."""
    number = 0
    keyed: list[tuple[int, Line]] = []
    for line in _without_table_heads(block):
        number += bool(_ITEM.match(line.text) or _TABLE_ROW.match(line.text))
        keyed.append((number, line))
    for _, group in groupby(keyed, key=lambda entry: entry[0]):
        yield [line for _, line in group]


def _is_markup(text: str) -> bool:
    """A fence, or a line of a drawing."""
    return is_fence(text) or bool(_DRAWING.search(text))


def _without_table_heads(lines: list[Line]) -> list[Line]:
    """Without the rule of a table and the titles of its columns above it."""
    rules = {line.number for line in lines if "|" in line.text and _TABLE_RULE.match(line.text)}
    return [line for line in lines if line.number not in rules and line.number + 1 not in rules]


def _joined(unit: list[Line]) -> str:
    return " ".join(line.text.strip() for line in unit)


def _line_at(unit: list[Line], position: int) -> int:
    """The line of the unit in which the character `position` of its joined text stands."""
    for line in unit:
        position -= len(line.text.strip()) + 1
        if position < 0:
            return line.number
    return unit[-1].number


def _plain(text: str) -> str:
    """Without list and table markers, emphasis and link targets. Code marks stay: they tell names from words."""
    if _TABLE_ROW.match(text):
        text = " — ".join(_cells(text))
    parts = _ITEM.sub("", text).split("`")
    return "`".join(part if number % 2 else _without_marks(part) for number, part in enumerate(parts)).strip()


def _cells(row: str) -> list[str]:
    """The texts of a table row's cells, without the empty ones."""
    cells = (cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip().strip("|")))
    return [cell for cell in cells if cell]


def _without_marks(text: str) -> str:
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"(\*\*|__)(\S(?:.*?\S)?)\1", r"\2", text)
    return re.sub(r"(?<![\w*])\*(\S(?:[^*]*?\S)?)\*(?![\w*])", r"\1", text)
