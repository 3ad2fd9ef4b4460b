"""The contract of a session store, and the store in memory."""

from __future__ import annotations

import threading
from typing import Protocol, runtime_checkable

from ..errors import SessionConflict, SessionNotFound
from ..state.values.field_types import utcnow
from .actions import SessionAction
from .values import AgentSession, SessionInfoList


class SessionStore(Protocol):
    """Keeps sessions. Every write is atomic: of two writers of one version, exactly one succeeds."""

    def create(self, session: AgentSession) -> AgentSession:
        """Store a session of version 0 as version 1.

        Raises:
            SessionConflict: The session exists (checked first), or its version is not 0.
        """
        ...

    def save(self, session: AgentSession) -> AgentSession:
        """Store the next version of a session and return it; go on with what is returned.

        Raises:
            SessionNotFound: There is no such session, or it was deleted (checked first).
            SessionConflict: It was saved since it was loaded; nothing was written.
        """
        ...

    def load(self, session_id: str) -> AgentSession | None:
        """Read a session; None when there is none."""
        ...

    def exists(self, session_id: str) -> bool:
        """Whether there is such a session."""
        ...

    def delete(self, session_id: str) -> None:
        """Remove a session. A save that comes later finds none; deleting again changes nothing."""
        ...

    def list_headers(self) -> SessionInfoList:
        """The headers of all sessions, the last changed first, without reading one body."""
        ...


@runtime_checkable
class WorkingStore(SessionStore, Protocol):
    """A store whose sessions are run by workers, so that an action may meet a running step."""

    def queue_action(self, session: AgentSession, action: SessionAction) -> bool:
        """Queue an action for the running execution of a session, whose step applies it once.

        Returns:
            False: No execution runs or waits, or the action cannot wait for a step. Nothing was written.
        """
        ...


def next_version(session: AgentSession, stored_version: int | None) -> AgentSession:
    """The session as a save has to store it.

    Args:
        stored_version: The version in the store; None: there is no such session.
    Raises:
        SessionNotFound, SessionConflict: As for `SessionStore.save`.
    """
    if stored_version is None:
        raise SessionNotFound(session.session_id)
    if stored_version != session.version:
        raise version_conflict(session, stored_version)
    return session.reconstitute(stored_version + 1, utcnow())


def first_version(session: AgentSession, stored_version: int | None) -> AgentSession:
    """The session as a create has to store it.

    Raises:
        SessionConflict: As for `SessionStore.create`.
    """
    if stored_version is not None:
        raise SessionConflict(
            f"Session {session.session_id!r} exists already, at version {stored_version}. Load it, or use another id.",
            expected=session.version,
            stored=stored_version,
        )
    if session.version != 0:
        raise SessionConflict(
            f"Session {session.session_id!r} has version {session.version}; only one of version 0 can be created.",
            expected=session.version,
            stored=0,
        )
    return session.reconstitute(1, utcnow())


def version_conflict(session: AgentSession, stored_version: int) -> SessionConflict:
    """The error of a save whose version is not the stored one."""
    return SessionConflict(
        f"Session {session.session_id!r} was saved meanwhile: you have version {session.version}, stored is "
        f"{stored_version}. Load it again and apply the change again.",
        expected=session.version,
        stored=stored_version,
    )


class InMemorySessionStore:
    """`SessionStore` that lives as long as the object; several threads may use it."""

    def __init__(self) -> None:
        self._sessions: dict[str, AgentSession] = {}
        self._lock = threading.Lock()

    def create(self, session: AgentSession) -> AgentSession:
        with self._lock:
            return self._put(first_version(session, self._version(session.session_id)))

    def save(self, session: AgentSession) -> AgentSession:
        with self._lock:
            return self._put(next_version(session, self._version(session.session_id)))

    def load(self, session_id: str) -> AgentSession | None:
        with self._lock:
            return self._sessions.get(session_id)

    def exists(self, session_id: str) -> bool:
        with self._lock:
            return session_id in self._sessions

    def delete(self, session_id: str) -> None:
        with self._lock:
            self._sessions.pop(session_id, None)

    def list_headers(self) -> SessionInfoList:
        with self._lock:
            headers = [session.info for session in self._sessions.values()]
        return SessionInfoList(tuple(sorted(headers, key=lambda info: info.updated_at, reverse=True)))

    def _version(self, session_id: str) -> int | None:
        session = self._sessions.get(session_id)
        return None if session is None else session.version

    def _put(self, session: AgentSession) -> AgentSession:
        self._sessions[session.session_id] = session
        return session
