"""The undocumented parts of pydantic that this package uses, in one place, and the documented way for each.

`MISSING` names what the installed pydantic lacks; when it names anything, the documented way does the work. The
undocumented one reads a step's values in two thirds and copies them in half of the time, and stored steps need half the
memory: pydantic notes for each value which fields were given, in a set larger than most values, and no code here asks.

The functions are methods of `Value`, and become so without a call in between.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeVar

from pydantic import BaseModel

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
    def extra(value: BaseModel) -> dict[str, Any]:
        """The unknown fields that a value carries."""
        return value.__pydantic_extra__ or {}

    @staticmethod
    def copy(value: M, changes: dict[str, Any]) -> M:
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
    def extra(value: BaseModel) -> dict[str, Any]:
        """As `Internals.extra`."""
        return value.__pydantic_extra__ or {}

    @staticmethod
    def copy(value: M, changes: dict[str, Any]) -> M:
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
