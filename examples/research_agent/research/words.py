"""Words of a text as search terms: lower case, without endings, without the words that carry no meaning."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_WORD: Final = re.compile(r"[^\W_]+")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_STOP_WORDS: Final = """
    a about after again all also an and any are as ask at be because been before being but by can cannot could
    did do does doing done each else ever explain find for from get gets give given go got had happen
    happening happens has have having her here him his how however i if in into is it its just kind know let
    like long look looks made make makes many may me mean means middle might more most much must my need needs no nor
    not of off often on one only or other our out over own per please really same say says shall she should
    show so some such take takes tell than that the their them then there these they thing things this those
    through to too under until up upon us use used uses using very was way we well were what when where
    whether which while who whom whose why will with within without would you your
"""
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())

# Words that people use for one another when they ask about software. Symmetric; a related word counts less.
_RELATED: Final = (
    "kill killed crash crashes dies died death",
    "configure configuration setting settings option options configured",
    "error errors fail fails failed failure",
    "stop cancel abort",
    "price cost costs money",
    "install installation setup",
    "folder directory",
    "cli command",
    "expire expires expired retention ttl",
    "resume continue recover",
)


@lru_cache(maxsize=50_000)
def stem(word: str) -> str:
    """The word without plural, past and gerund endings: `killed`, `kills` and `killing` are one term.

    Light suffix stripping in the manner of Porter's first step (An algorithm for suffix stripping, 1980).
    """
    word = word.lower()
    if len(word) <= 3 or not word.isalpha():
        return word
    return _without_e(_without_ending(_singular(word)))


def terms(text: str) -> list[str]:
    """Terms of a text in order, with repetitions, without stop words."""
    return [stem(word) for word in words(text) if word.lower() not in STOP_WORDS]


def words(text: str) -> list[str]:
    """Words as written. `snake_case` and `camelCase` are split, so that a question finds an identifier's parts."""
    return [part for word in _WORD.findall(text) for part in _CAMEL.split(word)]


def query_terms(question: str) -> list[str]:
    """Distinct terms of a question; when nothing but stop words is left, those."""
    found = terms(question) or [stem(word) for word in words(question)]
    return list(dict.fromkeys(found))


def related(term: str) -> frozenset[str]:
    """Terms that may stand for `term` in a text."""
    return _RELATED_TERMS.get(term, frozenset())


def _singular(word: str) -> str:
    if word.endswith(("ies", "ied")) and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "sses", "xes", "zes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _without_ending(word: str) -> str:
    for ending in ("ing", "ed"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) >= 3 and re.search("[aeiouy]", rest):
            return rest[:-1] if rest[-1] == rest[-2] and rest[-1] not in "lsz" else rest
    return word


def _without_e(word: str) -> str:
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


def _related_terms() -> dict[str, frozenset[str]]:
    groups = [frozenset(stem(word) for word in group.split()) for group in _RELATED]
    return {term: group - {term} for group in groups for term in group}


_RELATED_TERMS: Final = _related_terms()
