"""Agents of pydantic-ai with one kind of output each; each gives the value that its name stands for in `EXPECTED`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, computed_field
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ThinkingPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.output import NativeOutput, TextOutput, ToolOutput
from typing_extensions import TypedDict

from .pydantic_examples import answers, celery


@dataclass
class Point:
    x: int
    y: int


@dataclass
class Vector:
    """A class with the fields of another one."""

    x: int
    y: int


class Cat(BaseModel):
    name: str


class Hound(BaseModel):
    name: str

    @classmethod
    def named(cls, name: str) -> Self:
        return cls(name=name)


class Dog(BaseModel):
    name: str


class Invoice(BaseModel):
    total: Decimal
    due: date
    places: list[Point] = []


class Told(BaseModel):
    """A class whose JSON is for others: an alias to read by, one to write by, and a field that is computed."""

    model_config = ConfigDict(extra="forbid")

    due: date = Field(validation_alias="dueDate")
    total: int = Field(serialization_alias="sum", default=1)

    @computed_field
    @property
    def is_small(self) -> bool:
        """Whether it is small."""
        return self.total < 10


class Address(TypedDict):
    city: str
    code: int


class Pair(NamedTuple):
    left: int
    right: str


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


def to_vector(x: int, y: int) -> Vector:
    """Make a vector."""
    return Vector(x, y)


async def to_invoice(ctx: RunContext[None], total: int) -> Invoice:
    """Make an invoice."""
    return Invoice(total=Decimal(total), due=date(2026, 1, 2), places=[Point(1, 2)])


def forget(text: str) -> None:
    """Forget it."""


def empty(text: str) -> str:
    """Leave nothing of it."""
    return ""


def loud(text: str) -> str:
    """Say it loud."""
    return text.upper()


class Maker:
    """A method as an output function."""

    def make(self, name: str) -> list[Dog]:
        """Make dogs."""
        return [Dog(name=name), Dog(name=name.upper())]


def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[ThinkingPart("nothing is to be said")])


def say_null(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[TextPart("null")])


def agent(name: str, output_type: Any, args: Any, model: Callable[..., Any] | None = None) -> Agent[None, Any]:
    chosen = FunctionModel(model) if model is not None else args if isinstance(args, FunctionModel) else output(args)
    return Agent(chosen, output_type=output_type, name=name, capabilities=celery())


def output(args: Any, tool: str | None = None) -> FunctionModel:
    """A model that calls the output tool, by this name where there are several."""
    return answers([(tool or "output", args)])


a_dataclass = agent("a_dataclass", Point, {"x": 1, "y": 2})
a_model = agent("a_model", Cat, {"name": "Tom"})
second_of_two = agent("second_of_two", [Cat, Dog], output({"name": "Rex"}, "final_result_Dog"))
same_fields = agent("same_fields", [Point, Vector], output({"x": 1, "y": 2}, "final_result_Vector"))
union = agent("union", ToolOutput(Cat | Point), {"response": {"x": 1, "y": 2}})
a_list = agent("a_list", list[Point], {"response": [{"x": 1, "y": 2}, {"x": 3, "y": 4}]})
a_typed_dict = agent("a_typed_dict", Address, {"city": "Bern", "code": 3000})
a_pair = agent("a_pair", Pair, {"response": [1, "a"]})
a_colour = agent("a_colour", Colour, {"response": "blue"})
nested = agent("nested", Invoice, {"total": "12.50", "due": "2026-03-04", "places": [{"x": 1, "y": 2}]})
told = agent("told", Told, {"dueDate": "2026-03-04", "total": 5})
numbers = agent("numbers", dict[int, Decimal], {"response": {"1": "0.10"}})
a_function = agent("a_function", to_vector, {"x": 5, "y": 6})
of_a_function = agent("of_a_function", [Point, to_vector], output({"x": 1, "y": 2}, "final_result_to_vector"))
an_async_function = agent("an_async_function", to_invoice, {"total": 7})
a_method = agent("a_method", Maker().make, {"name": "rex"})
a_maker_of_its_class = agent("a_maker_of_its_class", Hound.named, {"name": "Rex"})
text_function = agent("text_function", TextOutput(loud), answers("loud"))
native = agent("native", NativeOutput([Cat, Point]), answers('{"result": {"kind": "Point", "data": {"x": 1, "y": 2}}}'))
an_int = agent("an_int", int, {"response": 5})
int_or_text = agent("int_or_text", [int, str], answers("5"))
false = agent("false", bool, {"response": False})
none_by_tool = agent("none_by_tool", ToolOutput(int | None), {"response": None})
none_of_two = agent("none_of_two", [str, NoneType], None, think)
none_of_union = agent("none_of_union", str | None, None, think)
nothing = agent("nothing", forget, {"text": "all"})
the_word_null = agent("the_word_null", str, None, say_null)
no_text = agent("no_text", TextOutput(empty), answers("something"))

EXPECTED: dict[str, Any] = {
    "a_dataclass": Point(1, 2),
    "a_model": Cat(name="Tom"),
    "second_of_two": Dog(name="Rex"),
    "same_fields": Vector(1, 2),
    "union": Point(1, 2),
    "a_list": [Point(1, 2), Point(3, 4)],
    "a_typed_dict": {"city": "Bern", "code": 3000},
    "a_pair": Pair(1, "a"),
    "a_colour": Colour.BLUE,
    "nested": Invoice(total=Decimal("12.50"), due=date(2026, 3, 4), places=[Point(1, 2)]),
    "told": Told(dueDate=date(2026, 3, 4), total=5),
    "numbers": {1: Decimal("0.10")},
    "a_function": Vector(5, 6),
    "of_a_function": Vector(1, 2),
    "an_async_function": Invoice(total=Decimal(7), due=date(2026, 1, 2), places=[Point(1, 2)]),
    "a_method": [Dog(name="rex"), Dog(name="REX")],
    "a_maker_of_its_class": Hound(name="Rex"),
    "text_function": "LOUD",
    "native": Point(1, 2),
    "an_int": 5,
    "int_or_text": "5",
    "false": False,
    "none_by_tool": None,
    "none_of_two": None,
    "none_of_union": None,
    "nothing": None,
    "the_word_null": "null",
    "no_text": "",
}
