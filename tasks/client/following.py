"""Following the stream of a session: its events and its live text, until the reader has enough."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ...worker.errors import (
    ArchiveUnavailable,
    SessionArchived,
    SessionExpired,
    SessionNotFound,
    StoreForbidden,
    StoreUnavailable,
)
from ...worker.store.event_records import EXECUTION_ENDS, Event, EventType
from ...worker.store.live.streams import PAGE, Entry, StreamPosition, entry_order, moved_on
from ...worker.store.store import Store
from .stream_items import DeltaFilter, StreamItem

_STEP_IS_DONE: Final = EXECUTION_ENDS | {EventType.STEP_COMMITTED}
_BLOCK_SECONDS: Final = 2.0
_LOST_CONNECTION_SECONDS: Final = 0.5
FOLLOW_MARK_SECONDS: Final = 20.0
"""How often a reader says that it follows a session."""
_BEHIND_ALL_TEXT: Final = "999999999999999-0"


class SessionReader:
    """Reads the stream of one session from a cursor on.

    Attributes:
        position: Behind the last item that was made.
        is_quiet: The last read has found nothing, not even text that does not count.
        has_more: The last read has found a full page, so that more may be stored.
    """

    def __init__(self, store: Store, session_id: str, after: str | None, *, is_live: bool = True) -> None:
        """
        Args:
            after: Cursor of the last item that the reader has; None: from the beginning.
            is_live: False: it gets events alone, each with its id as cursor.
        Raises:
            InvalidInput: `after` is no cursor.
        """
        self._store = store
        self._session_id = session_id
        self._after = after
        self._is_live = is_live
        found = StreamPosition.read(after)
        self.position = found if is_live else replace(found, live=_BEHIND_ALL_TEXT)
        self.is_quiet = False
        self.has_more = True
        self._filter = DeltaFilter(resumes=after is not None)
        self._followed_at: float | None = None

    def begin(self) -> bool:
        """Register the reader, and tell whether events that it lacks were there and are not stored any more.

        Raises:
            SessionNotFound: There is no such session.
        """
        self._store.sessions.header(self._session_id)
        self.keep_followed()
        last = None
        if self._is_live and self._after is not None:
            last = self._store.live.event_at(self._session_id, self.position.event)
        if last is not None:  # text of the steps before may still come, and the reader has their commits
            self._filter.note_committed(last.execution_id, last.step - (last.type not in _STEP_IS_DONE))
        first = self._store.sessions.events(self._session_id, None, 1)
        if not first:
            return self._after is not None
        if self._after is not None and last is None and self.rewind(first[0].id):
            return True
        if first[0].type == EventType.EXECUTION_SUBMITTED:
            return False
        return self._after is None or entry_order(self.position.event) < entry_order(first[0].id)

    def rewind(self, first: str = "0") -> bool:
        """Go back to the newest event where the reader is beyond it: Redis has lost what the reader has seen.

        Args:
            first: Id of the oldest event that is stored.
        Returns:
            Whether it went back. The reader then lacks the present state, which `take_snapshot` gives.
        """
        place, events = self.position.event, self._store.sessions.events
        if entry_order(place) <= entry_order(first) or events(self._session_id, place, 1):
            return False
        if self._store.live.event_at(self._session_id, place) is not None:
            return False
        newest = first
        while page := events(self._session_id, None if newest == "0" else newest):
            newest = page[-1].id
        self.position = StreamPosition(newest, newest if self._is_live else _BEHIND_ALL_TEXT)
        return entry_order(newest) < entry_order(place)

    def take_snapshot(self) -> StreamItem:
        """Load the whole session, in place of events that are not stored any more."""
        return StreamItem(cursor=self.position.cursor, snapshot=self._store.sessions.load(self._session_id))

    def keep_followed(self) -> None:
        """Renew the reader's mark when it is old.

        Raises:
            SessionExpired: Nothing of the session is left.
        """
        now = time.monotonic()
        if not self._is_live or (self._followed_at is not None and now - self._followed_at < FOLLOW_MARK_SECONDS):
            return
        with contextlib.suppress(StoreForbidden):  # of a user of Redis who may only look: others may have said it
            if not self._store.live.keep_followed(self._session_id):
                raise SessionExpired(self._session_id)
        self._followed_at = now

    def read(self, block_seconds: float | None) -> list[StreamItem]:
        """Read the next items, and wait `block_seconds` at most for the first of them; None: not at all."""
        block_ms = None if block_seconds is None else max(1, round(block_seconds * 1000))
        found = self._store.live.follow({self._session_id: self.position}, block_ms).get(self._session_id, [])
        self.is_quiet, self.has_more = not found, len(found) >= PAGE
        texts = committed_texts(self._store, self._session_id, found) if self._is_live else {}
        return [item for entry in found for item in self.items_of(entry, texts)]

    def items_of(self, entry: Entry, texts: Mapping[str, str]) -> list[StreamItem]:
        """Make the items of an entry: none of text that does not count, and before a commit the rest of its text.

        Args:
            texts: By the ids of events `step_committed`, see `committed_texts`.
        """
        before = self.position.cursor
        self.position = moved_on(self.position, entry)
        cursor = self.position.cursor if self._is_live else entry.id
        if isinstance(entry, Event):
            text = texts.get(entry.id, "")
            rest = self._filter.rest_of(entry, text) if entry.type == EventType.STEP_COMMITTED else None
            self._filter.note(entry)
            missed = [] if rest is None else [StreamItem(cursor=before, delta=rest)]
            return [*missed, StreamItem(cursor=cursor, event=entry, text=text)]
        return [StreamItem(cursor=cursor, delta=entry)] if self._filter.accepts(entry) else []


def committed_texts(store: Store, session_id: str, entries: Sequence[Entry]) -> dict[str, str]:
    """Read the whole texts of the steps that are committed by these entries, by the ids of their events.

    For a step that is no longer stored, the text is the event's excerpt.
    """
    commits = [each for each in entries if isinstance(each, Event) and each.type == EventType.STEP_COMMITTED]
    found = store.live.committed_texts(session_id, [(each.execution_id, each.step) for each in commits])
    return {
        event.id: str(event.data.get("text") or "") if text is None else text
        for event, text in zip(commits, found, strict=True)
    }


def follow_session(
    store: Store,
    session_id: str,
    after: str | None,
    deadline: float | None,
    is_over: Callable[[], bool] = lambda: False,
    *,
    is_live: bool = True,
) -> Generator[list[StreamItem]]:
    """Follow a session in batches; a batch is empty when nothing happens for a while.

    Args:
        after: Cursor of the last item that the reader has. None: from the beginning.
        deadline: `time.monotonic()` at which the last batch is read. None: never.
        is_over: Asked after an empty batch. Once it is true, everything that is stored by then is read, and it ends.
        is_live: False: events alone, of which those that are not stored any more are left out without a snapshot.
    Raises:
        TimeoutError: The deadline has come first.
        SessionExpired: Its retention is over, and nothing of the session is left.
        StoreUnavailable: Redis is away, at the deadline; until then it is asked again. Or the archive is, at once.
    """
    reader, begun, ends = SessionReader(store, session_id, after, is_live=is_live), not is_live, False
    was_away = after is not None
    while True:
        left = _BLOCK_SECONDS if deadline is None else min(_BLOCK_SECONDS, deadline - time.monotonic())
        has_all = False
        try:
            if not begun or was_away:
                lacks = reader.rewind() if begun else reader.begin()
                begun, was_away = True, False
                if lacks and is_live:
                    yield [reader.take_snapshot()]
            reader.keep_followed()
            items = reader.read(0.0 if ends else left)
            if items or reader.is_quiet:
                yield items
            has_all = reader.is_quiet
        except (SessionArchived, ArchiveUnavailable):
            raise
        except SessionNotFound as error:
            raise SessionExpired(session_id) from error
        except StoreUnavailable:
            if deadline is not None and time.monotonic() >= deadline:
                raise
            was_away = True
            time.sleep(max(0.0, min(left, _LOST_CONNECTION_SECONDS)))
            yield []
        if has_all and ends:
            return
        ends = ends or (has_all and is_over())
        if not ends and deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError
