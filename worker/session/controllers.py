"""Controllers: code that sees, and may change, a session at the stages of the runtime."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from .values import AgentSession


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
