"""Tools with odd names, descriptions and schemas, drawn at random, as users and generators of schemas write them."""

from __future__ import annotations

import enum
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import BaseModel

from celery_agents.worker.tools import tool
from celery_agents.worker.tools.effect import Effect

HALF: Final = "\ud83d"
_NAMES: Final = (
    "user id", "$filter", "a.b", "", "ü", "名前", "x" * 80, "y" * 300, "items", "type", "$ref", "-", "a", "b", "user_id",
    f"k{HALF}", "properties",
)  # fmt: skip
_TOOL_NAMES: Final = (
    "browser.tabs.open",
    "$pay",
    "pay it",
    "ü",
    "p" * 70,
    "p" * 140,
    "1st",
    "a/b",
    "名前",
    "crm:pay",
    "pay",
)
_TEXTS: Final = ("Pay.", "", " ", "\n", "ü 😀", f"half {HALF}", "long " * 2000, "\x00")
_ENUMS: Final[tuple[list[Any], ...]] = (
    ["a", "b"], ["a", 1, None], [True, "true"], [], [1.5, float("nan")], [{"a": 1}, [1]], ["ü", f"{HALF}"],
)  # fmt: skip
_DEFAULTS: Final = (None, 1, "a", float("nan"), float("-inf"), [float("nan")], {}, f"{HALF}", 10**400)
_TYPES: Final = (
    "string", "string", "integer", "number", "boolean", "null", "object", "array", ["string", "null"], ["array", "null"],
    ["object", "string"], "file", "any", None, 7, [],
)  # fmt: skip
_REFS: Final = (
    "#", "#/$defs/A", "#/$defs/B", "#/$defs/user id", "#/definitions/A", "#/properties/a", "#/$defs/gone", "#anchor",
    "https://example.com/schema", 7,
)  # fmt: skip


def draw_schema(draw: random.Random, depth: int = 0) -> Any:
    """A schema at any place but the top: mostly one that means something."""
    if depth > 4 or draw.random() < 0.15:
        return draw.choice(
            ({}, True, False, {"type": "string"}, {"type": "array"}, {"type": "object"}, None, [], "string")
        )
    schema: dict[str, Any] = {}
    for name, make in _RULES.items():
        if draw.random() < (0.7 if name == "type" else 0.13):
            schema[name] = make(draw, depth + 1)
    return schema


def _fields(draw: random.Random, depth: int) -> Any:
    if draw.random() < 0.03:
        return draw.choice(([], None, "a"))
    return {draw.choice(_NAMES): draw_schema(draw, depth) for _ in range(draw.randrange(4))}


def _several(draw: random.Random, depth: int) -> Any:
    return [draw_schema(draw, depth) for _ in range(draw.randrange(3))]


def _required(draw: random.Random, depth: int) -> Any:
    return draw.choice((None, True, [], ["a"], ["a", "a"], ["user id", "b"], [draw.choice(_NAMES)]))


_RULES: Final[Mapping[str, Callable[[random.Random, int], Any]]] = {
    "type": lambda draw, _: draw.choice(_TYPES),
    "properties": _fields,
    "required": _required,
    "items": lambda draw, depth: draw_schema(draw, depth) if draw.random() < 0.8 else _several(draw, depth),
    "prefixItems": _several,
    "anyOf": _several,
    "oneOf": _several,
    "allOf": _several,
    "not": draw_schema,
    "if": draw_schema,
    "$ref": lambda draw, _: draw.choice(_REFS),
    "enum": lambda draw, _: draw.choice(_ENUMS),
    "const": lambda draw, _: draw.choice(_DEFAULTS),
    "default": lambda draw, _: draw.choice(_DEFAULTS),
    "additionalProperties": draw_schema,
    "patternProperties": _fields,
    "description": lambda draw, _: draw.choice(_TEXTS),
    "title": lambda draw, _: draw.choice(_TEXTS),
    "minimum": lambda draw, _: draw.choice(_DEFAULTS),
    "uniqueItems": lambda draw, _: draw.choice((True, None, "yes")),
    "format": lambda draw, _: draw.choice(("uri", "date-time", "", 7)),
    "pattern": lambda draw, _: draw.choice(("^a$", "(", "(?!x)", 7)),
    "nullable": lambda draw, _: True,
    "$schema": lambda draw, _: draw.choice(("http://json-schema.org/draft-07/schema#", 1)),
    "$id": lambda draw, _: draw.choice(("urn:x", "#a")),
}


def draw_parameters(draw: random.Random) -> Any:
    """The parameters of a tool: mostly an object's, sometimes anything."""
    shape = draw.random()
    if shape < 0.08:
        return draw_schema(draw)
    if shape < 0.11:
        return _deep(draw.choice((12, 40, 60, 150)))
    schema: dict[str, Any] = draw_schema(draw)
    schema = schema if isinstance(schema, dict) else {}  # pyright: ignore[reportUnnecessaryIsInstance]
    schema.setdefault("properties", _fields(draw, 1))
    if draw.random() < 0.8:
        schema["type"] = "object"
    if isinstance(schema["properties"], dict) and draw.random() < 0.4:
        schema["required"] = list(schema["properties"])
    if draw.random() < 0.4:
        place = draw.choice(("$defs", "definitions"))
        schema[place] = {name: draw_schema(draw, 2) for name in ("A", "B", "user id", "n" * 90)}
    return schema


def _deep(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


@dataclass(frozen=True)
class OddTool:
    """A tool of an agent of ours that its users have written themselves."""

    name: str
    description: str
    parameters: Any
    ran: Callable[[str], object] = field(compare=False)
    effect: Effect = Effect.KEYED
    timeout: None = None
    lookup: None = None
    max_result_chars: int = 1000
    is_async: bool = False

    def bind(self, args: Any) -> Any:
        return {"args": args}

    def call(self, ctx: Any, bound: Mapping[str, Any]) -> str:
        del ctx
        self.ran(json.dumps(bound["args"], default=str))
        return "done"


class Kind(enum.Enum):
    """Values of several types."""

    A = "a"
    ONE = 1
    NONE = None


class Node(BaseModel):
    """A node of a tree."""

    value: Any
    children: list[Node]


def typed_tools(ran: Callable[[str], object]) -> list[Any]:
    """Tools made of functions whose types have schemas that providers refuse."""

    def pair(text: str, at: tuple[int, float], rest: Any) -> str:
        """Take a pair."""
        ran(text)
        return "ok"

    def anything(text: Any) -> str:
        """Take anything."""
        ran(str(text))
        return "ok"

    def mixed(text: str, kind: Kind, mode: Literal[1, "a", None], many: list) -> str:  # type: ignore[type-arg]
        """Take one of some values."""
        ran(text)
        return "ok"

    def tree(text: str, node: Node, more: dict[str, Any], some: set[int]) -> str:
        """Take a tree."""
        ran(text)
        return "ok"

    return [tool(effect="keyed")(each) for each in (pair, anything, mixed, tree)]


def draw_tool(draw: random.Random) -> tuple[str, str, Any]:
    """Name, description and parameters."""
    return draw.choice(_TOOL_NAMES), draw.choice(_TEXTS), draw_parameters(draw)
