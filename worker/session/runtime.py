"""`SessionRuntime`: loads a session, runs an action on it, and saves it, with controllers and events in between."""

from __future__ import annotations

from typing import Final

from ..agent import Agent
from ..errors import ActionRefused, SessionConflict
from ..redaction import describe_exception
from ..state.agent_state import AgentState
from .actions import SessionAction, SteppedAction
from .events import (
    AgentSessionStage,
    EventDispatcher,
    PassThroughSessionController,
    SessionActionExecuted,
    SessionController,
    SessionLoaded,
    SessionLoadFailed,
    SessionSaved,
    SessionSaveFailed,
)
from .repository import SessionFactory, SessionRepository
from .values import AgentDefinition, AgentSession, AgentSessionInfo, SessionInfoList

_MOST_SAVES: Final = 5


class SessionRuntime:
    """Reads and changes sessions. Reads store nothing."""

    def __init__(
        self,
        repository: SessionRepository,
        events: EventDispatcher | None = None,
        controllers: SessionController | None = None,
        *,
        factory: SessionFactory | None = None,
    ) -> None:
        """
        Args:
            controllers: One controller, or several in a `SessionHookStack`. None: none.
        """
        self._repository = repository
        self._events = events or EventDispatcher()
        self._controller: SessionController = controllers or PassThroughSessionController()
        self._factory = factory or SessionFactory()

    def list_sessions(self) -> SessionInfoList:
        """The headers of all sessions, of every status."""
        return self._repository.list_headers()

    def get_session_info(self, session_id: str) -> AgentSessionInfo:
        """The header of a session. Raises `SessionNotFound`."""
        return self._repository.load(session_id).info

    def get_session(self, session_id: str) -> AgentSession:
        """Load a session, pass it through `AFTER_LOAD`, and store nothing. Raises `SessionNotFound`."""
        return self._load(session_id)

    def create(self, definition: AgentDefinition | Agent, seed: AgentState | None = None) -> AgentSession:
        """Create a session: `BEFORE_CREATE`, `BEFORE_SAVE`, the write, `AFTER_SAVE`, `AFTER_CREATE`, `SessionSaved`."""
        session = self._factory.create(definition, seed)
        session = self._pass(session, AgentSessionStage.BEFORE_CREATE, AgentSessionStage.BEFORE_SAVE)
        try:
            session = self._repository.create(session)
            session = self._pass(session, AgentSessionStage.AFTER_SAVE, AgentSessionStage.AFTER_CREATE)
        except Exception as error:
            self._report_save_failure(session.session_id, error)
            raise
        return self._report_saved(session)

    def execute(self, session_id: str, action: SessionAction, *, strict: bool = False) -> AgentSession:
        """Run an action on a session and save it; continue with what is returned.

        An action that raises, or a controller before the save, leaves the stored session as it is; of an action with
        several steps, those that were saved stay. While workers run an execution of the session, the actions of this
        package but `ClearSession` are queued for its step, which applies each once: no controller and no listener sees
        more than the load, and the session is returned as it was loaded.

        What workers have stored of an execution that the action waited for is not undone by a closing save that is
        refused because the session was saved meanwhile, as by the next message: the changes of the controllers are then
        made on the newer session. Where another execution runs already, they are left out, and a `SessionSaveFailed`
        tells so.

        Args:
            strict: Queue nothing: refuse while an execution runs.

        Raises:
            ActionRefused: An execution of the session runs or waits, and the action cannot wait for its step.
            SessionNotFound: There is no such session, or it was deleted meanwhile.
            SessionConflict: The session was saved meanwhile; load it and try again.
            Exception: Any exception of the action or a controller.
        """
        before = self._load(session_id)
        if not strict and self._repository.queue_action(before, action):
            return before
        saved = [before]
        if isinstance(action, SteppedAction):
            action = action.saving_with(lambda session: self._save_step(session, saved))
        done = action.execute_on(before)
        is_stored = len(saved) > 1 and (done is saved[-1] or done.version > saved[-1].version)
        session = self._pass(done, AgentSessionStage.AFTER_ACTION, AgentSessionStage.BEFORE_SAVE)
        executed = SessionActionExecuted(
            session_id=session_id,
            action=type(action).__name__,
            before_version=before.version,
            after_version=session.version,
            before_status=before.status,
            after_status=session.status,
        )
        self._events.dispatch(executed)
        try:
            stored = self._save_changes(done, session) if is_stored else self._repository.save(session)
            session = self._pass(stored, AgentSessionStage.AFTER_SAVE)
        except Exception as error:
            self._report_save_failure(session_id, error)
            raise
        return self._report_saved(session)

    def _save_changes(self, stored: AgentSession, changed: AgentSession) -> AgentSession:
        """Save what the controllers have changed of a session that workers have stored already; usually nothing."""
        failure: Exception | None = None
        for _ in range(_MOST_SAVES):
            if changed == stored:
                return stored
            try:
                return self._repository.save(changed)
            except (SessionConflict, ActionRefused) as error:
                failure = error
            newer = self._repository.load(stored.session_id)
            if newer.state.status is not None and not newer.state.status.is_terminal():
                break  # the next message: its steps save the session from now on
            stored = newer
            changed = self._pass(stored, AgentSessionStage.AFTER_ACTION, AgentSessionStage.BEFORE_SAVE)
        assert failure is not None
        self._report_save_failure(stored.session_id, failure)
        return stored

    def _load(self, session_id: str) -> AgentSession:
        try:
            session = self._repository.load(session_id)
        except Exception as error:
            failure = SessionLoadFailed(session_id, describe_exception(error).message, type(error).__name__)
            self._events.dispatch(failure)
            raise
        session = self._pass(session, AgentSessionStage.AFTER_LOAD)
        self._events.dispatch(SessionLoaded(session_id, session.version, session.status))
        return session

    def _save_step(self, session: AgentSession, saved: list[AgentSession]) -> AgentSession:
        """Save after a step of an action; no controller sees it."""
        try:
            saved.append(self._repository.save(session))
        except Exception as error:
            self._report_save_failure(session.session_id, error)
            raise
        return saved[-1]

    def _pass(self, session: AgentSession, *stages: AgentSessionStage) -> AgentSession:
        for stage in stages:
            session = self._controller.on_stage(stage, session)
        return session

    def _report_saved(self, session: AgentSession) -> AgentSession:
        self._events.dispatch(SessionSaved(session.session_id, session.version, session.status))
        return session

    def _report_save_failure(self, session_id: str, error: Exception) -> None:
        self._events.dispatch(SessionSaveFailed(session_id, describe_exception(error).message, type(error).__name__))
