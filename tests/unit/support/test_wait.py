from __future__ import annotations

import pytest

from support.wait import wait_until


def test_the_true_answer_is_returned() -> None:
    answers = iter([0, None, "", "there"])
    assert wait_until(lambda: next(answers), "something is there") == "there"


def test_a_failure_says_what_was_waited_for_the_last_answer_and_the_details() -> None:
    with pytest.raises(AssertionError, match=r"waited 0\.02 s until the sun rises; last answer: 0\nclouds"):
        wait_until(lambda: 0, "the sun rises", 0.02, details=lambda: "clouds")


def test_only_the_named_exceptions_mean_not_yet() -> None:
    answers = iter([KeyError("no"), 7])

    def answer() -> int:
        value = next(answers)
        if isinstance(value, Exception):
            raise value
        return value

    assert wait_until(answer, "it is there", ignoring=KeyError) == 7
    with pytest.raises(StopIteration):
        wait_until(answer, "it is there", ignoring=KeyError)


def test_the_predicate_is_asked_at_least_once() -> None:
    assert wait_until(lambda: True, "now", 0.0)
