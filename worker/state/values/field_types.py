"""The types that fields have: moments, counts, amounts, text, JSON, and mappings of names to values."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypeGuard, TypeVar

from pydantic import Field, GetCoreSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from ...errors import InvalidInput
from .frozen import FrozenMap, V, check_text, freeze, freeze_document

D = TypeVar("D")
LARGEST_COUNT = 2**63 - 1


def utcnow() -> datetime:
    """Now, in UTC, with microseconds."""
    return datetime.now(UTC)


def to_utc(value: object) -> datetime:
    """The same instant in UTC.

    Raises:
        InvalidInput: It has no timezone, or is neither a datetime nor its ISO 8601 text.
    """
    moment = _parse_moment(value) if isinstance(value, str) else value
    if not isinstance(moment, datetime):
        raise InvalidInput("time", value, "give a datetime with a timezone, or its ISO 8601 text.")
    if moment.tzinfo is UTC and not moment.fold:
        return moment
    if moment.utcoffset() is None:
        raise InvalidInput("time", value, "a time without timezone is ambiguous; use datetime.now(timezone.utc).")
    return _shift_to_utc(moment)


def _parse_moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput("time", text, "give an ISO 8601 time with a timezone, as 2026-01-31T12:00:00Z.") from None


def _shift_to_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC).replace(fold=0)
    except OverflowError:
        raise InvalidInput("time", moment, "this time is outside the years 1 to 9999 in UTC.") from None


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number that a float can hold: no boolean, NaN or infinity, and no larger whole number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max


def check_amount(field: str, value: object, advice: str) -> float:
    """The value, where it is a number from 0.

    Raises:
        InvalidInput: It is not.
    """
    if is_number(value) and value >= 0:
        return value
    raise InvalidInput(field, value, advice)


def check_kind(field: str, value: object, kind: type[D]) -> D:
    """The value, where it is of this kind: what a hook puts into a state is stored as it is.

    Raises:
        InvalidInput: It is not.
    """
    if isinstance(value, kind):
        return value
    raise InvalidInput(field, type(value), f"give a {kind.__name__}.")


def default_from(factory: Callable[[], D]) -> D:
    """A field's default that is made for each value on its own, and is always stored.

    A factory that takes an argument, as pydantic offers, is not asked again when a value is serialized to leave out
    what is at its default.
    """

    def make(_fields_before: dict[str, Any]) -> D:
        return factory()

    return Field(default_factory=make)


@dataclass(frozen=True)
class Checked:
    """Annotation: the field's value is what this function makes of it, and is stored by its own type.

    pydantic's `PlainValidator` would call back into Python for every value it serializes.
    """

    check: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.check, json_schema_input_schema=core_schema.any_schema()
        )


class _FreezeMap:
    """Annotation that turns a validated dict into a `FrozenMap`."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        value_type = _source.__args__[0]
        items = core_schema.dict_schema(handler.generate_schema(Text), handler.generate_schema(value_type))
        return core_schema.no_info_after_validator_function(FrozenMap[Any].of, items)


class _CheckText:
    """Annotation that refuses text which UTF-8 cannot hold. Text of JSON is looked at by its parser."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.str_schema(strict=True)
        return core_schema.json_or_python_schema(
            json_schema=text, python_schema=core_schema.no_info_after_validator_function(check_text, text)
        )


JsonField = Annotated[Any, Checked(freeze)]
"""A field that holds any JSON value; its readers know which kind, and write `value["name"]` without a cast."""

DocumentField = Annotated[Any, Checked(freeze_document)]
"""A field that holds a stored document as JSON."""

Text = Annotated[str, _CheckText]
"""A field that holds text, exactly as it was, NUL characters included."""

FrozenMapField = Annotated[FrozenMap[V], _FreezeMap]
"""A field that holds a mapping of names to immutable values."""

UtcDatetime = Annotated[datetime, Checked(to_utc), WithJsonSchema({"type": "string", "format": "date-time"})]
"""A moment in UTC with microseconds; naive datetimes are refused."""

Count = Annotated[int, Field(strict=True, ge=0, le=LARGEST_COUNT)]
"""A whole number from 0; booleans, text and floats are refused."""

Amount = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
"""Seconds or US dollars from 0; whole numbers are accepted, NaN, infinity and booleans are not."""


Flag = Annotated[bool, Field(strict=True)]
"""True or false; 0, 1 and text are refused."""
