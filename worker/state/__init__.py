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
from .execution.budget import UNLIMITED, ExecutionBudget
from .execution.execution import ExecutionState
from .execution.inference import FinishReason, InferenceResponse
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

__all__ = [
    "BUFFER",
    "DEFAULT",
    "ID_PATTERN",
    "INFERENCE_ORDER",
    "MAX_DEPTH",
    "MAX_INT_BITS",
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
    "ChildSessionId",
    "ConversationWithCurrentToolTrace",
    "ErrorInfo",
    "ExecutionBudget",
    "ExecutionContinuation",
    "ExecutionId",
    "ExecutionState",
    "ExecutionStatus",
    "Extent",
    "FinishReason",
    "FrozenDict",
    "FrozenMap",
    "Head",
    "InferenceResponse",
    "InferenceUsage",
    "Json",
    "LLMConfig",
    "ListChange",
    "ListPart",
    "Message",
    "MessageCompiler",
    "MessageStore",
    "PartItem",
    "PartList",
    "PartScope",
    "ResponseFormat",
    "ResponseFormatType",
    "Role",
    "Section",
    "SelectedSections",
    "SessionId",
    "Span",
    "SplitState",
    "StateChanges",
    "StatePart",
    "StepExecution",
    "StopReason",
    "StopSignal",
    "StopSignals",
    "ToolCall",
    "ToolExecution",
    "ToolExecutionId",
    "ToolOutcome",
    "Value",
    "as_text",
    "changes",
    "check_text",
    "every_message",
    "freeze",
    "head_json",
    "join",
    "message_json",
    "read_head",
    "read_session_id",
    "repair_pairs",
    "split",
    "step_json",
    "step_messages",
    "thaw",
    "utcnow",
]
