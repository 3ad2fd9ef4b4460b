"""The research agent's tools. They only read, so they are `pure`: after a crash they may simply run again."""

from __future__ import annotations

import os
from itertools import accumulate
from typing import Annotated, Any, Final

from pydantic import Field

from celery_agents.worker.tools import tool

from .folder import Folder, NotReadable
from .index import Hit, Index, index_of
from .words import stem, words

PATH_VARIABLE: Final = "RESEARCH_FOLDER"
"""Environment variable with the folder that the tools may read: a worker is another process."""

MAX_READ_LINES: Final = 200
MAX_LISTED: Final = 200
MAX_HITS: Final = 20
_EXCERPT_CHARS: Final = 240
_MAX_COUNTED_WORDS: Final = 50
_MAX_READ_CHARS: Final = 24_000


def folder() -> Folder:
    """The folder that the tools may read.

    Raises:
        NotReadable: There is no such folder.
    """
    return Folder.at(os.environ.get(PATH_VARIABLE) or ".")


@tool(effect="pure")
def list_files(pattern: str = "*") -> dict[str, Any]:
    """List the text files of the folder with their sizes.

    Args:
        pattern: Shell pattern for the path or the name, for example "*.md" or "guide/*".
    """
    files = folder().files(pattern)
    shown = [{"file": file.name, "bytes": file.size} for file in files[:MAX_LISTED]]
    return {"count": len(files), "files": shown, "left_out": max(0, len(files) - MAX_LISTED)}


@tool(effect="pure")
def search_files(
    query: str, limit: Annotated[int, Field(ge=1, le=MAX_HITS, description="Most passages to return.")] = 8
) -> dict[str, Any]:
    """Search all files for passages that hold the words of the query, best first.

    Endings do not matter ("kill" finds "killed"). The answer also tells in how many passages each word occurs.

    Args:
        query: Words to look for, or a question.
    """
    index = index_of(folder())
    return {
        "query": query,
        "passages_searched": len(index.entries),
        "words": _occurrences(index, query),
        "results": [_described(hit) for hit in index.search(query, limit)],
        "files_too_large_to_search": list(index.not_searched),
    }


@tool(effect="pure")
def read_file(
    file: str,
    first_line: Annotated[int, Field(ge=1, description="Line to begin with, from 1.")] = 1,
    last_line: Annotated[int | None, Field(description="Last line to read; leave out for as many as fit.")] = None,
) -> dict[str, Any]:
    """Read lines of one file. Each line comes as "number: text". At most 200 lines at once; read on with first_line.

    Args:
        file: Path as list_files or search_files give it.
    """
    if last_line is not None and last_line < first_line:
        raise NotReadable(f"last_line={last_line} is before first_line={first_line}; swap them")
    source = folder()
    found = source.file(file)
    wanted = MAX_READ_LINES if last_line is None else min(MAX_READ_LINES, last_line - first_line + 1)
    lines = source.lines(found, first_line, wanted + 1)  # one more tells whether the file goes on
    numbered = _fitting([f"{number}: {text}" for number, text in enumerate(lines[:wanted], start=first_line)])
    return {
        "file": found.name,
        "first_line": first_line,
        "last_line": first_line + len(numbered) - 1,
        "more_lines": len(lines) > len(numbered),
        "text": "\n".join(numbered),
    }


def _fitting(lines: list[str]) -> list[str]:
    """The lines from the first that are together no longer than one answer may be."""
    ends = accumulate(len(line) for line in lines)
    return [line for line, end in zip(lines, ends, strict=True) if end <= _MAX_READ_CHARS]


def _occurrences(index: Index, query: str) -> dict[str, int]:
    distinct = list(dict.fromkeys(word.lower() for word in words(query)))[:_MAX_COUNTED_WORDS]
    return {word: index.frequencies.get(stem(word), 0) for word in distinct}


def _described(hit: Hit) -> dict[str, Any]:
    return {
        "file": hit.passage.file,
        "line": hit.line.number,
        "text": hit.line.text.strip()[:_EXCERPT_CHARS],
        "heading": hit.passage.headings,
        "first_line": hit.passage.first,
        "last_line": hit.passage.last,
        "score": hit.score,
        "coverage": hit.coverage,
    }


__all__ = ["PATH_VARIABLE", "folder", "list_files", "read_file", "search_files"]
