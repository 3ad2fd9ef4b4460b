"""Schemas of servers: what is checked here, what is left to the server, and that no schema holds a worker up."""

from __future__ import annotations

import time
from typing import Any

import pytest

from celery_agents.worker.mcp import MCPServer, RemoteTool, ServerConnections, ToolList, tools_of
from celery_agents.worker.tool_schemas.checking import find_errors, plain_schema, problem_of
from celery_agents.worker.tools import InvalidArguments

URL = "https://crm.example/mcp"
SLOW = "^(a+)+$"
HOSTILE = "a" * 40 + "!"


def bind(schema: dict[str, Any], args: dict[str, Any]) -> Any:
    offered = ToolList.of([RemoteTool("create", "", {"type": "object", **schema})])
    (tool,) = tools_of(MCPServer(URL, name="crm"), offered, ServerConnections())
    return tool.bind(args)


def ref_bomb(levels: int) -> dict[str, Any]:
    defs: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": {"type": "object"}}}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("schema", "args"),
    [
        ({"properties": {"x": {"type": "string", "pattern": SLOW}}}, {"x": HOSTILE}),
        ({"patternProperties": {SLOW: {"type": "string"}}}, {HOSTILE: "x"}),
        ({"patternProperties": {SLOW: {}}, "additionalProperties": False}, {HOSTILE: "x"}),
        ({"allOf": [{"patternProperties": {SLOW: {}}}], "unevaluatedProperties": False}, {HOSTILE: "x"}),
        ({"propertyNames": {"pattern": SLOW}}, {HOSTILE: "x"}),
        ({"properties": {"x": {"$ref": "#/$defs/p"}}, "$defs": {"p": {"pattern": SLOW}}}, {"x": HOSTILE}),
        ({"properties": {"x": {"$ref": "#/dependencies/p"}}, "dependencies": {"p": {"pattern": SLOW}}}, {"x": HOSTILE}),
        ({"properties": {"x": {"$ref": "#/x-own/p"}}, "x-own": {"p": {"pattern": SLOW}}}, {"x": HOSTILE}),
        ({"properties": {"x": {"uniqueItems": True}}}, {"x": [{"n": n} for n in range(5000)]}),
        (ref_bomb(40), {"x": 1}),
        ({"properties": {"x": ref_bomb(40)}, "unevaluatedProperties": False}, {"x": {}}),
        ({"allOf": [{"not": {"patternProperties": {SLOW: {}}, "unevaluatedProperties": False}}]}, {HOSTILE: "x"}),
    ],
)
def test_no_schema_of_a_server_costs_more_than_a_moment(schema: dict[str, Any], args: dict[str, Any]) -> None:
    began = time.process_time()
    assert bind(schema, args) == args
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x": {"not": {"pattern": "^b"}}}},
        {"properties": {"x": {"oneOf": [{"pattern": "^a"}, {"pattern": "^b"}]}}},
        {"properties": {"x": {"oneOf": [{"pattern": "^b"}, {"type": "string"}], "anyOf": [{"type": "string"}]}}},
        {"properties": {"x": {"if": {"pattern": "^b"}, "then": {"type": "integer"}}}},
        {"properties": {"y": {"contains": {"pattern": "^a"}, "maxContains": 1}}},
        {"patternProperties": {"^[xy]$": {}}, "additionalProperties": False},
        {"properties": {"x": {"pattern": "^\\p{L}+$"}}},
        {"not": {"unevaluatedProperties": False}},
        {"oneOf": [{"unevaluatedProperties": False}, {"required": ["x"]}]},
    ],
)
def test_rules_around_a_pattern_refuse_nothing_that_the_server_would_take(schema: dict[str, Any]) -> None:
    args = {"x": "abc", "y": ["abc", "b"]}
    assert bind(schema, args) == args


@pytest.mark.parametrize(
    ("schema", "args", "problem"),
    [
        ({"properties": {"x": {"type": "string", "pattern": "^a"}}}, {"x": 1}, "arguments.x: it must be a string"),
        ({"required": ["x"], "patternProperties": {"a": {}}}, {}, "it needs x"),
        ({"properties": {"pattern": {"type": "string"}}, "additionalProperties": False}, {"pattern": 1}, "a string"),
        ({"properties": {"x": {"enum": [{"pattern": 1}]}}}, {"x": {}}, "it must be one of"),
        ({"properties": {"x": {"uniqueItems": True}}}, {"x": [1, 1]}, "uniqueItems"),
        ({"properties": {"x": {"$ref": "#/$defs/k"}}, "$defs": {"k": {"type": "integer"}}}, {"x": ""}, "an integer"),
    ],
)
def test_the_other_rules_are_checked_before_the_call(schema: dict[str, Any], args: Any, problem: str) -> None:
    with pytest.raises(InvalidArguments, match=problem):
        bind(schema, args)


def test_a_schema_without_patterns_is_applied_whole() -> None:
    schema = {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "not": {"required": ["c"]}}
    assert find_errors({"a": 1, "b": 2}, schema)
    assert find_errors({"a": 1, "c": 2}, schema)
    assert not find_errors({"a": 1}, schema)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "string"}, "describes no object"),
        ({"type": "object", "properties": []}, "is no JSON Schema"),
        ({"type": "object", "required": "x"}, "is no JSON Schema"),
        (nested(100), "nested 201 deep, 32 is the most"),
        ({"type": "object", "allOf": [{}] * 16_000}, "has 16002 values, 5000 is the most"),
        ({"type": "object", "description": "x" * 70_000}, "bytes, 64000 is the most"),
        ({"type": "object", "properties": {"x": {"$schema": "http://json-schema.org/draft-07/schema#"}}}, "dialect"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}, None),
        ({"type": "object", "properties": {"x": {"pattern": "\\p{L}+"}}}, None),
    ],
)
def test_a_schema_that_is_none_or_too_much_says_so(schema: dict[str, Any], problem: str | None) -> None:
    said = problem_of(schema)
    assert said is None if problem is None else problem in (said or "")


def test_a_question_keeps_its_fields_and_loses_patterns_and_references() -> None:
    asked = {"type": "object", "properties": {"pattern": {"type": "string", "pattern": SLOW}, "r": {"$ref": "#"}}}
    choice = {"type": "string", "oneOf": [{"const": "a", "title": "A"}], "not": {"pattern": SLOW}}
    assert plain_schema(choice) == {"type": "string", "oneOf": [{"const": "a", "title": "A"}]}
    assert plain_schema(asked) == {"type": "object", "properties": {"pattern": {"type": "string"}, "r": {}}}
