"""The streams that people read, written in the transactions that make them true: events of sessions, the dead list.

The dead list has parked sessions, quarantined messages and failed callbacks, for an operator to look at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..errors import StateUnreadable
from ..moments import LAST_MS
from ..state.execution.execution import ExecutionState
from . import fields
from .context import SessionScope, StoreContext
from .database import Command, Reply
from .event_records import Event, EventType, NewEvent
from .keys import ShardKeys
from .records import Claim, StepRef

# A value of an event that is too large stays when it is shorter than this share of the limit.
_KEPT_SHARE: Final = 16


def event_commands(scope: SessionScope, events: Iterable[NewEvent], *, is_late: bool = False) -> list[Command]:
    """Commands that append events to the session's stream.

    Args:
        is_late: The session may have been deleted; then its stream is not recreated.
    """
    options = ("NOMKSTREAM",) if is_late else ()
    return [
        (
            "XADD", scope.keys.events, *options, "MAXLEN", "~", scope.settings.events_kept, "*",
            "type", event.type, "execution", event.execution_id, "step", event.step,
            "data", _data(event.data, scope.settings.max_event_bytes),
        )
        for event in events
    ]  # fmt: skip


def tell(scope: SessionScope, ref: StepRef, kind: EventType, data: Mapping[str, Any]) -> list[Command]:
    """The command that appends one event about a step."""
    event = NewEvent(type=kind, execution_id=ref.execution_id, step=ref.step, data=data)
    return event_commands(scope, [event])


def attempt_of(claim: Claim) -> dict[str, Any]:
    """Data of an event that ends an attempt: its worker, and since when it had the step (Redis ms)."""
    return {"worker": claim.worker, "since_ms": claim.now_ms}


def _data(data: Mapping[str, Any], most: int) -> bytes:
    """Data of an event as JSON; where they are too large, the short values with the size of the whole."""
    whole = fields.to_json(data)
    if len(whole) <= most:
        return whole
    kept = {name: value for name, value in data.items() if len(fields.to_json(value)) <= most // _KEPT_SHARE}
    shortened = fields.to_json({**kept, "left_out_bytes": len(whole)})
    return shortened if len(shortened) <= most else fields.to_json({"left_out_bytes": len(whole)})


def parse_events(session_id: str, entries: Sequence[Reply]) -> list[Event]:
    """Parse the reply to XRANGE or XREAD."""
    return [_parse_event(session_id, entry[0].decode(), entry[1]) for entry in entries if entry[1]]


def _parse_event(session_id: str, entry_id: str, flat: Sequence[bytes]) -> Event:
    """Parse one event. One that cannot be read becomes an event `unreadable`, so that a watcher can read on."""
    found = {flat[i]: flat[i + 1] for i in range(0, len(flat), 2)}
    at_ms = min(int(entry_id.partition("-")[0]), LAST_MS)
    try:
        data = fields.read_json(found[b"data"], "an event")
        if not isinstance(data, dict):
            raise StateUnreadable("an event", "its data are no object")
        return Event(
            id=entry_id,
            type=_event_type(fields.text(found[b"type"])),
            at_ms=at_ms,
            session_id=session_id,
            execution_id=fields.text(found[b"execution"]),
            step=fields.number(found[b"step"]),
            data=data,  # pyright: ignore[reportUnknownArgumentType]
        )
    except (KeyError, StateUnreadable) as error:
        reason = error.reason if isinstance(error, StateUnreadable) else f"it has no {error}"
        return Event(
            id=entry_id, type="unreadable", at_ms=at_ms, session_id=session_id, execution_id="", step=0,
            data={"reason": reason},
        )  # fmt: skip


def _event_type(name: str) -> EventType | str:
    try:
        return EventType(name)
    except ValueError:
        return name


# Every sender of messages may call the task that stores an entry, so texts are cut here, where they are stored.
_PAYLOAD_CHARS: Final = 2_000
_REASON_CHARS: Final = 1_000
_ID_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class DeadEntry:
    """A parked step, a quarantined message or a callback that was given up.

    Attributes:
        kind: "step", "message" or "callback".
        payload: The message as it came, cut and escaped.

    Longer texts are cut when they are stored.
    """

    kind: str
    reason: str
    session_id: str = ""
    execution_id: str = ""
    step: int = 0
    payload: str = ""

    @classmethod
    def of_step(cls, session_id: str, execution: ExecutionState | None, reason: str) -> DeadEntry:
        """The entry of the step at which an execution was given up."""
        if execution is None:
            return cls(kind="step", reason=reason, session_id=session_id)
        step = execution.step_count + 1
        return cls(kind="step", reason=reason, session_id=session_id, execution_id=execution.execution_id, step=step)

    def command(self, context: StoreContext, shard: ShardKeys) -> Command:
        """The command that appends it; the oldest entries make room."""
        return (
            "XADD", shard.dead, "MAXLEN", "~", -(-context.settings.dead_kept // len(context.shards)), "*",
            "kind", self.kind, "session", _cut(self.session_id, _ID_CHARS),
            "execution", _cut(self.execution_id, _ID_CHARS), "step", self.step,
            "reason", _cut(self.reason, _REASON_CHARS), "payload", _cut(self.payload, _PAYLOAD_CHARS),
        )  # fmt: skip


def _cut(value: object, most: int) -> str:
    """The beginning of a text, as UTF-8 can hold it; a forged value may be of another type."""
    text = value if isinstance(value, str) else repr(value)
    return text[:most].encode("utf-8", "backslashreplace").decode()
