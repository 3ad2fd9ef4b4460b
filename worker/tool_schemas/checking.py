"""JSON Schemas of servers: checked and applied at a cost that has a bound, whatever a server writes into them.

A schema is text from outside, and so are the arguments that a model makes by it. Regular expressions are never run:
some take ages for a short text. The rules whose outcome depends on one that is left out are left out with it, so that
nothing is refused that the server would take. The server checks its arguments itself.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, Final, cast

from pydantic_core import SchemaError, SchemaValidator, core_schema

from ..state.values.frozen import thaw

MAX_SCHEMA_BYTES: Final = 64_000
"""Bytes of one schema, as JSON."""

MAX_SCHEMA_DEPTH: Final = 32
"""Objects and lists inside each other in one schema."""

MAX_SCHEMA_VALUES: Final = 5_000
"""Values in one schema, at any depth."""

# The parts of an ordinary schema are applied some hundred times; references to references make that billions.
_MOST_APPLIED: Final = 20_000
# A value of a hundred thousand items needs more, and each of them may be one of several kinds.
_APPLIED_PER_CHAR: Final = 10

_PATTERNS: Final = frozenset({"pattern", "patternProperties"})
# The outcome of these can turn around when a rule inside them is left out.
_TURNING: Final = ("not", "if", "contains", "unevaluatedItems", "unevaluatedProperties")
_NOT_PLAIN: Final = frozenset(
    {"pattern", "patternProperties", "$ref", "$dynamicRef", "$schema", "not", "if", "then", "else", "contains", "oneOf"}
    | {"uniqueItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "maxContains", "minContains"}
)


class SchemaTooCostly(Exception):
    """The check of a value applies more schemas to parts of it than are applied here."""


class _Budget(threading.local):
    """How many schemas the check that runs in this thread may still apply."""

    left = 0


_budget: Final = _Budget()


def problem_of(schema: Mapping[str, Any], name: str = "its input schema") -> str | None:
    """Say why a schema cannot be that of a tool's input, or of an answer; None where it can.

    Args:
        name: How the sentence calls the schema.
    """
    if schema.get("type") != "object":
        return f"{name} describes no object"
    too_much = describe_excess(schema)
    if too_much is not None:
        return f"{name} {too_much}"
    if any(isinstance(each.get("$schema"), str) for each in _objects(schema) if each is not schema):
        return f"a part of {name} is of another dialect ($schema)"
    problem = problem_as_schema(schema)
    return None if problem is None else f"{name} is no JSON Schema: {problem}"


def describe_excess(schema: Mapping[str, Any]) -> str | None:
    """Say what of a schema is beyond the limits; None where nothing is."""
    depth, values = _measure(schema)
    if depth > MAX_SCHEMA_DEPTH:
        return f"is nested {depth} deep, {MAX_SCHEMA_DEPTH} is the most"
    if values > MAX_SCHEMA_VALUES:
        return f"has {values} values, {MAX_SCHEMA_VALUES} is the most"
    size = len(json.dumps(schema))
    return f"has {size} bytes, {MAX_SCHEMA_BYTES} is the most" if size > MAX_SCHEMA_BYTES else None


def find_errors(value: Any, schema: Mapping[str, Any]) -> list[Any]:
    """Check a value against a schema of a server.

    Returns:
        Errors of the library `jsonschema`. None are found where the check would take too long, or where the schema
        turns out to be unusable: the server decides then.
    """
    kind = _validator_type(_is_applied_in_part(schema))
    plain = cast("dict[str, Any]", thaw(cast("Any", schema)))
    plain.pop("$schema", None)
    try:
        found = list(iterate_errors(kind(plain, registry=empty_registry()), value))
    except Exception:  # noqa: BLE001 - the library raises anything about references that lead nowhere or in circles
        return []
    return sorted(found, key=lambda error: [str(part) for part in error.absolute_path])


def iterate_errors(validator: Any, value: Any, text_chars: int = 0) -> Iterator[Any]:
    """Yield what a validator of `bounded_type` finds.

    Args:
        text_chars: Characters of the value as JSON, where it may be large.
    Raises:
        Exception: The check takes too long, or a reference leads nowhere; the library has many kinds.
    """
    _budget.left = _MOST_APPLIED + _APPLIED_PER_CHAR * text_chars
    yield from validator.iter_errors(value)


def plain_schema(schema: Any) -> Any:
    """A schema for people's answers, which others check by the library as it is: without all that can cost or turn."""
    if isinstance(schema, Mapping):
        fields = cast("Mapping[str, Any]", schema).items()
        return {name: plain_schema(each) for name, each in fields if _is_plain(name, each)}
    if isinstance(schema, (list, tuple)):
        return [plain_schema(each) for each in cast("list[Any]", schema)]
    return schema


def _is_plain(name: str, value: Any) -> bool:
    """Whether this is an ordinary rule, the schema of a field that has the name of a rule, or a choice of values."""
    if name not in _NOT_PLAIN or (isinstance(value, Mapping) and "type" in value):
        return True
    choices = cast("list[Any]", value) if name == "oneOf" and isinstance(value, (list, tuple)) else ()
    return bool(choices) and all(isinstance(each, Mapping) and "const" in each for each in choices)


def _measure(schema: Any) -> tuple[int, int]:
    """The depth of a value and how many values are in it; without recursion, since its depth is not known."""
    deepest, values, todo = 0, 0, [(schema, 1)]
    while todo:
        value, depth = todo.pop()
        if isinstance(value, (Mapping, list, tuple)):
            inner = _parts(cast("Any", value))
            deepest, values = max(deepest, depth), values + len(inner)
            todo += [(each, depth + 1) for each in inner]
    return deepest, values


def _parts(value: Any) -> list[Any]:
    return list(cast("Any", value).values() if isinstance(value, Mapping) else value)


def _objects(schema: Any) -> Iterator[Mapping[str, Any]]:
    todo = [schema]
    while todo:
        value = todo.pop()
        if isinstance(value, Mapping):
            yield cast("Mapping[str, Any]", value)
        if isinstance(value, (Mapping, list, tuple)):
            todo += _parts(cast("Any", value))


def _is_applied_in_part(schema: Mapping[str, Any]) -> bool:
    return any(name in each for each in _objects(schema) for name in _PATTERNS)


def problem_as_schema(schema: Mapping[str, Any]) -> str | None:
    """Say why a value is no JSON Schema; None where it is one."""
    from jsonschema import Draft202012Validator, FormatChecker, SchemaError

    try:
        # No formats: the expressions of other languages are none in Python, and are not run here.
        Draft202012Validator.check_schema(schema, format_checker=FormatChecker(formats=()))
    except SchemaError as error:
        return f"{error.message:.200}"
    return None


def problem_as_checked(schema: Mapping[str, Any]) -> str | None:
    """Say why a value is no JSON Schema, or none by which an answer can be checked; None where it is one."""
    names = {name for each in _objects(schema) for name in each}
    if names >= {"patternProperties", "unevaluatedProperties"}:  # the library would run the patterns, some for ages
        return "unevaluatedProperties is not applied beside patternProperties; give additionalProperties"
    return problem_as_schema(schema)


@cache
def empty_registry() -> Any:
    """For validators: the library's own registry would fetch a schema that another refers to, from wherever it says."""
    from referencing import Registry

    return cast("Any", Registry)()


def find_unusable(schema: Mapping[str, Any]) -> str | None:
    """Say which reference of a schema leads to no part of it, or which pattern cannot be read; None without one."""
    from jsonschema import Draft202012Validator
    from referencing import jsonschema

    root = cast("Any", jsonschema).DRAFT202012.create_resource(schema)
    known: Any = Draft202012Validator.META_SCHEMA
    parts = [(root, empty_registry().with_contents([(known["$id"], known)]).resolver_with_root(root))]
    while parts:
        part, resolver = parts.pop()
        rules: Mapping[str, Any] = {} if isinstance(part.contents, bool) else part.contents
        if (problem := _describe_unusable(rules, resolver)) is not None:
            return problem
        parts += [(each, resolver.in_subresource(each)) for each in part.subresources()]
    return None


def _describe_unusable(rules: Mapping[str, Any], resolver: Any) -> str | None:
    from referencing.exceptions import Unresolvable

    for name in {"$ref", "$dynamicRef"} & rules.keys():
        try:
            found = resolver.lookup(rules[name]).contents
        except (Unresolvable, ValueError):  # also a name where a list has numbers
            found = None
        if not isinstance(found, (Mapping, bool)):
            return f"its {name} {rules[name]!r:.200} leads nowhere"
    for pattern in (*rules.get("patternProperties", ()), rules.get("pattern", "")):
        try:
            _expression(pattern)
        except re.error:
            return f"its pattern {pattern!r:.200} cannot be read"
    return None


@lru_cache(maxsize=500)
def _expression(pattern: str) -> Callable[[str], Any]:
    """A pattern in pydantic's language, in which types have theirs, and which takes no ages for a text.

    In Python's where it is none of it.
    """
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern)).isinstance_python
    except SchemaError:
        return re.compile(pattern).search


def _pattern(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    del schema
    if validator.is_type(instance, "string") and not _expression(wanted)(instance):
        yield ValidationError(f"{instance!r} does not match {wanted!r}")


def _pattern_properties(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    del schema
    for pattern, each in wanted.items() if validator.is_type(instance, "object") else ():
        for name in filter(_expression(pattern), instance):
            yield from validator.descend(instance[name], each, path=name, schema_path=pattern)


def _additional_properties(validator: Any, wanted: Any, instance: Any, schema: Any) -> Any:
    from jsonschema import Draft202012Validator

    named = [_expression(pattern) for pattern in schema.get("patternProperties", ())]
    if named and validator.is_type(instance, "object"):
        instance = {name: instance[name] for name in instance if not any(fits(name) for fits in named)}
        schema = {**schema, "patternProperties": {}}
    return Draft202012Validator.VALIDATORS["additionalProperties"](validator, wanted, instance, schema)


PATTERN_RULES: Final[Mapping[str, Any]] = {
    "pattern": _pattern, "patternProperties": _pattern_properties, "additionalProperties": _additional_properties,
}  # fmt: skip
"""The rules with patterns, in a language that takes no ages for a text where it can be read so."""


@cache
def _validator_type(is_in_part: bool) -> Any:
    """The validator for schemas of which rules are left out, or for others."""
    from jsonschema import Draft202012Validator

    changes: dict[str, Any] = {}
    if is_in_part:
        others = Draft202012Validator.VALIDATORS["additionalProperties"]
        changes = dict.fromkeys((*_PATTERNS, *_TURNING), no_rule)
        changes |= {"oneOf": _any_of, "additionalProperties": _without_patterns(others)}
    return bounded_type(Draft202012Validator, changes)


def no_rule(validator: Any, wanted: Any, instance: Any, schema: Any) -> Any:
    """A rule that takes everything."""
    del validator, wanted, instance, schema
    return ()


def bounded_type(kind: Any, changes: Mapping[str, Any]) -> Any:
    """A validator of the library that counts the schemas that it applies, with other rules.

    Args:
        changes: The rules by their names.
    """
    from jsonschema import validators

    made = cast("Any", validators).extend(kind, {**_CHEAPER, **changes})
    plain = made.evolve

    def evolve(validator: Any, **changed: Any) -> Any:
        _budget.left -= 1
        if _budget.left < 0:
            raise SchemaTooCostly
        schema = changed.get("schema")
        if isinstance(schema, dict) and "$schema" in schema:  # the library would go on with a validator of its own
            changed["schema"] = {name: rule for name, rule in cast("Any", schema).items() if name != "$schema"}
        return plain(validator, **changed)

    made.evolve = evolve
    return made


def _without_patterns(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule for further properties, where no pattern says which those are."""

    def apply(validator: Any, wanted: Any, instance: Any, schema: Any) -> Any:
        return () if "patternProperties" in schema else rule(validator, wanted, instance, schema)

    return apply


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Any:
    """The library compares each pair of items; here each item is written down once."""
    from jsonschema import ValidationError

    del schema
    if wanted is True and validator.is_type(instance, "array"):
        written = [json.dumps(each, sort_keys=True) for each in instance]
        if len(set(written)) < len(written):
            yield ValidationError("it has equal items")


def _any_of(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    del schema
    if not any(_fits(validator, each, instance) for each in wanted):
        yield ValidationError(f"{instance!r} is not valid under any of the given schemas")


def _one_of(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    del schema
    fitting = sum(_fits(validator, each, instance) for each in wanted)
    if fitting != 1:
        yield ValidationError(f"{instance!r} is valid under {fitting or 'none'} of the given schemas")


def _fits(validator: Any, wanted: Any, instance: Any) -> bool:
    """The library finds all errors of each kind of a thing: of kinds inside each other, more with each level by far."""
    return next(validator.descend(instance, wanted), None) is None


_CHEAPER: Final[Mapping[str, Any]] = {"uniqueItems": _unique_items, "anyOf": _any_of, "oneOf": _one_of}
