"""The stages of the session runtime with their controllers, and its events with the dispatcher that tells listeners."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from .values import AgentSession, SessionStatus

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class SessionLoaded:
    """A session was loaded."""

    session_id: str
    version: int
    status: SessionStatus


@dataclass(frozen=True, slots=True)
class SessionActionExecuted:
    """An action has run and is not saved yet; so both versions are the same.

    Attributes:
        action: Name of the action's class.
    """

    session_id: str
    action: str
    before_version: int
    after_version: int
    before_status: SessionStatus
    after_status: SessionStatus


@dataclass(frozen=True, slots=True)
class SessionSaved:
    """A session was created or saved."""

    session_id: str
    version: int
    status: SessionStatus


@dataclass(frozen=True, slots=True)
class SessionLoadFailed:
    """A session could not be loaded; the error follows.

    Attributes:
        error_type: Name of the error's class.
    """

    session_id: str
    error: str
    error_type: str


@dataclass(frozen=True, slots=True)
class SessionSaveFailed:
    """A session could not be saved, or a controller failed after the save; the error follows.

    Attributes:
        error_type: Name of the error's class.
    """

    session_id: str
    error: str
    error_type: str


class EventDispatcher:
    """Tells listeners, in the order in which they were added, and writes each event to the log.

    Args:
        name: Of the logger, below `celery_agents.session`.
    """

    def __init__(self, name: str = "session-runtime") -> None:
        self._log = logging.getLogger(f"celery_agents.session.{name}")
        self._listeners: list[tuple[type[Any], Callable[[Any], object]]] = []

    def add_listener(self, kind: type[E], listener: Callable[[E], object]) -> None:
        """Call the listener with each event of this class, or of one derived from it."""
        self._listeners.append((kind, listener))

    def dispatch(self, event: object) -> None:
        """Tell the listeners. One that raises is logged and stops neither the others nor the action."""
        self._log.info("%s", type(event).__name__, extra={"session_event": asdict(event)})  # pyright: ignore
        for kind, listener in self._listeners:
            if isinstance(event, kind):
                try:
                    listener(event)
                except Exception:  # noqa: BLE001 - a listener of the user's
                    self._log.exception("a listener of %s failed", type(event).__name__)


class AgentSessionStage(StrEnum):
    """The stages of the runtime. Changes in `AFTER_SAVE` and `AFTER_CREATE` are in the returned value only."""

    BEFORE_CREATE = "before_create"
    AFTER_CREATE = "after_create"
    AFTER_LOAD = "after_load"
    AFTER_ACTION = "after_action"
    BEFORE_SAVE = "before_save"
    AFTER_SAVE = "after_save"


class SessionController(Protocol):
    """Sees the session at each stage; what it raises ends the action."""

    def on_stage(self, stage: AgentSessionStage, session: AgentSession) -> AgentSession:
        """The session to go on with: the same one, or a changed one."""
        ...


class PassThroughSessionController:
    """`SessionController` that changes nothing."""

    def on_stage(self, stage: AgentSessionStage, session: AgentSession) -> AgentSession:
        """The same session."""
        return session


@dataclass(frozen=True, slots=True)
class SessionHookStack:
    """Controllers in order of their priority, as one controller; of equal ones, the first added goes first."""

    _entries: tuple[tuple[int, SessionController], ...] = ()

    @classmethod
    def empty(cls) -> SessionHookStack:
        """A stack without controllers."""
        return cls()

    def with_controller(self, controller: SessionController, priority: int = 0) -> SessionHookStack:
        """The stack with one more controller; a higher priority runs earlier."""
        entries = (*self._entries, (priority, controller))
        return SessionHookStack(tuple(sorted(entries, key=lambda entry: -entry[0])))

    def on_stage(self, stage: AgentSessionStage, session: AgentSession) -> AgentSession:
        """Pass the session through all controllers."""
        for _, controller in self._entries:
            session = controller.on_stage(stage, session)
        return session
