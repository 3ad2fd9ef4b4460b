"""JSON Schemas of answers: made from Python types, and used to check values from outside with the field named."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, cast

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from ..errors import ConfigurationError, InvalidInput
from ..state.values.frozen import Json, freeze, thaw
from ..tool_schemas.checking import (
    PATTERN_RULES,
    bounded_type,
    empty_registry,
    find_unusable,
    iterate_errors,
    problem_as_checked,
)

_TEXT_SCHEMA: Final[Mapping[str, Any]] = {"type": "string"}
_MAX_SHOWN: Final = 3


def schema_of(kind: Any) -> dict[str, Any]:
    """Make the JSON Schema of a type.

    Args:
        kind: A pydantic model, another type that pydantic knows, a JSON Schema as it is, or None for any text.
    Raises:
        ConfigurationError: It is none of these.
    """
    if kind is None:
        return dict(_TEXT_SCHEMA)
    if isinstance(kind, Mapping):
        return _checked_schema(dict(cast("Mapping[str, Any]", kind)))
    try:
        return TypeAdapter(kind).json_schema()
    except (PydanticUserError, TypeError) as error:
        raise ConfigurationError(f"schema={kind!r:.80}: give a pydantic model, a type, or a JSON Schema") from error


def check_schema(value: Any, schema: Mapping[str, Any], field: str) -> Json:
    """Check a value against a JSON Schema.

    Args:
        field: How errors call the value.
    Returns:
        The value, immutable.
    Raises:
        InvalidInput: It does not fit; the text names each field and says what the schema wants of it.
    """
    frozen = freeze(value, field)
    try:
        errors = _errors(schema, thaw(frozen))
    except Exception as error:  # of the library, about a schema that is none
        raise InvalidInput(
            field, None, f"the schema of this request cannot be used: {type(error).__name__}."
        ) from error
    if errors:
        raise misfit(errors, field)
    return frozen


def misfit(errors: Sequence[Any], field: str) -> InvalidInput:
    """The error of a value that does not fit its schema.

    Args:
        errors: What the library `jsonschema` says of it; at least one.
        field: How errors call the value.
    """
    places = [".".join([field, *map(str, error.absolute_path)]) for error in errors[:_MAX_SHOWN]]
    others = [f"{place}: {_wish(error)}" for place, error in zip(places[1:], errors[1:_MAX_SHOWN], strict=True)]
    return InvalidInput(places[0], errors[0].instance, f"{'. '.join([_wish(errors[0]), *others])}.")


def _errors(schema: Mapping[str, Any], value: Any) -> list[Any]:
    validator = _validator_type()(thaw(cast("Json", schema)), registry=empty_registry())
    found = iterate_errors(validator, value, len(json.dumps(value)))
    return sorted(found, key=lambda error: [str(part) for part in error.absolute_path])


@cache
def _validator_type() -> Any:
    from jsonschema import Draft202012Validator

    return bounded_type(Draft202012Validator, PATTERN_RULES)


def _checked_schema(schema: dict[str, Any]) -> dict[str, Any]:
    problem = problem_as_checked(schema) or find_unusable(schema)
    if problem is not None:
        raise ConfigurationError(f"schema: it is no JSON Schema: {problem}")
    return schema


def _wish(error: Any) -> str:
    """The rule that a value breaks, without the value itself, which can be long or private."""
    wanted = error.validator_value
    match error.validator:
        case "type":
            kinds = cast("list[str]", wanted if isinstance(wanted, list) else [wanted])
            return f"it must be {' or '.join(map(_kind_name, kinds))}"
        case "required":
            missing = [name for name in wanted if name not in error.instance]
            return f"it needs {', '.join(missing)}"
        case "additionalProperties":
            known = ", ".join(error.schema.get("properties", {})) or "none"
            return f"it has fields that do not exist; there are {known}"
        case "enum":
            return f"it must be one of {', '.join(map(str, wanted))}"
        case "maxLength" | "minLength" | "maxItems" | "minItems" | "maximum" | "minimum" | "pattern" | "const":
            return f"it breaks {error.validator} {wanted}"
        case _:
            return f"it breaks the rule {error.validator} of its schema"


def _kind_name(name: str) -> str:
    article = "an" if name[0] in "aeiou" else "a"
    return f"{article} {name}" if name != "null" else "null"
