"""Strict validation of what a model gives, and texts that a model can act on."""

import json
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from celery_agents import tool
from celery_agents.worker.errors import CeleryAgentsError
from celery_agents.worker.state import FrozenDict, ToolCall
from celery_agents.worker.tools import InvalidArguments


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Point(BaseModel):
    x: int
    y: int = 0


@tool
def draw(point: Point, size: Size = Size.SMALL, at: datetime | None = None, weight: float = 1.0) -> None:
    """Draw."""


@tool
def count(n: int, flag: bool = False, names: list[str] = []) -> None:  # noqa: B006 - what people write
    """Count."""


def refused(a_tool: Any, args: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        a_tool.bind(args)
    return str(caught.value)


def test_json_becomes_the_declared_types_and_defaults_are_filled_in():
    bound = draw.bind({"point": {"x": 1}, "size": "l", "at": "2026-01-31T12:00:00Z", "weight": 2})
    assert bound == {
        "point": Point(x=1),
        "size": Size.LARGE,
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "weight": 2.0,
    }


def test_frozen_arguments_of_a_tool_call_are_accepted():
    call = ToolCall(id="1", name="draw", args={"point": {"x": 1, "y": 2}})
    assert isinstance(call.args, FrozenDict)
    assert draw.bind(call.args)["point"] == Point(x=1, y=2)
    assert count.bind(FrozenDict({"n": 1, "names": ["a"]}))["names"] == ["a"]


def test_a_mutable_default_is_not_shared_between_calls():
    first = count.bind({"n": 1})["names"]
    first.append("x")
    assert count.bind({"n": 1})["names"] == []


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"n": "5"}, '- n: Input should be a valid integer, not "5"'),
        ({"n": 5.5}, "- n: Input should be a valid integer, not 5.5"),
        ({"n": True}, "- n: Input should be a valid integer, not true"),
        ({"n": None}, "- n: Input should be a valid integer, not null"),
        ({"n": 1, "flag": "yes"}, '- flag: Input should be a valid boolean, not "yes"'),
        ({"n": 1, "flag": 1}, "- flag: Input should be a valid boolean, not 1"),
        ({"n": 1, "names": "a"}, '- names: Input should be a valid array, not "a"'),
        ({"n": 1, "names": ["a", 2]}, "- names.1: Input should be a valid string, not 2"),
        ({"n": 1, "more": 2}, "- more: there is no such parameter"),
        ({}, "- n: required, but missing"),
    ],
)
def test_nothing_is_converted_and_every_problem_has_its_place(args: dict[str, Any], problem: str):
    text = refused(count, args)
    assert text.startswith("Invalid arguments for count:\n")
    assert problem in text.splitlines()


def test_problems_inside_nested_values_name_the_path():
    text = refused(draw, {"point": {"x": "one", "y": []}, "size": "medium"})
    assert '- point.x: Input should be a valid integer, not "one"' in text
    assert "- point.y: Input should be a valid integer, not []" in text
    assert "- size: Input should be 's' or 'l', not \"medium\"" in text


@pytest.mark.parametrize(
    "text", ["not json", '{"n": ', "[1]", "5", "null", '"n"', '{"n": NaN}', '{"n": 1}}', '{"n": "\ud800"}']
)
def test_raw_text_that_is_no_json_object_is_explained(text: str):
    assert "JSON" in refused(count, text)


def test_raw_text_that_is_an_object_after_all_is_accepted():
    assert count.bind(json.dumps({"n": 1}))["n"] == 1


def test_no_arguments_at_all_mean_an_empty_object():
    assert "- n: required, but missing" in refused(count, "")
    assert "- n: required, but missing" in refused(count, "  \n")


def test_a_long_wrong_value_is_shortened_and_many_problems_are_counted():
    assert len(refused(count, {"n": "x" * 100_000})) < 300
    many = refused(count, {"n": 1, "names": list(range(50))})
    assert "- and 40 more" in many
    assert len(many) < 2_000


def test_deeply_nested_arguments_are_refused_and_do_not_break_the_process():
    deep: Any = []
    for _ in range(500):
        deep = [deep]

    @tool
    def swallow(value: Any) -> None:
        """Swallow."""

    assert "Invalid arguments" in refused(swallow, {"value": deep})
    assert "JSON" in refused(swallow, "[" * 100_000)


def test_infinite_numbers_are_refused():
    assert "weight" in refused(draw, '{"point": {"x": 1}, "weight": 1e999}')


def test_large_whole_numbers_and_unicode_survive():
    @tool
    def echo(n: int, text: str) -> None:
        """Echo."""

    given = {"n": 2**200, "text": "žluťoučký 🐎 \x00"}
    assert echo.bind(given) == given


def test_a_validator_of_the_users_model_speaks_to_the_model():
    class Even(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def is_even(cls, n: int) -> int:
            if n % 2:
                raise ValueError("must be even")
            return n

    @tool
    def halve(value: Even) -> None:
        """Halve."""

    assert "- value.n: Value error, must be even, not 3" in refused(halve, {"value": {"n": 3}})


def test_it_is_one_of_the_packages_errors_with_its_data_as_attributes():
    with pytest.raises(CeleryAgentsError) as caught:
        count.bind({"n": "x"})
    assert isinstance(caught.value, InvalidArguments)
    assert caught.value.tool == "count"
    assert caught.value.problems == ('n: Input should be a valid integer, not "x"',)
    assert caught.value.__cause__ is None
