"""The base classes of typed parts, and where a part belongs."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Self

from pydantic import ConfigDict

from ...errors import ConfigurationError
from ..values.ids import ID_PATTERN
from ..values.value import Value, models


class PartScope(StrEnum):
    """How long a part lives."""

    EXECUTION = "execution"
    """Until the next execution starts; a retry keeps it."""

    SESSION = "session"
    """As long as the session."""


class PartValue(Value):
    """A value that is stored whole, fields at their default included: another default later changes nothing stored."""

    model_config: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False, ser_json_inf_nan="constants")

    def to_json(self) -> bytes:
        """Compact JSON of every field."""
        return models.write_json(self, exclude_defaults=False)

    def replace(self, **changes: Any) -> Self:
        """The same value with other fields, validated; fields of a newer version are kept.

        Raises:
            InvalidInput: A field is unknown, or its value does not fit.
        """
        checked = type(self)(**{**self.__dict__, **changes})
        return self._with(**checked.__dict__)


class PartItem(PartValue):
    """One item of a `ListPart`. Derive from it and annotate the fields."""


class StatePart(PartValue):
    """A small part of the state that a capability owns. Derive from it, name it, and give every field a default.

    Attributes:
        part_name: The name under which it is stored; unique among the capabilities of an agent. Never change it.
        scope: Whether it lives as long as the execution or as the session.
    """

    part_name: ClassVar[str] = ""
    scope: ClassVar[PartScope] = PartScope.EXECUTION


def check_part_name(kind: type[Any]) -> str:
    """The name of a kind of part.

    Raises:
        ConfigurationError: The class has none, or one that cannot be part of a key.
    """
    name: object = getattr(kind, "part_name", "")
    if not isinstance(name, str) or ID_PATTERN.fullmatch(name) is None:
        raise ConfigurationError(
            f"part {kind.__name__}: set part_name to 1 to 64 letters, digits, '_' or '-', beginning with a letter or "
            f"digit, not {name!r:.80}"
        )
    return name


def check_defaults(kind: type[StatePart]) -> None:
    """Refuse a kind of part that cannot be read from a state which does not hold it yet.

    Raises:
        ConfigurationError: A field has no default.
    """
    missing = [name for name, field in kind.model_fields.items() if field.is_required()]
    if missing:
        raise ConfigurationError(
            f"part {kind.__name__}: give {', '.join(missing)} a default, which a new session reads"
        )
