"""Tools: functions that a model may call.

`Tool` is what the engine needs of a tool: `bind` validates what a model gave, `call` makes the call. `@tool` makes one
of a function, by its signature and docstring.
Running calls (records, deadlines, several at once) is the engine's.
"""

from __future__ import annotations

from .agent_tool import AgentTool
from .approval import (
    Allow,
    Approval,
    ApprovalContext,
    Ask,
    CallPolicy,
    Decision,
    ExpiryRule,
    PassOn,
    UseValue,
    as_decision,
    check_expiry,
    decide_by_tool,
    milliseconds_of,
    stored_rule,
)
from .arguments import InvalidArguments
from .context import ToolContext
from .definition import FunctionTool, tool
from .delegation import (
    ContextRule,
    DelegatingTool,
    Delegation,
    MergeRules,
    NeedsChildren,
    check_child_limits,
    check_merge,
    check_rules,
    is_delegating,
)
from .effect import Effect
from .handoff import Handoff, HandoffTool, SupportsHandoff, supports_handoff
from .identity import idempotency_key
from .later import LaterResult
from .lookup import LookupResult, LookupStatus
from .needs import (
    AnswerRefused,
    NeedsAnswer,
    NeedsApproval,
    NeedsReply,
    NeedsResult,
    NeedsTime,
    OutcomeUnknown,
    UserQuestions,
)
from .protocol import Lookup, Tool
from .replies import Memo, Replies, Reply
from .results import DEFAULT_MAX_RESULT_CHARS, UnusableResult, to_json_value
from .stop import FAILS_EXECUTION, FailExecution, StopExecution
from .toolset import ToolSet, ToolSpec

__all__ = [
    "DEFAULT_MAX_RESULT_CHARS",
    "FAILS_EXECUTION",
    "AgentTool",
    "Allow",
    "AnswerRefused",
    "Approval",
    "ApprovalContext",
    "Ask",
    "CallPolicy",
    "ContextRule",
    "Decision",
    "DelegatingTool",
    "Delegation",
    "Effect",
    "ExpiryRule",
    "FailExecution",
    "FunctionTool",
    "Handoff",
    "HandoffTool",
    "InvalidArguments",
    "LaterResult",
    "Lookup",
    "LookupResult",
    "LookupStatus",
    "Memo",
    "MergeRules",
    "NeedsAnswer",
    "NeedsApproval",
    "NeedsChildren",
    "NeedsReply",
    "NeedsResult",
    "NeedsTime",
    "OutcomeUnknown",
    "PassOn",
    "Replies",
    "Reply",
    "StopExecution",
    "SupportsHandoff",
    "Tool",
    "ToolContext",
    "ToolSet",
    "ToolSpec",
    "UnusableResult",
    "UseValue",
    "UserQuestions",
    "as_decision",
    "check_child_limits",
    "check_expiry",
    "check_merge",
    "check_rules",
    "decide_by_tool",
    "idempotency_key",
    "is_delegating",
    "milliseconds_of",
    "stored_rule",
    "supports_handoff",
    "to_json_value",
    "tool",
]
