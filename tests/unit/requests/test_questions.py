"""Questions with options: what may be asked, and which answers fit; each limit holds at its number."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.requests.questions import (
    UserQuestionAnswer,
    UserQuestionItem,
    UserQuestionOption,
    check_items,
    read_user_answers,
)

COLOR = UserQuestionItem.model_validate(
    {"question": "Which color?", "header": "Color", "options": [{"label": "Red", "value": "r"}, {"label": "Blue"}]}
)
SIZES = UserQuestionItem.model_validate(
    {"question": "Which sizes?", "multi_select": True, "required": False, "options": [{"label": "S"}, {"label": "L"}]}
)
NAME = UserQuestionItem(question="Which name?")


def read(*items: UserQuestionItem, values: Any, free: bool = False) -> dict[str, UserQuestionAnswer]:
    return read_user_answers(items, values, allow_free_text=free)


def options(number: int) -> list[dict[str, str]]:
    return [{"label": str(each)} for each in range(number)]


@pytest.mark.parametrize(
    ("kind", "fields", "field", "longest"),
    [
        (UserQuestionItem, {}, "question", 2_000),
        (UserQuestionItem, {"question": "q"}, "header", 40),
        (UserQuestionItem, {"question": "q"}, "placeholder", 1_000),
        (UserQuestionOption, {}, "label", 1_000),
        (UserQuestionOption, {"label": "l"}, "value", 1_000),
        (UserQuestionOption, {"label": "l"}, "description", 1_000),
        (UserQuestionOption, {"label": "l"}, "preview", 8_000),
    ],
)
def test_a_text_of_a_question_has_a_longest_length(kind: Any, fields: dict[str, str], field: str, longest: int) -> None:
    assert getattr(kind(**fields, **{field: "x" * longest}), field) == "x" * longest
    with pytest.raises(ValidationError, match=field):
        kind(**fields, **{field: "x" * (longest + 1)})


def test_a_question_and_a_label_have_a_text() -> None:
    assert (UserQuestionItem(question="?").question, UserQuestionOption(label="x").chosen_value) == ("?", "x")
    assert UserQuestionOption(label=" x ").chosen_value == " x ", "an answer has to give it as it is"
    for wrong in (lambda: UserQuestionItem(question=""), lambda: UserQuestionOption(label="")):
        with pytest.raises(ValidationError, match="at least 1"):
            wrong()


@pytest.mark.parametrize(("number", "fits"), [(1, False), (2, True), (12, True), (13, False)])
def test_a_question_has_2_to_12_options(number: int, fits: bool) -> None:
    if fits:
        item = UserQuestionItem.model_validate({"question": "q", "options": options(number)})
        assert len(item.values) == number
        return
    with pytest.raises(ValidationError, match="options"):
        UserQuestionItem.model_validate({"question": "q", "options": options(number)})


def test_two_options_of_a_question_differ_in_their_values() -> None:
    with pytest.raises(ValidationError, match="two options have the same value"):
        UserQuestionItem.model_validate({"question": "q", "options": [{"label": "a"}, {"label": "b", "value": "a"}]})
    with pytest.raises(ValidationError, match="colour"):
        UserQuestionItem.model_validate({"question": "q", "colour": "red"})


@pytest.mark.parametrize(("number", "fits"), [(0, False), (1, True), (4, True), (5, False)])
def test_a_call_asks_1_to_4_questions(number: int, fits: bool) -> None:
    items = [UserQuestionItem(question=f"q{each}") for each in range(number)]
    if fits:
        check_items(items, allow_free_text=True)
        return
    with pytest.raises(ValueError, match=f"ask 1 to 4 questions in a call, not {number}"):
        check_items(items, allow_free_text=True)


def test_questions_that_no_answer_could_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two questions have the same text"):
        check_items([COLOR, COLOR], allow_free_text=True)
    check_items([COLOR, SIZES], allow_free_text=False)
    with pytest.raises(ValueError, match=r"questions\.1\.options: required"):
        check_items([COLOR, NAME, NAME.model_copy(update={"question": "And yours?"})], allow_free_text=False)


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("r", UserQuestionAnswer(values=("r",))),
        (["Blue"], UserQuestionAnswer(values=("Blue",))),
        (("Blue",), UserQuestionAnswer(values=("Blue",))),
        ({"values": ["r"], "notes": "dark"}, UserQuestionAnswer(values=("r",), notes="dark")),
        (UserQuestionAnswer(values=("r",), notes=""), UserQuestionAnswer(values=("r",))),
    ],
)
@pytest.mark.parametrize("name", ["Which color?", "Color"])
def test_an_answer_names_a_question_by_its_text_or_its_header(name: str, given: Any, answer: Any) -> None:
    assert read(COLOR, SIZES, values={name: given}) == {"Which color?": answer}


def test_a_header_of_two_questions_names_the_first_one() -> None:
    other = COLOR.model_copy(update={"question": "Which other color?", "required": False})
    assert list(read(COLOR, other, values={"Color": "r"})) == ["Which color?"]
    assert list(read(COLOR, other, values={"Which other color?": "r", "Color": "r"})) == [
        "Which color?",
        "Which other color?",
    ]


def test_a_text_answers_a_question_without_options_and_one_of_an_own_choice_where_it_may() -> None:
    assert read(NAME, values={"Which name?": " Ada "}, free=True) == {
        "Which name?": UserQuestionAnswer(free_text="Ada")
    }
    assert read(COLOR, values={"Color": "green"}, free=True)["Which color?"].values == ("green",)
    assert read(SIZES, COLOR, values={"Color": "r", "Which sizes?": ["S", "L"]}) == {
        "Which sizes?": UserQuestionAnswer(values=("S", "L")),
        "Which color?": UserQuestionAnswer(values=("r",)),
    }


def test_what_is_not_required_may_be_left_out() -> None:
    assert read(SIZES, COLOR, values={"Color": "r"}).keys() == {"Which color?"}
    assert read(SIZES, COLOR, values={"Color": "r", "Which sizes?": []}).keys() == {"Which color?"}


@pytest.mark.parametrize(
    ("item", "values", "free", "field", "text"),
    [
        (COLOR, ["r"], False, "values", "give a dict of question"),
        (COLOR, {}, False, "values['Which color?']", "it is required. Options: r, Blue. Got"),
        (COLOR, {}, True, "values['Which color?']", "it is required. Options: r, Blue. Or a text of your own. Got"),
        (NAME, {"Which name?": "  "}, True, "values['Which name?']", "it is required. Write a text. Got"),
        (
            COLOR,
            {"Color": ""},
            True,
            "values['Which color?']",
            "it is required. Options: r, Blue. Or a text of your own.",
        ),
        (COLOR, {"Color": [" ", ""]}, True, "values['Which color?']", "it is required."),
        (COLOR, {"Color": []}, False, "values['Which color?']", "it is required."),
        (COLOR, {"Sice": "r"}, False, "values['Sice']", "there is no such question. Asked: Which color?"),
        (COLOR, {"Color": "r", "Which color?": "r"}, False, "values['Which color?']", "answered twice"),
        (COLOR, {"Color": 7}, False, "values['Which color?']", "give a text, a list of texts, or values"),
        (COLOR, {"Color": {"values": [7]}}, False, "values['Which color?'].values.0", "should be a valid string"),
        (COLOR, {"Color": ["r", "Blue"]}, False, "values['Which color?']", "only one option may be chosen"),
        (SIZES, {"Which sizes?": ["S", "S"]}, False, "values['Which sizes?']", "an option is chosen twice"),
        (COLOR, {"Color": "green"}, False, "values['Which color?']", "there is no such option. Options: r, Blue. Got"),
        (COLOR, {"Color": {"free_text": "g"}}, False, "values['Which color?'].free_text", "free text is not allowed"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(
    item: UserQuestionItem, values: Any, free: bool, field: str, text: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(item, values=values, free=free)
    assert refused.value.field == field
    assert text in str(refused.value)


@pytest.mark.parametrize("name", ["free_text", "notes", "values"])
def test_a_text_of_a_person_has_10_000_characters_at_most(name: str) -> None:
    def answer(text: str) -> dict[str, Any]:
        return {"Color": {"values": ["r"]} | {name: [text] if name == "values" else text}}

    assert read(COLOR, values=answer("x" * 10_000), free=True)
    with pytest.raises(InvalidInput, match=r"write 10000 characters at most\. Got 10001") as refused:
        read(COLOR, values=answer("x" * 10_001), free=True)
    assert refused.value.field == f"values['Which color?'].{name}"


def test_a_long_question_is_named_by_its_beginning() -> None:
    long = UserQuestionItem(question="q" * 81)
    with pytest.raises(InvalidInput) as refused:
        read(long, values={})
    assert refused.value.field == f"values['{'q' * 80}']"
