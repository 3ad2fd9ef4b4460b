"""Texts as passages and statements."""

from __future__ import annotations

from research.passages import Line, Passage, passages, statements

TEXT = """\
# Guide

Intro one. Intro two (e.g. a thing) goes on
over a line. Last one?

## Table of things

| class | meaning |
|---|---|
| `pure` | run again |
| `keyed` | same key, **always** |

- first item
  with a second line
- second [item](http://x) of *two*

```sh
# not a heading
run `it`

and more
```

Setext
======

    indented = code

end
"""


def parsed(text: str = TEXT, file: str = "guide.md") -> list[Passage]:
    return list(passages(file, [Line(number, line) for number, line in enumerate(text.split("\n"), start=1)]))


def quotes(text: str = TEXT, file: str = "guide.md") -> list[tuple[int, str]]:
    return [(each.line, each.text) for passage in parsed(text, file) for each in statements(passage)]


def test_passages_know_their_lines_and_headings() -> None:
    assert [(each.first, each.last, each.headings) for each in parsed()] == [
        (3, 4, "Guide"),
        (10, 10, "Guide › Table of things"),
        (11, 11, "Guide › Table of things"),
        (13, 14, "Guide › Table of things"),
        (15, 15, "Guide › Table of things"),
        (17, 22, "Guide › Table of things"),
        (27, 27, "Setext"),
        (29, 29, "Setext"),
    ]


def test_statements_are_sentences_rows_items_and_lines_of_code() -> None:
    assert quotes() == [
        (3, "Intro one."),
        (3, "Intro two (e.g. a thing) goes on over a line."),
        (4, "Last one?"),
        (10, "`pure` — run again"),
        (11, "`keyed` — same key, always"),
        (13, "first item with a second line"),
        (15, "second item of two"),
        (18, "# not a heading"),
        (19, "run `it`"),
        (21, "and more"),
        (27, "indented = code"),
        (29, "end"),
    ]


def test_code_files_are_quoted_line_by_line() -> None:
    assert quotes("# a comment\nx = 1. Y\n\nz", "a.py") == [(1, "# a comment"), (2, "x = 1. Y"), (4, "z")]


def test_marks_inside_code_stay() -> None:
    assert quotes("Names like `*_PORT*` and `__all__` are *kept*.") == [
        (1, "Names like `*_PORT*` and `__all__` are kept.")
    ]


def test_drawings_are_not_quoted() -> None:
    assert quotes("```\n┌────┐\n│ ok │\nplain\n```") == [(4, "plain")]


def test_empty_and_unclosed_texts_are_fine() -> None:
    assert quotes("") == []
    assert quotes("```\nnever closed") == [(2, "never closed")]
    assert quotes("\n\n#\n") == [(3, "#")]
