"""An answer in quotations: the statements that hold most of the question, each with file and line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from .findings import Weights
from .passages import Passage, Statement, statements
from .words import query_terms, related, terms

MAX_QUOTES: Final = 5
_MAX_QUOTE_CHARS: Final = 400
ENOUGH: Final = 0.55
"""Share of the question's weight that one passage must hold. Below it the files speak of something else."""
_WORTH: Final = 0.6
"""A further quotation scores at least this much of the best one."""
_SAME: Final = 0.6
"""Statements that share more of their terms say the same."""
_RELATED_WEIGHT: Final = 0.6
_HEADING_WEIGHT: Final = 0.6
_SECTION_BONUS: Final = 0.4
"""For standing in the section whose title is what the question asks for."""
_LONG_WORDS: Final = 25
"""A statement of more terms is the harder to read as an answer the longer it is."""
_PASSAGE_WEIGHT: Final = 0.25
_WIDE_ROW_FITNESS: Final = 0.5

_ASKS_NUMBER: Final = re.compile(
    r"\b(how (many|much|long|often|fast|soon|large|big)|when|limit|default|maximum)\b", re.IGNORECASE
)
_ASKS_COMMAND: Final = re.compile(r"\b(how (do|can|to)|command|run|start|install)\b", re.IGNORECASE)
_ASKS_MEANING: Final = re.compile(r"^\s*(what(\s+is|\s+are|’s|'s)|define|explain)\b", re.IGNORECASE)
_NUMBER: Final = re.compile(
    r"\d|\b(one|two|three|four|five|six|seven|eight|nine|ten|half|quarter|once|twice)\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Quote:
    """A statement and how well it answers."""

    statement: Statement
    score: float
    terms: frozenset[str]


def best_quotes(question: str, found: Sequence[Passage], weights: Weights) -> list[Quote]:
    """The statements that answer best, best first, none saying what another already says."""
    scored = [quote for passage in found for quote in _scored(question, passage, weights.by_term)]
    scored.sort(key=lambda quote: (-quote.score, quote.statement.file, quote.statement.line))
    chosen: list[Quote] = []
    for quote in scored:
        if len(chosen) == MAX_QUOTES or quote.score < _WORTH * scored[0].score or quote.score <= 0:
            break
        if not any(_overlap(quote.terms, other.terms) > _SAME for other in chosen):
            chosen.append(quote)
    return chosen


def answered(question: str, quotes: Sequence[Quote], weights: Weights, read: Sequence[str], file_count: int) -> str:
    """The text of an answer."""
    count = len(quotes)
    files = _counted(file_count, "file")
    lines = [
        f"{_counted(count, 'passage')} in the {files} answer “{question.strip()}” best:"
        if count > 1
        else f"In the {files}:",
        "",
    ]
    for number, quote in enumerate(quotes, start=1):
        statement = quote.statement
        under = f"  ({statement.headings})" if statement.headings else ""
        lines += [f"{number}. “{_shortened(statement.text)}”", f"   {statement.file}:{statement.line}{under}", ""]
    if weights.missing:
        lines += [f"None of the files mentions {_listed(weights.missing)}.", ""]
    lines.append("Read: " + ", ".join(dict.fromkeys(read)))
    return "\n".join(lines)


def nothing_found(question: str, weights: Weights, file_count: int) -> str:
    """The text when the files do not tell."""
    missing = f" None of them mentions {_listed(weights.missing)}." if weights.missing else ""
    return f"I found nothing in the {_counted(file_count, 'file')} that answers “{question.strip()}”.{missing}"


def _scored(question: str, passage: Passage, weights: Mapping[str, float]) -> list[Quote]:
    around = frozenset(terms(passage.text))
    section = frozenset(terms(passage.headings.rpartition(" › ")[2]))
    titled = _SECTION_BONUS * _share(weights, section, frozenset(), frozenset())
    above = frozenset(terms(f"{passage.headings} {passage.file}"))
    quotes: list[Quote] = []
    for statement in statements(passage):
        own = terms(statement.text)
        if own:
            share = _share(weights, frozenset(own), above, around)
            fitness = _WIDE_ROW_FITNESS if passage.is_wide_row else _fitness(statement, len(own))
            score = share * fitness + _bonus(question, statement, own, share) + titled
            quotes.append(Quote(statement, score, frozenset(own)))
    return quotes


def _share(weights: Mapping[str, float], own: frozenset[str], above: frozenset[str], around: frozenset[str]) -> float:
    """How much of the question a statement holds, 0 to 1; what only its surroundings hold counts in part."""
    whole = sum(weights.values()) or 1.0
    places = ((own, 1.0), (above, _HEADING_WEIGHT), (around, _PASSAGE_WEIGHT))
    return (
        sum(weight * max(_held(term, place) * worth for place, worth in places) for term, weight in weights.items())
        / whole
    )


def _held(term: str, place: frozenset[str]) -> float:
    if term in place:
        return 1.0
    return _RELATED_WEIGHT if related(term) & place else 0.0


def _fitness(statement: Statement, length: int) -> float:
    """How well a statement stands alone."""
    if statement.text.endswith("?"):
        return 0.4
    if statement.text.endswith(":") or length < 3:
        return 0.6
    return 1 / (1 + max(0, length - _LONG_WORDS) / 75)


def _bonus(question: str, statement: Statement, own: Sequence[str], share: float) -> float:
    """For what the kind of question asks for, and for its words side by side; nothing for what is off the subject."""
    if share < ENOUGH / 2:
        return 0.0
    wanted = query_terms(question)
    bonus = 0.1 * len(set(pairwise(wanted)) & set(pairwise(own)))
    if _ASKS_NUMBER.search(question) and _NUMBER.search(statement.text):
        bonus += 0.15
    if _ASKS_MEANING.match(question) and own[0] in wanted:
        bonus += 0.4
    if statement.is_code:
        bonus += 0.1 if _ASKS_COMMAND.search(question) else -0.15
    return bonus


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / (min(len(one), len(other)) or 1)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_QUOTE_CHARS else text[:_MAX_QUOTE_CHARS].rsplit(" ", 1)[0] + " …"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"“{name}”" for name in names)
