"""Ranked search over the passages of a folder: BM25, in memory, built again when a file changed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from .folder import MAX_SEARCHED_BYTES, Folder, NotReadable, TextFile
from .passages import Line, Passage, passages
from .words import query_terms, related, terms

# Okapi BM25 (Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009) with its usual constants; a softer
# length norm than the usual 0.75, because a passage is short anyway, and one of one line is not better for it.
_K1: Final = 1.2
_B: Final = 0.5
_HEADING_WEIGHT: Final = 0.8
_FIRST_WORD_WEIGHT: Final = 1.0
"""For the word that a passage begins with: mostly its subject, and in a glossary what it explains."""
_RELATED_WEIGHT: Final = 0.4
_WIDE_ROW_WEIGHT: Final = 0.5
_MAX_TOTAL_BYTES: Final = 40_000_000


@dataclass(frozen=True)
class Hit:
    """A passage that holds terms of a query."""

    passage: Passage
    score: float
    """Comparable within one search only; higher is better."""
    coverage: float
    """Share of the query's weight that the passage holds, 0 to 1."""
    line: Line
    """The line of the passage that holds most of the query."""


@dataclass(frozen=True)
class _Entry:
    passage: Passage
    counts: Mapping[str, float]
    length: float
    weight: float


@dataclass(frozen=True)
class Index:
    """Searchable passages of some files."""

    entries: Sequence[_Entry]
    frequencies: Mapping[str, int]
    mean_length: float
    not_searched: tuple[str, ...] = ()
    """Files too large to be searched."""

    @classmethod
    def of(cls, found: Iterable[Passage], not_searched: tuple[str, ...] = ()) -> Index:
        """An index of passages."""
        entries = [_entry(passage) for passage in found]
        frequencies = Counter(term for entry in entries for term in entry.counts)
        mean = sum(entry.length for entry in entries) / len(entries) if entries else 1.0
        return cls(entries=entries, frequencies=frequencies, mean_length=mean or 1.0, not_searched=not_searched)

    def weight(self, term: str) -> float:
        """How much a term tells: rare terms tell more. One that no passage holds tells as much as the rarest."""
        frequency = max(1, self.frequencies.get(term, 0))
        return math.log(1 + (len(self.entries) - frequency + 0.5) / (frequency + 0.5))

    def search(self, query: str, limit: int) -> list[Hit]:
        """The best passages for a question or some words, best first. Empty: no passage holds any of the words."""
        wanted = {term: self.weight(term) for term in query_terms(query)}
        whole = sum(wanted.values()) or 1.0
        scored = [(self._score(entry, wanted), number) for number, entry in enumerate(self.entries)]
        best = sorted(((score, number) for score, number in scored if score > 0), key=lambda item: (-item[0], item[1]))
        return [self._hit(self.entries[number], score, wanted, whole) for score, number in best[:limit]]

    def _score(self, entry: _Entry, wanted: Mapping[str, float]) -> float:
        norm = _K1 * (1 - _B + _B * entry.length / self.mean_length)
        score = 0.0
        for term, weight in wanted.items():
            count = _count(entry.counts, term)
            if count:
                score += weight * count * (_K1 + 1) / (count + norm)
        return score * entry.weight

    def _hit(self, entry: _Entry, score: float, wanted: Mapping[str, float], whole: float) -> Hit:
        held = sum(weight for term, weight in wanted.items() if _count(entry.counts, term))
        return Hit(
            passage=entry.passage,
            score=round(score, 3),
            coverage=round(held / whole, 3),
            line=_best_line(entry.passage, wanted),
        )


def index_of(folder: Folder) -> Index:
    """The index of a folder's files, kept until one of them changes."""
    return _CACHE.get(folder)


@dataclass
class _Cache:
    """The last folder's index. Searches of one step run side by side in threads: one builds, the others wait."""

    lock: Lock = field(default_factory=Lock)
    key: tuple[object, ...] = ()
    index: Index = field(default_factory=lambda: Index((), {}, 1.0))

    def get(self, folder: Folder) -> Index:
        with self.lock:
            files = folder.files()
            key = (folder.root, *((file.name, file.size, file.modified_ns) for file in files))
            if key != self.key:
                self.index, self.key = _built(folder, files), key
            return self.index


_CACHE: Final = _Cache()


def _built(folder: Folder, files: Sequence[TextFile]) -> Index:
    found: list[Passage] = []
    not_searched: list[str] = []
    total = 0
    for file in files:
        total += file.size
        if file.size > MAX_SEARCHED_BYTES or total > _MAX_TOTAL_BYTES:
            not_searched.append(file.name)
            continue
        found += passages(file.name, _numbered(folder, file))
    return Index.of(found, tuple(not_searched))


def _numbered(folder: Folder, file: TextFile) -> list[Line]:
    try:
        return [Line(number, text) for number, text in enumerate(folder.lines(file), start=1)]
    except NotReadable:
        return []  # it went away between the listing and the reading


def _entry(passage: Passage) -> _Entry:
    own = terms(passage.text)
    counts: dict[str, float] = dict(Counter(own))
    for term in own[:1]:
        counts[term] += _FIRST_WORD_WEIGHT
    for term in set(terms(f"{passage.headings} {passage.file}")):
        counts[term] = counts.get(term, 0.0) + _HEADING_WEIGHT
    weight = _WIDE_ROW_WEIGHT if passage.is_wide_row else 1.0
    return _Entry(passage=passage, counts=counts, length=float(len(own)), weight=weight)


def _count(counts: Mapping[str, float], term: str) -> float:
    own = counts.get(term, 0.0)
    return own or _RELATED_WEIGHT * max((counts.get(other, 0.0) for other in related(term)), default=0.0)


def _best_line(passage: Passage, wanted: Mapping[str, float]) -> Line:
    def told(line: Line) -> float:
        present = set(terms(line.text))
        return sum(weight for term, weight in wanted.items() if term in present)

    return max(passage.lines, key=told)
