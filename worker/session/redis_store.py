"""`RedisSessionStore`: sessions of the session runtime in the Redis keys that workers use; nothing is stored twice.
`WorkerRunner` hands their executions to the workers.

A session that an action gives an execution is due with the save, and workers run it. While it runs, its steps save the
session. So a save is refused then, and actions that can wait go to the running step, which applies each of them once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from pydantic import ValidationError

from ..engine.transitions import operation_transition
from ..errors import InvalidInput, SessionNotFound, StateUnreadable
from ..moments import moment
from ..state.agent_state import AgentState
from ..state.values.ids import read_session_id
from ..store.inbox import new_change_id
from ..store.records import ActionResult, InboxKind, Operation, StepRef
from ..store.session_records import Header, StoredSession
from ..store.store import Store
from ..unique import unique_hex
from .actions import (
    TASK,
    ChangeModel,
    ChangeSystemPrompt,
    ResumeSession,
    SaveSession,
    SendMessage,
    SessionAction,
    SuspendSession,
    UpdateTask,
    WriteMetadata,
    read_text,
)
from .repository import SessionRepository
from .store import first_version
from .values import AgentDefinition, AgentSession, AgentSessionInfo, SessionInfoList, SessionStatus

_PAGE: Final = 500
_REASON: Final = "SuspendSession"
_CHANGES: Final = (ChangeModel, ChangeSystemPrompt, UpdateTask, WriteMetadata)

Publish = Callable[[StepRef | None], object]


class RedisSessionStore:
    """Sessions in the Redis of the workers; see `SessionStore`.

    Args:
        store: Such as `AgentClient.store`.
        publish: Publishes the step of an execution that a save starts, where the store's transaction cannot. None: the
            workers' sweep finds it.
    """

    def __init__(self, store: Store, publish: Publish | None = None) -> None:
        self._store = store
        self._publish: Publish = publish or (lambda _: None)

    def create(self, session: AgentSession) -> AgentSession:
        """See `SessionStore.create`.

        Raises:
            InvalidInput: The definition names tools or capabilities, which are those of the workers' agent.
            SessionConflict: The session exists, or its version is not 0.
            SessionDeleted: A session of this id was deleted, and its retention is not over.
        """
        name = session.session_id
        _check_definition(session)
        if session.version != 0:
            first_version(session, self._version(name))
        queue = self._store.registry.queue_of(session.definition.name)
        saved = self._store.sessions.create(name, _whole(session), queue=queue)
        self._publish(saved.publish)
        return _session(name, saved.session)

    def save(self, session: AgentSession) -> AgentSession:
        """See `SessionStore.save`.

        Raises:
            SessionNotFound: There is no such session, or it was deleted.
            SessionConflict: It was saved since it was loaded; nothing was written.
            ActionRefused: An execution of it runs, waits or is parked; nothing was written.
        """
        saved = self._store.sessions.save(session.session_id, _whole(session))
        self._publish(saved.publish)
        return _session(session.session_id, saved.session)

    def load(self, session_id: str) -> AgentSession | None:
        try:
            return _session(session_id, self._store.sessions.load(read_session_id(session_id)))
        except SessionNotFound:
            return None

    def exists(self, session_id: str) -> bool:
        return self._version(read_session_id(session_id)) is not None

    def delete(self, session_id: str) -> None:
        """See `SessionStore.delete`. Sessions below it stay.

        Raises:
            ActionRefused: An execution of it runs or waits. `AgentClient.delete` stops it first.
        """
        try:
            self._publish(self._store.sessions.delete(read_session_id(session_id)).publish)
        except SessionNotFound:
            return

    def list_headers(self) -> SessionInfoList:
        """See `SessionStore.list_headers`. Unreadable sessions are in `unreadable`."""
        found: dict[str, Header] = {}
        newest_ms: int | None = None
        while True:
            page, following = self._store.sessions.headers(newest_ms=newest_ms, limit=_PAGE)
            fresh = [header for header in page if header.session_id not in found]
            found |= {header.session_id: header for header in fresh}
            if following is None:
                break
            newest_ms = following if fresh or following != newest_ms else following - 1
        readable: list[AgentSessionInfo] = []
        unreadable: list[tuple[str, str]] = []
        for header in found.values():
            try:
                if header.problem is None:
                    readable.append(_info_of(header.session_id, header, header.session_status))
                else:
                    unreadable.append((header.session_id, header.problem))
            except StateUnreadable as error:
                unreadable.append((header.session_id, str(error)))
        return SessionInfoList(tuple(readable), tuple(unreadable))

    def queue_action(self, session: AgentSession, action: SessionAction) -> bool:
        """Queue an action for the running execution of a session, whose step applies it once.

        Returns:
            False: No execution runs or waits, or the action cannot wait for a step.
        """
        state = session.state
        if state.status is None or state.status.is_terminal():
            return False
        if isinstance(action, SendMessage) and session.status is not SessionStatus.ACTIVE:
            return False  # the action refuses it itself
        name, sessions = session.session_id, self._store.sessions
        if isinstance(action, SuspendSession):
            return sessions.suspend(name, reason=_REASON).outcome != "idle"
        if isinstance(action, ResumeSession):
            applied = sessions.resume(name)
        else:
            if isinstance(action, _CHANGES):
                action.execute_on(session)  # raises here what the step could not tell anybody any more
            operation = _operation(action)
            if operation is None:
                return False
            applied: ActionResult = sessions.act(name, operation, operation_transition)
        self._publish(applied.publish)
        return applied.outcome != "idle"

    def _version(self, session_id: str) -> int | None:
        try:
            return self._store.sessions.header(session_id).version
        except SessionNotFound:
            return None


def _operation(action: SessionAction) -> Operation | None:
    """The operation that a running step applies in the place of an action; None for any other action."""
    kind, payload = InboxKind.METADATA, dict[str, Any]()
    match action:
        case SendMessage():
            kind, payload = InboxKind.MESSAGE, {"message": action.read_message().to_dict()}
        case ChangeSystemPrompt(system_prompt=prompt):
            kind, payload = InboxKind.SYSTEM_PROMPT, {"prompt": read_text("system_prompt", prompt)}
        case ChangeModel(llm_config=config) if config is not None:
            kind, payload = InboxKind.MODEL, {"model": config.to_dict()}
        case WriteMetadata(key=key, value=value):
            payload = {"key": key, "value": value}
        case UpdateTask(task=task):
            payload = {"key": TASK, "value": read_text("task", task)}
        case _:
            return None
    return Operation(unique_hex() if kind is InboxKind.MESSAGE else new_change_id(), kind, payload)


def _check_definition(session: AgentSession) -> None:
    if session.info.parent_id is not None:
        return  # a fork has the definition of its source, which is stored already
    for name in ("tools", "capabilities"):
        named: tuple[str, ...] = getattr(session.definition, name)
        if named:
            advice = f"workers offer agent {session.definition.name!r} with its own; leave {name} out."
            raise InvalidInput(f"AgentDefinition.{name}", ", ".join(named), advice)


def _whole(session: AgentSession) -> StoredSession:
    return StoredSession(
        agent=session.definition.name,
        state=session.state,
        status=session.status.value,
        definition=session.definition.to_json(),
        forked_from=session.info.parent_id or "",
        version=session.version,
    )


def _session(session_id: str, stored: StoredSession) -> AgentSession:
    info = _info_of(session_id, stored, stored.status)
    return AgentSession(info=info, definition=_definition(stored), state=stored.state)


def _definition(stored: StoredSession) -> AgentDefinition:
    """The stored definition; that of a session which a client has submitted names its agent alone."""
    if not stored.definition:
        return AgentDefinition(name=stored.agent)
    try:
        return AgentDefinition.from_json(stored.definition)
    except ValidationError:
        raise StateUnreadable("session_definition", "it is no definition of an agent") from None


def _info_of(session_id: str, stored: StoredSession | Header, status: str) -> AgentSessionInfo:
    try:
        return AgentSessionInfo(
            session_id=read_session_id(session_id),
            agent_name=stored.agent,
            status=_status(status),
            version=stored.version,
            created_at=moment(stored.created_ms),
            updated_at=moment(stored.updated_ms),
            parent_id=read_session_id(stored.forked_from) if stored.forked_from else None,
        )
    except InvalidInput as error:
        raise StateUnreadable("the header of the session", str(error)) from None


def _status(name: str) -> SessionStatus:
    try:
        return SessionStatus(name)
    except ValueError:
        raise StateUnreadable("session_status", f"it is {name[:40]!r}, which is no status") from None


_BLOCK_MS: Final = 1_000


class WorkerRunner:
    """A `SessionRunner` that hands an execution to the workers, with the save that stores it.

    Args:
        store: Where the sessions are. None: no session waits, and it is not needed.
        timeout: Seconds to wait for the end; None: as long as it takes. Only with a store.

    Without a store, `SendMessage` returns the session with its execution pending. With one, it waits, and returns the
    session with the answer.
    """

    def __init__(self, store: Store | None = None, timeout: float | None = None) -> None:
        self._store = store
        self._timeout = timeout

    def run(self, session: AgentSession, state: AgentState, save: SaveSession) -> AgentSession:
        """Submit the execution of `state` to the workers; see `SessionRunner.run`.

        Raises:
            TimeoutError: It has not ended in time; it goes on.
            SessionNotFound: The session was deleted meanwhile.
        """
        started = session.with_state(state)
        if self._store is None:
            return started
        saved = save(started)
        assert state.execution is not None
        self._wait(self._store, saved.session_id, state.execution.execution_id)
        return SessionRepository(RedisSessionStore(self._store)).load(saved.session_id)

    def _wait(self, store: Store, session_id: str, execution_id: str) -> None:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        position = "0"
        while store.sessions.outcome(session_id, execution_id) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"execution {execution_id} has not ended within {self._timeout:g} s; it goes on")
            left_ms = _BLOCK_MS if deadline is None else round((deadline - time.monotonic()) * 1000)
            events = store.sessions.watch(session_id, position, max(1, min(_BLOCK_MS, left_ms)))
            position = events[-1].id if events else position
