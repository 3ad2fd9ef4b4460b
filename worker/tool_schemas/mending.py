"""Mends the input schema of a tool into one that model providers accept: of a server's when its list is read, of any
other before each request (`worker/drivers/pydantic_ai/sent_schemas.py`).

A provider refuses a whole request for one tool whose schema it does not accept, so one odd tool would stop the agent.
What is taken out of a schema here is not lost: the model reads the rules in the tool's description, and the arguments
of a call are checked against the server's own schema. What is mended, and who refuses it:

    anyOf, oneOf, allOf, not, enum at the top    OpenAI and Anthropic refuse the request
    an array without items, tuples included      OpenAI: "array schema missing items" (PrefectHQ/fastmcp#2464)
    an object without properties at the top      OpenAI: "object schema missing properties"
    a pattern that Python cannot read            OpenAI: "is not a 'regex'"
    a $ref that leads nowhere, or elsewhere      all of them; those to $defs stay

Names that a provider refuses are no matter of the schema: each request is sent with others
(`worker/drivers/pydantic_ai/sent_names.py`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from .checking import describe_excess

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_REFERENCE: Final = re.compile(r"#/(?:\$defs|definitions)/([A-Za-z0-9_.-]+)")
_RULES_AT_TOP: Final = (
    "$ref", "allOf", "anyOf", "oneOf", "not", "enum", "const", "if", "then", "else", "dependentSchemas",
    "dependentRequired", "dependencies",
)  # fmt: skip
_NOT_FOR_PROVIDERS: Final = frozenset(
    {"$schema", "$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef", "$recursiveAnchor"}
)
_SCHEMAS: Final = frozenset(
    {"items", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
_LISTS_OF_SCHEMAS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED_SCHEMAS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_OF_A_CASE: Final = frozenset({"then", "else", "dependentSchemas"})
_OF_OTHER_PROPERTIES: Final = ("additionalProperties", "unevaluatedProperties")
_MAX_RULES_CHARS: Final = 4_000
# A schema can refer to itself; parts of it that are looked at for the properties of the top.
_MOST_PARTS: Final = 200


@dataclass(frozen=True, slots=True)
class MendedSchema:
    """An input schema as the model is shown it.

    Attributes:
        parameters: The JSON Schema.
        rules: A sentence for the description, about rules that the schema cannot have; "" for none.
        changes: What was mended, for people; empty for a schema that fits as it is.
    """

    parameters: dict[str, Any]
    rules: str = ""
    changes: tuple[str, ...] = ()


def as_object_schema(schema: Any) -> dict[str, Any]:
    """An input schema with what servers leave out: the arguments of a call are always a JSON object.

    A schema that describes something else stays as it is; what is no schema at all becomes one of that kind.
    """
    if schema is None or schema is True:
        return {"type": "object", "properties": {}}
    if not isinstance(schema, Mapping):
        return {"type": "null"}
    named = cast("Mapping[str, Any]", schema)
    kept = {name: value for name, value in named.items() if value is not None or name in ("const", "default")}
    if kept.get("properties") == []:  # as PHP writes an empty object
        kept["properties"] = {}
    kind = kept.get("type", "object")
    if kind == "object" or (isinstance(kind, (list, tuple)) and "object" in kind):
        kept["type"] = "object"
    return kept


def mend(schema: Mapping[str, Any], *, is_limited: bool = True) -> MendedSchema | str:
    """Make a schema fit for providers; a sentence where it becomes too large.

    Args:
        schema: A JSON Schema of an object.
        is_limited: It comes from a server, and may be too large.
    """
    definitions = _definitions(schema)
    properties, required = _Fields(schema, definitions).collect()
    properties |= {name: {} for name in required if name not in properties}
    rules = {name: schema[name] for name in _RULES_AT_TOP if name in schema}
    apart = {*rules, "definitions", "$defs", "properties", "required"}
    if not _OF_A_CASE.isdisjoint(rules):
        apart.add("unevaluatedProperties")  # of which these rules name some
    mender = _Mender(frozenset(definitions))
    parameters = mender.mend({name: value for name, value in schema.items() if name not in apart} | {"type": "object"})
    parameters["properties"] = {name: mender.mend(each) for name, each in properties.items()}
    if required:
        parameters["required"] = required
    if definitions:
        parameters["$defs"] = {name: mender.mend(each) for name, each in definitions.items()}
    excess = describe_excess(parameters) if is_limited else None
    if excess is not None:
        return f"its input schema, made fit for model providers, {excess}"
    changes = (f"its rules {', '.join(rules)} are told in its description",) if rules else ()
    return MendedSchema(parameters=parameters, rules=describe_rules(rules), changes=changes)


def describe_rules(rules: Any) -> str:
    """A sentence about rules that the schema for the model cannot have; "" without rules."""
    if not rules:
        return ""
    written = json.dumps(rules, ensure_ascii=False, default=str)
    if len(written) > _MAX_RULES_CHARS:
        return "The server checks further rules about the arguments."
    return f"The arguments must also fit this JSON Schema: {written}"


def _definitions(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The definitions that references can name, by their names; `$defs` is the newer place for them."""
    found: dict[str, Any] = {}
    for place in ("definitions", "$defs"):
        known = schema.get(place)
        found |= cast("dict[str, Any]", known) if isinstance(known, Mapping) else {}
    return {name: each for name, each in found.items() if _NAME.fullmatch(name)}


class _Fields:
    """Collects the properties of an object from a schema and from the parts of it that are about the same object."""

    def __init__(self, root: Mapping[str, Any], definitions: Mapping[str, Any]) -> None:
        self._root = root
        self._definitions = definitions
        self._left = _MOST_PARTS

    def collect(self) -> tuple[dict[str, Any], list[str]]:
        """The properties, and the names of those that every way to fit the schema needs."""
        properties, required = self._collect(self._root)
        return {name: _one_of(schemas) for name, schemas in properties.items()}, list(dict.fromkeys(required))

    def _collect(self, schema: Any) -> tuple[dict[str, list[Any]], list[str]]:
        self._left -= 1
        if self._left < 0 or not isinstance(schema, Mapping):
            return {}, []
        part = cast("Mapping[str, Any]", schema)
        properties = {name: [each] for name, each in part.get("properties", {}).items()}
        required = list(part.get("required", ()))
        for every in (self._target(part), *part.get("allOf", ())):
            more, needed = self._collect(every)
            _add(properties, more)
            required += needed
        for kind in ("anyOf", "oneOf"):
            ways = [self._collect(each) for each in part.get(kind, ())]
            for more, _ in ways:
                _add(properties, more)
            needed = [name for name in ways[0][1] if all(name in each for _, each in ways)] if ways else []
            required += needed
        return properties, required

    def _target(self, schema: Mapping[str, Any]) -> Any:
        """The definition that a schema refers to; None without one."""
        name = _referred(schema.get("$ref"))
        return None if name is None else self._definitions.get(name)


def _referred(reference: Any) -> str | None:
    """The name of the definition that a reference names; None for another one."""
    found = _REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
    return None if found is None else found.group(1)


def _add(properties: dict[str, list[Any]], more: Mapping[str, list[Any]]) -> None:
    for name, schemas in more.items():
        known = properties.setdefault(name, [])
        known += [each for each in schemas if each not in known]


def _one_of(schemas: list[Any]) -> Any:
    # A way that says nothing of a property, as `{"required": ["a"]}` does, takes nothing from what another one says.
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


class _Mender:
    """Takes out of a schema, at any place below its top, what providers refuse there."""

    def __init__(self, definitions: frozenset[str]) -> None:
        self._definitions = definitions

    def mend(self, schema: Any) -> dict[str, Any]:
        """The schema without it."""
        if not isinstance(schema, Mapping):
            return {}  # true and false are schemas, too
        mended: dict[str, Any] = {}
        for name, value in cast("Mapping[str, Any]", schema).items():
            if name == "$ref":
                if (target := _referred(value)) in self._definitions:
                    mended[name] = f"#/$defs/{target}"
            elif name == "pattern":
                mended |= {name: value} if _is_expression(value) else {}
            elif name not in _NOT_FOR_PROVIDERS and not (isinstance(value, float) and not math.isfinite(value)):
                mended[name] = self._mend_rule(name, value)
        kind = mended.get("type")
        if (kind == "array" or (isinstance(kind, list) and "array" in kind)) and "items" not in mended:
            mended["items"] = {}
        return _loosened(mended, cast("Mapping[str, Any]", schema))

    def _mend_rule(self, name: str, value: Any) -> Any:
        if name in _SCHEMAS and isinstance(value, Mapping):
            return self.mend(value)
        if name in _LISTS_OF_SCHEMAS and isinstance(value, (list, tuple)):
            return [self.mend(each) for each in cast("list[Any]", value)]
        if name in _NAMED_SCHEMAS and isinstance(value, Mapping):
            kept = cast("Mapping[str, Any]", value).items()
            return {key: self.mend(each) for key, each in kept if name != "patternProperties" or _is_expression(key)}
        return _finite(value)


def _loosened(mended: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Take out what forbids more than the given schema, since a part of it has lost a rule."""
    if not all(map(_is_expression, given.get("patternProperties", ()))):
        mended = {name: rule for name, rule in mended.items() if name not in _OF_OTHER_PROPERTIES}
    for name in ("not", "if"):
        if name in mended and mended[name] != given[name]:
            del mended[name]
    if "oneOf" in mended and mended["oneOf"] != given["oneOf"]:
        mended.setdefault("anyOf", mended.pop("oneOf"))
    return mended


def _is_expression(value: Any) -> bool:
    """Whether a pattern can be read; those of other languages often cannot."""
    try:
        re.compile(value)
    except (re.error, TypeError, RecursionError, OverflowError):
        return False
    return True


def _finite(value: Any) -> Any:
    """A value without numbers that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in cast("list[Any]", value)]
    return value
