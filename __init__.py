"""Durable AI-agent jobs on Celery and Redis.

The public names stand in `__init__.pyi` and are loaded on first use: importing the state does not import Celery.
"""

from __future__ import annotations

from typing import Final

from .worker.lazy_names import attach_names

# Names that the root had before, by the module that has them; they are still found here, with a warning.
_MOVED: Final = {
    "tasks.client.async_client": "AsyncJob",
    "tasks.client.listing": "Page",
    "tasks.client.pydantic_runs": "DurableAgent DurableRunOptions",
    "tasks.client.stream_items": "StreamItem Transcript",
    "tasks.client.trees": "TreeEvent",
    "worker.capabilities": """
        AllOf AnyOf Cadence CallbackSink CodeRule Condition ConditionResult ConfidenceMet CustomCondition
        Disposition FactFiles FactStore FileSink Guardrail GuardrailContext GuardrailEvent GuardrailIncident
        GuardrailPhase GuardrailResult GuardrailRule GuardrailVerdict HttpSink JsonRule MaxIterations MemoryFact
        ModelRule NativeReasoning NoToolCalls OtlpSink Plan PlanEvent PlanStatus PlanStepRecord ReasoningConfig
        ReflectionConfig ReflectionEvent ReflectionRecord ReflectionUsage RegexRule RuntimeProfile SmartEvent
        SmartView Subagent SummarizationEvent SummaryRecord TerminalTools TextMention TimeLimit TokenLimit
        ToolArchive ToolCache ToolCalled Trace TraceEvent TraceSink TraceStatus smart_event
    """,
    "worker.capability": "CommittedStep",
    "worker.drivers": "AuxiliaryRequest TokenPrice",
    "worker.guards": "GuardPoint Verdict",
    "worker.hooks": "AnswerUndecided",
    "worker.requests": "Grant TokenClaims UserQuestionAnswer UserQuestionItem UserQuestionOption",
    "worker.run_state": "Assessment ReasoningStep RunReason RunView",
    "worker.session.snapshots": "SessionSnapshot",
    "worker.state": """
        AgentStep ChildEnd ChildFailure Complete ErrorInfo Fail FinishReason InferenceUsage JoinRule ListPart
        ParentLink PartItem PartScope Remember Request RequestKind RequestStatus RequestSummary ResponseFormat
        StatePart StopReason StopSignal ToolOutcome
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

__getattr__, __dir__, __all__ = attach_names(__name__, __file__, _MOVED)
