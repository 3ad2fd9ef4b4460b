"""Whole sessions: created, read and replaced as one value, for the session runtime.

The state is stored as every step stores it; the status, the definition and the origin of a fork are fields of the
session's hash. A save matches the version and is refused while an execution runs or waits: its step would change the
session at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from ...errors import ActionRefused, SessionConflict, SessionDeleted
from ...flow.shares import moved_lane
from ...state.agent_state import AgentState
from ...state.codec.join import StateParts
from ...unique import unique_hex
from .. import fields
from ..bookkeeping import Bookkeeping
from ..context import SessionScope, StorePart
from ..control import ControlFields, control_command
from ..database import Command, Reply, WatchedTransaction, Word
from ..event_records import EventType, NewEvent
from ..inbox import new_change_id
from ..labels import NO_LABELS, index_commands, label_words
from ..records import NextState, StepRef, is_active
from ..session_records import ACTIVE, StoredSession
from ..waking import begin_waiting
from .archive_marks import ArchiveMark
from .copying import check_entries
from .loading import ARCHIVED, MARK, LoadVerbs
from .repacking import write_steps_again
from .saving import SessionSave
from .spending import brought_words
from .watched_sessions import WatchedSession, check_version


def without_execution(session: StoredSession, parts: StateParts) -> tuple[StoredSession, StateParts]:
    """The session without its execution."""
    return session, parts.without_execution()


@dataclass(frozen=True, slots=True)
class Saved:
    """A session as a write has stored it, with the step to publish.

    Attributes:
        session: As it is stored now.
        publish: Its first step, where it starts an execution and the transaction could not publish it.
    """

    session: StoredSession
    publish: StepRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A fork as it is to be stored.

    Attributes:
        change: From the session that is copied to the fork; by default the same without its execution. The state of
            both is that of the head of the parts beside them, and the items of these are entries.
        past: The parts of the session as it is copied; None: those of its last commit, which are read.
        queue: Of the agent, where it is another one than the session's.
        share: Of its labels, where they are others than the session's. None: it has the share of the session.
        fingerprint: The same request has the same, and makes one fork; "" for a request that is made once.
    """

    change: Callable[[StoredSession, StateParts], tuple[StoredSession, StateParts]] = without_execution
    past: StateParts | None = None
    queue: str | None = ""
    share: str | None = None
    fingerprint: str = ""


_IDLE: Final = Copy()


class WholeSessionVerbs(StorePart):
    """Creating, reading and replacing sessions as a whole."""

    def create(self, session_id: str, session: StoredSession, *, queue: str | None = "") -> Saved:
        """Store a new session, as the session runtime has it, as version 1; once.

        Args:
            queue: Name of the agent's queue, as for `submit`.
        Raises:
            SessionConflict: The session exists; the error names both versions.
            SessionDeleted: A session of this id was deleted, and its mark is still there.
            StoreFull: Nothing was written.
        """
        creation = _Creation(scope=self._context.session(session_id), session=session, queue=queue)
        return creation.scope.act_once(creation.run, "be created")

    def save(self, session_id: str, session: StoredSession) -> Saved:
        """Store the next version of a session of which no execution runs or waits.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            SessionConflict: It was saved since it was read; the error names both versions. Nothing was written.
            ActionRefused: An execution runs, waits or is parked; nothing was written.
        """
        saving = _Saving(scope=self._context.session(session_id), session=session)
        return saving.scope.act_once(saving.run, "be saved")

    def fork(self, session_id: str, fork_id: str, copy: Copy = _IDLE, *, version: int | None = None) -> StepRef | None:
        """Store a copy of a session, at its last commit or as the copy says, under an id below its root.

        Args:
            version: The version that the session must have; None: any.
        Returns:
            The step of the fork that the caller has to publish. None: none.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            SessionConflict: It has another version, or the id of the fork is used already. Nothing was written.
            StateUnreadable: A part of the session cannot be read.
        """
        load = LoadVerbs(self._context)
        source, parts = load.load_parts(session_id) if copy.past is None else load.load_with(session_id, copy.past)
        check_version(session_id, source.version, version, "copied")
        check_entries(parts)
        (stored,) = self._context.database.pipeline("fork.queue", [control_command(self._context.keys(session_id))])
        control = ControlFields.read(stored)
        fork, parts = copy.change(source, parts)
        fork = replace(fork, state=parts.head.state, status=ACTIVE, forked_from=session_id, version=0, created_ms=0)
        creation = _Creation(
            scope=self._context.session(fork_id),
            session=fork,
            queue=copy.queue if fork.agent != source.agent else control.queue,
            lane=control.lane if copy.share is None else moved_lane(control.lane, copy.share),
            operation_id=copy.fingerprint or unique_hex(),
            copied=parts,
        )
        return creation.scope.act_once(creation.run, "be created").publish

    def made_by(self, session_id: str) -> str:
        """The fingerprint of the request that has made a session; "" where there is no such session."""
        keys = self._context.keys(session_id)
        ((fingerprint, archived),) = self._context.database.pipeline(
            "create.known", [("HMGET", keys.session, "fingerprint", ARCHIVED)]
        )
        if archived is not None:
            return ArchiveMark.read(fields.text(archived)).fingerprint
        return fields.text(fingerprint)


@dataclass(slots=True)
class _Creation:
    """One creation and its attempts, told from others by their mark in `fingerprint`.

    Attributes:
        copied: The parts of a copy, whose state has no lists; None: it has them.
    """

    scope: SessionScope
    session: StoredSession
    queue: str | None
    lane: str = ""
    copied: StateParts | None = None
    operation_id: str = field(default_factory=unique_hex)

    def run(self) -> Saved:
        """Make one attempt."""
        scope, keys = self.scope, self.scope.keys
        wanted = ("version", MARK, "fingerprint", ARCHIVED)
        reads: list[Command] = [("HMGET", keys.session, *wanted), scope.clock.now()]
        with scope.database.watch("create.read", (keys.session, keys.ctl), reads) as watched:
            (version, mark, fingerprint, archived), now = watched.replies
            if version is not None and fields.text(fingerprint) != self.operation_id:
                raise _exists(scope.session_id, self.session.version, fields.number(version))
            now_ms = scope.clock.milliseconds(now) if mark is None else fields.milliseconds(mark)
            stored = replace(self.session, version=1, created_ms=now_ms, updated_ms=now_ms)
            if version is not None:  # its reply was lost
                return Saved(stored)
            if archived is not None:
                known = ArchiveMark.read(fields.text(archived))
                if known.fingerprint == self.operation_id:
                    return Saved(stored)
                raise _exists(scope.session_id, self.session.version, known.version)
            if mark is not None:
                raise SessionDeleted(scope.session_id)
            extra = ("agent", stored.agent, "fingerprint", self.operation_id, "first", "", MARK, now_ms)
            next_state = NextState(stored.state, events=_events(None, stored, self.operation_id))
            save = SessionSave(
                scope=scope,
                before=None,
                next_state=next_state,
                bookkeeping=Bookkeeping(),
                version=1,
                now_ms=now_ms,
                extra=(*extra, *self._brought(), *stored.words(), *label_words(stored.labels)),
                queue=self.queue, lane=self.lane,
                copied=self.copied,
            ).prepare()  # fmt: skip
            commands = [*index_commands(keys, NO_LABELS, stored.labels), *save.commands]
            ended_ms = scope.context.ended_ms
            if not is_active(stored.state) and ended_ms is not None:  # its control fields are made last
                commands.append(("PEXPIRE", keys.ctl, ended_ms))
            if self.queue is None:
                commands += begin_waiting(scope, stored.agent, since_ms=now_ms, ref=save.next)
            watched.commit("create.exec", commands)
            return Saved(stored, None if save.is_published or self.queue is None else save.next)

    def _brought(self) -> list[Word]:
        """Tell what its execution has used elsewhere."""
        execution = self.session.state.execution
        if execution is None:
            return []
        steps = execution.step_executions if self.copied is None else self.copied.steps
        return brought_words(execution, len(steps))


@dataclass(slots=True)
class _Saving:
    """One save and its attempts, told from others by their operation id."""

    scope: SessionScope
    session: StoredSession
    operation_id: str = field(default_factory=new_change_id)
    written: Saved | None = None

    def run(self) -> Saved:
        """Make one attempt."""
        scope, keys = self.scope, self.scope.keys
        reads: list[Command] = [*WatchedSession.reads(scope), ("HGET", keys.session, MARK)]
        with scope.database.watch("save.read", (keys.session, keys.ctl, keys.inbox), reads) as watched:
            *session, created = watched.replies
            found = WatchedSession.parse(scope, session)
            if self.written is not None and self.operation_id in found.bookkeeping.operations:
                return self.written
            self._check(found)
            return self._save(found, created, watched)

    def _check(self, found: WatchedSession) -> None:
        name, wanted = self.scope.session_id, self.session.version
        if found.version != wanted:
            raise SessionConflict(
                f"Session {name!r} was saved meanwhile: you have version {wanted}, stored is {found.version}. "
                "Load it again and apply the change again.",
                expected=wanted,
                stored=found.version,
            )
        if found.control.phase in ("run", "wait"):
            raise ActionRefused(
                f"an execution of session {name} runs or waits, and its step saves the session; send the change as an "
                "action that waits for the step, or stop the execution first"
            )
        if found.control.phase == "parked":
            raise ActionRefused(
                f"session {name} is parked: its execution has not ended, and a save would lose it; stop or retry it "
                "first"
            )

    def _save(self, found: WatchedSession, created: Reply, watched: WatchedTransaction) -> Saved:
        before = found.load_state(watched)
        created_ms = fields.milliseconds(created)
        session = replace(
            self.session,
            state=self.session.state.following(before),
            version=found.version + 1,
            created_ms=created_ms,
            updated_ms=found.now_ms,
        )
        next_state = NextState(
            session.state, events=_events(before, session, self.operation_id), operations=(self.operation_id,)
        )
        save = found.with_old_values(watched).prepare_save(before, next_state, extra=session.words())
        self.written = Saved(session, None if save.is_published else save.next)
        again = write_steps_again(found, before, session.state, watched, "save.steps")
        watched.commit("save.exec", [*again, *save.commands])
        return self.written


def _exists(session_id: str, version: int, stored: int) -> SessionConflict:
    return SessionConflict(
        f"Session {session_id!r} exists already, at version {stored}. Load it, or use another id.",
        expected=version,
        stored=stored,
    )


def _events(before: AgentState | None, saved: StoredSession, operation_id: str) -> tuple[NewEvent, ...]:
    """Tell of the save, and of an execution that begins with it."""
    execution = saved.state.execution
    data = {"status": saved.status, "version": saved.version}
    event = NewEvent(type=EventType.SESSION_SAVED, execution_id="", step=0, data=data)
    if execution is None or not is_active(saved.state) or (before is not None and is_active(before)):
        return (event,)
    data = {"operation": execution.operation_id or operation_id}
    begins = NewEvent(type=EventType.EXECUTION_SUBMITTED, execution_id=execution.execution_id, step=0, data=data)
    return (event, begins)
