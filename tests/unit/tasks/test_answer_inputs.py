"""Answers of callers: values and JSON are read alike, and each error names its field and says what fits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from celery_agents.tasks.client.answer_inputs import (
    check_request_id,
    read_answer,
    read_answers,
    read_expect,
    read_filter,
    read_ttl_ms,
)
from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.state import Answer, Approve, Complete, Deny, Fail, GivenAnswer, RequestKind, RequestStatus


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        (Approve(), Approve()),
        ({"approve": True}, Approve()),
        ({"approve": None}, Approve()),
        ({"approve": {}}, Approve()),
        ({"approve": {"args": None}}, Approve()),
        ({"approve": {"args": {"cents": 4}}}, Approve({"cents": 4})),
        ({"deny": "twice"}, Deny("twice")),
        ({"deny": True}, Deny("")),
        ({"answer": {"Which?": "EUR"}}, Answer({"Which?": "EUR"})),
        ({"complete": None}, Complete(None)),
        ({"complete": [1]}, Complete([1])),
        ({"fail": "broken"}, Fail("broken")),
    ],
)
def test_an_answer_is_a_value_or_the_same_as_json(given: Any, answer: GivenAnswer) -> None:
    assert read_answer(given) == answer


@pytest.mark.parametrize(
    ("given", "field", "advice"),
    [
        ("yes", "answer", "give Approve"),
        (None, "answer", "give Approve"),
        ({}, "answer", '{"approve": true}'),
        ({"approve": True, "deny": "x"}, "answer", '{"deny": "reason"}'),
        ({"Approve": True}, "answer", '{"approve": true}'),
        ({"approve": False}, "answer.approve", "give true"),
        ({"approve": {"cents": 4}}, "answer.approve", '{"args": {…}}'),
        ({"approve": {"args": [4]}}, "answer.approve", '{"args": {…}}'),
        ({"deny": 7}, "answer.deny", "give a text"),
        ({"fail": {"a": 1}}, "answer.fail", "give a text"),
    ],
)
def test_what_is_no_answer_is_refused_by_its_field(given: Any, field: str, advice: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_answer(given)
    assert refused.value.field == field
    assert advice in str(refused.value)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (None, "answers"),
        ({}, "answers"),
        ([("r", Approve())], "answers"),
        (Approve(), "answers"),
        ({"r": "yes"}, "answers.r"),
        ({"": Approve()}, "request_id"),
        ({7: Approve()}, "request_id"),
        ({"x" * 201: Approve()}, "request_id"),
        ({f"r{number}": Approve() for number in range(65)}, "answers"),
    ],
)
def test_answers_are_a_bounded_dict_by_request_id(given: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_answers(given)
    assert refused.value.field == field


def test_answers_keep_their_request_ids() -> None:
    assert read_answers({"a": {"approve": True}, "b": Deny("no")}) == {"a": Approve(), "b": Deny("no")}


def test_a_digest_is_for_one_answer_or_by_request_id() -> None:
    one, two = {"a": Approve()}, {"a": Approve(), "b": Approve()}
    assert read_expect(None, two) == {}
    assert read_expect("d", one) == {"a": "d"}
    assert read_expect({"b": "d"}, two) == {"b": "d"}
    for given, answers, field in (("d", two, "expect"), ({"c": "d"}, two, "expect.c"), ({"a": 7}, one, "expect.a")):
        with pytest.raises(InvalidInput) as refused:
            read_expect(given, answers)
        assert refused.value.field == field


def test_a_filter_takes_the_words_of_the_enumerations() -> None:
    wanted = read_filter("s", "team", "approval", "passed_on", tree=False)
    assert (wanted.kind, wanted.status, wanted.to) == (RequestKind.APPROVAL, RequestStatus.PASSED_ON, "team")
    for name, given in (("to", {"to": ""}), ("kind", {"kind": "approvals"}), ("status", {"status": "done"})):
        with pytest.raises(InvalidInput) as refused:
            read_filter(None, given.get("to"), given.get("kind"), given.get("status"), tree=True)
        assert refused.value.field == name
        assert name == "to" or "there are " in str(refused.value)


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1), timedelta(days=400), 60, "1h"])
def test_a_token_lives_a_second_to_a_year(ttl: Any) -> None:
    with pytest.raises(InvalidInput, match="ttl"):
        read_ttl_ms(ttl)
    assert read_ttl_ms(timedelta(seconds=1)) == 1000
    assert read_ttl_ms(None) is None


@pytest.mark.parametrize("name", ["", None, 7, "\ud800", "x" * 201])
def test_what_names_no_request_is_refused(name: Any) -> None:
    with pytest.raises(InvalidInput, match="request_id"):
        check_request_id(name)
