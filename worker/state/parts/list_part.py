"""`ListPart`: a part that grows. A commit writes the items that are new, whatever the length of the list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, get_args, get_origin, overload

from pydantic import ValidationError
from pydantic_core import from_json

from ...errors import ConfigurationError, InvalidInput, StateUnreadable
from ..values.frozen import FrozenDict
from .state_part import PartItem, PartScope

Item = TypeVar("Item", bound=PartItem)


class ListPart(Generic[Item], Sequence[Item]):
    """An immutable list of items that a capability owns: `class Notes(ListPart[Note]): part_name = "notes"`.

    Items are stored as JSON and read one by one when they are asked for.

    Attributes:
        part_name: The name under which it is stored; unique among the capabilities of an agent. Never change it.
        scope: Whether it lives as long as the execution or as the session.
        item_type: The class of the items, from the annotation.
    """

    part_name: ClassVar[str] = ""
    scope: ClassVar[PartScope] = PartScope.EXECUTION
    item_type: ClassVar[type[PartItem]]

    __slots__ = ("_stored",)

    def __init_subclass__(cls) -> None:
        for base in getattr(cls, "__orig_bases__", ()):
            if get_origin(base) is ListPart and isinstance(get_args(base)[0], type):
                cls.item_type = get_args(base)[0]
        item_type: object = getattr(cls, "item_type", None)
        if not isinstance(item_type, type) or not issubclass(item_type, PartItem):
            raise ConfigurationError(f"part {cls.__name__}: derive from ListPart[Item] with a PartItem as the item")

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._stored = tuple(_item_json(self, item) for item in items)

    @classmethod
    def from_stored(cls, stored: tuple[bytes, ...]) -> Self:
        """The list of these items as JSON, which are parsed when they are read."""
        part = cls.__new__(cls)
        part._stored = stored
        return part

    @property
    def stored(self) -> tuple[bytes, ...]:
        """The items as JSON."""
        return self._stored

    def append(self, *items: Item) -> Self:
        """The same list with these items at its end."""
        return self.from_stored((*self._stored, *(_item_json(self, item) for item in items)))

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Item, ...]: ...
    def __getitem__(self, index: int | slice) -> Item | tuple[Item, ...]:
        """Parse an item, or some.

        Raises:
            StateUnreadable: A stored item does not fit the item's class.
        """
        if isinstance(index, slice):
            return tuple(self._read(raw) for raw in self._stored[index])
        return self._read(self._stored[index])

    def __iter__(self) -> Iterator[Item]:
        return map(self._read, self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ListPart) and type(self) is type(cast("Any", other)) and self._stored == other._stored

    def __hash__(self) -> int:
        return hash((type(self), self._stored))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r})"

    def _read(self, raw: bytes) -> Item:
        try:
            return cast("Item", self.item_type.from_json(raw))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            reason = f"an item is no {self.item_type.__name__}: {first['msg']}"
            raise StateUnreadable(f"part {self.part_name}", reason) from None


def _item_json(part: ListPart[Any], item: object) -> bytes:
    if not isinstance(item, part.item_type):
        advice = f"give items of {part.item_type.__name__}."
        raise InvalidInput(f"{type(part).__name__}.append", type(item), advice)
    raw = item.to_json()
    FrozenDict(from_json(raw))  # a session with what is no JSON value could not be read again
    return raw
