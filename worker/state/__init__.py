"""The state of an agent: pure immutable values that are stored as JSON without loss.

I/O, Celery and Redis do not belong here. `conversation` holds messages, `execution` one run of the agent, `parts` what
capabilities keep, `codec` the split form that a store writes, `values` the base of them all.
"""

from .agent_fields import SCHEMA_VERSION
from .agent_state import AgentState
from .codec.join import Head, join, read_head
from .codec.split import (
    ListChange,
    SplitState,
    StateChanges,
    changes,
    head_json,
    message_json,
    split,
    step_json,
)
from .conversation.compilers import (
    AllSections,
    ConversationWithCurrentToolTrace,
    MessageCompiler,
    SelectedSections,
    every_message,
)
from .conversation.context import AgentContext, LLMConfig, ResponseFormat, ResponseFormatType
from .conversation.messages import (
    BUFFER,
    DEFAULT,
    INFERENCE_ORDER,
    SUMMARY,
    Extent,
    Message,
    MessageStore,
    Role,
    Section,
    Span,
)
from .conversation.pairing import repair_pairs
from .conversation.step_messages import step_messages
from .execution.answers import (
    KINDS_OF_ANSWERS,
    Answer,
    AnswerNote,
    AnswerRecord,
    AnswerVerb,
    Approve,
    Complete,
    Deny,
    Fail,
    GivenAnswer,
    Remember,
    RequestResolution,
    record_answer,
)
from .execution.budget import UNLIMITED, ExecutionBudget
from .execution.children import (
    MAX_TREE_SESSIONS,
    ChildEnd,
    ChildFailure,
    ChildOrder,
    JoinRule,
    ParentLink,
    child_ids,
)
from .execution.execution import ExecutionState
from .execution.inference import FinishReason, InferenceResponse
from .execution.requests import (
    CLOCK,
    DENY_ON_EXPIRY,
    MAX_REQUEST_BYTES,
    MAX_REQUESTS_PER_STEP,
    ExpiryAction,
    OnExpiry,
    Request,
    RequestKind,
    RequestStatus,
    RequestSummary,
    arguments_digest,
    request_id,
)
from .execution.reservations import BudgetWish, Shortage, reserve
from .execution.signals import (
    NO_CONTINUATION,
    PRIORITIES,
    ExecutionContinuation,
    StopReason,
    StopSignal,
    StopSignals,
)
from .execution.status import TRANSITIONS, ExecutionStatus
from .execution.steps import AgentStep, AgentStepType, StepExecution
from .execution.tool_calls import ToolCall, ToolExecution, ToolOutcome, as_text
from .execution.usage import NO_USAGE, InferenceUsage
from .parts.list_part import ListPart
from .parts.state_part import PartItem, PartScope, StatePart
from .parts.storage import PartList
from .values.error_info import ErrorInfo
from .values.field_types import utcnow
from .values.frozen import (
    MAX_DEPTH,
    MAX_INT_BITS,
    FrozenDict,
    FrozenMap,
    Json,
    check_text,
    freeze,
    thaw,
)
from .values.ids import (
    ID_PATTERN,
    AgentId,
    AgentStepId,
    ChildSessionId,
    ExecutionId,
    SessionId,
    ToolExecutionId,
    read_session_id,
)
from .values.value import Value
from .views.run import RunView
from .views.run_parts import Assessment, ReasoningStep
from .views.run_reason import RunReason
from .views.smart import SmartView
from .views.smart_events import PlanEvent, ReflectionEvent, SmartEvent, SummarizationEvent, smart_event
from .views.smart_parts import (
    Cadence,
    MemoryFact,
    Plan,
    PlanStatus,
    PlanStepRecord,
    ReflectionRecord,
    ReflectionUsage,
    SummaryRecord,
)

__all__ = [
    "BUFFER",
    "CLOCK",
    "DEFAULT",
    "DENY_ON_EXPIRY",
    "ID_PATTERN",
    "INFERENCE_ORDER",
    "KINDS_OF_ANSWERS",
    "MAX_DEPTH",
    "MAX_INT_BITS",
    "MAX_REQUESTS_PER_STEP",
    "MAX_REQUEST_BYTES",
    "MAX_TREE_SESSIONS",
    "NO_CONTINUATION",
    "NO_USAGE",
    "PRIORITIES",
    "SCHEMA_VERSION",
    "SUMMARY",
    "TRANSITIONS",
    "UNLIMITED",
    "AgentContext",
    "AgentId",
    "AgentState",
    "AgentStep",
    "AgentStepId",
    "AgentStepType",
    "AllSections",
    "Answer",
    "AnswerNote",
    "AnswerRecord",
    "AnswerVerb",
    "Approve",
    "Assessment",
    "BudgetWish",
    "Cadence",
    "ChildEnd",
    "ChildFailure",
    "ChildOrder",
    "ChildSessionId",
    "Complete",
    "ConversationWithCurrentToolTrace",
    "Deny",
    "ErrorInfo",
    "ExecutionBudget",
    "ExecutionContinuation",
    "ExecutionId",
    "ExecutionState",
    "ExecutionStatus",
    "ExpiryAction",
    "Extent",
    "Fail",
    "FinishReason",
    "FrozenDict",
    "FrozenMap",
    "GivenAnswer",
    "Head",
    "InferenceResponse",
    "InferenceUsage",
    "JoinRule",
    "Json",
    "LLMConfig",
    "ListChange",
    "ListPart",
    "MemoryFact",
    "Message",
    "MessageCompiler",
    "MessageStore",
    "OnExpiry",
    "ParentLink",
    "PartItem",
    "PartList",
    "PartScope",
    "Plan",
    "PlanEvent",
    "PlanStatus",
    "PlanStepRecord",
    "ReasoningStep",
    "ReflectionEvent",
    "ReflectionRecord",
    "ReflectionUsage",
    "Remember",
    "Request",
    "RequestKind",
    "RequestResolution",
    "RequestStatus",
    "RequestSummary",
    "ResponseFormat",
    "ResponseFormatType",
    "Role",
    "RunReason",
    "RunView",
    "Section",
    "SelectedSections",
    "SessionId",
    "Shortage",
    "SmartEvent",
    "SmartView",
    "Span",
    "SplitState",
    "StateChanges",
    "StatePart",
    "StepExecution",
    "StopReason",
    "StopSignal",
    "StopSignals",
    "SummarizationEvent",
    "SummaryRecord",
    "ToolCall",
    "ToolExecution",
    "ToolExecutionId",
    "ToolOutcome",
    "Value",
    "arguments_digest",
    "as_text",
    "changes",
    "check_text",
    "child_ids",
    "every_message",
    "freeze",
    "head_json",
    "join",
    "message_json",
    "read_head",
    "read_session_id",
    "record_answer",
    "repair_pairs",
    "request_id",
    "reserve",
    "smart_event",
    "split",
    "step_json",
    "step_messages",
    "thaw",
    "utcnow",
]
