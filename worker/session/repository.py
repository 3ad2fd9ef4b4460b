"""The repository, which turns a missing session into an error, and the factory of sessions."""

from __future__ import annotations

from ..agent import Agent
from ..errors import SessionNotFound
from ..state.agent_state import AgentState
from ..state.values.ids import SessionId
from .actions import SessionAction
from .store import SessionStore, WorkingStore
from .values import AgentDefinition, AgentSession, AgentSessionInfo, SessionInfoList


class SessionRepository:
    """Sessions in a store; see `SessionStore` for the errors."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    def create(self, session: AgentSession) -> AgentSession:
        """Store a new session as version 1."""
        return self._store.create(session)

    def save(self, session: AgentSession) -> AgentSession:
        """Store the next version and return it."""
        return self._store.save(session)

    def load(self, session_id: str) -> AgentSession:
        """Read a session.

        Raises:
            SessionNotFound: There is none.
        """
        session = self._store.load(session_id)
        if session is None:
            raise SessionNotFound(session_id)
        return session

    def exists(self, session_id: str) -> bool:
        """Whether there is such a session."""
        return self._store.exists(session_id)

    def queue_action(self, session: AgentSession, action: SessionAction) -> bool:
        """Queue an action for the running execution of a session; False: nothing runs, as in memory and in files."""
        return isinstance(self._store, WorkingStore) and self._store.queue_action(session, action)

    def delete(self, session_id: str) -> None:
        """Remove a session; nothing happens when there is none."""
        self._store.delete(session_id)

    def list_headers(self) -> SessionInfoList:
        """The headers of all sessions, the last changed first."""
        return self._store.list_headers()


class SessionFactory:
    """Makes sessions that are in no store yet."""

    def create(
        self,
        definition: AgentDefinition | Agent,
        seed: AgentState | None = None,
        *,
        session_id: SessionId | str | None = None,
    ) -> AgentSession:
        """A new session of version 0.

        Args:
            seed: The state to begin with. None: an empty one with the definition's metadata. Prompt and model of the
                definition become the session's own, unless the seed has its own.
            session_id: None: a new one.
        """
        if isinstance(definition, Agent):
            definition = AgentDefinition.describing(definition)
        info = AgentSessionInfo(
            session_id=SessionId.generate() if session_id is None else SessionId.of(session_id),
            agent_name=definition.name,
        )
        state = seed or AgentState.fresh(metadata=dict(definition.metadata))
        if definition.system_prompt and not state.system_prompt:
            state = state.with_system_prompt(definition.system_prompt)
        if definition.llm_config is not None and state.llm_config is None:
            state = state.with_llm_config(definition.llm_config)
        return AgentSession(info=info, definition=definition, state=state)
