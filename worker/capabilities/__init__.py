"""The capabilities that come with the package: each in a module of its own, made of what users can use, too.

The base class is in `worker.capability`; state, engine and store know none of these by name.
"""

from __future__ import annotations

from .approvals import Approvals, Rule
from .ask_user import AskUser
from .conditions import (
    AllOf,
    AnyOf,
    Condition,
    ConditionResult,
    ConfidenceMet,
    CustomCondition,
    MaxIterations,
    Not,
    NoToolCalls,
    TextMention,
    TimeLimit,
    TokenLimit,
    ToolCalled,
)
from .guardrails import (
    CodeRule,
    Guardrail,
    GuardrailContext,
    GuardrailRule,
    Guardrails,
    GuardrailVerdict,
    JsonRule,
    ModelRule,
    RegexRule,
)
from .loop_detection import LoopDetection
from .reasoning import Reasoning
from .reflexion import Reflexion
from .smart.fact_file import FactFiles
from .smart.limits import AgentLimits
from .smart.memory_facts import FactStore, MemoryFacts
from .smart.planning import Planning
from .smart.profiles import RuntimeProfile
from .smart.reasoning_config import NativeReasoning, ReasoningConfig, ReflectionConfig
from .smart.reflection import Reflection
from .smart.summarization import Summarization
from .smart.tool_archive import ToolArchive
from .smart.tool_cache import ToolCache
from .subagents import Subagent, Subagents
from .terminal_tools import TerminalTools
from .termination import Termination
from .tracing import (
    CallbackSink,
    FileSink,
    HttpSink,
    OtlpSink,
    Trace,
    TraceEvent,
    TraceSink,
    TraceStatus,
    Tracing,
)

__all__ = [
    "AgentLimits",
    "AllOf",
    "AnyOf",
    "Approvals",
    "AskUser",
    "CallbackSink",
    "CodeRule",
    "Condition",
    "ConditionResult",
    "ConfidenceMet",
    "CustomCondition",
    "FactFiles",
    "FactStore",
    "FileSink",
    "Guardrail",
    "GuardrailContext",
    "GuardrailRule",
    "GuardrailVerdict",
    "Guardrails",
    "HttpSink",
    "JsonRule",
    "LoopDetection",
    "MaxIterations",
    "MemoryFacts",
    "ModelRule",
    "NativeReasoning",
    "NoToolCalls",
    "Not",
    "OtlpSink",
    "Planning",
    "Reasoning",
    "ReasoningConfig",
    "Reflection",
    "ReflectionConfig",
    "Reflexion",
    "RegexRule",
    "Rule",
    "RuntimeProfile",
    "Subagent",
    "Subagents",
    "Summarization",
    "TerminalTools",
    "Termination",
    "TextMention",
    "TimeLimit",
    "TokenLimit",
    "ToolArchive",
    "ToolCache",
    "ToolCalled",
    "Trace",
    "TraceEvent",
    "TraceSink",
    "TraceStatus",
    "Tracing",
]
