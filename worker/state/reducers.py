"""Reducers: functions that combine the present value with the value that a branch of parallel work brings.

A reducer is pure and takes `(current, update)`. None counts as empty: it never fails and never hides the other value.
So the values of any number of branches can be combined one after another, beginning with None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from ..errors import InvalidInput
from .conversation.messages import Message

Reducer = Callable[[Any, Any], Any]
"""Combines the present value (None: there is none) with an update."""

CLEAR_MESSAGES: Final = "__clear__"
"""As the update of `add_messages`: drop every message."""


def add_messages(current: Any, update: Any) -> list[Any]:
    """Append one message or several; a message with an `id` that is present replaces the present one in its place.

    Args:
        current: Messages, or their JSON objects; None: no messages.
        update: One message, a list of messages, or `CLEAR_MESSAGES`, which drops all.
    Raises:
        InvalidInput: The update is some other text, or is no message.
    """
    if isinstance(update, str):
        if update == CLEAR_MESSAGES:
            return []
        raise InvalidInput("add_messages(update)", str, "give messages, or CLEAR_MESSAGES to drop all of them.")
    merged = list(_items(current, "add_messages(current)"))
    for message in [update] if _is_message(update) else _items(update, "add_messages(update)"):
        known = _message_id(message)
        places = [place for place, each in enumerate(merged) if known is not None and _message_id(each) == known]
        if places:
            merged[places[0]] = message
        else:
            merged.append(message)
    return merged


def merge_dict(current: Any, update: Any) -> dict[str, Any]:
    """All keys of both; where both have one, the update's value."""
    return {**_entries(current, "merge_dict(current)"), **_entries(update, "merge_dict(update)")}


def deep_merge_dict(current: Any, update: Any) -> dict[str, Any]:
    """All keys of both, objects within objects too; any other value, and lists, are the update's."""
    merged = dict(_entries(current, "deep_merge_dict(current)"))
    for key, value in _entries(update, "deep_merge_dict(update)").items():
        present = merged.get(key)
        both = isinstance(present, Mapping) and isinstance(value, Mapping)
        merged[key] = deep_merge_dict(present, value) if both else value
    return merged


def append_list(current: Any, update: Any) -> list[Any]:
    """The items of both, in order; a value that is no list counts as one item."""
    return [*_items_or_one(current), *_items_or_one(update)]


def unique_append_list(current: Any, update: Any) -> list[Any]:
    """The items of both in order, each value once."""
    unique: list[Any] = []
    for item in append_list(current, update):
        if item not in unique:
            unique.append(item)
    return unique


def add_numbers(current: Any, update: Any) -> Any:
    """The sum; None counts as 0."""
    return _number(current, "add_numbers(current)", 0) + _number(update, "add_numbers(update)", 0)


def max_value(current: Any, update: Any) -> Any:
    """The larger value; None is smaller than everything."""
    return first_value(current, update) if current is None or update is None else max(current, update)


def min_value(current: Any, update: Any) -> Any:
    """The smaller value; None is larger than everything."""
    return first_value(current, update) if current is None or update is None else min(current, update)


def first_value(current: Any, update: Any) -> Any:
    """The value that came first."""
    return update if current is None else current


def last_value(current: Any, update: Any) -> Any:
    """The value that came last."""
    return current if update is None else update


def set_union(current: Any, update: Any) -> Any:
    """Every value of both once: a set where one of them is a set, else a list in the order of first appearance."""
    if _is_set(current) or _is_set(update):
        return set(_items(current, "set_union(current)")) | set(_items(update, "set_union(update)"))
    return unique_append_list(list(_items(current, "set_union(current)")), list(_items(update, "set_union(update)")))


def _is_set(value: object) -> bool:
    return isinstance(value, set | frozenset)


def _is_one(value: object) -> bool:
    return value is not None and not isinstance(value, list | tuple)


def _is_message(value: object) -> bool:
    return isinstance(value, Message | Mapping)


def _message_id(message: object) -> object:
    """The id of a message, in its metadata or in its JSON object; None without one."""
    if isinstance(message, Message):
        return message.metadata.get("id")
    if isinstance(message, Mapping):
        return cast("Mapping[str, object]", message).get("id")
    raise InvalidInput("add_messages", type(message), "give messages, or their JSON objects.")


def _items(value: object, field: str) -> Iterable[Any]:
    if value is None:
        return ()
    if isinstance(value, list | tuple | set | frozenset):
        return cast("Iterable[Any]", value)
    raise InvalidInput(field, type(value), "give a list or None.")


def _items_or_one(value: object) -> Iterable[Any]:
    return [value] if _is_one(value) else _items(value, "append_list")


def _entries(value: object, field: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    raise InvalidInput(field, type(value), "give a JSON object or None.")


def _number(value: object, field: str, empty: float) -> Any:
    if value is None:
        return empty
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise InvalidInput(field, type(value), "give a number or None.")
