"""The parts behind `state.smart`. Those of the session live as long as it does; counters belong to the execution."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ..execution.usage import InferenceUsage
from ..parts.list_part import ListPart
from ..parts.state_part import PartItem, PartScope, PartValue, StatePart
from ..values.field_types import Amount, Count, Flag, Text, UtcDatetime
from .run_parts import Share

# --- plan ------------------------------------------------------------------------------------------------------


class PlanStatus(StrEnum):
    """How far a step of a plan is."""

    NOT_STARTED = "not-started"
    IN_PROGRESS = "in-progress"
    COMPLETED = "completed"
    BLOCKED = "blocked"


class PlanStepRecord(PartValue):
    """One step of a plan.

    Attributes:
        id: From 1, in the order of the plan.
        step: The step in a sentence.
        owner: `agent`, `user`, `tool`, or any other name.
        exit_criteria: The condition under which the step is done.
        evidence: Why it counts as done; at most 300 characters. None: none given.
    """

    id: Count
    step: Text
    owner: Text = "agent"
    exit_criteria: Text = ""
    evidence: Text | None = None
    status: PlanStatus = PlanStatus.NOT_STARTED
    title: Text | None = None
    description: Text | None = None


class Plan(StatePart):
    """The plan of the session.

    Attributes:
        version: Counts the changes; 0 before the first plan.
        last_updated: The time of the last change (UTC); None before the first plan.
    """

    part_name = "smart_plan"
    scope = PartScope.SESSION
    version: Count = 0
    steps: tuple[PlanStepRecord, ...] = ()
    last_updated: UtcDatetime | None = None

    @property
    def adherence_score(self) -> float:
        """The share of completed steps, with two decimals; 1 for an empty plan."""
        if not self.steps:
            return 1.0
        return round(sum(each.status is PlanStatus.COMPLETED for each in self.steps) / len(self.steps), 2)


# --- reflections -----------------------------------------------------------------------------------------------


class Cadence(StrEnum):
    """The steps after which the model reflects.

    Attributes:
        OFF: After none.
        EVERY_TURN: After each step.
        AFTER_TOOL: After each step with tool calls.
        ON_BRANCH: After a step whose set of called tools differs from that of the step with calls before it.
        INITIAL_THEN_AFTER_TOOL: Before the first model call of an execution, then as `AFTER_TOOL`.
    """

    OFF = "off"
    EVERY_TURN = "every_turn"
    AFTER_TOOL = "after_tool"
    ON_BRANCH = "on_branch"
    INITIAL_THEN_AFTER_TOOL = "initial_then_after_tool"


class ReflectionUsage(PartValue):
    """Tokens of one reflection. `cached_input_tokens` are part of `input_tokens`."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    cached_input_tokens: Count = 0
    total_tokens: Count = 0
    reasoning_tokens: Count = 0

    @classmethod
    def of(cls, usage: InferenceUsage) -> ReflectionUsage:
        """The usage of an answer under these names."""
        return cls(
            input_tokens=usage.input + usage.cache_read + usage.cache_write,
            output_tokens=usage.output,
            cached_input_tokens=usage.cache_read,
            total_tokens=usage.total,
            reasoning_tokens=usage.reasoning,
        )


class ReflectionRecord(PartItem):
    """One note that the model made about its own work.

    Attributes:
        id: Follows from the execution and the step, so that a step that runs again makes the same one.
        turn: Number of the step that it is about; 0 before the first.
        created_at: UTC.
        duration_ms: The time that the model took; None for a note that came with an answer.
        anchor_message_index: Messages of the conversation before the note.
        trigger: The cadence that asked for it.
        usage: Tokens; None for a note that came with an answer.
        tool_call_ids: The calls of the step.
    """

    id: Text
    turn: Count
    text: Text
    created_at: UtcDatetime
    duration_ms: Count | None = None
    anchor_message_index: Count | None = None
    trigger: Cadence | None = None
    usage: ReflectionUsage | None = None
    tool_call_ids: tuple[Text, ...] = ()


class Reflections(ListPart[ReflectionRecord]):
    """The notes of the session, in order."""

    part_name = "smart_reflections"
    scope = PartScope.SESSION


class ReflectionProgress(StatePart):
    """Counts of the cadence and its limits in this execution.

    Attributes:
        made: Notes of this execution.
        calls: Tool calls of this execution; read by earlier versions.
        calls_at_last: Tool calls when the last note was made; read by earlier versions.
        turns: Steps with tool calls of this execution.
        turns_at_last: Steps with tool calls when the last note was made.
        tools: The set of tools that the last step with calls called, sorted.
        has_branched: Whether that set differs from the one before it.
    """

    part_name = "smart_reflection"
    made: Count = 0
    calls: Count = 0
    calls_at_last: Count = 0
    turns: Count = 0
    turns_at_last: Count = 0
    tools: tuple[Text, ...] = ()
    has_branched: Flag = False


class ReflectionSummary(StatePart):
    """The older notes in short, where they are summarized.

    Attributes:
        covered: Notes of the session, from the first, that the text covers.
    """

    part_name = "smart_reflection_summary"
    scope = PartScope.SESSION
    text: Text = ""
    covered: Count = 0


# --- compaction ------------------------------------------------------------------------------------------------


class StableFact(PartValue):
    """A fact that a summary keeps."""

    key: Text
    value: Text
    confidence: Share = 0.8


class SummaryRecord(PartItem):
    """One summary of the beginning of the conversation. The messages that it covers stay in the session.

    Attributes:
        id: Follows from the execution and the step.
        text: What the model reads in place of the covered messages.
        covered_from: Index of the first message that this summary adds to the one before.
        covered_upto: Index behind the last message that it covers.
        source: `model`, or `local` where the model gave no usable summary.
        usage: Tokens; None for a local one.
    """

    id: Text
    text: Text
    created_at: UtcDatetime
    step: Count
    covered_from: Count
    covered_upto: Count
    source: Text = "model"
    stable_facts: tuple[StableFact, ...] = ()
    active_goals: tuple[Text, ...] = ()
    open_questions: tuple[Text, ...] = ()
    discarded_obsolete: tuple[Text, ...] = ()
    usage: ReflectionUsage | None = None


class Summaries(ListPart[SummaryRecord]):
    """The summaries of the session, in order; each covers what those before it cover."""

    part_name = "smart_summaries"
    scope = PartScope.SESSION


class Compaction(StatePart):
    """Which messages of the conversation the model no longer sees as they are.

    Attributes:
        generation: The generation of the conversation that the indexes belong to.
        covered: Messages before this index are represented by the last summary.
        archived: Tool results before this index are shown as handles.
        pinned: Indexes of covered messages that the model still sees.
        facts: What summaries have found, and not declared obsolete.
        obsolete: Keys and values, as `key=value`, that must not come back.
    """

    part_name = "smart_compaction"
    scope = PartScope.SESSION
    generation: Count = 0
    covered: Count = 0
    archived: Count = 0
    pinned: tuple[Count, ...] = ()
    facts: tuple[StableFact, ...] = ()
    obsolete: tuple[Text, ...] = ()


class ArchiveUse(StatePart):
    """How often the model has fetched archived results in this execution."""

    part_name = "smart_archive"
    fetched: Count = 0


# --- facts, cache, limits --------------------------------------------------------------------------------------


class FactStatus(StrEnum):
    """Whether a fact still holds."""

    ACTIVE = "active"
    OBSOLETE = "obsolete"


class MemoryFact(PartValue):
    """One fact that is remembered.

    Attributes:
        confidence: From 0 to 1.
        updated_at: The last time somebody said it (UTC).
        ttl_seconds: It counts no longer than this after `updated_at`; None: for good.
        tags: Words to find it by.
    """

    key: Text
    value: Text
    confidence: Share = 0.5
    status: FactStatus = FactStatus.ACTIVE
    updated_at: UtcDatetime
    ttl_seconds: Amount | None = None
    tags: tuple[Text, ...] = ()


class Memory(StatePart):
    """The facts of the session, the newest last."""

    part_name = "smart_memory"
    scope = PartScope.SESSION
    facts: tuple[MemoryFact, ...] = ()


class CachedResult(PartValue):
    """The place in the conversation of a result that is given again for an equal call.

    Attributes:
        key: Of the tool and its arguments.
        generation: The generation of the conversation that the index belongs to.
        index: Of the message with the result.
        is_text: The result is a text; else it is JSON.
        at: The time of the call (UTC).
    """

    key: Text
    generation: Count = 0
    index: Count
    is_text: Flag = True
    at: UtcDatetime


class CachedResults(StatePart):
    """The results that `ToolCache` keeps, the least recently made first."""

    part_name = "smart_tool_cache"
    scope = PartScope.SESSION
    results: tuple[CachedResult, ...] = ()


class LimitsUsed(StatePart):
    """Counts of `AgentLimits` in this execution.

    Attributes:
        tool_calls: Every call that was asked for, whatever came of it.
    """

    part_name = "smart_limits"
    tool_calls: Count = 0


GET_TOOL_RESPONSE: Final = "get_tool_response"
MANAGE_TODO_LIST: Final = "manage_todo_list"
