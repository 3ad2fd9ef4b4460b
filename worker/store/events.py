"""The stream of what happened to a session, written in the transactions that make it true."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import fields
from .context import SessionScope
from .database import Command, Reply
from .records import Event, NewEvent


def event_commands(scope: SessionScope, events: Iterable[NewEvent]) -> list[Command]:
    """Commands that append events to the session's stream."""
    return [
        (
            "XADD", scope.keys.events, "MAXLEN", "~", scope.settings.events_kept, "*",
            "type", event.type, "execution", event.execution_id, "step", event.step,
            "data", fields.to_json(event.data),
        )
        for event in events
    ]  # fmt: skip


def parse_events(session_id: str, entries: Sequence[Reply]) -> list[Event]:
    """Parse the reply to XRANGE or XREAD."""
    return [_parse_event(session_id, entry[0].decode(), entry[1]) for entry in entries if entry[1]]


def _parse_event(session_id: str, entry_id: str, flat: Sequence[bytes]) -> Event:
    found = {flat[i]: flat[i + 1] for i in range(0, len(flat), 2)}
    return Event(
        id=entry_id,
        type=found[b"type"].decode(),
        at_ms=int(entry_id.partition("-")[0]),
        session_id=session_id,
        execution_id=found[b"execution"].decode(),
        step=int(found[b"step"]),
        data=fields.read_json(found[b"data"], "an event"),
    )
