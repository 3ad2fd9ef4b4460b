"""What others do to a session: submit, message, stop, retry.

Each runs in one transaction that watches the session and its control hash, and carries an operation id, so that asking
again after a lost reply changes nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Literal, TypeVar

from ..errors import ActionRefused, IdempotencyMismatch, SessionNotFound, StateUnreadable, StoreUnavailable
from ..state import AgentState
from ..unique import unique_hex
from . import decoding, fields, loading
from .claims import Ctl, ctl_read
from .events import event_commands
from .ground import Ground
from .keys import WAKE_CHANNEL, SessionKeys
from .records import Applied, Fresh, NewEvent, Operation, Settle, Settled, StepRef
from .standing import STANDING, Standing
from .tables import Changed, Command, Guard, Reply, Watched
from .writes import dead_entry, is_active, saving

_CONFLICTS: Final = 100
_LOST_REPLIES: Final = 5
Answer = TypeVar("Answer")


def submit(ground: Ground, session_id: str, agent: str, fingerprint: str, settle: Callable[[int], Settled]) -> Applied:
    """Create a session and start its first execution. See `StepStore.submit`."""
    keys = ground.keys(session_id)
    as_expected = True

    def saved(now_ms: int) -> tuple[Applied, list[Command]]:
        settled = settle(now_ms)
        first_execution = settled.state.execution.execution_id if settled.state.execution else ""
        extra = (
            "agent", agent, "fingerprint", fingerprint,
            "first", first_execution, "created", now_ms,
        )  # fmt: skip
        save = saving(ground, keys, None, settled, Standing(), version=1, now_ms=now_ms, extra=extra)
        return Applied("started", first_execution, 1, None if save.handed_over else save.next), save.commands

    def once() -> Applied:
        nonlocal as_expected
        estimate_ms = ground.clock.estimate_ms()
        if as_expected and estimate_ms is not None:
            as_expected = False
            applied, commands = saved(estimate_ms)
            unknown: list[Guard] = [(("HMGET", keys.session, "version"), ("",))]
            if ground.tables.attempt("submit.attempt", unknown, commands) is not None:
                return applied
        reads: list[Command] = [
            ("HMGET", keys.session, "version", "fingerprint", "first"),
            ground.clock.now(),
        ]
        with ground.tables.watch("submit.read", (keys.session, keys.ctl), reads) as watched:
            version, stored, first = watched.replies[0]
            if version is not None:
                if fields.text(stored) != fingerprint:
                    raise IdempotencyMismatch(
                        f"session {session_id} was submitted before with another agent, message or budget; "
                        "use another idempotency key, or repeat the request exactly"
                    )
                return Applied("again", fields.text(first), fields.number(version))
            applied, commands = saved(ground.clock.milliseconds(watched.replies[1]))
            watched.commit("submit.exec", commands)
            return applied

    return _persistently(ground, session_id, once)


def act(ground: Ground, session_id: str, operation: Operation, settle: Settle) -> Applied:
    """Apply an operation, or leave it for the running step. See `StepStore.act`."""
    keys = ground.keys(session_id)
    return _persistently(ground, session_id, lambda: _act_once(ground, keys, operation, settle))


def _act_once(ground: Ground, keys: SessionKeys, operation: Operation, settle: Settle) -> Applied:
    reads: list[Command] = [
        ("HMGET", keys.session, "version", *STANDING),
        ctl_read(keys),
        ground.clock.now(),
        ("LRANGE", keys.inbox, 0, -1),
    ]
    with ground.tables.watch("act.read", (keys.session, keys.ctl, keys.inbox), reads) as watched:
        (version, *standing_reply), ctl_reply, now_reply, entries = watched.replies
        if version is None:
            raise SessionNotFound(keys.session_id)
        ctl, standing = Ctl.read(ctl_reply), Standing.read(*standing_reply)
        known = standing.operations
        if operation.id in known:
            return Applied("again", "", fields.number(version))
        waiting = decoding.inbox(entries, known)
        if any(entry.id == operation.id for entry in waiting):
            return Applied("again", "", fields.number(version))
        if ctl.phase == "run" and (ctl.claim or _has_journal(keys, ctl, watched)):
            return _queue(ground, keys, ctl, operation, len(entries), fields.number(version), watched)
        stored = _stored(ground, keys, ctl, fields.number(version), watched)
        now_ms = ground.clock.milliseconds(now_reply)
        settled = settle(Fresh(stored, (operation,), 0, now_ms, None))
        return _save(ground, keys, stored, settled, standing, fields.number(version), now_ms, watched)


def _has_journal(keys: SessionKeys, ctl: Ctl, watched: Watched) -> bool:
    (found,) = watched.ask("act.journal", [("EXISTS", keys.journal(ctl.execution, ctl.step))])
    return bool(found)


def _queue(
    ground: Ground, keys: SessionKeys, ctl: Ctl, operation: Operation, waiting: int, version: int, watched: Watched
) -> Applied:
    """The running step takes it into its commit, which watches the inbox."""
    if waiting >= ground.settings.inbox_limit:
        raise ActionRefused(
            f"session {keys.session_id} has {waiting} messages waiting for its running step, which is the limit; "
            "wait until the step has committed"
        )
    event = NewEvent("message_received", ctl.execution, ctl.step, {"operation": operation.id, "queued": True})
    watched.commit(
        "act.push",
        [("RPUSH", keys.inbox, decoding.inbox_entry(operation)), *event_commands(ground, keys, [event])],
    )
    return Applied("queued", "", version)


def _stored(ground: Ground, keys: SessionKeys, ctl: Ctl, version: int, watched: Watched) -> AgentState:
    """The state that belongs to control fields and a version which were read before it.

    Raises:
        Changed: The session has gone on in between.
        StateUnreadable: It cannot be read.
    """
    held = ground.cache.get(keys.session_id)
    replies = watched.ask("act.load", loading.reads(keys, ctl.execution, held))
    loaded = loading.finish(ground, keys, ctl.execution, held, watched, replies)
    if loaded.version != version:
        raise Changed
    execution = loaded.state.execution
    if ctl.phase == "run" and (execution is None or execution.execution_id != ctl.execution):
        raise StateUnreadable("head", "it tells of another execution than the control fields")
    return loaded.state


def _save(
    ground: Ground,
    keys: SessionKeys,
    before: AgentState,
    settled: Settled,
    standing: Standing,
    version: int,
    now_ms: int,
    watched: Watched,
) -> Applied:
    starts = is_active(settled.state) and not is_active(before)
    save = saving(
        ground, keys, before, settled, standing, version=version + 1, now_ms=now_ms, work_changed=starts
    )  # fmt: skip
    watched.commit("act.exec", save.commands)
    execution = settled.state.execution
    outcome: Literal["started", "joined", "changed"] = "started" if starts else "joined"
    if execution is None or not is_active(settled.state):
        outcome = "changed"
    return Applied(
        outcome,
        execution.execution_id if execution else "",
        version + 1,
        None if save.handed_over else save.next,
    )


def stop(ground: Ground, session_id: str, execution_id: str | None, settle: Settle) -> Applied:
    """End the running execution. See `StepStore.stop`."""
    keys, sent = ground.keys(session_id), list[Applied]()

    def once() -> Applied:
        try:
            return _stop_once(ground, keys, execution_id, settle, sent)
        except Changed:
            sent.clear()
            raise

    return _persistently(ground, session_id, once)


def _stop_once(
    ground: Ground, keys: SessionKeys, execution_id: str | None, settle: Settle, sent: list[Applied]
) -> Applied:
    """
    Args:
        sent: What was written, perhaps: its reply was lost. Noted before it is written.
    """
    reads: list[Command] = [
        ("HMGET", keys.session, "version", *STANDING),
        ctl_read(keys),
        ("HGET", keys.ctl, "worker"),
        ground.clock.now(),
        ("LRANGE", keys.inbox, 0, -1),
    ]
    with ground.tables.watch("stop.read", (keys.session, keys.ctl, keys.inbox), reads) as watched:
        (version, *standing_reply), ctl_reply, worker, now_reply, entries = watched.replies
        if version is None:
            raise SessionNotFound(keys.session_id)
        ctl = Ctl.read(ctl_reply)
        wanted = sent[-1].execution_id if sent else execution_id
        if ctl.phase == "end" or (wanted is not None and ctl.execution != wanted):
            return sent[-1] if sent else Applied("again", ctl.execution, fields.number(version))
        now_ms = ground.clock.milliseconds(now_reply)
        (alive,) = watched.ask("stop.lease", [("EXISTS", keys.shard.lease(ctl.claim or "-"))])
        # Watched, so that a worker that was only paused cannot begin something between this look and the end.
        journal = keys.journal(ctl.execution, ctl.step)
        (stored_journal,) = watched.ask("stop.journal", [("HGETALL", journal)], also=(journal,))
        if alive or decoding.journal(stored_journal).holds_something:
            asking, commands = _asking_to_stop(
                ground, keys, ctl, fields.text(worker), bool(alive), fields.number(version), watched
            )
            sent.append(asking)
            watched.commit("stop.ask", commands)
            return asking
        before = _stored(ground, keys, ctl, fields.number(version), watched)
        standing = Standing.read(*standing_reply)
        inbox = decoding.inbox(entries, standing.operations)
        settled = settle(Fresh(before, inbox, len(entries), now_ms, ctl.execution))
        save = saving(ground, keys, before, settled, standing, version=fields.number(version) + 1, now_ms=now_ms)
        trim: list[Command] = [("LTRIM", keys.inbox, len(entries), -1)] if entries else []
        # A claim that came to nothing has left its traces.
        buried: Command = ("PEXPIRE", journal, ground.journal_ms)
        publish = None if save.handed_over else save.next
        sent.append(Applied("changed", ctl.execution, fields.number(version) + 1, publish))
        watched.commit("stop.exec", [*trim, buried, *save.commands])
        return sent[-1]


def _asking_to_stop(
    ground: Ground, keys: SessionKeys, ctl: Ctl, worker: str, alive: bool, version: int, watched: Watched
) -> tuple[Applied, list[Command]]:
    """Whoever runs the step, or the next to claim it, commits what it has obtained and ends the execution."""
    commands: list[Command] = [("HSET", keys.ctl, "cancel", ctl.execution, "not_before", 0)]
    publish: StepRef | None = None
    if alive:
        commands.append(("PUBLISH", WAKE_CHANNEL + worker, ctl.claim))
    else:
        ref = StepRef(keys.session_id, ctl.execution, ctl.step)
        (now,) = watched.ask("stop.now", [ground.clock.now()])
        now_ms = ground.clock.milliseconds(now)
        handed = ground.handover.commands(ref, now_ms)
        commands += [("ZADD", keys.shard.due, "XX", now_ms + ground.due_ms, keys.session_id), *handed]
        publish = None if handed else ref
    return Applied("queued", ctl.execution, version, publish), commands


def retry(ground: Ground, session_id: str, settle: Settle) -> Applied:
    """Continue a failed or stopped execution. See `StepStore.retry`."""
    keys, operation_id = ground.keys(session_id), unique_hex()
    sent: Applied | None = None  # whether it was applied is not known, where its reply was lost
    was_parked = False

    def once() -> Applied:
        nonlocal sent, was_parked
        reads: list[Command] = [
            ("HMGET", keys.session, "version", *STANDING),
            ctl_read(keys),
            ground.clock.now(),
        ]
        with ground.tables.watch("retry.read", (keys.session, keys.ctl), reads) as watched:
            (version, *standing_reply), ctl_reply, now_reply = watched.replies
            if version is None:
                raise SessionNotFound(session_id)
            ctl, standing = Ctl.read(ctl_reply), Standing.read(*standing_reply)
            now_ms = ground.clock.milliseconds(now_reply)
            if sent is not None and (operation_id in standing.operations or (was_parked and ctl.phase != "parked")):
                return sent
            was_parked = ctl.phase == "parked"
            if was_parked:
                sent, commands = _unparked(ground, keys, ctl, fields.number(version), now_ms)
                watched.commit("retry.unpark", commands)
                return sent
            before = _stored(ground, keys, ctl, fields.number(version), watched)
            settled = settle(Fresh(before, (), 0, now_ms, None))
            settled = replace(settled, operations=(*settled.operations, operation_id))
            save = saving(ground, keys, before, settled, standing, version=fields.number(version) + 1, now_ms=now_ms)
            # Of the step that is next: the one it ended at may be committed, and then its journal goes as it must.
            kept = [("PERSIST", keys.journal(due.execution_id, due.step))] if (due := save.next) is not None else []
            sent = Applied(
                "started", ctl.execution, fields.number(version) + 1, None if save.handed_over else save.next
            )
            watched.commit("retry.exec", [*save.commands, *kept])
            return sent

    return _persistently(ground, session_id, once)


def _unparked(
    ground: Ground, keys: SessionKeys, ctl: Ctl, version: int, now_ms: int
) -> tuple[Applied, Sequence[Command]]:
    ref = StepRef(keys.session_id, ctl.execution, ctl.step)
    handed = ground.handover.commands(ref, now_ms)
    commands: list[Command] = [
        ("HSET", keys.ctl, "phase", "run", "attempts", 0, "published", now_ms, "nudges", 0),
        ("HSET", keys.session, "status", "in_progress"),
        ("ZADD", keys.shard.due, now_ms + ground.due_ms, keys.session_id),
        *handed,
    ]
    return Applied("started", ctl.execution, version, None if handed else ref), commands


def park(ground: Ground, ref: StepRef, reason: str, *, whatever_step: bool = False) -> None:
    """Nobody can carry this on. See `StepStore.park`.

    Args:
        whatever_step: The session's control fields are what cannot be read, so nobody knows which step it waits for.
    """
    keys = ground.keys(ref.session_id)

    known: list[Command] = [
        ("ZREM", keys.shard.due, keys.session_id),
        dead_entry(ground, keys.shard, "step", ref.session_id, ref.execution_id, ref.step, reason),
    ]

    def once() -> None:
        reads: list[Command] = [ctl_read(keys), ("HGET", keys.session, "version")]
        with ground.tables.watch("park.read", (keys.ctl,), reads) as watched:
            if not (whatever_step or _is_at(watched.replies[0], ref)):
                return
            commands: list[Command] = [("HSET", keys.ctl, "phase", "parked", "claim", "", "worker", "")]
            if watched.replies[1]:
                event = NewEvent("parked", ref.execution_id, ref.step, {"reason": reason})
                commands += [("HSET", keys.session, "status", "parked"), *event_commands(ground, keys, [event])]
            watched.commit("park.exec", [*known, *commands])

    try:
        _persistently(ground, ref.session_id, once)
    except StateUnreadable:  # a key of another type: the session stays as it is, and nobody takes it up again
        ground.tables.ask("park.broken", known)


def _is_at(ctl: Reply, ref: StepRef) -> bool:
    """Whether the session waits for this step, as far as its control fields can be read at all."""
    try:
        found = Ctl.read(ctl)
    except StateUnreadable:
        return True
    return (found.execution, found.step, found.phase) == (ref.execution_id, ref.step, "run")


def quarantine(ground: Ground, payload: str, reason: str) -> None:
    """Keep a malformed message for whoever looks for its sender."""
    entry = dead_entry(ground, ground.shards[0], "message", "", "", 0, reason, payload)
    ground.tables.ask("quarantine", [entry])


def _persistently(ground: Ground, session_id: str, once: Callable[[], Answer]) -> Answer:
    """Again after a conflict or a lost reply: every action first looks whether it was applied."""
    lost = 0
    for _ in range(_CONFLICTS):
        try:
            return once()
        except Changed:
            continue
        except StoreUnavailable:
            lost += 1
            if lost > _LOST_REPLIES:
                raise
            ground.clock.pause(0.05 * lost)
    raise StoreUnavailable(f"session {session_id} changes too fast to act on; try again")
