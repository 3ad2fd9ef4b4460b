"""Schemas of tools as a request sends them: one tool whose schema a provider refuses would fail the whole request.

`worker/tool_schemas/mending.py` says what becomes of a schema, and who refuses what. One that cannot be mended is told
in the description, and the tool takes any arguments: it checks them itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from ...redaction import whole_unicode
from ...tool_schemas.checking import problem_as_schema
from ...tool_schemas.mending import MendedSchema, as_object_schema, describe_rules, mend

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

_TYPES: Final = ("type", "$ref", "anyOf")
_STRICT: Final = frozenset(
    {*_TYPES, "properties", "required", "additionalProperties", "items", "enum", "const", "$defs", "description"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "pattern"}
    | {"format", "title"}
)
"""The rules that OpenAI takes in a strict schema (its guide to structured outputs, "Supported schemas"), without
`default`, for which pydantic-ai leaves strictness out."""

_OPEN: Final = frozenset(
    {"allOf", "not", "if", "dependentSchemas", "dependentRequired", "patternProperties", "propertyNames", "prefixItems"}
    | {"contains", "unevaluatedProperties", "unevaluatedItems", "contentSchema"}
)
"""Rules that no provider can guarantee, or that it would not look into."""


def fit_schemas(parameters: ModelRequestParameters) -> ModelRequestParameters:
    """The same parameters with schemas that providers take; the same object where all of them are."""
    functions = [_fit(tool) for tool in parameters.function_tools]
    outputs = [_fit(tool) for tool in parameters.output_tools]
    given = [*parameters.function_tools, *parameters.output_tools]
    if all(a is b for a, b in zip([*functions, *outputs], given, strict=True)):
        return parameters
    return replace(parameters, function_tools=functions, output_tools=outputs)


def _fit(tool: ToolDefinition) -> ToolDefinition:
    try:
        written = whole_unicode(json.dumps(tool.parameters_json_schema, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):  # no JSON; numbers of thousands of digits; in circles; too deep
        written = "null"
    fitted, is_strict = _fitted(written)
    if fitted.parameters != tool.parameters_json_schema:
        tool = replace(tool, parameters_json_schema=fitted.parameters)
    description = "\n\n".join(filter(None, (whole_unicode(tool.description or ""), fitted.rules)))
    if description != (tool.description or ""):
        tool = replace(tool, description=description)
    return tool if is_strict or tool.strict is not None else replace(tool, strict=False)


@lru_cache(maxsize=2_000)
def _fitted(written: str) -> tuple[MendedSchema, bool]:
    """The schema as it is sent, and whether OpenAI can take it for a strict one.

    Args:
        written: The schema as JSON.
    """
    given: Any = json.loads(written)
    try:
        schema = as_object_schema(given)
        mended = mend(schema, is_limited=False) if schema.get("type") == "object" else "it describes no object"
        if not isinstance(mended, str) and problem_as_schema(mended.parameters) is None:
            return mended, _is_strict(mended.parameters)
    except (RecursionError, TypeError, AttributeError, ValueError):  # its rules are no rules of JSON Schema
        pass
    return MendedSchema({"type": "object", "properties": {}}, describe_rules(given)), False


def _is_strict(schema: Mapping[str, Any], *, is_root: bool = True) -> bool:
    """Whether each part of a schema says of which type it is, by rules that a strict schema can have."""
    if not _STRICT.issuperset(schema) or not (is_root or any(name in schema for name in _TYPES)):
        return False
    parts: list[Any] = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])]
    for name in ("properties", "$defs"):
        parts += schema.get(name, {}).values()
    kinds = schema.get("type", "")
    if not isinstance(kinds, str) and {"object", "array"}.intersection(kinds):
        return False  # pydantic-ai looks into those of one type only
    if isinstance(schema.get("additionalProperties"), dict):
        return False  # it looks into those of an object, and leaves their rules where the type is another
    return all(isinstance(each, dict) and _is_strict(cast("Any", each), is_root=False) for each in parts)


def is_guaranteed(schema: Mapping[str, Any]) -> bool:
    """Whether every provider with structured output of its own takes a schema as it is, and can keep all of it.

    They refuse parts without a type and schemas that hold themselves, and let no object have members that are not
    listed: of a `dict` field, Anthropic would make one that is always empty.
    """
    try:
        return _is_guaranteed(json.dumps(schema))
    except (TypeError, ValueError, RecursionError):
        return False


@lru_cache(maxsize=2_000)
def _is_guaranteed(written: str) -> bool:
    given: Any = json.loads(written)
    return _fitted(written)[0] == MendedSchema(given) and _is_closed(given, given.get("$defs", {}), {})


def _is_closed(schema: Mapping[str, Any], definitions: Mapping[str, Any], known: dict[str, bool]) -> bool:
    """Whether each part of a schema has one type, and each object its members listed.

    Args:
        known: The definitions looked at, each once: False while it is, as of one that holds itself.
    """
    reference = schema.get("$ref")
    if reference is not None:
        name = reference.removeprefix("#/$defs/")
        if name not in known:
            known[name] = False
            known[name] = _is_closed(definitions[name], definitions, known)
        return known[name]
    kind, ways = schema.get("type"), [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if not _OPEN.isdisjoint(schema) or not (isinstance(kind, str) or ways):
        return False
    if kind == "object" and ("properties" not in schema or schema.get("additionalProperties") not in (None, False)):
        return False
    parts = [*ways, *schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    return all(_is_closed(each, definitions, known) for each in parts)
