"""`Value`: the base of everything the state holds."""

import re
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from ...errors import InvalidInput
from .field_types import JsonField

_set = object.__setattr__
# pydantic notes for each value which fields were given, in a set that is larger than most values. Nobody asks for it
# here, so that all share one: a session's steps take half the memory.
_given: set[str] = set()


def _invalid_input(kind: type[BaseModel], error: ValidationError) -> InvalidInput:
    """The first problem. Text is not shown, because it may be a secret; numbers are."""
    problem = error.errors(include_url=False)[0]
    field = ".".join((kind.__name__, *map(str, problem["loc"])))
    inner = problem.get("ctx", {}).get("error")
    if isinstance(inner, InvalidInput):
        return InvalidInput(field + re.sub(r"^[^.\[]*", "", inner.field), inner.value, inner.advice)
    if problem["type"] == "missing":
        return InvalidInput(field, None, "it is needed.")
    given = problem["input"]
    shown = given if isinstance(given, int | float | None) else _kind(given)
    advice = "there is no such field." if problem["type"] == "extra_forbidden" else f"{problem['msg']}."
    return InvalidInput(field, shown, advice)


def _kind(value: object) -> type:
    return type(value)


class Value(BaseModel):
    """An immutable value that is stored as JSON without loss.

    The constructor refuses fields it does not know, at any depth. `from_dict` and `from_json` keep them, and
    `to_dict` and `to_json` write them back, so that a worker of an older version carries the data of a newer one.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="allow", hide_input_in_errors=True, protected_namespaces=(), validate_default=False
    )
    if not TYPE_CHECKING:  # a type checker would take it for a parameter of the constructor
        __pydantic_extra__: dict[str, JsonField]

    def __init__(self, **data: Any) -> None:
        """Raises `InvalidInput`, which names the field, when the data do not fit."""
        try:
            self.__pydantic_validator__.validate_python(data, self_instance=self, extra="forbid")
        except ValidationError as error:
            raise _invalid_input(type(self), error) from None
        _set(self, "__pydantic_fields_set__", _given)

    # Without this mark pydantic would call the constructor for every nested value read from storage.
    __init__.__pydantic_base_init__ = True  # pyright: ignore

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Raises `pydantic.ValidationError`, which names the field, when the data do not fit."""
        return cls.__pydantic_validator__.validate_python(data, extra="allow")

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Raises `pydantic.ValidationError`, which names the field, when it is no JSON or does not fit."""
        made = cls.__pydantic_validator__.validate_json(data, extra="allow")
        _set(made, "__pydantic_fields_set__", _given)
        return made

    def to_dict(self) -> dict[str, Any]:
        """Every field, as plain JSON values."""
        return self.__pydantic_serializer__.to_python(self, mode="json")

    def to_json(self) -> bytes:
        """Compact JSON: fields at their default are left out, and come back as the default."""
        return self.__pydantic_serializer__.to_json(self, exclude_defaults=True)

    def __eq__(self, other: object) -> bool:
        # pydantic's own also compares what a class may add; serializing compares with every default, so it shows.
        if self is other:
            return True
        if not isinstance(other, Value) or type(self) is not type(other):
            return NotImplemented
        return self.__dict__ == other.__dict__ and (self.__pydantic_extra__ or {}) == (other.__pydantic_extra__ or {})

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def _with(self, **changes: Any) -> Self:
        """A copy with these fields, not validated: for named methods that build valid values only."""
        # As `model_copy(update=changes)`, in half the time: what a frozen value holds can be shared, not copied.
        made = type(self).__new__(type(self))
        _set(made, "__dict__", {**self.__dict__, **changes})
        _set(made, "__pydantic_fields_set__", _given)
        _set(made, "__pydantic_extra__", self.__pydantic_extra__)
        _set(made, "__pydantic_private__", None)
        return made
