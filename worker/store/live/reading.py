"""Following the events and the live text of sessions as one stream."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ...errors import StateUnreadable
from .. import fields
from ..context import StoreContext
from ..database import Command, Reply
from ..event_records import Event
from ..events import parse_events
from ..transaction_retries import LOST_REPLIES
from .values import LiveDelta, StreamPosition, entry_order

_PAGE: Final = 200
_MOST_OF_ALL: Final = 2_000
"""Entries of one read of all sessions together, at one for each stream at least."""
FOLLOWED_MS: Final = 60_000
"""How long after a reader's last sign a session counts as watched."""
_RENEWED_MS: Final = 30_000

Entry = Event | LiveDelta


def follow(
    context: StoreContext, positions: Mapping[str, StreamPosition], block_ms: int | None
) -> dict[str, list[Entry]]:
    """Read what comes after positions, merged. See `LiveText.follow`."""
    named: dict[str, str] = {}
    places: list[str] = []
    for session_id, position in positions.items():
        keys = context.keys(session_id)
        named[keys.events] = named[keys.live] = session_id
        places += [position.event, position.live]
    block: tuple[Any, ...] = () if block_ms is None else ("BLOCK", block_ms)
    count = max(1, min(_PAGE, _MOST_OF_ALL // max(1, len(places))))
    command: Command = ("XREAD", "COUNT", count, *block, "STREAMS", *named, *places)
    (reply,) = context.database.pipeline("live.follow", [command])
    found: dict[str, list[tuple[Sequence[Entry], bool]]] = {}
    for name, entries in reply or ():
        key = fields.name(name)
        parse = _parse_live if key.endswith(":live") else parse_events
        page = (parse(named[key], entries), len(entries) == count)
        found.setdefault(named[key], []).append(page)
    return {session_id: _merge(pages) for session_id, pages in found.items()}


def _merge(pages: Sequence[tuple[Sequence[Entry], bool]]) -> list[Entry]:
    """Merge two streams by time. Entries beyond the end of a full page are left for the next read."""
    ends = [entry_order(entries[-1].id) for entries, is_full in pages if is_full and entries]
    merged = [entry for entries, _ in pages for entry in entries if not ends or entry_order(entry.id) <= min(ends)]
    # Within one millisecond the text comes first: the commit that ends its step is later.
    return sorted(merged, key=lambda entry: (entry_order(entry.id)[0], isinstance(entry, Event), entry_order(entry.id)))


def moved_on(position: StreamPosition, entry: Entry) -> StreamPosition:
    """The position after an entry."""
    return replace(position, event=entry.id) if isinstance(entry, Event) else replace(position, live=entry.id)


def _parse_live(session_id: str, entries: Sequence[Reply]) -> list[Entry]:
    """Parse entries of live text. One that cannot be read is left out: the commit brings the text all the same."""
    found: list[Entry] = []
    for entry_id, flat in entries:
        with contextlib.suppress(KeyError, StateUnreadable):
            found.append(_parse_delta(session_id, entry_id.decode(), fields.named_pairs(flat or [])))
    return found


def _parse_delta(session_id: str, entry_id: str, named: Mapping[str, bytes]) -> LiveDelta:
    return LiveDelta(
        id=entry_id,
        at_ms=min(entry_order(entry_id)[0], fields.LAST_MS),
        session_id=session_id,
        execution_id=fields.text(named["x"]),
        step=fields.number(named["n"]),
        attempt=fields.text(named["a"]),
        call=fields.number(named["c"]),
        part=fields.text(named["p"]),
        offset=fields.number(named["o"]),
        text=fields.text(named.get("t")),
        data=fields.read_json(named["d"], "live data") if "d" in named else None,
    )


def event_at(context: StoreContext, session_id: str, event_id: str) -> Event | None:
    """Read one event. See `LiveText.event_at`."""
    keys = context.keys(session_id)
    (entries,) = context.database.pipeline("live.event", [("XRANGE", keys.events, event_id, event_id, "COUNT", 1)])
    return next(iter(parse_events(session_id, [entry for entry in entries if entry[0] == event_id.encode()])), None)


def keep_followed(context: StoreContext, session_id: str) -> bool:
    """Say that somebody follows a session. See `LiveText.keep_followed`."""
    scope = context.session(session_id)
    ctl = scope.keys.ctl

    def attempt() -> bool:
        # Watched: the mark of a session that expires at this moment would stay for ever.
        reads: list[Command] = [("HMGET", ctl, "execution", "watched"), scope.clock.now()]
        with scope.database.watch("live.followed", (ctl,), reads) as watched:
            (execution, until), now_ms = watched.replies[0], scope.clock.milliseconds(watched.replies[1])
            if not execution:
                return False
            if fields.milliseconds(until) < now_ms + _RENEWED_MS:
                watched.commit("live.mark", [("HSET", ctl, "watched", now_ms + FOLLOWED_MS)])
            return True

    return scope.retry(attempt, purpose="say that it is followed", lost_replies=LOST_REPLIES)


def committed_texts(context: StoreContext, session_id: str, steps: Sequence[tuple[str, int]]) -> list[str | None]:
    """Read what committed steps have answered. See `LiveText.committed_texts`."""
    if not steps:
        return []
    keys = context.keys(session_id)
    commands: list[Command] = [("LINDEX", keys.steps(execution), step - 1) for execution, step in steps]
    return [_text_of(raw) for raw in context.database.pipeline("live.committed", commands)]


def _text_of(raw: bytes | None) -> str | None:
    """The text of a stored step's answer; None where it is not stored any more, or cannot be read."""
    if raw is None:
        return None
    try:
        stored: Any = fields.read_json(raw, "a step")
        return str(stored["step"]["inference_response"]["content"])
    except (StateUnreadable, KeyError, TypeError):
        return None
