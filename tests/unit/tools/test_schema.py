"""The JSON Schema of a tool, from its signature and docstring."""

import json
from datetime import date
from enum import Enum
from functools import partial
from typing import Annotated, Any, Literal, Optional

from pydantic import BaseModel, Field

from celery_agents import ToolContext, tool
from celery_agents.worker.state import thaw


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    """One line of an order."""

    sku: str = Field(description="Stock number")
    count: int = 1


def properties(a_tool: Any) -> dict[str, Any]:
    return thaw(a_tool.parameters)["properties"]


def test_parameters_carry_types_defaults_and_the_docstring_s_descriptions():
    @tool
    def search(query: str, limit: int = 5) -> list[str]:
        """Search the documentation.

        Looks at titles first.

        Args:
            query: Words to look for,
                separated by spaces.
            limit: How many at most.

        Returns:
            Titles.
        """
        return [query] * limit

    assert search.name == "search"
    assert search.description == "Search the documentation.\n\nLooks at titles first."
    assert thaw(search.parameters) == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "Words to look for, separated by spaces."},
            "limit": {"type": "integer", "default": 5, "description": "How many at most."},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def test_nested_models_enums_literals_lists_optionals_and_unions():
    @tool
    def order(
        items: list[Item],
        colour: Colour = Colour.RED,
        mode: Literal["fast", "slow"] = "fast",
        day: date | None = None,
        note: Optional[str] = None,  # noqa: UP045 - people write it like this too
        by_name: dict[str, int] | None = None,
        either: int | str = 0,
    ) -> str:
        """Order."""
        return ""

    found = properties(order)
    assert found["items"] == {"type": "array", "items": {"$ref": "#/$defs/Item"}}
    assert thaw(order.parameters)["$defs"]["Item"] == {
        "title": "Item",
        "description": "One line of an order.",
        "type": "object",
        "properties": {
            "sku": {"type": "string", "description": "Stock number"},
            "count": {"type": "integer", "default": 1},
        },
        "required": ["sku"],
    }
    assert thaw(order.parameters)["$defs"]["Colour"]["enum"] == ["red", "blue"]
    assert found["colour"]["default"] == "red"
    assert found["mode"] == {"type": "string", "enum": ["fast", "slow"], "default": "fast"}
    assert found["day"]["anyOf"] == [{"type": "string", "format": "date"}, {"type": "null"}]
    assert found["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert found["by_name"]["anyOf"][0] == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert found["either"]["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert thaw(order.parameters)["required"] == ["items"]
    json.dumps(thaw(order.parameters))


def test_field_constraints_and_its_own_description_win_over_the_docstring():
    @tool
    def pick(
        amount: Annotated[int, Field(ge=1, le=9, description="From the field")],
        rest: int = Field(3, description="Also from the field"),
    ) -> int:
        """Pick.

        Args:
            amount: From the docstring.
            rest: From the docstring.
        """
        return amount

    assert properties(pick)["amount"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 9,
        "description": "From the field",
    }
    assert properties(pick)["rest"] == {"type": "integer", "default": 3, "description": "Also from the field"}
    assert pick.bind({"amount": 2}) == {"amount": 2, "rest": 3}


def test_the_model_does_not_see_the_tool_context():
    @tool
    def send(text: str, ctx: ToolContext) -> str:
        """Send.

        Args:
            text: What to send.
            ctx: Not the model's.
        """
        return text

    assert list(properties(send)) == ["text"]
    assert send.context_parameter == "ctx"


def test_a_tool_without_parameters_has_an_object_schema():
    @tool
    def now() -> str:
        """The time."""
        return ""

    assert thaw(now.parameters) == {"type": "object", "properties": {}, "additionalProperties": False}
    assert now.bind("") == {}


def test_names_that_mean_something_to_pydantic_are_ordinary_parameters():
    @tool
    def odd(schema: str, copy: int, model_config: bool, _private: int = 1) -> None:
        """Odd."""

    assert list(properties(odd)) == ["schema", "copy", "model_config", "_private"]
    given = {"schema": "a", "copy": 1, "model_config": True, "_private": 2}
    assert odd.bind(given) == given


def test_annotations_that_are_text_are_resolved_where_the_tool_is_defined():
    class Local(BaseModel):
        x: int

    @tool
    def use(local: "Local", items: "list[Item]") -> "NotImported":  # noqa: F821 - nobody needs the return type
        """Use."""

    assert use.bind({"local": {"x": 1}, "items": []})["local"] == Local(x=1)


def test_numpy_and_rest_docstrings_are_understood():
    @tool
    def numpy_style(a: int) -> None:
        """Do.

        Parameters
        ----------
        a : int
            The a.
        """

    @tool
    def rest_style(a: int) -> None:
        """Do.

        :param a: The a.
        """

    for each in (numpy_style, rest_style):
        assert each.description == "Do."
        assert properties(each)["a"]["description"] == "The a."


def test_a_default_without_a_json_form_is_not_told_and_still_used():
    marker = object()

    @tool
    def call(x: Any = marker) -> None:
        """Call."""

    assert "default" not in properties(call)["x"]
    assert call.bind({})["x"] is marker


class Clerk:
    def greet(self, name: str) -> str:
        """Greet.

        Args:
            name: Whom.
        """
        return f"hello {name}"

    def __call__(self, name: str) -> str:
        """Called."""
        return name


def test_bound_methods_callable_objects_and_partials_can_be_tools():
    greet = tool(Clerk().greet)
    assert (greet.name, greet.description) == ("greet", "Greet.")
    assert properties(greet) == {"name": {"type": "string", "description": "Whom."}}

    called = tool(name="clerk")(Clerk())
    assert list(properties(called)) == ["name"]

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    add_three = tool(name="add_three")(partial(add, b=3))
    assert add_three.description == "Add."
    assert add_three.bind({"a": 1}) == {"a": 1, "b": 3}
