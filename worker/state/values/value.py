"""`Value`: the base of everything the state holds."""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ...errors import InvalidInput
from .field_types import JsonField
from .frozen import FrozenMap
from .pydantic_internals import models

Init = TypeVar("Init", bound=Callable[..., None])

_fill, _read_dict, _read_json = models.fill, models.read_dict, models.read_json
_write_dict, _write_json, _copy, _extra = models.write_dict, models.write_json, models.copy, models.extra


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


def skip_when_reading(constructor: Init) -> Init:
    """Mark a constructor of values; without the mark pydantic calls it for each nested value read from storage."""
    constructor.__pydantic_base_init__ = True  # pyright: ignore
    return constructor


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

    @skip_when_reading
    def __init__(self, **data: Any) -> None:
        """Raises `InvalidInput`, which names the field, when the data do not fit."""
        try:
            _fill(self, data)
        except ValidationError as error:
            raise _invalid_input(type(self), error) from None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Raises `pydantic.ValidationError`, which names the field, when the data do not fit."""
        return _read_dict(cls, data)

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Raises `pydantic.ValidationError`, which names the field, when it is no JSON or does not fit."""
        return _read_json(cls, data)

    def to_dict(self) -> dict[str, Any]:
        """Every field, as plain JSON values."""
        return _write_dict(self)

    def to_json(self) -> bytes:
        """Compact JSON: fields at their default are left out, and come back as the default."""
        return _write_json(self)

    @property
    def model_extra(self) -> dict[str, Any] | None:
        """The unknown fields that it carries; they refuse to change, since copies share them."""
        return FrozenMap[Any].of(_extra(self))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the value with other fields, checked as the constructor checks them; unknown fields are kept.

        Raises:
            InvalidInput: A field is unknown, or its value does not fit.
        """
        del deep  # what an immutable value holds is shared
        if not update:
            return self
        checked = type(self)(**{**self.__dict__, **update})
        return self._with(**{name: getattr(checked, name) for name in update})

    def __eq__(self, other: object) -> bool:
        # pydantic's own also compares what a class may add; serializing compares with every default, so it shows.
        if self is other:
            return True
        if not isinstance(other, Value) or type(self) is not type(other):
            return NotImplemented
        return self.__dict__ == other.__dict__ and _extra(self) == _extra(other)

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def _with(self, **changes: Any) -> Self:
        """A copy with these fields, not validated: for named methods that build valid values only."""
        return _copy(self, changes)
