"""The results of the tools so far, read from their stored JSON, whoever asked for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from .passages import Line, Passage, is_fence, passages
from .words import query_terms, stem, words

_LINES_AROUND = 3
_MERGED_GAP = 6


@dataclass(frozen=True)
class Range:
    """Lines of a file that are worth reading."""

    file: str
    first: int
    last: int
    score: float


@dataclass(frozen=True)
class Search:
    """One stored result of `search_files`."""

    query: str
    passages: int
    words: Mapping[str, int]
    hits: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Search:
        """From the tool's JSON."""
        return cls(
            query=value["query"], passages=value["passages_searched"], words=value["words"], hits=value["results"]
        )

    @property
    def coverage(self) -> float:
        """The largest share of the query that one passage holds; 0 when there is none."""
        return max((hit["coverage"] for hit in self.hits), default=0.0)


@dataclass(frozen=True)
class Weights:
    """How much each term of the question tells, as the searches counted it."""

    by_term: Mapping[str, float]
    missing: tuple[str, ...]
    """Words of the question that no file holds."""

    @classmethod
    def of(cls, question: str, searches: Sequence[Search]) -> Weights:
        """Weights of the question's terms; a word that no search counted weighs like one that is in every passage."""
        total = max((search.passages for search in searches), default=0)
        counted = {word: number for search in searches for word, number in search.words.items()}
        by_stem = {stem(word): number for word, number in counted.items()}
        wanted = query_terms(question)
        weights = {term: _weight(by_stem.get(term, total), total) for term in wanted}
        asked = dict.fromkeys(word.lower() for word in words(question) if stem(word) in weights)
        return cls(weights, tuple(word for word in asked if by_stem.get(stem(word), total) == 0))


def worth_reading(searches: Sequence[Search], limit: int) -> list[Range]:
    """The best passages of all searches with a few lines around them; the first search (the question) counts most."""
    scored: dict[tuple[str, int, int], float] = {}
    for number, search in enumerate(searches):
        best = max((hit["score"] for hit in search.hits), default=0.0) or 1.0
        for hit in search.hits:
            where = (hit["file"], hit["first_line"], hit["last_line"])
            scored[where] = scored.get(where, 0.0) + (1.0 if number == 0 else 0.25) * hit["score"] / best
    ranges = [
        Range(file=file, first=max(1, first - _LINES_AROUND), last=last + _LINES_AROUND, score=score)
        for (file, first, last), score in scored.items()
    ]
    ranges.sort(key=lambda item: (-item.score, item.file, item.first))
    return _merged(ranges, limit)


def read_passages(reads: Sequence[Mapping[str, Any]], searches: Sequence[Search]) -> list[Passage]:
    """Passages of what was read, with the headings that the searches know for them."""
    headings = {
        (hit["file"], number): cast(str, hit["heading"])
        for search in searches
        for hit in search.hits
        for number in range(hit["first_line"], hit["last_line"] + 1)
    }
    found: list[Passage] = []
    for read in reads:
        for passage in passages(read["file"], _lines(read["text"])):
            known = headings.get((passage.file, passage.first), headings.get((passage.file, passage.last)))
            if known is not None or not _is_cut(passage, read):
                found.append(replace(passage, headings=known or passage.headings))
    return found


def _is_cut(passage: Passage, read: Mapping[str, Any]) -> bool:
    """Whether the passage touches an edge of what was read, and so may go on beyond it."""
    first, last, goes_on = int(read["first_line"]), int(read["last_line"]), bool(read["more_lines"])
    return (passage.first == first > 1) or (passage.last == last and goes_on)


def _merged(ranges: Sequence[Range], limit: int) -> list[Range]:
    """Neighbouring ranges of a file as one; never more than `limit`."""
    chosen: list[Range] = []
    for new in ranges:
        near = next((old for old in chosen if old.file == new.file and _are_near(old, new)), None)
        if near is not None:
            joined = replace(near, first=min(near.first, new.first), last=max(near.last, new.last))
            chosen[chosen.index(near)] = joined
        elif len(chosen) < limit:
            chosen.append(new)
    return chosen


def _are_near(one: Range, other: Range) -> bool:
    return one.first - _MERGED_GAP <= other.last and other.first - _MERGED_GAP <= one.last


def _lines(numbered: str) -> list[Line]:
    pairs = (line.partition(": ") for line in numbered.split("\n") if line)
    return _opened([Line(int(number.removesuffix(":")), text) for number, _, text in pairs])


def _opened(lines: list[Line]) -> list[Line]:
    """With a fence in front where the lines begin inside a fenced block: the first fence closes it and opens none."""
    first = next((place for place, line in enumerate(lines) if is_fence(line.text)), None)
    if first is None or lines[0].number == 1 or lines[first].text.strip() not in ("```", "~~~"):
        return lines
    closes = first + 1 == len(lines) or not lines[first + 1].text.strip()
    return [Line(lines[0].number, lines[first].text), *lines] if closes else lines


def _weight(frequency: int, total: int) -> float:
    """As the index weighs its terms."""
    frequency = max(1, frequency)
    return math.log(1 + (total - frequency + 0.5) / (frequency + 0.5))
