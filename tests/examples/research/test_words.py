"""Words as search terms."""

from __future__ import annotations

import pytest
from research.words import query_terms, related, stem, terms


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("kill", "killed"),
        ("kills", "killing"),
        ("retry", "retries"),
        ("retried", "retry"),
        ("stop", "stopped"),
        ("commit", "committing"),
        ("lease", "leases"),
        ("crash", "crashes"),
        ("process", "processes"),
        ("box", "boxes"),
    ],
)
def test_endings_do_not_matter(one: str, other: str) -> None:
    assert stem(one) == stem(other)


@pytest.mark.parametrize("word", ["is", "us", "bus", "lease", "pass", "5", "x1s", "redis", "ing", "red"])
def test_a_word_never_becomes_empty(word: str) -> None:
    assert stem(word)


def test_identifiers_are_found_by_their_parts() -> None:
    assert terms("max_parallel_tools leaseSeconds") == [
        "max",
        "parallel",
        stem("tools"),
        stem("lease"),
        stem("seconds"),
    ]


def test_a_question_keeps_its_telling_words_once() -> None:
    assert query_terms("What happens when the worker, a killed worker, is killed?") == ["worker", "kill"]


def test_a_question_of_stop_words_keeps_them() -> None:
    assert query_terms("what is it") == ["what", "is", "it"]


def test_related_words_are_related_both_ways() -> None:
    assert stem("crash") in related(stem("killed"))
    assert stem("killed") in related(stem("crash"))
    assert stem("crash") not in related(stem("crash"))
