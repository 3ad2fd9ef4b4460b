"""The values of live text: what a worker writes, what a reader gets, and the cursor over both streams."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Self

from ...errors import InvalidInput
from ..control import live_mark
from ..records import Claim

TEXT: Final = "text"
"""The part that is the text of the model's answer."""

_ENTRY_ID: Final = r"\d{1,15}(-\d{1,20})?"
_CURSOR: Final = re.compile(rf"({_ENTRY_ID})(?:\+({_ENTRY_ID}))?")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One claim of a step as a writer of live text.

    Attributes:
        legs: How often the step had waited when it was claimed.
    """

    claim: Claim
    legs: int = 0

    @property
    def mark(self) -> str:
        """The mark that stands in the control fields while this attempt's text is the one that counts."""
        return live_mark(self.claim.ref.step, self.legs, self.claim.id)


@dataclass(frozen=True, slots=True)
class NewDelta:
    """A piece of live text to be written.

    Attributes:
        call: Number of the driver call within the attempt, from 1; 0 for a tool.
        part: `text`, `thinking`, or `t<index>` of a tool call.
        offset: How many characters of this part came before it.
        text: The piece; "" where `data` is set.
        data: JSON of a value that a tool has emitted; None for text.
    """

    call: int
    part: str
    offset: int
    text: str = ""
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class LiveDelta:
    """A piece of text that a step has written and not committed yet, or a value that a tool has emitted.

    It is provisional until the step is committed; an event `attempt_voided` takes it back.

    Attributes:
        id: Its place in the stream of live text; "" for the end of a text, which has come with the commit.
        at_ms: Redis time.
        step: Number of the step, from 1.
        attempt: The attempt at the step; opaque, and different for each.
        call: Number of the model call within the attempt, from 1; 0 for a tool.
        part: `text` (the answer), `thinking`, or `t<index>` (what the tool call with this index emits).
        offset: How many characters of this part came before it. More than a reader has: something is missing between.
        text: The piece; "" where the tool has emitted data.
        data: What the tool has emitted, when that is no text; else None.
    """

    id: str
    at_ms: int
    session_id: str
    execution_id: str
    step: int
    attempt: str
    call: int
    part: str
    offset: int
    text: str
    data: Any = None


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A place in the two streams of a session: the last event and the last piece of live text that a reader has."""

    event: str = "0"
    live: str = "0"

    @classmethod
    def read(cls, cursor: str | None) -> Self:
        """Read a cursor; None is the beginning. The id of an event alone is a cursor without live text.

        Raises:
            InvalidInput: It is no cursor.
        """
        if cursor is None:
            return cls()
        found = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
        if found is None:
            raise InvalidInput("after", cursor, "give the cursor of an item of this stream, or the id of an event")
        return cls(found[1], found[3] or "0")

    def is_before(self, entry_id: str, *, is_event: bool) -> bool:
        """Whether an entry comes after this place, in the stream that it is of."""
        return entry_order(self.event if is_event else self.live) < entry_order(entry_id)

    @property
    def cursor(self) -> str:
        """The opaque text by which a reader comes back to this place."""
        return f"{self.event}+{self.live}"


def entry_order(entry_id: str) -> tuple[int, int]:
    """Turn the id of an entry into what sorts as the entries were stored."""
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)
