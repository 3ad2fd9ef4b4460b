"""Parks sessions whose step no worker can run, names the keys of a parked session, and quarantines malformed messages.

A parked session ends with the retention although its state may be unreadable. Its keys have no time to live: a session
that is taken up again must not lose them. The index `ending` says when the retention is over, and the prune deletes the
sessions that are still parked then.

The names of its lists follow from the head. A head of a newer version, or with a damaged part, usually still says which
lists there are; where it says nothing, the names are those that most sessions have.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final, cast

from ...errors import StateUnreadable
from ...state.conversation.messages import DEFAULT
from .. import fields
from ..context import SessionScope, StorePart
from ..control import ControlFields, control_command, read_unoffered
from ..database import Command, Reply, WatchedTransaction
from ..event_records import EventType, NewEvent
from ..events import DeadEntry, event_commands
from ..journal import read_journal
from ..records import StepRef
from ..requests.index import read_entry, remove_commands


class ParkVerbs(StorePart):
    """Parking a session."""

    def park(self, ref: StepRef, reason: str, *, any_step: bool = False, only_unoffered: bool = False) -> None:
        """Take a step that no worker can carry on out of the due index, and say why in the list of dead steps.

        Args:
            any_step: The session's control fields cannot be read, so it is unknown which step it waits for.
            only_unoffered: Only if the session still waits for a worker that offers its agent. It stays in the index of
                such sessions, where a worker that registers the agent finds it.
        """
        scope = self._context.session(ref.session_id)
        entry = DeadEntry(
            kind="step", reason=reason, session_id=ref.session_id, execution_id=ref.execution_id, step=ref.step
        )
        commands: list[Command] = [
            ("ZREM", scope.keys.shard.due, scope.session_id),
            entry.command(self._context, scope.keys.shard),
        ]
        event = NewEvent(type=EventType.PARKED, execution_id=ref.execution_id, step=ref.step, data={"reason": reason})
        try:
            scope.apply_once(
                lambda: _park(scope, None if any_step else ref, event, commands, only_unoffered=only_unoffered),
                "be parked",
            )
        except StateUnreadable:  # a key of another type: the session stays as it is, and no worker takes it up again
            self._context.database.pipeline("park.broken", commands)


class QuarantineVerbs(StorePart):
    """Keeping messages that cannot be parsed."""

    def quarantine(self, payload: str, reason: str) -> None:
        """Keep a malformed message, cut and escaped, with the reason, for operators who look for its sender."""
        entry = DeadEntry(kind="message", reason=reason, payload=payload)
        self._context.database.pipeline(
            "quarantine", [entry.command(self._context, random.choice(self._context.shards))]
        )


def _park(
    scope: SessionScope, ref: StepRef | None, event: NewEvent, commands: list[Command], *, only_unoffered: bool
) -> None:
    """
    Args:
        ref: The step that the session has to wait for; None: any.
    """
    keys = scope.keys
    reads: list[Command] = [control_command(keys), ("HGET", keys.session, "version"), scope.clock.now()]
    with scope.database.watch("park.read", (keys.ctl,), reads) as watched:
        control, version, now = watched.replies
        if version is None and not any(control):  # deleted meanwhile; an entry of the due index is all there is
            watched.commit("park.gone", [("ZREM", keys.shard.due, scope.session_id)])
            return
        if ref is not None and not _waits_for(control, ref):
            return
        if only_unoffered and not _is_unoffered(control):
            return
        parked: list[Command] = [
            ("HSET", keys.ctl, "phase", "parked", "claim", "", "worker", ""),
            *_unlist_requests(scope, control, watched),
        ]
        if version:
            parked += [("HSET", keys.session, "status", "parked"), *event_commands(scope, [event])]
            parked += end_command(scope, now)
        watched.commit("park.exec", [*commands, *parked])


def _unlist_requests(scope: SessionScope, control: Reply, watched: WatchedTransaction) -> list[Command]:
    """Take the requests of a step that has waited out of the index: it may never continue.

    They can be answered all the same. When the session continues, its next wait lists those that are open.
    """
    shard = scope.keys.shard
    try:
        found = ControlFields.read(control)
        if not found.has_waited:
            return []
        key = scope.keys.journal(found.execution, found.step)
        (journal,) = watched.pipeline("park.journal", [("HGETALL", key)])
        return remove_commands(shard, read_journal(journal).all_requests)
    except StateUnreadable:
        (entries,) = watched.pipeline("park.index", [("ZRANGEBYSCORE", shard.requests, "-inf", "+inf")])
        own = [entry for entry in entries if (read := read_entry(entry)) and read.session_id == scope.session_id]
        return [("ZREM", shard.requests, *own)] if own else []


def _waits_for(control: Reply, ref: StepRef) -> bool:
    """Whether the session waits for this step, as far as its control fields can be read at all."""
    found = fields.or_else(ControlFields.read, control, None)
    return found is None or (found.is_at(ref) and found.phase in ("run", "wait"))


def _is_unoffered(control: Reply) -> bool:
    """Whether no worker has claimed the step or registered its agent meanwhile."""
    found = ControlFields.read(control)
    return not found.claim and bool(read_unoffered(found.unoffered)[1])


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
    current = fields.any_text(execution)
    executions = dict.fromkeys((*fields.or_else(fields.strings, stored_executions, ()), current))
    return [
        *keys.lasting,
        keys.live,
        *(keys.section(name, generation) for name, generation in sections.items()),
        *(keys.part(name, generation) for name, generation in lists.items()),
        *(keys.steps(name) for name in executions if name),
        *([keys.journal(current, number)] if current and (number := fields.or_else(fields.number, step, 0)) else []),
    ]


def _state_of(stored: bytes | None) -> Any:
    head = fields.or_else(lambda raw: fields.read_json(raw, "head"), stored or b"null", None)
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
