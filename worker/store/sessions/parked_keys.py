"""The keys of a parked session, which ends with the retention although its state may be unreadable.

They have no time to live: a session that is taken up again must not lose them, whoever takes it up. The index `ending`
says when the retention is over, and the prune deletes the sessions that are still parked then.

The names of its lists follow from the head. A head of a newer version, or with a damaged part, usually still says which
lists there are; where it says nothing, the names are those that most sessions have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

from ...errors import StateUnreadable
from ...state import DEFAULT
from .. import fields
from ..context import SessionScope
from ..database import Command, Reply

_FIELDS: Final = ("head", "executions")


def key_reads(scope: SessionScope) -> list[Command]:
    """Commands whose replies `key_names` takes."""
    return [("HMGET", scope.keys.session, *_FIELDS), ("HMGET", scope.keys.ctl, "execution", "step")]


def end_command(scope: SessionScope, now: Reply) -> list[Command]:
    """The command that lets a session which is parked now end after the retention; none where sessions stay for ever.

    Args:
        now: The reply to `Clock.now`.
    """
    retention_ms = scope.context.retention_ms
    if retention_ms is None:
        return []
    return [("ZADD", scope.keys.shard.ending, scope.clock.milliseconds(now) + retention_ms, scope.session_id)]


def key_names(scope: SessionScope, replies: Sequence[Reply]) -> list[str]:
    """The names of all keys of a parked session, from the replies to `key_reads`."""
    (stored_head, stored_executions), (execution, step) = replies
    keys, state = scope.keys, _state_of(stored_head)
    sections = _generations(state, "context", "store", "sections") or {DEFAULT: 0}
    lists = _generations(state, "parts", "lists")
    lists |= {f"{name}.x": at for name, at in _generations(state, "execution", "parts", "lists").items()}
    current = _text(execution)
    executions = dict.fromkeys((*_executions(stored_executions), current))
    return [
        keys.session,
        keys.ctl,
        keys.inbox,
        keys.events,
        keys.live,
        *(keys.section(name, generation) for name, generation in sections.items()),
        *(keys.part(name, generation) for name, generation in lists.items()),
        *(keys.steps(name) for name in executions if name),
        *([keys.journal(current, number)] if current and (number := _step_number(step)) else []),
    ]


def _state_of(stored: bytes | None) -> Any:
    try:
        head = fields.read_json(stored or b"null", "head")
    except StateUnreadable:
        return None
    return cast("dict[str, Any]", head).get("state") if isinstance(head, dict) else None


def _generations(state: Any, *path: str) -> dict[str, int]:
    """The generations of the lists at a place of a head; a list that names none is at its first."""
    for part in path:
        state = cast("dict[str, Any]", state).get(part) if isinstance(state, dict) else None
    found: dict[str, Any] = cast("dict[str, Any]", state) if isinstance(state, dict) else {}
    return {name: generation for name, each in found.items() if (generation := _generation(each)) is not None}


def _generation(value: Any) -> int | None:
    generation = cast("dict[str, Any]", value).get("generation", 0) if isinstance(value, dict) else None
    return generation if isinstance(generation, int) else None


def _executions(stored: bytes | None) -> Iterator[str]:
    try:
        yield from fields.strings(stored)
    except StateUnreadable:
        return


def _step_number(value: bytes | None) -> int:
    try:
        return fields.number(value)
    except StateUnreadable:
        return 0


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
