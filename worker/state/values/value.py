"""`Value`: the base of everything the state holds, and how it uses pydantic.

The undocumented parts of pydantic that this package uses are in `Internals`, the documented way for each of them in
`Documented`. `MISSING` names what the installed pydantic lacks; when it names anything, the documented way does the
work. The undocumented one reads a step's values in two thirds and copies them in half of the time, and stored steps
need half the memory: pydantic notes for each value which fields were given, in a set larger than most values, and no
code here asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from ...errors import InvalidInput
from .field_types import JsonField
from .frozen import FrozenMap

Init = TypeVar("Init", bound=Callable[..., None])
M = TypeVar("M", bound=BaseModel)

_set: Final = object.__setattr__
_new: Final = object.__new__
_GIVEN: Final[set[str]] = set()
_is_reading: ContextVar[bool] = ContextVar("celery_agents_is_reading", default=False)


def probe() -> tuple[str, ...]:
    """Look for the undocumented attributes; the names of those that are not as expected."""

    class Probe(BaseModel):
        text: str = ""

    value = Probe(text="x")
    expected = (
        ("__init__.__pydantic_base_init__", getattr(BaseModel.__init__, "__pydantic_base_init__", None) is True),
        ("__pydantic_validator__", hasattr(getattr(Probe, "__pydantic_validator__", None), "validate_json")),
        ("__pydantic_serializer__", hasattr(getattr(Probe, "__pydantic_serializer__", None), "to_json")),
        ("__pydantic_fields_set__", hasattr(value, "__pydantic_fields_set__")),
        ("__pydantic_extra__", hasattr(value, "__pydantic_extra__")),
        ("__pydantic_private__", hasattr(value, "__pydantic_private__")),
    )
    return tuple(f"pydantic.BaseModel.{name}" for name, fits in expected if not fits)


def _setter_of(slot: str) -> Callable[[BaseModel, Any], None]:
    """The function that sets a slot of a value, which is frozen; a third quicker than by the slot's name."""
    found: Any = BaseModel.__dict__.get(slot)
    return getattr(found, "__set__", lambda value, given: _set(value, slot, given))


_set_given: Final = _setter_of("__pydantic_fields_set__")
_set_extra: Final = _setter_of("__pydantic_extra__")
_set_private: Final = _setter_of("__pydantic_private__")


class Internals:
    """The undocumented way."""

    @staticmethod
    def fill(value: BaseModel, data: dict[str, Any]) -> None:
        """Validate the arguments of a constructor into a value; an unknown field is refused at any depth."""
        value.__pydantic_validator__.validate_python(data, self_instance=value, extra="forbid")
        _set(value, "__pydantic_fields_set__", _GIVEN)

    @staticmethod
    def read_dict(kind: type[M], data: dict[str, Any]) -> M:
        """Validate data read from storage; unknown fields are kept."""
        return kind.__pydantic_validator__.validate_python(data, extra="allow")

    @staticmethod
    def read_json(kind: type[M], data: bytes | str) -> M:
        """Validate JSON read from storage; unknown fields are kept."""
        value = kind.__pydantic_validator__.validate_json(data, extra="allow")
        _set(value, "__pydantic_fields_set__", _GIVEN)
        return value

    @staticmethod
    def strict_json_reader(kind: type[M]) -> Callable[[bytes], M]:
        """Make the function that validates JSON strictly; the kind's own configuration decides about unknown fields."""
        return partial(kind.__pydantic_validator__.validate_json, strict=True)

    @staticmethod
    def write_dict(value: BaseModel) -> dict[str, Any]:
        """Every field, as plain JSON values."""
        return value.__pydantic_serializer__.to_python(value, mode="json")

    @staticmethod
    def write_json(value: BaseModel, exclude: Any = None, *, exclude_defaults: bool = True) -> bytes:
        """Compact JSON."""
        return value.__pydantic_serializer__.to_json(value, exclude=exclude, exclude_defaults=exclude_defaults)

    @staticmethod
    def copy(value: M, /, **changes: Any) -> M:
        """As `model_copy(update=changes)`, which validates nothing; what a frozen value holds is shared, not copied."""
        copied = _new(type(value))
        items: Any = copied.__dict__
        items.update(value.__dict__)
        items.update(changes)
        _set_given(copied, _GIVEN)
        _set_extra(copied, value.__pydantic_extra__)
        _set_private(copied, None)
        return copied


class Documented:
    """The same with documented methods only."""

    @staticmethod
    def fill(value: BaseModel, data: dict[str, Any]) -> None:
        """As `Internals.fill`."""
        if not _is_reading.get():
            with _reading():  # pydantic may build nested values, and this one again, by their constructor
                type(value).model_validate(data, extra="forbid")
                BaseModel.__init__(value, **data)
            return
        BaseModel.__init__(value, **data)

    @staticmethod
    def read_dict(kind: type[M], data: dict[str, Any]) -> M:
        """As `Internals.read_dict`."""
        with _reading():
            return kind.model_validate(data, extra="allow")

    @staticmethod
    def read_json(kind: type[M], data: bytes | str) -> M:
        """As `Internals.read_json`."""
        with _reading():
            return kind.model_validate_json(data, extra="allow")

    @staticmethod
    def strict_json_reader(kind: type[M]) -> Callable[[bytes], M]:
        """As `Internals.strict_json_reader`."""
        return partial(kind.model_validate_json, strict=True)

    @staticmethod
    def write_dict(value: BaseModel) -> dict[str, Any]:
        """As `Internals.write_dict`."""
        return value.model_dump(mode="json")

    @staticmethod
    def write_json(value: BaseModel, exclude: Any = None, *, exclude_defaults: bool = True) -> bytes:
        """As `Internals.write_json`."""
        return value.model_dump_json(exclude=exclude, exclude_defaults=exclude_defaults).encode()

    @staticmethod
    def copy(value: M, /, **changes: Any) -> M:
        """As `Internals.copy`."""
        copied: Any = BaseModel.model_copy(value, update=changes)
        return copied


@contextmanager
def _reading() -> Generator[None]:
    token = _is_reading.set(True)
    try:
        yield
    finally:
        _is_reading.reset(token)


MISSING: Final = probe()
"""The undocumented attributes that the installed pydantic lacks."""

models: Final[type[Internals] | type[Documented]] = Documented if MISSING else Internals
"""The way that works with the installed pydantic."""


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
    shown = given if isinstance(given, int | float | None) else type(cast("object", given))
    advice = "there is no such field." if problem["type"] == "extra_forbidden" else f"{problem['msg']}."
    return InvalidInput(field, shown, advice)


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
            models.fill(self, data)
        except ValidationError as error:
            raise _invalid_input(type(self), error) from None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Raises `pydantic.ValidationError`, which names the field, when the data do not fit."""
        return models.read_dict(cls, data)

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Raises `pydantic.ValidationError`, which names the field, when it is no JSON or does not fit."""
        return models.read_json(cls, data)

    def to_dict(self) -> dict[str, Any]:
        """Every field, as plain JSON values."""
        return models.write_dict(self)

    def to_json(self) -> bytes:
        """Compact JSON: fields at their default are left out, and come back as the default."""
        return models.write_json(self)

    @property
    def model_extra(self) -> dict[str, Any] | None:
        """The unknown fields that it carries; they refuse to change, since copies share them."""
        return FrozenMap[Any].of(self.__pydantic_extra__ or {})

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
        return self.__dict__ == other.__dict__ and (self.__pydantic_extra__ or {}) == (other.__pydantic_extra__ or {})

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    if TYPE_CHECKING:

        def _with(self, **changes: Any) -> Self:
            """A copy with these fields, not validated: for named methods that build valid values only."""
            ...
    else:
        _with = models.copy  # so that a copy is one call
