"""What others do to a session: submit, message, stop, retry.

Each runs in one transaction that watches the session and its control hash, and carries an operation id, so that asking
again after a lost reply changes nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Literal, TypeVar

from ...errors import ActionRefused, IdempotencyMismatch, SessionNotFound, StateUnreadable, StoreUnavailable
from ...state import AgentState
from ...unique import unique_hex
from .. import decoding, fields
from ..bookkeeping import BOOKKEEPING, Bookkeeping
from ..context import StoreContext
from ..database import Changed, Command, Guard, Reply, WatchedTransaction
from ..events import event_commands
from ..keys import WAKE_CHANNEL, SessionKeys
from ..records import ActionResult, NewEvent, NextState, Operation, Snapshot, StepRef, Transition
from ..steps.claims import ControlFields, control_command
from . import loading
from .saving import dead_entry, is_active, saving

_CONFLICTS: Final = 100
_LOST_REPLIES: Final = 5
Answer = TypeVar("Answer")


def submit(
    context: StoreContext, session_id: str, agent: str, fingerprint: str, transition: Callable[[int], NextState]
) -> ActionResult:
    """Create a session and start its first execution. See `StepStore.submit`."""
    keys = context.keys(session_id)
    as_expected = True

    def saved(now_ms: int) -> tuple[ActionResult, list[Command]]:
        next_state = transition(now_ms)
        first_execution = next_state.state.execution.execution_id if next_state.state.execution else ""
        extra = (
            "agent", agent, "fingerprint", fingerprint,
            "first", first_execution, "created", now_ms,
        )  # fmt: skip
        save = saving(context, keys, None, next_state, Bookkeeping(), version=1, now_ms=now_ms, extra=extra)
        return ActionResult("started", first_execution, 1, None if save.is_published else save.next), save.commands

    def once() -> ActionResult:
        nonlocal as_expected
        estimate_ms = context.clock.estimate_ms()
        if as_expected and estimate_ms is not None:
            as_expected = False
            applied, commands = saved(estimate_ms)
            unknown: list[Guard] = [(("HMGET", keys.session, "version"), ("",))]
            if context.database.compare_and_apply("submit.attempt", unknown, commands) is not None:
                return applied
        reads: list[Command] = [
            ("HMGET", keys.session, "version", "fingerprint", "first"),
            context.clock.now(),
        ]
        with context.database.watch("submit.read", (keys.session, keys.ctl), reads) as watched:
            version, stored, first = watched.replies[0]
            if version is not None:
                if fields.text(stored) != fingerprint:
                    raise IdempotencyMismatch(
                        f"session {session_id} was submitted before with another agent, message or budget; "
                        "use another idempotency key, or repeat the request exactly"
                    )
                return ActionResult("again", fields.text(first), fields.number(version))
            applied, commands = saved(context.clock.milliseconds(watched.replies[1]))
            watched.commit("submit.exec", commands)
            return applied

    return _persistently(context, session_id, once)


def act(context: StoreContext, session_id: str, operation: Operation, transition: Transition) -> ActionResult:
    """Apply an operation, or leave it for the running step. See `StepStore.act`."""
    keys = context.keys(session_id)
    return _persistently(context, session_id, lambda: _act_once(context, keys, operation, transition))


def _act_once(context: StoreContext, keys: SessionKeys, operation: Operation, transition: Transition) -> ActionResult:
    reads: list[Command] = [
        ("HMGET", keys.session, "version", *BOOKKEEPING),
        control_command(keys),
        context.clock.now(),
        ("LRANGE", keys.inbox, 0, -1),
    ]
    with context.database.watch("act.read", (keys.session, keys.ctl, keys.inbox), reads) as watched:
        (version, *standing_reply), ctl_reply, now_reply, entries = watched.replies
        if version is None:
            raise SessionNotFound(keys.session_id)
        ctl, bookkeeping = ControlFields.read(ctl_reply), Bookkeeping.read(*standing_reply)
        known = bookkeeping.operations
        if operation.id in known:
            return ActionResult("again", "", fields.number(version))
        waiting = decoding.inbox(entries, known)
        if any(entry.id == operation.id for entry in waiting):
            return ActionResult("again", "", fields.number(version))
        if ctl.phase == "run" and (ctl.claim or _has_journal(keys, ctl, watched)):
            return _queue(context, keys, ctl, operation, len(entries), fields.number(version), watched)
        stored = _stored(context, keys, ctl, fields.number(version), watched)
        now_ms = context.clock.milliseconds(now_reply)
        next_state = transition(Snapshot(stored, (operation,), 0, now_ms, None))
        return _save(context, keys, stored, next_state, bookkeeping, fields.number(version), now_ms, watched)


def _has_journal(keys: SessionKeys, ctl: ControlFields, watched: WatchedTransaction) -> bool:
    (found,) = watched.pipeline("act.journal", [("EXISTS", keys.journal(ctl.execution, ctl.step))])
    return bool(found)


def _queue(
    context: StoreContext,
    keys: SessionKeys,
    ctl: ControlFields,
    operation: Operation,
    waiting: int,
    version: int,
    watched: WatchedTransaction,
) -> ActionResult:
    """The running step takes it into its commit, which watches the inbox."""
    if waiting >= context.settings.inbox_limit:
        raise ActionRefused(
            f"session {keys.session_id} has {waiting} messages waiting for its running step, which is the limit; "
            "wait until the step has committed"
        )
    event = NewEvent("message_received", ctl.execution, ctl.step, {"operation": operation.id, "queued": True})
    watched.commit(
        "act.push",
        [("RPUSH", keys.inbox, decoding.inbox_entry(operation)), *event_commands(context, keys, [event])],
    )
    return ActionResult("queued", "", version)


def _stored(
    context: StoreContext, keys: SessionKeys, ctl: ControlFields, version: int, watched: WatchedTransaction
) -> AgentState:
    """The state that belongs to control fields and a version which were read before it.

    Raises:
        Changed: The session has gone on in between.
        StateUnreadable: It cannot be read.
    """
    held = context.cache.get(keys.session_id)
    replies = watched.pipeline("act.load", loading.reads(keys, ctl.execution, held))
    loaded = loading.finish(context, keys, ctl.execution, held, watched, replies)
    if loaded.version != version:
        raise Changed
    execution = loaded.state.execution
    if ctl.phase == "run" and (execution is None or execution.execution_id != ctl.execution):
        raise StateUnreadable("head", "it tells of another execution than the control fields")
    return loaded.state


def _save(
    context: StoreContext,
    keys: SessionKeys,
    before: AgentState,
    next_state: NextState,
    bookkeeping: Bookkeeping,
    version: int,
    now_ms: int,
    watched: WatchedTransaction,
) -> ActionResult:
    starts = is_active(next_state.state) and not is_active(before)
    save = saving(
        context, keys, before, next_state, bookkeeping, version=version + 1, now_ms=now_ms, work_changed=starts
    )  # fmt: skip
    watched.commit("act.exec", save.commands)
    execution = next_state.state.execution
    outcome: Literal["started", "joined", "changed"] = "started" if starts else "joined"
    if execution is None or not is_active(next_state.state):
        outcome = "changed"
    return ActionResult(
        outcome,
        execution.execution_id if execution else "",
        version + 1,
        None if save.is_published else save.next,
    )


def stop(context: StoreContext, session_id: str, execution_id: str | None, transition: Transition) -> ActionResult:
    """End the running execution. See `StepStore.stop`."""
    keys, sent = context.keys(session_id), list[ActionResult]()

    def once() -> ActionResult:
        try:
            return _stop_once(context, keys, execution_id, transition, sent)
        except Changed:
            sent.clear()
            raise

    return _persistently(context, session_id, once)


def _stop_once(
    context: StoreContext, keys: SessionKeys, execution_id: str | None, transition: Transition, sent: list[ActionResult]
) -> ActionResult:
    """
    Args:
        sent: What was written, perhaps: its reply was lost. Noted before it is written.
    """
    reads: list[Command] = [
        ("HMGET", keys.session, "version", *BOOKKEEPING),
        control_command(keys),
        ("HGET", keys.ctl, "worker"),
        context.clock.now(),
        ("LRANGE", keys.inbox, 0, -1),
    ]
    with context.database.watch("stop.read", (keys.session, keys.ctl, keys.inbox), reads) as watched:
        (version, *standing_reply), ctl_reply, worker, now_reply, entries = watched.replies
        if version is None:
            raise SessionNotFound(keys.session_id)
        ctl = ControlFields.read(ctl_reply)
        wanted = sent[-1].execution_id if sent else execution_id
        if ctl.phase == "end" or (wanted is not None and ctl.execution != wanted):
            return sent[-1] if sent else ActionResult("again", ctl.execution, fields.number(version))
        now_ms = context.clock.milliseconds(now_reply)
        (alive,) = watched.pipeline("stop.lease", [("EXISTS", keys.shard.lease(ctl.claim or "-"))])
        # Watched, so that a worker that was only paused cannot begin something between this look and the end.
        journal = keys.journal(ctl.execution, ctl.step)
        (stored_journal,) = watched.pipeline("stop.journal", [("HGETALL", journal)], also=(journal,))
        if alive or decoding.journal(stored_journal).was_paid_for:
            asking, commands = _asking_to_stop(
                context, keys, ctl, fields.text(worker), bool(alive), fields.number(version), watched
            )
            sent.append(asking)
            watched.commit("stop.ask", commands)
            return asking
        before = _stored(context, keys, ctl, fields.number(version), watched)
        bookkeeping = Bookkeeping.read(*standing_reply)
        inbox = decoding.inbox(entries, bookkeeping.operations)
        next_state = transition(Snapshot(before, inbox, len(entries), now_ms, ctl.execution))
        save = saving(context, keys, before, next_state, bookkeeping, version=fields.number(version) + 1, now_ms=now_ms)
        trim: list[Command] = [("LTRIM", keys.inbox, len(entries), -1)] if entries else []
        # A claim that came to nothing has left its traces.
        buried: Command = ("PEXPIRE", journal, context.journal_ms)
        publish = None if save.is_published else save.next
        sent.append(ActionResult("changed", ctl.execution, fields.number(version) + 1, publish))
        watched.commit("stop.exec", [*trim, buried, *save.commands])
        return sent[-1]


def _asking_to_stop(
    context: StoreContext,
    keys: SessionKeys,
    ctl: ControlFields,
    worker: str,
    alive: bool,
    version: int,
    watched: WatchedTransaction,
) -> tuple[ActionResult, list[Command]]:
    """Whoever runs the step, or the next to claim it, commits what it has obtained and ends the execution."""
    commands: list[Command] = [("HSET", keys.ctl, "cancel", ctl.execution, "not_before", 0)]
    publish: StepRef | None = None
    if alive:
        commands.append(("PUBLISH", WAKE_CHANNEL + worker, ctl.claim))
    else:
        ref = StepRef(keys.session_id, ctl.execution, ctl.step)
        (now,) = watched.pipeline("stop.now", [context.clock.now()])
        now_ms = context.clock.milliseconds(now)
        handed = context.publisher.commands(ref, now_ms)
        commands += [("ZADD", keys.shard.due, "XX", now_ms + context.due_ms, keys.session_id), *handed]
        publish = None if handed else ref
    return ActionResult("queued", ctl.execution, version, publish), commands


def retry(context: StoreContext, session_id: str, transition: Transition) -> ActionResult:
    """Continue a failed or stopped execution. See `StepStore.retry`."""
    keys, operation_id = context.keys(session_id), unique_hex()
    sent: ActionResult | None = None  # whether it was applied is not known, where its reply was lost
    was_parked = False

    def once() -> ActionResult:
        nonlocal sent, was_parked
        reads: list[Command] = [
            ("HMGET", keys.session, "version", *BOOKKEEPING),
            control_command(keys),
            context.clock.now(),
        ]
        with context.database.watch("retry.read", (keys.session, keys.ctl), reads) as watched:
            (version, *standing_reply), ctl_reply, now_reply = watched.replies
            if version is None:
                raise SessionNotFound(session_id)
            ctl, bookkeeping = ControlFields.read(ctl_reply), Bookkeeping.read(*standing_reply)
            now_ms = context.clock.milliseconds(now_reply)
            if sent is not None and (operation_id in bookkeeping.operations or (was_parked and ctl.phase != "parked")):
                return sent
            was_parked = ctl.phase == "parked"
            if was_parked:
                sent, commands = _unparked(context, keys, ctl, fields.number(version), now_ms)
                watched.commit("retry.unpark", commands)
                return sent
            before = _stored(context, keys, ctl, fields.number(version), watched)
            next_state = transition(Snapshot(before, (), 0, now_ms, None))
            next_state = replace(next_state, operations=(*next_state.operations, operation_id))
            save = saving(
                context, keys, before, next_state, bookkeeping, version=fields.number(version) + 1, now_ms=now_ms
            )
            # Of the step that is next: the one it ended at may be committed, and then its journal goes as it must.
            kept = [("PERSIST", keys.journal(due.execution_id, due.step))] if (due := save.next) is not None else []
            sent = ActionResult(
                "started", ctl.execution, fields.number(version) + 1, None if save.is_published else save.next
            )
            watched.commit("retry.exec", [*save.commands, *kept])
            return sent

    return _persistently(context, session_id, once)


def _unparked(
    context: StoreContext, keys: SessionKeys, ctl: ControlFields, version: int, now_ms: int
) -> tuple[ActionResult, Sequence[Command]]:
    ref = StepRef(keys.session_id, ctl.execution, ctl.step)
    handed = context.publisher.commands(ref, now_ms)
    commands: list[Command] = [
        ("HSET", keys.ctl, "phase", "run", "attempts", 0, "published", now_ms, "nudges", 0),
        ("HSET", keys.session, "status", "in_progress"),
        ("ZADD", keys.shard.due, now_ms + context.due_ms, keys.session_id),
        *handed,
    ]
    return ActionResult("started", ctl.execution, version, None if handed else ref), commands


def park(context: StoreContext, ref: StepRef, reason: str, *, whatever_step: bool = False) -> None:
    """Nobody can carry this on. See `StepStore.park`.

    Args:
        whatever_step: The session's control fields are what cannot be read, so nobody knows which step it waits for.
    """
    keys = context.keys(ref.session_id)

    known: list[Command] = [
        ("ZREM", keys.shard.due, keys.session_id),
        dead_entry(context, keys.shard, "step", ref.session_id, ref.execution_id, ref.step, reason),
    ]

    def once() -> None:
        reads: list[Command] = [control_command(keys), ("HGET", keys.session, "version")]
        with context.database.watch("park.read", (keys.ctl,), reads) as watched:
            if not (whatever_step or _is_at(watched.replies[0], ref)):
                return
            commands: list[Command] = [("HSET", keys.ctl, "phase", "parked", "claim", "", "worker", "")]
            if watched.replies[1]:
                event = NewEvent("parked", ref.execution_id, ref.step, {"reason": reason})
                commands += [("HSET", keys.session, "status", "parked"), *event_commands(context, keys, [event])]
            watched.commit("park.exec", [*known, *commands])

    try:
        _persistently(context, ref.session_id, once)
    except StateUnreadable:  # a key of another type: the session stays as it is, and nobody takes it up again
        context.database.pipeline("park.broken", known)


def _is_at(ctl: Reply, ref: StepRef) -> bool:
    """Whether the session waits for this step, as far as its control fields can be read at all."""
    try:
        found = ControlFields.read(ctl)
    except StateUnreadable:
        return True
    return (found.execution, found.step, found.phase) == (ref.execution_id, ref.step, "run")


def quarantine(context: StoreContext, payload: str, reason: str) -> None:
    """Keep a malformed message for whoever looks for its sender."""
    entry = dead_entry(context, context.shards[0], "message", "", "", 0, reason, payload)
    context.database.pipeline("quarantine", [entry])


def _persistently(context: StoreContext, session_id: str, once: Callable[[], Answer]) -> Answer:
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
            context.clock.pause(0.05 * lost)
    raise StoreUnavailable(f"session {session_id} changes too fast to act on; try again")
