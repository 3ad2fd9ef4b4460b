"""The bookkeeping of a session: what the store knows besides its state.

It changes with the session's version only; but ids of messages that are taken back come without a new version, since a
step that runs has no conflict by them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from ..errors import StateUnreadable
from ..state.execution.children import ParentLink
from ..unique import unique_bytes
from . import fields

BOOKKEEPING: Final = ("ops", "executions", "notify", "lineage", "parent", "past", "asked")
_MARK_BYTES: Final = 4
# A process whose cached session is more saves old reads it in full.
_MARKS: Final = 32


@dataclass(frozen=True, slots=True)
class Bookkeeping:
    """A session's bookkeeping at one version.

    Attributes:
        operations: Recent operation ids, oldest first.
        executions: Executions whose steps are kept, oldest first.
        notify: Whom to tell of an execution's end, by operation; JSON as stored.
        lineage: A random mark of each of the last saves, newest first. A Redis that lost what it had acknowledged gives
            the numbers of the lost versions again, to others; a lineage is never the same.
        parent: The place of a child in its tree, as stored (`ParentLink`); None for a session without a parent.
        past: What is known of its old values, as stored (`Past`); None where none are kept yet.
        asked: What its last step has asked the model (`Asked.facts`); None where that is not known.
    """

    operations: tuple[str, ...] = ()
    executions: tuple[str, ...] = ()
    notify: bytes | None = None
    lineage: bytes = b""
    parent: bytes | None = None
    past: bytes | None = None
    asked: bytes | None = None

    @classmethod
    def read(cls, *stored: bytes | None) -> Bookkeeping:
        """Parse the fields `BOOKKEEPING` of a session's hash."""
        operations, executions, notify, lineage, parent, past, asked = stored
        return cls(
            operations=fields.strings(operations),
            executions=fields.strings(executions),
            notify=notify,
            lineage=lineage or b"",
            parent=parent,
            past=past,
            asked=asked,
        )

    @property
    def link(self) -> ParentLink | None:
        """The place of a child in its tree; see `read_link`."""
        return read_link(self.parent)

    def next_lineage(self) -> bytes:
        """Make the lineage of the next save: a new mark before the older ones."""
        return (unique_bytes(_MARK_BYTES) + self.lineage)[: _MARKS * _MARK_BYTES]


def remembers(saves: int) -> bool:
    """Whether a lineage has the marks of `saves` saves."""
    return saves < _MARKS


def descends(lineage: bytes, older: bytes, saves: int) -> bool:
    """Whether a session of this lineage was, `saves` saves ago, the one with the older lineage.

    False too where it is unknown: it is too long ago.
    """
    place = saves * _MARK_BYTES
    return saves >= 0 and bool(older) and lineage[place : place + _MARK_BYTES] == older[:_MARK_BYTES]


def common_version(lineage: bytes, version: int, other: bytes, other_version: int) -> tuple[int, bytes] | None:
    """The newest version that two lineages share, with its mark; None: none that both still know."""
    marks = _marks(lineage, version)
    for number, mark in _marks(other, other_version).items():
        if marks.get(number) == mark:
            return number, mark
    return None


def _marks(lineage: bytes, version: int) -> dict[int, bytes]:
    """The marks of a lineage by version, the newest first."""
    places = range(0, len(lineage), _MARK_BYTES)
    return {version - place // _MARK_BYTES: lineage[place : place + _MARK_BYTES] for place in places}


def read_link(raw: bytes | None) -> ParentLink | None:
    """Parse the field `parent` of a session; None for a session without a parent.

    Raises:
        StateUnreadable: It is damaged.
    """
    if not raw:
        return None
    try:
        return ParentLink.from_json(raw)
    except ValidationError:
        raise StateUnreadable("parent", "it names no parent") from None
