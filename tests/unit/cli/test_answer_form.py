"""The form in the terminal: each line that is typed becomes a value that fits, or is asked for again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from celery_agents.tasks.cli.answer_form import ask_value, fill_form
from celery_agents.worker.requests import FREE_TEXT, QUESTIONS, schema_of
from celery_agents.worker.state import FrozenDict, Request, RequestKind


class Terminal:
    """A person who types these lines, one for each prompt."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self.prompts: list[str] = []
        self.said: list[str] = []

    def ask(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return next(self._lines)

    def say(self, line: str) -> None:
        self.said.append(line)

    @property
    def is_done(self) -> bool:
        return next(self._lines, None) is None


class Order(BaseModel):
    sku: str = Field(description="Article, as on the invoice.")
    count: int = 1
    price: float | None = None
    currency: Literal["EUR", "USD"] = "EUR"
    urgent: bool
    tags: list[str] = []
    remark: str | None = None


def question(**fields: Any) -> Request:
    return Request(
        id="r", kind=RequestKind.QUESTION, session_id="s", agent="a", execution_id="e", step=1, index=0, tool="t",
        call_id="c", digest="d", asked_at_ms=1, **fields,
    )  # fmt: skip


def with_options(*items: dict[str, Any], free: bool = True) -> Request:
    return question(options=FrozenDict({QUESTIONS: list(items), FREE_TEXT: free}))


COLOURS = {"question": "Which?", "options": [{"label": "Red", "value": "r"}, {"label": "Blue", "description": "dark"}]}


def test_an_object_is_asked_for_field_by_field_and_wrong_lines_again() -> None:
    lines = ["A-7", "two", "2", "9.50", "USD", "perhaps", "yes", '["gift"]', "12"]
    terminal = Terminal(lines)
    values = ask_value(schema_of(Order), terminal.ask, terminal.say)
    assert values == {
        "sku": "A-7", "count": 2, "price": 9.5, "currency": "USD", "urgent": True, "tags": ["gift"], "remark": "12",
    }  # fmt: skip
    assert terminal.prompts[0] == "sku (string)"
    assert terminal.prompts[1] == "count (integer, empty for 1)"
    assert "currency (EUR | USD, empty for EUR)" in terminal.prompts
    assert "tags (array, empty for [])" in terminal.prompts
    assert terminal.said[0].strip() == "Article, as on the invoice."
    assert [line.strip() for line in terminal.said[1:]] == ["count: write integer", "urgent: write boolean"]


def test_an_empty_line_leaves_out_what_has_a_default_or_is_not_required() -> None:
    terminal = Terminal(["A-7", "", "", "", "no", "", ""])
    assert ask_value(schema_of(Order), terminal.ask, terminal.say) == {"sku": "A-7", "urgent": False}


@pytest.mark.parametrize(
    ("schema", "line", "value"),
    [
        ({}, "some words", "some words"),
        ({}, "[" * 4_000, "[" * 4_000),
        ({}, '{"a": 1}', {"a": 1}),
        ({"type": "string"}, "12", "12"),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "boolean"}, "N", False),
        ({"type": ["string", "null"]}, "12", "12"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "12", 12),
        ({"enum": [1, 2]}, "2", 2),
        ({"type": "object"}, '{"free": true}', {"free": True}),
    ],
)
def test_a_value_that_is_no_object_is_one_line(schema: dict[str, Any], line: str, value: Any) -> None:
    terminal = Terminal([line])
    assert ask_value(schema, terminal.ask, terminal.say) == value
    assert terminal.is_done


def test_what_does_not_fit_the_schema_is_said_and_asked_for_again() -> None:
    schema = FrozenDict({"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"]})
    terminal = Terminal(["1", "4"])
    assert fill_form(question(answer_schema=schema), terminal.ask, terminal.say) == {"n": 4}
    assert any("n" in line and "3" in line for line in terminal.said)


@pytest.mark.parametrize(
    ("item", "lines", "answer"),
    [
        (COLOURS, ["1"], {"values": ["r"]}),
        (COLOURS, ["Blue"], {"values": ["Blue"]}),
        (COLOURS, ["1,2", "2"], {"values": ["Blue"]}),
        (COLOURS, ["", "green, rather"], {"free_text": "green, rather"}),
        ({**COLOURS, "multi_select": True}, ["2, 1, 2"], {"values": ["Blue", "r"]}),
        ({**COLOURS, "required": False}, [""], None),
        ({"question": "Which?", "placeholder": "a colour"}, ["3"], {"free_text": "3"}),
    ],
)
def test_a_question_takes_numbers_values_and_text(item: dict[str, Any], lines: list[str], answer: Any) -> None:
    terminal = Terminal(lines)
    expected = {} if answer is None else {"Which?": answer}
    assert fill_form(with_options(item), terminal.ask, terminal.say) == expected
    assert terminal.is_done


def test_without_free_text_only_the_options_are_taken() -> None:
    terminal = Terminal(["green", "3", "2"])
    assert fill_form(with_options(COLOURS, free=False), terminal.ask, terminal.say) == {"Which?": {"values": ["Blue"]}}
    assert set(terminal.prompts) == {"a number"}
    assert terminal.said[:3] == ["Which?", "  1  Red", "  2  Blue - dark"]


def test_nothing_that_an_agent_wrote_reaches_the_terminal_as_a_control_sequence() -> None:
    evil = "\x1b]0;owned\x07"
    items = {"question": f"Which{evil}?", "header": evil, "placeholder": evil, "options": [
        {"label": f"A{evil}", "preview": f"{evil}\n{evil}"}, {"label": "B", "description": evil}]}  # fmt: skip
    terminal = Terminal(["2"])
    fill_form(with_options(items), terminal.ask, terminal.say)
    schema = {"type": "object", "properties": {f"a{evil}": {"description": evil, "enum": [evil, "x"]}}}
    described = Terminal(["x"])
    ask_value(schema, described.ask, described.say)
    assert not any("\x1b" in line or "\x07" in line for line in terminal.prompts + terminal.said)
    assert not any("\x1b" in line or "\x07" in line for line in described.prompts + described.said)
