"""Durable AI-agent jobs on Celery and Redis.

The public names are loaded on first use: importing the state does not import Celery.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config.settings import Settings
    from .tasks.app import install
    from .tasks.client.async_client import AsyncAgentClient, AsyncJob
    from .tasks.client.client import AgentClient
    from .tasks.client.job import Job
    from .tasks.client.listing import Page
    from .worker.agent import Agent
    from .worker.capabilities import Approvals, AskUser, Rule
    from .worker.capability import Capability
    from .worker.drivers import AuxiliaryRequest, CallTool, InferenceRequest
    from .worker.guards import (
        Delay,
        FinishReasonGuard,
        Guard,
        GuardPoint,
        GuardView,
        Proceed,
        StopWith,
        Verdict,
    )
    from .worker.hooks import Hook, HookContext, HookPoint
    from .worker.requests import Grant, UserQuestionAnswer, UserQuestionItem, UserQuestionOption
    from .worker.state import (
        AgentState,
        AgentStep,
        Answer,
        Approve,
        Complete,
        Deny,
        ErrorInfo,
        ExecutionBudget,
        ExecutionStatus,
        Fail,
        FinishReason,
        InferenceResponse,
        InferenceUsage,
        ListPart,
        LLMConfig,
        Message,
        PartItem,
        PartScope,
        Remember,
        Request,
        RequestKind,
        RequestStatus,
        RequestSummary,
        ResponseFormat,
        Role,
        StatePart,
        StopReason,
        StopSignal,
        ToolCall,
        ToolExecution,
        ToolOutcome,
    )
    from .worker.store import AnswerResult, Event, EventType, FoundRequest, Header, RequestPage, Result, SessionState
    from .worker.store.sessions.loading import StoredSession
    from .worker.tools import (
        Allow,
        AnswerRefused,
        ApprovalContext,
        Ask,
        CallPolicy,
        LookupResult,
        NeedsAnswer,
        NeedsApproval,
        PassOn,
        Replies,
        StopExecution,
        ToolContext,
        UserQuestions,
        UseValue,
        tool,
    )

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentClient",
    "AgentState",
    "AgentStep",
    "Allow",
    "Answer",
    "AnswerRefused",
    "AnswerResult",
    "ApprovalContext",
    "Approvals",
    "Approve",
    "Ask",
    "AskUser",
    "AsyncAgentClient",
    "AsyncJob",
    "AuxiliaryRequest",
    "CallPolicy",
    "CallTool",
    "Capability",
    "Complete",
    "Delay",
    "Deny",
    "ErrorInfo",
    "Event",
    "EventType",
    "ExecutionBudget",
    "ExecutionStatus",
    "Fail",
    "FinishReason",
    "FinishReasonGuard",
    "FoundRequest",
    "Grant",
    "Guard",
    "GuardPoint",
    "GuardView",
    "Header",
    "Hook",
    "HookContext",
    "HookPoint",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceUsage",
    "Job",
    "LLMConfig",
    "ListPart",
    "LookupResult",
    "Message",
    "NeedsAnswer",
    "NeedsApproval",
    "Page",
    "PartItem",
    "PartScope",
    "PassOn",
    "Proceed",
    "Remember",
    "Replies",
    "Request",
    "RequestKind",
    "RequestPage",
    "RequestStatus",
    "RequestSummary",
    "ResponseFormat",
    "Result",
    "Role",
    "Rule",
    "SessionState",
    "Settings",
    "StatePart",
    "StopExecution",
    "StopReason",
    "StopSignal",
    "StopWith",
    "StoredSession",
    "ToolCall",
    "ToolContext",
    "ToolExecution",
    "ToolOutcome",
    "UseValue",
    "UserQuestionAnswer",
    "UserQuestionItem",
    "UserQuestionOption",
    "UserQuestions",
    "Verdict",
    "__version__",
    "install",
    "tool",
]

_HOME = {
    "Agent": ".worker.agent",
    "AgentClient": ".tasks.client.client",
    "AgentState": ".worker.state",
    "AgentStep": ".worker.state",
    "Allow": ".worker.tools",
    "Answer": ".worker.state",
    "AnswerRefused": ".worker.tools",
    "AnswerResult": ".worker.store",
    "ApprovalContext": ".worker.tools",
    "Approvals": ".worker.capabilities",
    "Approve": ".worker.state",
    "Ask": ".worker.tools",
    "AskUser": ".worker.capabilities",
    "AsyncAgentClient": ".tasks.client.async_client",
    "AsyncJob": ".tasks.client.async_client",
    "AuxiliaryRequest": ".worker.drivers",
    "CallPolicy": ".worker.tools",
    "CallTool": ".worker.drivers",
    "Capability": ".worker.capability",
    "Complete": ".worker.state",
    "Delay": ".worker.guards",
    "Deny": ".worker.state",
    "ErrorInfo": ".worker.state",
    "Event": ".worker.store",
    "EventType": ".worker.store",
    "ExecutionBudget": ".worker.state",
    "ExecutionStatus": ".worker.state",
    "Fail": ".worker.state",
    "FinishReason": ".worker.state",
    "FinishReasonGuard": ".worker.guards",
    "FoundRequest": ".worker.store",
    "Grant": ".worker.requests",
    "Guard": ".worker.guards",
    "GuardPoint": ".worker.guards",
    "GuardView": ".worker.guards",
    "Header": ".worker.store",
    "Hook": ".worker.hooks",
    "HookContext": ".worker.hooks",
    "HookPoint": ".worker.hooks",
    "InferenceRequest": ".worker.drivers",
    "InferenceResponse": ".worker.state",
    "InferenceUsage": ".worker.state",
    "Job": ".tasks.client.job",
    "LLMConfig": ".worker.state",
    "ListPart": ".worker.state",
    "LookupResult": ".worker.tools",
    "Message": ".worker.state",
    "NeedsAnswer": ".worker.tools",
    "NeedsApproval": ".worker.tools",
    "Page": ".tasks.client.listing",
    "PartItem": ".worker.state",
    "PartScope": ".worker.state",
    "PassOn": ".worker.tools",
    "Proceed": ".worker.guards",
    "Remember": ".worker.state",
    "Replies": ".worker.tools",
    "Request": ".worker.state",
    "RequestKind": ".worker.state",
    "RequestPage": ".worker.store",
    "RequestStatus": ".worker.state",
    "RequestSummary": ".worker.state",
    "ResponseFormat": ".worker.state",
    "Result": ".worker.store",
    "Role": ".worker.state",
    "Rule": ".worker.capabilities",
    "SessionState": ".worker.store",
    "Settings": ".config.settings",
    "StatePart": ".worker.state",
    "StopExecution": ".worker.tools",
    "StopReason": ".worker.state",
    "StopSignal": ".worker.state",
    "StopWith": ".worker.guards",
    "StoredSession": ".worker.store.sessions.loading",
    "ToolCall": ".worker.state",
    "ToolContext": ".worker.tools",
    "ToolExecution": ".worker.state",
    "ToolOutcome": ".worker.state",
    "UseValue": ".worker.tools",
    "UserQuestionAnswer": ".worker.requests",
    "UserQuestionItem": ".worker.requests",
    "UserQuestionOption": ".worker.requests",
    "UserQuestions": ".worker.tools",
    "Verdict": ".worker.guards",
    "install": ".tasks.app",
    "tool": ".worker.tools",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module.

    Raises:
        AttributeError: There is no such name.
    """
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
