"""The messages that a model has seen, as places of the session's messages: only what is nowhere else is kept whole.

A compiler or a hook chooses other messages than the usual ones: a summary in front of the newest, for example. They are
described by pieces: `[section, start, stop]` for messages of a section, or a message. `stop` is null for all that there
were, so that the same choice in the next step has the same description.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Final, cast

from ..conversation.messages import Extent, Message, MessageStore
from ..execution.tool_calls import ToolCall

# Each step compares all messages of the conversation: a getter reads their values in one call.
_said: Final[Callable[[Message], tuple[Any, ...]]] = attrgetter("role", "content", "tool_call_id")
_called: Final[Callable[[ToolCall], tuple[Any, ...]]] = attrgetter("id", "name", "args")

Pieces = list[Any]
Place = tuple[str, int]
"""A section, and the index of a message in it."""


def describe_chosen(messages: Sequence[Message], store: MessageStore, seen: Mapping[str, Extent]) -> Pieces:
    """Describe messages by places of a store.

    Args:
        seen: The messages that the record of the step will tell, by section; those behind them have no place.
    """
    reach = _reach(store, seen)
    places = cache(lambda: _places(store, reach))  # not needed where all messages follow one another
    pieces: Pieces = []
    following: Place | None = next(((name, 0) for name, length in reach.items() if length), None)
    for message in messages:
        found = _find(message, places, store, following)
        if found is None:
            pieces.append(message.to_dict())
        elif found == following and pieces:
            pieces[-1][2] += 1
        else:
            pieces.append([*found, found[1] + 1])
        following = None if found is None or found[1] + 1 >= reach[found[0]] else (found[0], found[1] + 1)
    for piece in pieces:
        if isinstance(piece, list) and piece[2] == seen[piece[0]].length:
            piece[2] = None
    return pieces


def read_chosen(pieces: Pieces, read: Callable[[str], Sequence[Message]]) -> Iterator[Message]:
    """The messages of a description.

    Args:
        read: Gives the messages of a section that the step has seen.
    """
    for piece in pieces:
        if isinstance(piece, list):
            section, start, stop = cast("list[Any]", piece)
            yield from read(section)[start:stop]
        else:
            yield Message.from_dict(piece)


def _reach(store: MessageStore, seen: Mapping[str, Extent]) -> dict[str, int]:
    """How many messages of each section can be referred to: those that the store has, too."""
    return {
        name: min(len(section.messages), extent.length)
        for name, section in store.sections.items()
        if (extent := seen.get(name)) is not None and extent.generation == section.generation
    }


def _places(store: MessageStore, reach: Mapping[str, int]) -> dict[Any, Place]:
    """The first place of each message that can be referred to."""
    places: dict[Any, Place] = {}
    for name, length in reach.items():
        for index, message in enumerate(store.section(name).messages[:length]):
            places.setdefault(_key(message), (name, index))
    return places


def _key(message: Message) -> Any:
    """The part of a message that a model sees, but for the names and the arguments of its calls."""
    return *_said(message), *(call.id for call in message.tool_calls)


def _find(
    message: Message, places: Callable[[], Mapping[Any, Place]], store: MessageStore, following: Place | None
) -> Place | None:
    """A place that shows the same to the model: the following one, if it does."""
    if following is not None and _is_same(message, store.section(following[0]).messages[following[1]]):
        return following
    found = places().get(_key(message))
    return found if found is not None and _is_same(message, store.section(found[0]).messages[found[1]]) else None


def _is_same(one: Message, other: Message) -> bool:
    if one is other:
        return True
    return _said(one) == _said(other) and [*map(_called, one.tool_calls)] == [*map(_called, other.tool_calls)]
