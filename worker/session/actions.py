"""Actions: functions from a session to the next one. `SessionRuntime.execute` loads before and saves after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, runtime_checkable

from ..errors import ActionRefused, InvalidInput
from ..state.agent_state import AgentState
from ..state.conversation.context import LLMConfig
from ..state.conversation.messages import Message, Role
from ..state.values.ids import ChildSessionId, SessionId
from .values import AgentSession, AgentSessionInfo, SessionStatus

SaveSession = Callable[[AgentSession], AgentSession]
"""Stores a session and returns it with its next version."""

TASK: Final = "task"
"""The entry of the metadata that `UpdateTask` sets."""


class SessionAction(Protocol):
    """Changes a session. It has no effects outside; these belong to controllers and listeners."""

    def execute_on(self, session: AgentSession) -> AgentSession:
        """The session afterwards; what it raises leaves the stored session as it is."""
        ...


def read_text(field: str, given: object) -> str:
    """Read a text, or a value of a class of the caller's that has a text of its own (`__str__`).

    Raises:
        InvalidInput: It is neither, such as None or a list, whose text is Python code.
    """
    if not isinstance(given, str) and (type(given).__module__ == "builtins" or type(given).__str__ is object.__str__):
        raise InvalidInput(field, given, "give a text.")
    return str(given)


@runtime_checkable
class SteppedAction(SessionAction, Protocol):
    """An action of several steps, each of which is saved."""

    def saving_with(self, save: SaveSession) -> SessionAction:
        """The same action, which saves after each of its steps."""
        ...


class SessionRunner(Protocol):
    """Runs an agent's execution to its end."""

    def run(self, session: AgentSession, state: AgentState, save: SaveSession) -> AgentSession:
        """Run the execution of `state`, save after every step but the last, and return the session with its end."""
        ...


def _keep(session: AgentSession) -> AgentSession:
    return session


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Append a message of the user, and run an execution to its end.

    Raises (when executed):
        ActionRefused: The session is not active, or an execution of it has not ended.
    """

    message: str | Message
    runner: SessionRunner
    save: SaveSession = field(default=_keep, repr=False)

    def saving_with(self, save: SaveSession) -> SendMessage:
        """The same action, which saves after each of its steps."""
        return replace(self, save=save)

    def read_message(self) -> Message:
        """The message.

        Raises:
            InvalidInput: It is no text, or one of the agent's.
        """
        if not isinstance(self.message, Message):
            return Message.user(read_text("message", self.message))
        if self.message.role is not Role.USER:
            raise InvalidInput("message.role", self.message.role.value, "send a message of the user: Message.user(…).")
        return self.message

    def execute_on(self, session: AgentSession) -> AgentSession:
        """The session with the message and the answer."""
        _check_active(session)
        if _has_unfinished_execution(session.state):
            raise ActionRefused(
                f"An execution of session {session.session_id!r} has not ended. Run ContinueExecution, or ClearSession."
            )
        state = session.state.for_next_execution().with_user_message(self.read_message())
        return self.runner.run(session, state.with_execution(budget=session.definition.budget), self.save)


@dataclass(frozen=True, slots=True)
class ContinueExecution:
    """Go on with an execution whose process was killed, from the last step that was saved.

    Raises (when executed):
        ActionRefused: The session is not active, or its execution has ended.
    """

    runner: SessionRunner
    save: SaveSession = field(default=_keep, repr=False)

    def saving_with(self, save: SaveSession) -> ContinueExecution:
        """The same action, which saves after each of its steps."""
        return replace(self, save=save)

    def execute_on(self, session: AgentSession) -> AgentSession:
        """The session with the answer."""
        _check_active(session)
        if not _has_unfinished_execution(session.state):
            raise ActionRefused(f"No execution of session {session.session_id!r} is unfinished. Send it a message.")
        return self.runner.run(session, session.state, self.save)


class SuspendSession:
    """Suspend the session: it takes no message until it is resumed."""

    def execute_on(self, session: AgentSession) -> AgentSession:
        """The session, suspended."""
        return session.suspended()


class ResumeSession:
    """Make the session active again."""

    def execute_on(self, session: AgentSession) -> AgentSession:
        """The session, active."""
        return session.resumed()


class ClearSession:
    """Remove messages and execution; prompt, model, metadata and the count of executions stay."""

    def execute_on(self, session: AgentSession) -> AgentSession:
        """The session without its conversation."""
        return session.with_state(session.state.without_conversation())


class ForkSession:
    """Make a new session of the same definition and state; store it with `SessionRepository.create`."""

    def execute_on(self, session: AgentSession) -> AgentSession:
        """The fork: a new id below the source's root, version 0, active, the source as its parent."""
        source = session.session_id
        root = source.root if isinstance(source, ChildSessionId) else source
        info = AgentSessionInfo(
            session_id=ChildSessionId.under(SessionId.of(root)), agent_name=session.info.agent_name, parent_id=source
        )
        return AgentSession(info=info, definition=session.definition, state=session.state.for_next_execution())


@dataclass(frozen=True, slots=True)
class ChangeSystemPrompt:
    """Set the session's own system prompt."""

    system_prompt: object

    def execute_on(self, session: AgentSession) -> AgentSession:
        """The session with the prompt as text."""
        return session.with_state(session.state.with_system_prompt(read_text("system_prompt", self.system_prompt)))


@dataclass(frozen=True, slots=True)
class ChangeModel:
    """Set the model for the session's next executions; None returns to the definition's."""

    llm_config: LLMConfig | None

    def execute_on(self, session: AgentSession) -> AgentSession:
        """The session with the model."""
        return session.with_state(session.state.with_llm_config(self.llm_config))


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Set one entry of the session's metadata; the value has to be JSON."""

    key: str
    value: Any

    def execute_on(self, session: AgentSession) -> AgentSession:
        """The session with the entry."""
        return session.with_state(session.state.with_metadata(self.key, self.value))


@dataclass(frozen=True, slots=True)
class UpdateTask:
    """Describe the session's task, as the entry `task` of its metadata."""

    task: str

    def execute_on(self, session: AgentSession) -> AgentSession:
        """The session with the description."""
        return session.with_state(session.state.with_metadata(TASK, read_text("task", self.task)))


def _check_active(session: AgentSession) -> None:
    if session.status is not SessionStatus.ACTIVE:
        raise ActionRefused(
            f"Session {session.session_id!r} is {session.status}; it takes messages when it is active. "
            "Run ResumeSession first."
        )


def _has_unfinished_execution(state: AgentState) -> bool:
    return state.status is not None and not state.status.is_terminal()
