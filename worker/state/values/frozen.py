"""JSON values that cannot change: mappings as `FrozenDict`, arrays as tuples.

What enters the state from outside (tool results, metadata, arguments, a provider's data) is frozen once, at the
border, and refused there with the path named when it is not JSON. After that it is shared freely between copies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias, TypeVar, cast

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from ...errors import InvalidInput

MAX_DEPTH = 100
"""Deepest nesting of a JSON value. The JSON parser stops at 200, and a value sits some levels deep in the state."""

DOCUMENT_LEVELS = 50
"""Levels that a stored document, such as a whole state, may have above the JSON values in it."""

MAX_INT_BITS = 4096
"""Longest integer. Python and the JSON parser refuse to read more than 4300 digits."""

V = TypeVar("V")
Json: TypeAlias = "bool | int | float | str | tuple[Json, ...] | FrozenDict | None"


# The constructor and the method of a dict, which its frozen subclasses hide.
_new: Any = dict.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
_fill: Any = dict.update  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


class FrozenMap(dict[str, V]):
    """A dict that refuses to change. Equal to a plain dict of the same items."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(self, items: Mapping[str, V] | Iterable[tuple[str, V]] = (), /, **more: V) -> None: ...

    else:

        def __new__(cls, items=(), /, **more):
            """Build it here and not in `__init__`, which anybody may call again."""
            return cls._fill_new(cls._check({**dict(items), **more}))

        def __init__(self, *_args, **_kwargs) -> None:
            """Do nothing: the items are there."""

    @classmethod
    def _fill_new(cls, items: Mapping[str, V]) -> Self:
        frozen = _new(cls)
        _fill(frozen, items)
        return frozen

    @classmethod
    def _check(cls, items: dict[str, V]) -> dict[str, V]:
        return items

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be changed; build a new one with .with_item(key, value)")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse  # pyright: ignore

    @classmethod
    def of(cls, items: Mapping[str, V]) -> FrozenMap[V]:
        """Take over items whose values are already immutable; nothing is checked."""
        frozen = _new(cls)  # as in `_fill_new`; calling that would be one more call for each value that is read
        _fill(frozen, items)
        return frozen

    def with_item(self, key: str, value: V) -> FrozenMap[V]:
        """The same mapping with one item more, or with another value for it."""
        return self.of({**self, key: value})

    def without(self, key: str) -> FrozenMap[V]:
        """The same mapping without this key."""
        return self.of({name: value for name, value in self.items() if name != key})

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))

    def __copy__(self) -> FrozenMap[V]:
        return self

    def __deepcopy__(self, _memo: object) -> FrozenMap[V]:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return type(self).of, (dict(self),)


class FrozenDict(FrozenMap["Json"]):
    """A JSON object that cannot change, at any depth.

    Raises:
        InvalidInput: A key or value is not JSON, too deep or too long; the path says which.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # any JSON value is taken, and is a frozen one afterwards

        def __init__(self, items: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **more: Any) -> None: ...

    @classmethod
    def _check(cls, items: dict[str, Any]) -> dict[str, Json]:
        return _frozen_items(items, "value", 1)

    @classmethod
    def of(cls, items: Mapping[str, Json]) -> FrozenDict:
        """Take over items that are frozen already; nothing is checked."""
        frozen = _new(cls)
        _fill(frozen, items)
        return frozen

    def with_item(self, key: str, value: Any) -> FrozenDict:
        """The same with one item more, or with another value for it; the value is frozen."""
        return self.of({**self, _key(key, "key"): freeze(value, key, 1)})

    def without(self, key: str) -> FrozenDict:
        """The same mapping without this key."""
        return cast("FrozenDict", super().without(key))

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(_to_frozen_dict, json_schema_input_schema=_OBJECT)


_OBJECT = core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema())


def freeze(value: Any, path: str = "value", depth: int = 0) -> Json:
    """The same JSON value, immutable at every depth.

    Args:
        value: None, bool, int, float, str, and lists, tuples and mappings of these.
        path: What to call it in an error.
        depth: Levels already above it.
    Raises:
        InvalidInput: It is not JSON (NaN and infinities are not), nests deeper than 100 levels, holds an integer of
            more than 4096 bits or text that is no Unicode (a lone surrogate).
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return check_text(value, path)
    if isinstance(value, int):
        return _checked_int(value, path)
    if isinstance(value, float):
        return _checked_float(value, path)
    if depth >= MAX_DEPTH:
        raise InvalidInput(path, _kind(value), f"JSON values may nest {MAX_DEPTH} levels deep at most; flatten it.")
    if isinstance(value, Mapping):
        return FrozenDict.of(_frozen_items(cast("Mapping[Any, Any]", value), path, depth + 1))
    if isinstance(value, (list, tuple)):
        items = cast("list[Any] | tuple[Any, ...]", value)
        return tuple([freeze(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(items)])
    raise InvalidInput(
        path, _kind(value), "this is not a JSON value; give text, numbers, booleans, None, lists or dicts."
    )


def freeze_document(value: Any) -> Json:
    """The same as `freeze` makes of it, for a document with JSON values in it that nest as deep as they may."""
    return freeze(value, "value", -DOCUMENT_LEVELS)


def thaw(value: Json) -> Any:
    """The same value as plain dicts and lists, which may be changed."""
    if isinstance(value, dict):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [thaw(item) for item in value]
    return value


def check_text(value: str, path: str = "text") -> str:
    """The text as an exact `str`, refused when UTF-8 cannot hold it. NUL and all other characters are kept."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            advice = "this text holds half of a surrogate pair and is no Unicode; decode it properly or replace it."
            raise InvalidInput(path, value[error.start : error.end], advice) from None
    return value if type(value) is str else str.__str__(value)


def _kind(value: object) -> type:
    return type(value)


def _frozen_items(items: Mapping[Any, Any], path: str, depth: int) -> dict[str, Json]:
    frozen: dict[str, Json] = {}
    for name, value in items.items():
        # Most keys and values are ASCII text; what to call them costs more than to look at them.
        key = name if type(name) is str and name.isascii() else _key(name, path)
        frozen[key] = value if type(value) is str and value.isascii() else freeze(value, f"{path}.{key}", depth)
    return frozen


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise InvalidInput(path, key, "keys of a JSON object must be text; convert them with str().")
    return check_text(key, path)


def _checked_int(value: int, path: str) -> int:
    if value.bit_length() > MAX_INT_BITS:
        raise InvalidInput(path, _kind(value), f"integers may be {MAX_INT_BITS} bits long at most; pass it as text.")
    return int(value)


def _checked_float(value: float, path: str) -> float:
    if not math.isfinite(value):
        raise InvalidInput(path, value, "JSON has no NaN and no infinity; use None or a text.")
    return float(value)


def _to_frozen_dict(value: Any) -> FrozenDict:
    if isinstance(value, FrozenDict):
        return value
    if not isinstance(value, Mapping):
        raise InvalidInput("value", _kind(value), "a JSON object is needed; give a dict with text keys.")
    return FrozenDict.of(_frozen_items(cast("Mapping[Any, Any]", value), "value", 1))
