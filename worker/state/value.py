"""`Value`: the base of everything the state holds, and the field types all of it shares."""

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from ..errors import InvalidInput
from .frozen import Checked, JsonField

LARGEST_COUNT = 2**63 - 1


def utcnow() -> datetime:
    """Now, in UTC, with microseconds."""
    return datetime.now(UTC)


def to_utc(value: object) -> datetime:
    """The same instant in UTC.

    Raises:
        InvalidInput: It has no timezone, or is neither a datetime nor its ISO 8601 text.
    """
    moment = _parsed(value) if isinstance(value, str) else value
    if not isinstance(moment, datetime):
        raise InvalidInput("time", value, "give a datetime with a timezone, or its ISO 8601 text.")
    if moment.tzinfo is UTC:
        return moment
    if moment.utcoffset() is None:
        raise InvalidInput("time", value, "a time without timezone is ambiguous; use datetime.now(timezone.utc).")
    return _shifted(moment)


def _parsed(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput("time", text, "give an ISO 8601 time with a timezone, as 2026-01-31T12:00:00Z.") from None


def _shifted(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise InvalidInput("time", moment, "this time is outside the years 1 to 9999 in UTC.") from None


UtcDatetime = Annotated[datetime, Checked(to_utc)]
"""A moment in UTC with microseconds; naive datetimes are refused."""

Count = Annotated[int, Field(strict=True, ge=0, le=LARGEST_COUNT)]
"""A whole number from 0; booleans, text and floats are refused."""

Amount = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
"""Seconds or US dollars from 0; whole numbers are accepted, NaN, infinity and booleans are not."""


class Value(BaseModel):
    """An immutable value that is stored as JSON without loss.

    The constructor refuses fields it does not know, at any depth. `from_dict` and `from_json` keep them, and
    `to_dict` and `to_json` write them back, so that a worker of an older version carries the data of a newer one.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="allow", hide_input_in_errors=True, protected_namespaces=(), validate_default=False
    )
    __pydantic_extra__: dict[str, JsonField] = Field(init=False)  # pyright: ignore

    def __init__(self, **data: Any) -> None:
        self.__pydantic_validator__.validate_python(data, self_instance=self, extra="forbid")

    # Without this mark pydantic would call the constructor for every nested value read from storage.
    __init__.__pydantic_base_init__ = True  # pyright: ignore

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Raises `pydantic.ValidationError`, which names the field, when the data do not fit."""
        return cls.__pydantic_validator__.validate_python(data, extra="allow")

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Raises `pydantic.ValidationError`, which names the field, when it is no JSON or does not fit."""
        return cls.__pydantic_validator__.validate_json(data, extra="allow")

    def to_dict(self) -> dict[str, Any]:
        """Every field, as plain JSON values."""
        return self.__pydantic_serializer__.to_python(self, mode="json")

    def to_json(self) -> bytes:
        """Compact JSON: fields at their default are left out, and come back as the default."""
        return self.__pydantic_serializer__.to_json(self, exclude_defaults=True)

    def _with(self, **changes: Any) -> Self:
        """A copy with these fields, not validated: for named methods that build valid values only."""
        return self.model_copy(update=changes)
