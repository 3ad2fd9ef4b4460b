"""The commands that make a session's next version, from the difference between two states.

Bounded whatever the session's length: the head, what was appended, and the entries of the indexes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from ...errors import StateUnreadable
from ...moments import unix_ms
from ...state.agent_state import AgentState
from ...state.codec.join import StateParts
from ...state.codec.split import StateChanges, changes, head_json, item_json, write_head
from ...state.conversation.messages import Message
from ...state.execution.execution import ExecutionState
from ...state.execution.status import ExecutionStatus
from ...state.execution.steps import StepExecution
from ...state.past.old_values import Position
from .. import fields
from ..bookkeeping import Bookkeeping
from ..cache import CachedSession
from ..context import SessionScope
from ..control import LONGEST_WAIT_MS, tasks_above
from ..database import Command, Word
from ..events import DeadEntry, event_commands
from ..inbox import recent_operations
from ..keys import callback_note, failed_sinks_field, fingerprint_field, forget_operations, joined_field
from ..packing import pack, pack_step
from ..past import PastChange, begin_past, change_past
from ..records import NextState, StepRef, is_active
from ..session_records import REQUEST_KINDS, Result
from .spending import child_facts

Growth = tuple[AgentState, StateChanges, AgentState | None]
"""A state, what its lists gain, and the state before it; None: there is none."""


@dataclass(frozen=True, slots=True)
class Save:
    """A session's next version, ready to be written.

    Attributes:
        commands: To be run in the session's transaction.
        size: Bytes that were appended, for the cache.
        next: The step that the session waits for, if any.
        is_published: The commands publish it.
        version, state, bookkeeping: The session afterwards.
    """

    commands: list[Command]
    size: int
    next: StepRef | None
    is_published: bool
    version: int
    state: AgentState
    bookkeeping: Bookkeeping

    def update(self, cached: CachedSession, agent: str) -> CachedSession:
        """The session as it is cached once this is written, over the version that is cached now."""
        size = cached.size + self.size
        return CachedSession(self.version, self.state, size=size, agent=agent, bookkeeping=self.bookkeeping)


@dataclass(frozen=True, slots=True)
class SessionSave:
    """A save of one session: `next_state` over `before`, as `version`.

    Attributes:
        before: What is stored; None for a new session.
        bookkeeping: What the store knows of the session besides its state, as stored.
        now_ms: Redis time of the save.
        extra: Further fields and values of the session's hash.
        carried: The claim continues with the next step: nothing is published and the lease stays.
        work_changed: Which step is due may have changed. False for a change that leaves the running execution,
            its message and its due entry as they are.
        queue: Name of the queue for the next step's message; "" is the common one. None: no worker has registered the
            session's agent, and no message is published.
        lane: The lane of the session's steps; "" for none.
        not_before_ms: The step begins at this Redis time; 0: at once.
        held_until_ms: The session is held until this Redis time: nothing is published; 0: it is not.
        old_values: The old values as stored, where the oldest have to be dropped (`is_over`); None: they need not be.
        copied: The parts of a new session that is a copy, whose state then has no lists; None: the state has them.
    """

    scope: SessionScope
    before: AgentState | None
    next_state: NextState
    bookkeeping: Bookkeeping
    version: int
    now_ms: int
    extra: Sequence[Word] = ()
    carried: bool = False
    work_changed: bool = True
    queue: str | None = ""
    lane: str = ""
    not_before_ms: int = 0
    held_until_ms: int = 0
    old_values: Sequence[bytes] | None = None
    copied: StateParts | None = None

    @property
    def _later_ms(self) -> int:
        """When a delayed session becomes due, so that nothing is published now; 0: it is not delayed."""
        return self.held_until_ms or self.not_before_ms

    def prepare(self) -> Save:
        """Make the commands."""
        scope, state = self.scope, self.next_state.state
        due = self._next_step(state)
        growth = self._grow()
        past = self._change_past(growth)
        known = self._next_bookkeeping(past)
        commands = [
            self._session_hash(known, self._head()),
            *(command for after, change, base in growth for command in self._append_commands(after, change, base)),
            *self._copy_commands(),
            *past.commands,
            ("ZADD", scope.keys.shard.sessions, self.now_ms, scope.session_id),
            *self._forget_executions(known.executions),
            *forget_operations(scope.keys, self.bookkeeping.operations, known.operations),
            *event_commands(scope, self.next_state.events),
            *self._set_lives(known.executions),
            *self._schedule_callbacks(),
        ]
        publication: list[Command] = []
        if self.work_changed:
            commands += [self._control_fields(due), self._due_entry(due)]
            if due and not self.carried and not self._later_ms and self.queue is not None:
                publication = list(scope.context.publisher.commands(due, self.now_ms))
        if self.next_state.dead is not None:
            entry = DeadEntry.of_step(scope.session_id, state.execution, self.next_state.dead)
            commands.append(entry.command(scope.context, scope.keys.shard))
        # The indexes that sessions share come first: a script that finds one of them damaged has written nothing.
        commands.sort(key=lambda command: command[1] not in scope.keys.shard.indexes)
        return Save(
            commands=[*commands, *publication],
            size=sum(change.size for _, change, _ in growth),
            next=due if self.work_changed and not self._later_ms else None,
            is_published=bool(publication),
            version=self.version,
            state=state,
            bookkeeping=known,
        )

    def _change_past(self, growth: Sequence[Growth]) -> PastChange:
        if self.copied is not None:
            execution = self.next_state.state.execution
            return begin_past(self.scope, Position(execution.number if execution else 0, len(self.copied.steps)))
        pairs = [(before, after) for after, _, before in growth]
        return change_past(self.scope, self.bookkeeping, pairs, self.version, self.next_state.asked, self.old_values)

    def _head(self) -> bytes:
        packs = self.scope.context.layout.packs
        if self.copied is not None:
            return write_head(self.copied.head, packed=packs)
        return head_json(self.next_state.state, packed=packs)

    def _next_step(self, state: AgentState) -> StepRef | None:
        """The step that is due; that of a child names the tasks above it."""
        due, link = StepRef.due_in(self.scope.session_id, state, self.queue or "", self.lane), self.bookkeeping.link
        if due is None or link is None:
            return due
        parent_task = link.task_id if due.step == 1 else ""
        return replace(due, root_task=link.root_task_id, parent_task=parent_task)

    def _grow(self) -> list[Growth]:
        """Compute what the lists gain, from each state to the next."""
        growth: list[Growth] = []
        before = self.before
        for state in (self.next_state.ended, self.next_state.state):
            if state is not None:
                growth.append((state, changes(before, state), before))
                before = state
        return growth

    def _next_bookkeeping(self, past: PastChange) -> Bookkeeping:
        known, settings = self.bookkeeping, self.scope.settings
        notify = fields.to_json(self._notify()) if self.next_state.notify else known.notify
        return Bookkeeping(
            operations=recent_operations((*known.operations, *self.next_state.operations), settings.operations_kept),
            executions=self._executions(),
            notify=notify,
            lineage=known.next_lineage(),
            parent=known.parent,
            past=past.stored,
            asked=past.asked,
        )

    def _executions(self) -> tuple[str, ...]:
        """Executions whose steps stay, the current one last."""
        known, execution = self.bookkeeping.executions, self.next_state.state.execution
        if execution is None or execution.execution_id in known:
            return known
        return (*known, execution.execution_id)[-self.scope.settings.executions_kept :]

    def _notify(self) -> dict[str, Any]:
        """The callbacks to make at an execution's end, by operation; as many as operations are remembered."""
        stored = self.bookkeeping.notify
        found: object = fields.read_json(stored, "notify") if stored else {}
        if not isinstance(found, dict):
            raise StateUnreadable("notify", "it is no JSON object")
        wanted = {**cast("dict[str, Any]", found), **self.next_state.notify}
        states = (self.before, self.next_state.ended, self.next_state.state)
        current = {state.execution.operation_id for state in states if state is not None and state.execution}
        others = [operation for operation in wanted if operation not in current]
        for operation in others[: max(0, len(wanted) - self.scope.settings.operations_kept)]:
            del wanted[operation]
        return wanted

    def _session_hash(self, known: Bookkeeping, head: bytes) -> Command:
        execution, next_state = self.next_state.state.execution, self.next_state
        words: list[Word] = ["version", self.version, "head", head, "updated", self.now_ms]
        words += ["status", _status_word(execution), "lineage", known.lineage, *self.extra]
        if known.past or self.bookkeeping.past:
            words += ["past", known.past or b""]
        if known.asked != self.bookkeeping.asked:
            words += ["asked", known.asked or b""]
        if next_state.definition is not None:
            words += ["definition", next_state.definition]
        if next_state.operations:
            words += ["ops", fields.to_json(known.operations), *self._joined()]
        for operation, fingerprint in next_state.fingerprints.items():
            words += [fingerprint_field(operation), fingerprint]
        if known.executions != self.bookkeeping.executions:
            words += ["executions", fields.to_json(known.executions)]
        if next_state.notify:
            words += ["notify", known.notify or b""]
        for ended, last in self._ended_executions():
            words += [f"e:{last.execution_id}", fields.to_json({**ended.to_stored(), **child_facts(last)})]
        return ("HSET", self.scope.keys.session, *words)

    def _schedule_callbacks(self) -> Iterator[Command]:
        """Put callbacks of ended executions into the outbox, in the transaction that ends them."""
        if self.bookkeeping.notify is None and not self.next_state.notify:
            return
        wanted = self._notify()
        for record, _ in self._ended_executions():
            for kind in wanted.get(record.operation_id or "", ()):
                if kind in REQUEST_KINDS:
                    continue
                note = callback_note(self.scope.session_id, record.execution_id, kind, record.retries)
                yield ("ZADD", self.scope.keys.shard.callbacks, self.now_ms, note)

    def _ended_executions(self) -> Iterator[tuple[Result, ExecutionState]]:
        """The results of executions that end with this save: one that had ended before was recorded and told then."""
        before = _ended_id(self.before)
        for state in (self.next_state.ended, self.next_state.state):
            if state is None or state.execution is None:
                continue
            ended = _ended_id(state)
            if ended not in (None, before):
                yield Result.of(self.scope.session_id, state, state.execution), state.execution
            before = ended

    def _control_fields(self, due: StepRef | None) -> Command:
        before, after = self.before, self.next_state.state
        execution = after.execution
        not_before = self.not_before_ms
        if due is not None:
            place: list[Word] = ["step", due.step, "phase", "run"]
        elif execution is not None and is_active(after):  # a hook let it wait for nothing that is known
            place = ["step", execution.step_count + 1, "phase", "wait"]
            not_before = self.now_ms + LONGEST_WAIT_MS
        else:
            place = ["phase", "end"]
        words: list[Word] = ["attempts", int(self.carried), "delays", 0, "delayed", 0, "not_before", not_before]
        words += ["published", 0 if self._later_ms else self.now_ms, "nudges", 0]
        words += ["retries", execution.retries if execution else 0, *place]
        if self.queue or (self.next_state.agent is not None and self.queue is not None):
            words += ["queue", self.queue]
        if self.lane:
            words += ["lane", self.lane]
        if not self.carried:
            words += ["claim", "", "worker", ""]
        link = self.bookkeeping.link if before is None else None
        if link is not None:
            words += ["tasks", tasks_above(link.root_task_id, link.task_id)]
        if not self._continues(due):
            started = unix_ms(execution.started_at) if execution and execution.started_at else 0
            words += ["cancel", "", "started", started]
            if execution is not None and is_active(after):
                words += ["execution", execution.execution_id]
        return ("HSET", self.scope.keys.ctl, *words)

    def _continues(self, due: StepRef | None) -> bool:
        """Whether the execution was active before, so that its control fields hold its id, its start and its stop."""
        before = self.before
        if due is None or due.step == 1 or before is None or before.execution is None:
            return False
        return is_active(before) and before.execution.execution_id == due.execution_id

    def _due_entry(self, due: StepRef | None) -> Command:
        """Have the sweep look at the session, as long as its execution has not ended."""
        context, shard = self.scope.context, self.scope.keys.shard
        if not is_active(self.next_state.state):
            return ("ZREM", shard.due, self.scope.session_id)
        if due is None or self._later_ms:
            at_ms = self.held_until_ms or (self.not_before_ms if due else self.now_ms + LONGEST_WAIT_MS)
            return ("ZADD", shard.due, at_ms, self.scope.session_id)
        look = context.lease_ms + context.grace_ms if self.carried else context.due_ms
        return ("ZADD", shard.due, self.now_ms + look, self.scope.session_id)

    def _forget_executions(self, kept: Sequence[str]) -> Iterator[Command]:
        """Delete steps and results of executions that are too many."""
        for execution_id in self.bookkeeping.executions:
            if execution_id not in kept:
                yield ("DEL", self.scope.keys.steps(execution_id))
                yield ("HDEL", self.scope.keys.session, f"e:{execution_id}", failed_sinks_field(execution_id))

    def _joined(self) -> Iterator[Word]:
        """The execution that the operations are part of now."""
        execution = self.next_state.state.execution
        if execution is not None:
            for operation in self.next_state.operations:
                yield from (joined_field(operation), execution.execution_id)

    def _set_lives(self, executions: Sequence[str]) -> Iterator[Command]:
        """Give all keys of a session a TTL when no execution is active, unless the archive is to take it; else none."""
        keys, before, after = self.scope.keys, self.before, self.next_state.state
        if self.bookkeeping.parent is not None:
            pass  # its parent decides what its failure means, and retries it
        elif _status_word(after.execution) == ExecutionStatus.FAILED:
            yield ("ZADD", keys.shard.failed, self.now_ms, keys.session_id)
        elif before is not None and before.status is ExecutionStatus.FAILED:
            yield ("ZREM", keys.shard.failed, keys.session_id)
        ended_before = before if before is not None and not is_active(before) else None
        if ended_before is not None:  # only the last execution is retried
            for name in self._open_journal(ended_before) - self._open_journal(after):
                yield ("PEXPIRE", name, self.scope.context.journal_ms)
        ended_ms = self.scope.context.ended_ms
        if not is_active(after) and ended_ms is not None:
            for name in self._living_keys(executions):
                yield ("PEXPIRE", name, ended_ms)
            yield ("ZADD", keys.shard.ending, self.now_ms + ended_ms, keys.session_id)
        elif self.scope.context.retention_ms is not None and ended_before is not None:
            for name in self._living_keys(executions):
                yield ("PERSIST", name)
            yield ("ZREM", keys.shard.ending, keys.session_id)

    def _living_keys(self, executions: Sequence[str]) -> list[str]:
        """Every key that lives as long as the session."""
        keys, state = self.scope.keys, self.next_state.state
        names = keys.lasting
        names += (keys.section(name, section.generation) for name, section in state.store.sections.items())
        names += (keys.part(name, items.generation) for name, items in state.part_lists.items())
        names += map(keys.steps, executions)
        names += self._open_journal(state) if self.next_state.keep_journal else ()
        return names

    def _open_journal(self, state: AgentState) -> set[str]:
        """The journal behind the last committed step, which a retry needs; nothing without an execution."""
        found = state.execution
        return set() if found is None else {self.scope.keys.journal(found.execution_id, found.step_count + 1)}

    def _append_commands(self, state: AgentState, change: StateChanges, before: AgentState | None) -> Iterator[Command]:
        """Append what a state has and the state before it has not; a list that starts over replaces the old one."""
        keys, compresses = self.scope.keys, self._compresses
        for name, section in change.sections.items():
            if section.start == 0 and before is not None and name in before.store.sections:
                yield ("DEL", keys.section(name, before.store.section(name).generation))
            yield from _append(keys.section(name, section.generation), section.items, packs=compresses)
        for name, generation in change.dropped_lists.items():
            yield ("DEL", keys.part(name, generation))
        for name, items in change.lists.items():
            yield from _append(keys.part(name, items.generation), items.items, packs=compresses)
        if change.steps is not None and state.execution is not None:
            steps = keys.steps(state.execution.execution_id)
            if change.steps.start == 0 and before is not None:
                yield ("DEL", steps)
            items = change.steps.items
            if self.scope.context.layout.packs:
                done = zip(state.execution.step_executions[change.steps.start :], items, strict=True)
                items = [pack_step(step, item, change.sections, alone=compresses) for step, item in done]
            yield from _append(steps, items)

    def _copy_commands(self) -> Iterator[Command]:
        """Write the lists of a copy: entries of its source, and values where it differs from that."""
        if self.copied is None:
            return
        keys, state, compresses = self.scope.keys, self.next_state.state, self._compresses
        for name, items in self.copied.sections.items():
            key = keys.section(name, state.store.section(name).generation)
            yield from _append(key, [_entry(each, packs=compresses) for each in items])
        for name, items in self.copied.lists.items():
            yield from _append(keys.part(name, state.part_lists[name].generation), items)
        if state.execution is not None:
            steps = keys.steps(state.execution.execution_id)
            yield from _append(steps, [_entry(each, packs=compresses) for each in self.copied.steps])

    @property
    def _compresses(self) -> bool:
        context = self.scope.context
        return context.layout.packs and context.settings.compression


def _status_word(execution: ExecutionState | None) -> str:
    """The status of a session as listings show it; idle behind a rewind, too."""
    return "idle" if execution is None or execution.rewound_to is not None else execution.status.value


def _ended_id(state: AgentState | None) -> str | None:
    """The id of a state's execution where that has ended; None otherwise."""
    execution = None if state is None else state.execution
    return execution.execution_id if execution is not None and execution.status.is_terminal() else None


def _entry(item: bytes | Message | StepExecution, *, packs: bool) -> bytes:
    """The entry of an item of a copy: as it was stored, or made of what is otherwise in the copy."""
    if isinstance(item, bytes):
        return item
    return pack(item_json(item)) if packs else item_json(item)


def _append(key: str, items: Sequence[bytes], *, packs: bool = False) -> Iterator[Command]:
    if items:
        yield ("RPUSH", key, *(map(pack, items) if packs else items))
