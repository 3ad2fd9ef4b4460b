"""Odd tools of servers: each is mended into what providers accept or left out by name, and the others stay.

`refusal` is what the providers' interfaces say of the tools of a request, with their words.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.profiles.google import GoogleJsonSchemaTransformer
from pydantic_ai.profiles.openai import OpenAIJsonSchemaTransformer
from pydantic_ai.tools import ToolDefinition

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers.pydantic_ai.provider_rules import STRICTEST, ProviderRules
from celery_agents.worker.drivers.pydantic_ai.sent_names import SentNames, rename_keys
from celery_agents.worker.mcp import MCPServer, MCPTool, RemoteTool, ServerConnections, ToolList, tools_of
from celery_agents.worker.state import thaw
from celery_agents.worker.tool_schemas.mending import as_object_schema, mend
from celery_agents.worker.tools import InvalidArguments

CRM = MCPServer("https://crm.example/mcp", name="crm")
FINE = RemoteTool("fine", "Works.", {"type": "object", "properties": {"text": {"type": "string"}}})
TEXT = {"type": "string"}
AT_TOP = ("anyOf", "oneOf", "allOf", "not", "enum", "$ref")


def found(*tools: RemoteTool, notes: ServerConnections | None = None) -> dict[str, MCPTool]:
    offered = ToolList.of([*tools, FINE])
    return {each.remote.name: each for each in tools_of(CRM, offered, notes or ServerConnections())}


def shown(schema: Any) -> MCPTool:
    return found(RemoteTool("odd", "It is odd.", schema))["odd"]


def parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """The schema and all schemas in it."""
    if not isinstance(schema, dict):
        return
    node = cast("dict[str, Any]", schema)
    yield node
    for name in ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"):
        yield from parts(node.get(name))
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for each in node.get(name, ()):
            yield from parts(each)
    for name in ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas"):
        for each in node.get(name, {}).values():
            yield from parts(each)


def sent(tool: MCPTool, rules: ProviderRules = STRICTEST) -> tuple[ToolDefinition, dict[str, str]]:
    """The tool as a request has it, with the server's names of its arguments by those that are sent."""
    given = ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=thaw(tool.parameters))  # type: ignore[arg-type]  # fmt: skip
    parameters = ModelRequestParameters(function_tools=[given])
    names = SentNames.of(parameters, rules)
    (found,) = names.parameters(parameters).function_tools
    return found, {each: own for own, each in names.keys.get(tool.name, {}).items()}


def refusal(tool: MCPTool) -> str | None:
    """Why a provider refuses a request with this tool; None where all of them accept it."""
    schema = sent(tool)[0].parameters_json_schema
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool.name):
        return "tools.0.function.name: string should match pattern"
    if schema.get("type") != "object" or any(name in schema for name in AT_TOP):
        return "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level"
    if "properties" not in schema:
        return "In context=(), object schema missing properties"
    defined = {f"#/$defs/{name}" for name in schema.get("$defs", {})}
    for each in parts(schema):
        for name in each.get("properties", {}) if each is schema else ():
            if not re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name):
                return "input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
        if not set(each.get("required", ())) <= set(each.get("properties", {})) and each is schema:
            return "parameters.required: property is not defined"
        kinds = each.get("type")
        if "array" in (kinds if isinstance(kinds, list) else [kinds]) and "items" not in each:
            return "array schema missing items"
        if "$ref" in each and each["$ref"] not in defined:
            return f"reference can only point to definitions defined at the top level of the schema: {each['$ref']}"
    jsonschema.Draft202012Validator.check_schema(schema)
    OpenAIJsonSchemaTransformer(schema, strict=None).walk()
    GoogleJsonSchemaTransformer(cast("Any", thaw(tool.parameters)), strict=None).walk()
    return None


@pytest.mark.parametrize(
    ("schema", "arguments", "expected"),
    [
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object", "properties": {"a": TEXT, "b": TEXT}},
         {"a": "x"}, {"a": "x"}),
        ({"oneOf": [{"type": "object", "properties": {"url": TEXT}, "required": ["url"]},
                    {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}]},
         {"id": 1}, {"id": 1}),
        ({"allOf": [{"properties": {"a": TEXT}, "required": ["a"]}, {"properties": {"b": TEXT}}]},
         {"a": "x"}, {"a": "x"}),
        ({"$ref": "#/definitions/Args", "definitions": {"Args": {"type": "object", "properties": {"a": TEXT}}}},
         {"a": "x"}, {"a": "x"}),
        ({"properties": {"text": TEXT}}, {"text": "x"}, {"text": "x"}),
        (None, {}, {}),
        (True, {}, {}),
        ({"type": ["object", "null"], "properties": []}, {}, {}),
        ({"type": "object", "properties": None, "required": None}, {}, {}),
        ({"type": "object"}, {}, {}),
        ({"type": "object", "properties": {"user id": TEXT, "$filter": TEXT}, "required": ["user id"]},
         {"user_id": "u", "_filter": "f"}, {"user id": "u", "$filter": "f"}),
        ({"type": "object", "properties": {"ids": {"type": "array"}}}, {"ids": [1]}, {"ids": [1]}),
        ({"type": "object", "properties": {"any": True, "r": {"$ref": "https://example.com/x"}, "self": {"$ref": "#"}}},
         {"any": 1, "r": 2}, {"any": 1, "r": 2}),
        ({"type": "object", "properties": {"o": {"type": "object", "properties": {"a b": TEXT}, "required": ["a b"]}}},
         {"o": {"a b": "x"}}, {"o": {"a b": "x"}}),
        ({"type": "object", "required": ["a"]}, {"a": 1}, {"a": 1}),
        ({"additionalItems": {"properties": [], "$defs": 1}, "properties": {"a": TEXT}}, {"a": "x"}, {"a": "x"}),
        ({"type": "object", "properties": {"n": {"type": "number", "maximum": float("inf")}}}, {"n": 1}, {"n": 1}),
        ({"type": "object", "properties": {"o": {"$ref": "#/properties/o/definitions/A", "definitions": {
            "A": {"$ref": "#/properties/o/definitions/B"}, "B": {"type": "object"}}}}}, {"o": {}}, {"o": {}}),
    ],
)  # fmt: skip
def test_an_odd_tool_is_mended_and_its_server_gets_what_it_expects(
    schema: Any, arguments: dict[str, Any], expected: dict[str, Any]
) -> None:
    tool = shown(schema)
    assert refusal(tool) is None
    assert tool.bind(rename_keys(arguments, sent(tool)[1])) == expected


def test_rules_that_a_schema_cannot_have_are_told_and_checked() -> None:
    tool = shown({
        "type": "object", "properties": {"a": TEXT, "b": TEXT}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    })  # fmt: skip
    assert tool.description.startswith("It is odd.\n\nThe arguments must also fit this JSON Schema: ")
    assert '{"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}' in tool.description
    with pytest.raises(InvalidArguments, match="oneOf"):
        tool.bind({"a": "x", "b": "y"})
    assert thaw(tool.parameters).get("required") is None  # type: ignore[union-attr]


def test_what_every_way_needs_is_required_and_a_property_of_two_kinds_may_be_either() -> None:
    ways = [{"properties": {"id": {"type": kind}}, "required": ["id", kind]} for kind in ("string", "integer")]
    assert thaw(shown({"anyOf": ways}).parameters) == {
        "type": "object", "properties": {"id": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
        "required": ["id"],
    }  # fmt: skip


def test_what_cannot_be_mended_is_left_out_by_name_once_and_the_others_stay(caplog: pytest.LogCaptureFixture) -> None:
    connections = ServerConnections()
    odd = [
        RemoteTool("text", "", {"type": "string"}), RemoteTool("none", "", [1]),  # type: ignore[arg-type]
        RemoteTool("wrong", "", {"type": "object", "properties": {"a": {"type": "nothing"}}}), RemoteTool("", "", {}),
        RemoteTool("huge", "", {"type": "object", "description": "x" * 70_000}),
        RemoteTool("a b", "", {"anyOf": [{}]}),
    ]  # fmt: skip
    with caplog.at_level(logging.INFO):
        names = set(found(*odd, notes=connections))
        assert set(found(*odd, notes=connections)) == names == {"a b", "fine"}
    for name in ("text", "none", "wrong", "", "huge"):
        assert caplog.text.count(f"MCP server crm: tool {name!r} is left out: ") == 1
    assert caplog.text.count("tool 'a b' is mended: its rules anyOf are told in its description") == 1
    notes = connections.notes.describe()
    assert len(notes["left_out"]) == 5
    assert notes["mended"] == ["crm: tool 'a b' is mended: its rules anyOf are told in its description"]
    found(notes=connections)  # the server has mended its list
    assert connections.notes.describe() == {"left_out": [], "mended": []}


def test_a_tool_with_the_name_of_another_one_of_the_agent_is_left_out_by_name(caplog: pytest.LogCaptureFixture) -> None:
    connections = ServerConnections()
    taken = tools_of(CRM, ToolList.of([FINE]), connections, ["crm_fine"])
    assert taken == []
    assert "MCP server crm: tool 'fine' is left out: the agent has another tool crm_fine" in caplog.text


# --- any list ---------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "user id", "$filter", "", "ä", "user_id", "x" * 80, "a.b", "-", "type", "$ref", "items"])
SMALL = st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3) | st.floats()
REFS = st.sampled_from(
    ["#", "#/$defs/a", "#/$defs/user id", "#/definitions/a", "#/properties/a", "#anchor", "http://x/y"]
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.dictionaries(NAMES, inner, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array", "string", "integer", ["object", "null"], ["array"], "file", 7]),
            "properties": fields | st.just([]) | st.none(),
            "required": st.lists(NAMES, max_size=2, unique=True) | st.booleans(),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "if": inner,
            "enum": st.lists(SMALL, max_size=2),
            "$ref": REFS,
            "$defs": fields,
            "definitions": fields | st.just([1]),
            "items": inner | st.lists(inner, max_size=2),
            "additionalItems": inner | st.lists(inner, max_size=1),
            "additionalProperties": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "dependentRequired": st.just({"a": ["b"]}),
            "description": st.text(max_size=5),
            "$schema": st.sampled_from(["http://json-schema.org/draft-07/schema#", 1]),
            "$id": st.just("urn:x"),
            "maximum": st.floats(),
            "default": SMALL,
        },
    )


SCHEMAS = st.recursive(SMALL | st.lists(SMALL, max_size=2), _objects, max_leaves=12)
TOOLS = st.lists(st.tuples(st.text(max_size=90), SCHEMAS), max_size=4)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(TOOLS, st.dictionaries(NAMES, SMALL, max_size=3))
def test_no_list_of_tools_stops_an_agent(tools: list[tuple[str, Any]], arguments: dict[str, Any]) -> None:
    connections = ServerConnections()
    offered = ToolList.of([FINE, *(RemoteTool(name, "", schema) for name, schema in tools)])
    usable = tools_of(CRM, offered, connections)
    assert "fine" in {each.remote.name for each in usable}
    assert len({each.name for each in usable}) == len(usable)
    left_out = len(connections.notes.left_out["crm"])
    assert len(usable) + left_out == len(offered.tools)
    for each in usable:
        assert refusal(each) is None, each.remote.schema
        plain = {name: value for name, value in arguments.items() if not isinstance(value, float)}
        with contextlib.suppress(InvalidArguments):
            assert each.bind(plain) == plain
    Agent("desk", driver=lambda _: "", mcp=[CRM]).with_remote_tools(usable)


FOREIGN = {"pattern": r"^\p{L}+$"}


@pytest.mark.parametrize(
    ("schema", "args"),
    [
        ({"patternProperties": {r"^\p{L}+$": {"type": "string"}}, "additionalProperties": False}, {"a": "b"}),
        ({"patternProperties": {r"^\p{L}+$": {"type": "string"}}, "unevaluatedProperties": False}, {"a": "b"}),
        ({"properties": {"a": {"patternProperties": {r"\p{L}": {}}, "additionalProperties": False}}}, {"a": {"b": 1}}),
        ({"properties": {"a": {"not": FOREIGN}}}, {"a": "1"}),
        ({"properties": {"a": {"oneOf": [FOREIGN, {"const": "1"}]}}}, {"a": "1"}),
        ({"properties": {"a": {"oneOf": [False, {"type": "string"}]}}}, {"a": "1"}),
        ({"properties": {"a": {"if": FOREIGN, "then": {"const": "x"}}}}, {"a": "1"}),
        ({"unevaluatedProperties": False, "if": {"required": ["b"]}, "then": {"properties": {"b": {}}}}, {"b": 1}),
        ({"unevaluatedProperties": False, "dependentSchemas": {"b": {"properties": {"b": {}}}}}, {"b": 1}),
    ],
)
def test_a_mended_schema_forbids_nothing_because_a_rule_was_left_out(schema: dict[str, Any], args: Any) -> None:
    mended = mend(as_object_schema(schema))
    assert not isinstance(mended, str)
    assert jsonschema.Draft202012Validator(mended.parameters).is_valid(args)


def test_rules_that_have_lost_nothing_stay() -> None:
    rules = {"oneOf": [{"type": "string"}, {"const": 1}], "not": {"const": ""}, "if": {"const": 1}, "then": {}}
    mended = mend({"type": "object", "properties": {"a": rules}, "additionalProperties": False})
    assert not isinstance(mended, str)
    assert mended.parameters == {"type": "object", "properties": {"a": rules}, "additionalProperties": False}
