"""What OpenAI's and Anthropic's interfaces refuse in the tools of a request, with where they were seen to say so."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from jsonschema import Draft202012Validator, SchemaError

_PROPERTY: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_DEFINITION: Final = re.compile(r"#(?:/\$defs/([^/]+))?")
_OPENAI_AT_TOP: Final = ("oneOf", "anyOf", "allOf", "enum", "not")
_ANTHROPIC_AT_TOP: Final = ("oneOf", "allOf", "anyOf")
# "Composition: allOf, not, dependentRequired, dependentSchemas, if, then, else" (OpenAI's guide to structured outputs,
# "Some type-specific keywords are not yet supported"; ai-dynamo/dynamo#15153), and those that pydantic-ai has found
_NOT_STRICT: Final = frozenset(
    {"allOf", "oneOf", "not", "dependentRequired", "dependentSchemas", "if", "then", "else", "patternProperties"}
    | {"unevaluatedProperties", "propertyNames", "minProperties", "maxProperties", "unevaluatedItems", "contains"}
    | {"minContains", "maxContains", "uniqueItems", "minLength", "maxLength", "default"}
)


def parts_of(schema: Any, place: str = "()") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The schema and all schemas in it, each with its place; booleans are left out."""
    if not isinstance(schema, dict):
        return
    node = cast("dict[str, Any]", schema)
    yield place, node
    for name in ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"):
        yield from parts_of(node.get(name), f"{place} {name}")
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for number, each in enumerate(node.get(name, ())):
            yield from parts_of(each, f"{place} {name} {number}")
    for name in ("properties", "$defs", "patternProperties", "dependentSchemas"):
        for key, each in node.get(name, {}).items():
            yield from parts_of(each, f"{place} {name} {key}")


def openai_refusal(schema: Any, *, strict: bool) -> str | None:
    """Why OpenAI answers 400 to a tool with these parameters; None where it takes them.

    There is no limit on descriptions: the one of 1024 characters is gone (run-llama/llama_index#18784).
    """
    if not isinstance(schema, dict) or cast("Any", schema).get("type") != "object":
        return "schema must be a JSON Schema of 'type: \"object\"'"  # chatanywhere/GPT_API_free#403
    given = cast("dict[str, Any]", schema)
    if any(name in given for name in _OPENAI_AT_TOP):  # langchain-ai/langchainjs#9804
        return "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level"
    if "properties" not in given:
        return "In context=(), object schema missing properties"  # 1jehuang/jcode#446
    problem = _invalid(given)
    if problem is not None:
        return problem  # "None is not of type 'array'"
    for place, node in parts_of(given):
        kinds = node.get("type", ())
        if "array" in ([kinds] if isinstance(kinds, str) else kinds) and "items" not in node:
            return f"In context={place}, array schema missing items"  # PrefectHQ/fastmcp#2464, byterover-cli#42
        reference = node.get("$ref")
        found = _DEFINITION.fullmatch(reference) if reference is not None else None
        if reference is not None and (found is None or found.group(1) not in {None, *given.get("$defs", {})}):
            return f"In context={place}, reference to component {reference!r} which was not found in the schema"
        refusal = _strict_refusal(node, is_root=node is given) if strict else None
        if refusal is not None:
            return f"In context={place}, {refusal}"
    return None


def _strict_refusal(node: Mapping[str, Any], *, is_root: bool) -> str | None:
    banned = _NOT_STRICT.intersection(node)
    if banned:
        return f"{sorted(banned)} is not permitted"  # makenotion/notion-mcp-server#102
    if not is_root and not {"type", "$ref", "anyOf"}.intersection(node):
        return "schema must have a 'type' key"  # apexive/odoo-llm#212, 1jehuang/jcode#713
    kinds = node.get("type", ())
    if "object" in ([kinds] if isinstance(kinds, str) else kinds):
        if node.get("additionalProperties") is not False:
            return "'additionalProperties' is required to be supplied and to be false"  # vercel-labs/json-render#180
        if set(node.get("required", ())) != set(node.get("properties", {})):
            return "'required' is required to be supplied and to be an array including every key in properties"
    return None


def anthropic_refusal(schema: Any) -> str | None:
    """Why Anthropic answers 400 to a tool with this input schema; None where it takes it."""
    if not isinstance(schema, dict) or cast("Any", schema).get("type") != "object":
        return "input_schema.type: Input should be 'object'"
    given = cast("dict[str, Any]", schema)
    if any(name in given for name in _ANTHROPIC_AT_TOP):  # anthropics/claude-code#5319
        return "input_schema does not support oneOf, allOf, or anyOf at the top level"
    keys = list(given.get("properties") or ())
    if not all(map(_PROPERTY.fullmatch, keys)):
        return f"input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{{1,64}}$': {keys}"
    # "JSON schema is invalid. It must match JSON Schema draft 2020-12" (anthropics/claude-code#7365)
    return _invalid(given)


def _invalid(schema: Mapping[str, Any]) -> str | None:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"JSON schema is invalid: {error.message:.200}"
    return None
