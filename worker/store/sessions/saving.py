"""The commands that make a session's next version, from the difference between two states.

Bounded whatever the session's length: the head, what was appended, and the bookkeeping of the due index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from ...errors import StateUnreadable
from ...state import AgentState, ExecutionState, ExecutionStatus, ListChange, StateChanges, changes
from .. import fields
from ..bookkeeping import Bookkeeping
from ..context import StoreContext
from ..database import Command, Word
from ..events import event_commands
from ..keys import SessionKeys, ShardKeys, callback_note
from ..records import NextState, Result, StepRef


@dataclass(frozen=True, slots=True)
class Save:
    """A session's next version, ready to be written.

    Attributes:
        commands: To be run in the session's transaction.
        size: Bytes that were appended, for the cache.
        next: The step that the session waits for, if any.
        is_published: The commands publish it.
        standing: What the store knows of the session afterwards.
    """

    commands: list[Command]
    size: int
    next: StepRef | None
    is_published: bool
    bookkeeping: Bookkeeping


def is_active(state: AgentState) -> bool:
    """Whether an execution of the session runs or waits."""
    return state.execution is not None and not state.execution.status.is_terminal()


def next_step(session_id: str, state: AgentState) -> StepRef | None:
    """The step that is due; None when nothing runs."""
    execution = state.execution
    if execution is None or execution.status.is_terminal() or execution.status is ExecutionStatus.WAITING:
        return None
    return StepRef(session_id, execution.execution_id, execution.step_count + 1, execution.retries)


def saving(
    context: StoreContext,
    keys: SessionKeys,
    before: AgentState | None,
    next_state: NextState,
    bookkeeping: Bookkeeping,
    *,
    version: int,
    now_ms: int,
    extra: Sequence[Word] = (),
    carried: bool = False,
    work_changed: bool = True,
) -> Save:
    """Commands that store `next_state` over `before` as `version`.

    Args:
        before: What is stored; None for a new session.
        extra: Further fields of the session's hash.
        carried: The claim goes on with the next step: nothing is published and the lease stays.
        work_changed: Which step is due may have changed. False for a change beside the running execution, whose
            message and due entry stay as they are.
    """
    after = next_state.state
    due = next_step(keys.session_id, after)
    growth = _growth(before, next_state)
    appended = [command for state, change, base in growth for command in _appended(keys, state, change, base)]
    executions, lineage = _executions(context, bookkeeping.executions, after), bookkeeping.next_lineage()
    commands = [
        _session_hash(
            context, keys, next_state, bookkeeping, executions, version, now_ms, growth[-1][1].head, lineage, extra
        ),
        *appended,
        ("ZADD", keys.shard.sessions, now_ms, keys.session_id),
        *_forgotten(keys, bookkeeping.executions, executions),
        *event_commands(context, keys, next_state.events),
        *_lives(context, keys, before, next_state, executions, now_ms),
        *_callbacks(keys, next_state, bookkeeping, now_ms),
    ]
    publication: list[Command] = []
    if work_changed:
        commands += _ctl(keys, before, after, due, now_ms, carried)
        commands.append(_due(context, keys, due, now_ms, carried))
        publication = list(context.publisher.commands(due, now_ms)) if due and not carried else []
    if next_state.dead is not None:
        commands.append(_dead(context, keys, after, next_state.dead))
    size = sum(len(word) for command in appended for word in command[2:] if isinstance(word, bytes))
    known = Bookkeeping(
        _operations(context, next_state, bookkeeping), executions, _all_notify(next_state, bookkeeping), lineage
    )
    return Save([*commands, *publication], size, due if work_changed else None, bool(publication), known)


def _session_hash(
    context: StoreContext,
    keys: SessionKeys,
    next_state: NextState,
    bookkeeping: Bookkeeping,
    executions: Sequence[str],
    version: int,
    now_ms: int,
    head: bytes,
    lineage: bytes,
    extra: Sequence[Word],
) -> Command:
    execution = next_state.state.execution
    words: list[Word] = ["version", version, "head", head, "updated", now_ms]
    words += ["status", execution.status.value if execution else "idle", "lineage", lineage, *extra]
    if next_state.definition is not None:
        words += ["definition", next_state.definition]
    if next_state.operations:
        words += ["ops", fields.packed(_operations(context, next_state, bookkeeping))]
    if tuple(executions) != bookkeeping.executions:
        words += ["executions", fields.packed(executions)]
    if next_state.notify:
        words += ["notify", _all_notify(next_state, bookkeeping) or b""]
    for result in _results(keys.session_id, next_state):
        words += [f"e:{result.execution_id}", fields.packed(_stored_result(result))]
    return ("HSET", keys.session, *words)


def _operations(context: StoreContext, next_state: NextState, bookkeeping: Bookkeeping) -> tuple[str, ...]:
    return (*bookkeeping.operations, *next_state.operations)[-context.settings.operations_kept :]


def _all_notify(next_state: NextState, bookkeeping: Bookkeeping) -> bytes | None:
    return fields.packed({**_notify(bookkeeping), **next_state.notify}) if next_state.notify else bookkeeping.notify


def _notify(bookkeeping: Bookkeeping) -> dict[str, Any]:
    found: object = fields.read_json(bookkeeping.notify, "notify") if bookkeeping.notify else {}
    if not isinstance(found, dict):
        raise StateUnreadable("notify", "it is no JSON object")
    return cast("dict[str, Any]", found)


def _callbacks(keys: SessionKeys, next_state: NextState, bookkeeping: Bookkeeping, now_ms: int) -> Iterator[Command]:
    """Whoever wants to know of an end is noted in the transaction that makes it one."""
    if bookkeeping.notify is None and not next_state.notify:
        return
    wanted = {**_notify(bookkeeping), **next_state.notify}
    for result in _results(keys.session_id, next_state):
        for kind in wanted.get(result.operation_id or "", ()):
            note = callback_note(keys.session_id, result.execution_id, kind, result.retries)
            yield ("ZADD", keys.shard.callbacks, now_ms, note)


def _results(session_id: str, next_state: NextState) -> Iterator[Result]:
    """A result for each execution that has ended in this version."""
    for state in (next_state.ended, next_state.state):
        if state is not None and state.execution is not None and state.execution.status.is_terminal():
            yield result_of(session_id, state, state.execution)


def result_of(session_id: str, state: AgentState, execution: ExecutionState) -> Result:
    """How an execution of the session ended."""
    signal, reason = execution.stop_signal, execution.final_reason()
    last = state.last_step
    return Result(
        session_id=session_id,
        execution_id=execution.execution_id,
        status=execution.status.value,
        final_response=state.final_response,
        output=last.inference_response.output if last is not None else None,
        stop_reason=reason.value if reason else None,
        stop_message=signal.message if signal else "",
        usage=execution.usage.to_dict(),
        cost=execution.cost,
        step_count=execution.step_count,
        errors=tuple(error.message for error in state.errors),
        operation_id=execution.operation_id,
        retries=execution.retries,
    )


def _stored_result(result: Result) -> dict[str, Any]:
    """The result's fields without the session's id, which is in the key."""
    stored = result.to_dict()
    del stored["session_id"]
    return stored


def _growth(
    before: AgentState | None, next_state: NextState
) -> list[tuple[AgentState, StateChanges, AgentState | None]]:
    """What the lists gain, from each state to the next."""
    growth: list[tuple[AgentState, StateChanges, AgentState | None]] = []
    for state in (next_state.ended, next_state.state):
        if state is not None:
            growth.append((state, changes(before, state), before))
            before = state
    return growth


def _appended(
    keys: SessionKeys, state: AgentState, change: StateChanges, before: AgentState | None
) -> Iterator[Command]:
    for name, section in change.sections.items():
        if section.start == 0 and before is not None and name in before.store.sections:
            yield ("DEL", keys.section(name, before.store.section(name).generation))
        yield from _grown(keys.section(name, section.generation), section)
    for name, generation in change.dropped_lists.items():
        yield ("DEL", keys.part(name, generation))
    for name, items in change.lists.items():
        yield from _grown(keys.part(name, items.generation), items)
    if change.steps is not None and state.execution is not None:
        list_key = keys.steps(state.execution.execution_id)
        if change.steps.start == 0 and before is not None:
            yield ("DEL", list_key)
        yield from _grown(list_key, change.steps)


def _grown(key: str, change: ListChange) -> Iterator[Command]:
    if change.items:
        yield ("RPUSH", key, *change.items)


def _ctl(
    keys: SessionKeys, before: AgentState | None, after: AgentState, due: StepRef | None, now_ms: int, carried: bool
) -> Iterator[Command]:
    execution = after.execution
    started = milliseconds(execution.started_at) if execution and execution.started_at else 0
    words: list[Word] = ["attempts", int(carried), "delays", 0, "delayed", 0, "not_before", 0, "started", started]
    words += ["published", now_ms, "nudges", 0, "retries", execution.retries if execution else 0]
    if due is not None:
        words += ["execution", due.execution_id, "step", due.step, "phase", "run"]
    else:
        words += ["phase", "wait" if is_active(after) else "end"]
    if not carried:
        words += ["claim", "", "worker", ""]
    if due is None or before is None or not is_active(before) or due.step == 1:
        words += ["cancel", ""]
    yield ("HSET", keys.ctl, *words)


def milliseconds(moment: datetime) -> int:
    """Unix time in milliseconds."""
    return round(moment.timestamp() * 1000)


def _due(context: StoreContext, keys: SessionKeys, due: StepRef | None, now_ms: int, carried: bool) -> Command:
    if due is None:
        return ("ZREM", keys.shard.due, keys.session_id)
    look = context.lease_ms + context.grace_ms if carried else context.due_ms
    return ("ZADD", keys.shard.due, now_ms + look, keys.session_id)


def _executions(context: StoreContext, known: Sequence[str], after: AgentState) -> tuple[str, ...]:
    """Executions whose steps stay, the current one last."""
    current = after.execution.execution_id if after.execution is not None else None
    if current is None or current in known:
        return tuple(known)
    return (*known, current)[-context.settings.executions_kept :]


def _forgotten(keys: SessionKeys, before: Sequence[str], now: Sequence[str]) -> Iterator[Command]:
    """Steps and record of executions that are too many."""
    for execution_id in before:
        if execution_id not in now:
            yield ("DEL", keys.steps(execution_id))
            yield ("HDEL", keys.session, f"e:{execution_id}")


def _lives(
    context: StoreContext,
    keys: SessionKeys,
    before: AgentState | None,
    next_state: NextState,
    known: Sequence[str],
    now_ms: int,
) -> Iterator[Command]:
    """No key of a session has a TTL while an execution is active; all have it when none is."""
    after = next_state.state
    active, was_active = is_active(after), before is not None and is_active(before)
    execution = after.execution
    if execution is not None and execution.status is ExecutionStatus.FAILED:
        yield ("ZADD", keys.shard.failed, now_ms, keys.session_id)
    elif before is not None and before.execution is not None and before.execution.status is ExecutionStatus.FAILED:
        yield ("ZREM", keys.shard.failed, keys.session_id)
    if context.retention_ms is None:
        return
    names = [*session_key_names(keys, after, known), *_kept_journal(keys, next_state)]
    if not active:
        for name in names:
            yield ("PEXPIRE", name, context.retention_ms)
        yield ("ZADD", keys.shard.ending, now_ms + context.retention_ms, keys.session_id)
    elif before is not None and not was_active:
        for name in names:
            yield ("PERSIST", name)
        yield ("ZREM", keys.shard.ending, keys.session_id)


def session_key_names(keys: SessionKeys, state: AgentState, executions: Sequence[str]) -> list[str]:
    """Every key that lives as long as the session."""
    sections = state.store.sections
    return [
        keys.session,
        keys.ctl,
        keys.inbox,
        keys.events,
        *(keys.section(name, section.generation) for name, section in sections.items()),
        *(keys.part(name, items.generation) for name, items in state.part_lists.items()),
        *(keys.steps(execution_id) for execution_id in executions),
    ]


def _kept_journal(keys: SessionKeys, next_state: NextState) -> list[str]:
    execution = next_state.state.execution
    if execution is None or not next_state.keep_journal:
        return []
    return [keys.journal(execution.execution_id, execution.step_count + 1)]


def _dead(context: StoreContext, keys: SessionKeys, after: AgentState, reason: str) -> Command:
    execution = after.execution
    execution_id = execution.execution_id if execution else ""
    step = execution.step_count + 1 if execution else 0
    return dead_entry(context, keys.shard, "step", keys.session_id, execution_id, step, reason)


def dead_entry(
    context: StoreContext,
    shard: ShardKeys,
    kind: str,
    session_id: str,
    execution_id: str,
    step: int,
    reason: str,
    payload: str = "",
) -> Command:
    """An entry in the list of parked steps and quarantined messages."""
    return (
        "XADD", shard.dead, "MAXLEN", "~", context.settings.dead_kept, "*", "kind", kind, "session", session_id,
        "execution", execution_id, "step", step, "reason", reason, "payload", payload,
    )  # fmt: skip
