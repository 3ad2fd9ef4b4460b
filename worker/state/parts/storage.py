"""Parts as they stand in the state: JSON by name, which a worker carries whether it knows the capability or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, cast

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, core_schema, from_json, to_json

from ...errors import InvalidInput, StateUnreadable
from ..values.field_types import Count, FrozenMapField
from ..values.frozen import FrozenDict, FrozenMap
from ..values.value import Value
from .list_part import ListPart
from .state_part import StatePart, check_part_name

AnyPart = StatePart | ListPart[Any]
Part = TypeVar("Part", bound=AnyPart)


class _JsonItems:
    """Annotation: a tuple of JSON texts, which is a JSON array when the state is serialized."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _items_of,
            json_schema_input_schema=core_schema.list_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(_items_as_json),
        )


def _items_of(values: Any) -> tuple[bytes, ...]:
    if not isinstance(values, (list, tuple)):
        raise InvalidInput("items", None, "give a list of JSON values.")
    return tuple(item if isinstance(item, bytes) else to_json(item) for item in cast("list[Any]", values))


def _items_as_json(items: tuple[bytes, ...]) -> list[Any]:
    return [from_json(item) for item in items]


class PartList(Value):
    """An append-only list of JSON items. Replacing its items begins a new generation."""

    generation: Count = 0
    items: Annotated[tuple[bytes, ...], _JsonItems] = ()

    def with_items(self, items: tuple[bytes, ...]) -> PartList:
        """The same generation with these items, as a store reads them back."""
        return self._with(items=items)

    def followed_by(self, items: tuple[bytes, ...]) -> PartList:
        """These items as the list's next content: appended where they begin with the present ones, else replaced."""
        if items[: len(self.items)] == self.items:
            return self if len(items) == len(self.items) else self._with(items=items)
        return PartList(generation=self.generation + 1).with_items(items)

    def following(self, before: PartList | None) -> PartList:
        """The same items with the generation that they have when they come after that list."""
        if before is None or self is before:
            return self
        if self.generation == before.generation and self.items[: len(before.items)] == before.items:
            return self
        return self._with(generation=before.generation + 1)


class StoredParts(Value):
    """The parts of one scope.

    Attributes:
        values: Small parts, as JSON objects.
        lists: Parts that grow.
    """

    values: FrozenMapField[FrozenDict] = FrozenMap[FrozenDict]()
    lists: FrozenMapField[PartList] = FrozenMap[PartList]()

    def with_part(self, part: AnyPart) -> StoredParts:
        """The same parts with this one, in place of the former one of its name.

        Raises:
            InvalidInput: A part of the other kind, a value or a list, is stored under this name.
        """
        name = check_part_name(type(part))
        if name in (self.lists if isinstance(part, StatePart) else self.values):
            raise InvalidInput(name, type(part), "a part of another kind is stored under this name; use another name.")
        if isinstance(part, StatePart):
            return self._with(values=self.values.with_item(name, FrozenDict(from_json(part.to_json()))))
        return self.with_list(name, self.lists.get(name, _NO_ITEMS).followed_by(part.stored))

    def with_list(self, name: str, items: PartList) -> StoredParts:
        """The same parts with another list under this name."""
        return self._with(lists=self.lists.with_item(name, items))

    def following(self, before: StoredParts | None) -> StoredParts:
        """The same parts with the generations that their lists have when they come after those."""
        old = before.lists if before is not None else FrozenMap[PartList]()
        return self.with_lists({name: items.following(old.get(name)) for name, items in self.lists.items()})

    def with_lists(self, lists: Mapping[str, PartList]) -> StoredParts:
        """The same parts with exactly these lists, as a store reads them back."""
        return self._with(lists=FrozenMap[PartList].of(lists)) if lists else self

    def without(self, name: str) -> StoredParts:
        """The same parts without a value, or with an emptied list: readers must not take a later one for the former."""
        if name in self.lists:
            return self.with_list(name, self.lists[name].followed_by(()))
        return self._with(values=self.values.without(name))

    def __contains__(self, name: object) -> bool:
        return name in self.values or name in self.lists

    def part(self, kind: type[Part]) -> Part | None:
        """The part of this kind; None where it is not stored.

        Raises:
            StateUnreadable: The value stored under its name does not fit its class.
        """
        name = check_part_name(kind)
        if issubclass(kind, ListPart):
            items = self.lists.get(name)
            return None if items is None else kind.from_stored(items.items)
        value = self.values.get(name)
        if value is None:
            return None
        try:
            return kind.from_json(to_json(value))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise StateUnreadable(f"part {name}", f"{where}: {first['msg']}") from None


_NO_ITEMS = PartList()
NO_PARTS = StoredParts()
