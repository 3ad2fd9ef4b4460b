"""What is made of stored tool results."""

from __future__ import annotations

from typing import Any

from research.findings import Search, Weights, read_passages, worth_reading


def hit(file: str, first: int, last: int, score: float, heading: str = "") -> dict[str, Any]:
    return {
        "file": file, "line": first, "text": "", "heading": heading, "first_line": first, "last_line": last,
        "score": score, "coverage": 1.0,
    }  # fmt: skip


def search(*hits: dict[str, Any], **words: int) -> Search:
    return Search.of({"query": "q", "passages_searched": 10, "words": words, "results": list(hits)})


def read(text: str, first: int, *, more: bool = True) -> dict[str, Any]:
    lines = [f"{number}: {line}" for number, line in enumerate(text.split("\n"), start=first)]
    return {"file": "a.md", "first_line": first, "last_line": first + len(lines) - 1, "more_lines": more,
            "text": "\n".join(lines)}  # fmt: skip


def test_neighbouring_hits_are_read_together_and_the_question_counts_most() -> None:
    question = search(hit("a.md", 10, 12, 5.0), hit("a.md", 16, 16, 4.0), hit("b.md", 3, 3, 1.0))
    word = search(hit("c.md", 1, 1, 9.0))
    ranges = worth_reading([question, word], limit=3)
    assert [(each.file, each.first, each.last) for each in ranges] == [("a.md", 7, 19), ("c.md", 1, 4), ("b.md", 1, 6)]


def test_passages_that_were_cut_off_are_left_out() -> None:
    found = read_passages([read("end of one.\n\nwhole.\n\nbegin of", 5)], [])
    assert [passage.text for passage in found] == ["whole."]


def test_a_cut_passage_that_the_search_found_is_kept_with_its_heading() -> None:
    found = read_passages([read("found.\n\nother", 5)], [search(hit("a.md", 5, 5, 1.0, "Top › Sub"))])
    assert [(passage.text, passage.headings) for passage in found] == [("found.", "Top › Sub")]


def test_reading_from_inside_a_fenced_block_does_not_turn_text_into_code() -> None:
    found = read_passages([read("inside\n```\n\ntext.\n\n```sh\nrun\n```\n\nmore text.\n", 5, more=False)], [])
    assert [(passage.text, passage.is_code) for passage in found] == [
        ("text.", False),
        ("```sh\nrun\n```", True),
        ("more text.", False),
    ]


def test_words_that_no_passage_holds_are_missing_and_weigh_like_the_rarest() -> None:
    weights = Weights.of("common rare absent", [search(common=10, rare=1, absent=0)])
    assert weights.missing == ("absent",)
    common, rare, absent = weights.by_term.values()
    assert common < rare == absent
