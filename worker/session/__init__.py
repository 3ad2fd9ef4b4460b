"""The session runtime: values, actions, controllers and events, and stores in memory, in files and in Redis.

The engine that runs a message is the workers' own. `InlineRunner` runs it in the calling process, for sessions in
memory and in files; `WorkerRunner` leaves it to the workers, for sessions in Redis.
"""

from __future__ import annotations

from ..state import SessionId
from .actions import (
    ChangeModel,
    ChangeSystemPrompt,
    ClearSession,
    ContinueExecution,
    ForkSession,
    ResumeSession,
    SendMessage,
    SessionAction,
    SessionRunner,
    SuspendSession,
    UpdateTask,
    WriteMetadata,
)
from .controllers import AgentSessionStage, PassThroughSessionController, SessionController, SessionHookStack
from .events import (
    EventDispatcher,
    SessionActionExecuted,
    SessionLoaded,
    SessionLoadFailed,
    SessionSaved,
    SessionSaveFailed,
)
from .file_store import FileSessionStore
from .inline_runner import InlineRunner
from .redis_store import RedisSessionStore
from .registry import CapabilityRegistry
from .repository import SessionFactory, SessionRepository
from .runtime import SessionRuntime
from .store import InMemorySessionStore, SessionStore
from .values import AgentDefinition, AgentSession, AgentSessionInfo, SessionInfoList, SessionStatus
from .worker_runner import WorkerRunner

__all__ = [
    "AgentDefinition",
    "AgentSession",
    "AgentSessionInfo",
    "AgentSessionStage",
    "CapabilityRegistry",
    "ChangeModel",
    "ChangeSystemPrompt",
    "ClearSession",
    "ContinueExecution",
    "EventDispatcher",
    "FileSessionStore",
    "ForkSession",
    "InMemorySessionStore",
    "InlineRunner",
    "PassThroughSessionController",
    "RedisSessionStore",
    "ResumeSession",
    "SendMessage",
    "SessionAction",
    "SessionActionExecuted",
    "SessionController",
    "SessionFactory",
    "SessionHookStack",
    "SessionId",
    "SessionInfoList",
    "SessionLoadFailed",
    "SessionLoaded",
    "SessionRepository",
    "SessionRunner",
    "SessionRuntime",
    "SessionSaveFailed",
    "SessionSaved",
    "SessionStatus",
    "SessionStore",
    "SuspendSession",
    "UpdateTask",
    "WorkerRunner",
    "WriteMetadata",
]
