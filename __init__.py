"""Durable AI-agent jobs on Celery and Redis.

The public names stand in `__init__.pyi` and are loaded on first use: importing the state does not import Celery.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any, Final

from .worker.lazy_names import attach_names

_load, __dir__, __all__ = attach_names(__name__, __file__)

# Names that the root had before, by the module that has them; they are still found here, with a warning.
_MOVED: Final = {
    "tasks.client.async_client": "AsyncJob",
    "tasks.client.listing": "Page",
    "tasks.client.pydantic_runs": "DurableAgent DurableRunOptions",
    "tasks.client.stream_items": "StreamItem Transcript",
    "tasks.client.trees": "TreeEvent",
    "worker.capabilities": """
        AllOf AnyOf CallbackSink CodeRule Condition ConditionResult ConfidenceMet CustomCondition FactFiles
        FactStore FileSink Guardrail GuardrailContext GuardrailRule GuardrailVerdict HttpSink JsonRule MaxIterations
        ModelRule NativeReasoning NoToolCalls OtlpSink ReasoningConfig ReflectionConfig RegexRule RuntimeProfile
        Subagent TerminalTools TextMention TimeLimit TokenLimit ToolArchive ToolCache ToolCalled Trace TraceEvent
        TraceSink TraceStatus
    """,
    "worker.capability": "CommittedStep",
    "worker.drivers": "AuxiliaryRequest TokenPrice",
    "worker.guards": "GuardPoint Verdict",
    "worker.hooks": "AnswerUndecided",
    "worker.requests": "Grant TokenClaims UserQuestionAnswer UserQuestionItem UserQuestionOption",
    "worker.session.snapshots": "SessionSnapshot",
    "worker.state": """
        AgentStep Assessment Cadence ChildEnd ChildFailure Complete Disposition ErrorInfo Fail FinishReason
        GuardrailEvent GuardrailIncident GuardrailPhase GuardrailResult InferenceUsage JoinRule ListPart MemoryFact
        ParentLink PartItem PartScope Plan PlanEvent PlanStatus PlanStepRecord ReasoningStep ReflectionEvent
        ReflectionRecord ReflectionUsage Remember Request RequestKind RequestStatus RequestSummary ResponseFormat
        RunReason RunView SmartEvent SmartView StatePart StopReason StopSignal SummarizationEvent SummaryRecord
        ToolOutcome smart_event
    """,
    "worker.state.reducers": """
        add_messages add_numbers append_list deep_merge_dict first_value last_value max_value merge_dict min_value
        set_union unique_append_list
    """,
    "worker.store": """
        AnswerResult FoundRequest Header LiveDelta RequestPage SessionState StoredSession TreeNode
    """,
    "worker.tools": """
        AgentTool AnswerRefused ApprovalContext CallPolicy OutcomeUnknown PassOn Replies UseValue UserQuestions
    """,
}
_HOMES: Final = {name: home for home, names in _MOVED.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a public name, or with a warning one that the root does not have any more.

    Raises:
        AttributeError: There is no such name.
    """
    home = _HOMES.get(name)
    if home is None:
        return _load(name)
    warnings.warn(f"import {name} from {__name__}.{home}", DeprecationWarning, stacklevel=2)
    return getattr(import_module(f".{home}", __name__), name)
