"""docs/coverage.md: the tests that it names exist, and no name of a source document is missing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from support.product import ROOT

PAGE = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
_TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")

STATE_NAMES = [
    "run_id",
    "agent_id",
    "messages",
    "iteration",
    "max_iterations",
    "tool_executions",
    "reasoning_steps",
    "confidence",
    "confidence_threshold",
    "confidence_history",
    "tool_history",
    "tool_loop_threshold",
    "terminal_tools",
    "total_tokens_used",
    "token_budget",
    "errors",
    "metadata",
    "started_at",
    "updated_at",
    "with_message",
    "with_messages",
    "with_iteration",
    "with_tool_execution",
    "with_reasoning_step",
    "with_confidence",
    "adjust_confidence",
    "with_error",
    "with_metadata",
    "with_token_usage",
    "to_checkpoint",
    "from_checkpoint",
    "add_messages",
    "merge_dict",
    "deep_merge_dict",
    "append_list",
    "unique_append_list",
    "add_numbers",
    "max_value",
    "min_value",
    "first_value",
    "last_value",
    "set_union",
    "MaxIterations",
    "TokenLimit",
    "TimeLimit",
    "TextMention",
    "ToolCalled",
    "ConfidenceMet",
    "NoToolCalls",
    "CustomCondition",
]

SMART_NAMES = [
    "SmartState", "messages", "toolHistory", "toolHistoryArchived", "summaries", "summaryRecords", "memoryFacts", "plan",
    "planVersion", "reflections", "pendingApprovals", "pendingUserQuestions", "ctx", "PendingUserQuestion",
    "UserQuestionItem", "UserQuestionOption", "UserQuestionResolution", "UserQuestionAnswer", "UserQuestionEvent",
    "ReasoningConfig", "level", "native", "effort", "budgetTokens", "includeThoughts", "providerExtras", "cadence", "mode",
    "maxTokens", "maxChars", "keepLast", "summarize", "promptTemplate", "emitEvents", "maxPerRun", "everyNTurns",
    "ReflectionRecord", "ReflectionEvent", "PlanStepRecord", "PlanEvent", "RuntimeProfile", "maxToolCalls",
    "maxParallelTools", "maxContextTokens", "maxTotalOutputTokens", "maxCostUsd", "maxWallClockMs", "tokenCounter",
    "costEstimator", "snapshot", "resume", "TracingConfig", "enabled", "threadId", "logData", "sink", "TraceSinkConfig", "batched",
    "streaming", "file", "http", "otlp", "custom", "cognipeer", "partial",
]  # fmt: skip


AGENT_STATE_NAMES = [
    "AgentState",
    "agentId",
    "parentAgentId",
    "createdAt",
    "updatedAt",
    "executionCount",
    "llmConfig",
    "context",
    "store",
    "metadata",
    "systemPrompt",
    "responseFormat",
    "execution",
    "ExecutionState",
    "executionId",
    "ExecutionStatus",
    "Pending",
    "InProgress",
    "Completed",
    "Stopped",
    "Failed",
    "startedAt",
    "completedAt",
    "stepExecutions",
    "StepExecution",
    "continuation",
    "ExecutionContinuation",
    "stopSignals",
    "isContinuationRequested",
    "currentStepStartedAt",
    "currentStep",
    "AgentStep",
    "inputMessages",
    "outputMessages",
    "inferenceResponse",
    "toolExecutions",
    "errors",
    "AgentStepType",
    "Error",
    "ToolExecution",
    "FinalResponse",
    "forNextExecution",
    "withCurrentStep",
    "withCurrentStepCompleted",
    "step_id",
    "execution_id",
    "agent_id",
    "is_trace",
    "executionDuration",
    "messages",
    "status",
    "stepCount",
    "steps",
    "lastStep",
    "lastStepType",
    "lastStopReason",
    "usage",
    "hasErrors",
    "hasFinalResponse",
    "finalResponse",
    "currentResponse",
    "shouldStop",
    "StopReason",
    "ErrorForbade",
    "StopRequested",
    "StepsLimitReached",
    "TokenLimitReached",
    "TimeLimitReached",
    "RetryLimitReached",
    "FinishReasonReceived",
    "UserRequested",
    "Unknown",
    "wasForceStopped",
    "withStopSignal",
    "ExecutionBudget",
    "maxSteps",
    "maxTokens",
    "maxSeconds",
    "maxCost",
    "deadline",
    "isEmpty",
    "isExhausted",
    "unlimited",
    "debug",
    "toArray",
    "fromArray",
    "ensureExecution",
]

BUDGET_NAMES = [
    "Budget",
    "budget",
    "maxSteps",
    "maxTokens",
    "maxSeconds",
    "isExhausted",
    "remaining",
    "stepsUsed",
    "tokensUsed",
    "cappedBy",
    "agentId",
    "parentAgentId",
    "createdAt",
    "executionDuration",
    "messages",
    "metadata",
    "systemPrompt",
    "status",
    "stepCount",
    "steps",
    "lastStep",
    "lastStepType",
    "lastStopReason",
    "usage",
    "errors",
    "hasErrors",
    "hasFinalResponse",
    "finalResponse",
    "inputMessages",
    "outputMessages",
    "toolExecutions",
    "toArray",
    "fromArray",
]

SESSION_NAMES = [
    "SessionId",
    "SessionHookStack",
    "CanManageAgentSessions",
    "SendMessage",
    "SuspendSession",
    "ResumeSession",
    "ClearSession",
    "ForkSession",
    "ChangeSystemPrompt",
    "ChangeModel",
    "WriteMetadata",
    "UpdateTask",
    "SessionConflictException",
    "SessionNotFoundException",
    "InvalidSessionFileException",
    "InMemorySessionStore",
    "FileSessionStore",
    "CanStoreSessions",
    "SessionInfoList",
]

NAMES = {
    '"Agent State Internals" (InstructorPHP)': AGENT_STATE_NAMES,
    '"Agent State Internals" with a budget (InstructorPHP, earlier)': BUDGET_NAMES,
    '"State" (Locus)': STATE_NAMES,
    '"State And Public Types" (Cognipeer)': SMART_NAMES,
    '"Session Runtime" (InstructorPHP)': SESSION_NAMES,
}


def section(heading: str) -> str:
    """The text under a heading of the page."""
    return PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]


def functions(path: Path) -> set[str]:
    """Names of the functions of a test module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("file", sorted({file for file, _ in _TEST.findall(PAGE)}))
def test_the_tests_that_the_page_names_exist(file: str) -> None:
    named = {test for each, test in _TEST.findall(PAGE) if each == file}
    assert named - functions(ROOT / "tests" / file) == set()


def test_every_line_of_the_tables_names_a_test() -> None:
    lines = [
        line for line in PAGE.splitlines() if line.startswith("|") and not re.match(r"\|(-|\s*(in the|case))", line)
    ]
    assert len(lines) > 50
    assert [line for line in lines if not _TEST.search(line)] == []


@pytest.mark.parametrize(("heading", "names"), NAMES.items())
def test_no_name_of_a_document_is_missing(heading: str, names: list[str]) -> None:
    told = set(re.findall(r"\w+", section(heading)))
    assert [name for name in names if name not in told] == []
