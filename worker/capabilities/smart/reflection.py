"""`Reflection`: short notes that the model makes about its own work between its steps."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from ...capability import Capability
from ...drivers.protocol import AuxiliaryRequest
from ...errors import ConfigurationError, DriverError
from ...hooks import Hook, HookContext, HookPoint
from ...state.agent_state import AgentState
from ...state.conversation.context import LLMConfig
from ...state.conversation.messages import DEFAULT, Message, Role
from ...state.execution.steps import AgentStep
from ...state.parts.list_part import ListPart
from ...state.parts.state_part import PartItem, PartScope, PartValue, StatePart
from ...state.values.field_types import Count, Flag, Text, UtcDatetime
from ..guardrails.findings import without_blocked
from .reasoning_config import Cadence, ReasoningConfig, ReflectionConfig
from .step_events import describe_record
from .tokens import ReflectionUsage

_KEY: Final = "Reflection.note"
_SUMMARY_KEY: Final = "Reflection.summary"
_FIRST: Final = 100  # before hooks that compact, which count what the model will read
_RESULT_CHARS: Final = 600
_TASK_CHARS: Final = 1_000
_SAME_WORDS: Final = 0.9
_TAGGED: Final = re.compile(r"\s*<reflection>(.*?)</reflection>\s*", re.DOTALL)

PROMPT: Final = (
    "Task: {task}\n\nStep {turn} has just ended:\n{results}\n\nReflect in a few sentences for yourself: what do the "
    "results mean for the task, what is still missing, and what is the best next step? Write only the note."
)
INITIAL_PROMPT: Final = (
    "Task: {task}\n\nNothing is done yet. Reflect in a few sentences for yourself: what does the task need, and how do "
    "you begin? Write only the note."
)
_SYSTEM: Final = "You make short notes about your own work. They are for yourself; the user does not see them."
_PIGGYBACK: Final = (
    "Begin your next answer with a short note for yourself between <reflection> and </reflection>: {question} "
    "The user does not see it."
)
_PIGGYBACK_QUESTION: Final = "what the last results mean for the task, and the best next step."


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


class ReflectionEvent(PartValue):
    """The model has made a note about its work; the fields are those of its `ReflectionRecord`."""

    type: Literal["reflection"] = "reflection"
    id: Text
    turn: Count
    text: Text
    trigger: Cadence | None = None
    duration_ms: Count | None = None
    usage: ReflectionUsage | None = None
    tool_call_ids: tuple[Text, ...] = ()


@dataclass(frozen=True)
class Reflection(Capability):
    """Lets the model reflect about its work: notes in `state.smart.reflections`, of which it sees the last ones.

    A note is about the step before. In mode `separate` it is an auxiliary model call before the next step, journaled
    and billed to the execution; a call that fails makes no note. In mode `piggyback` it comes with the next answer, and
    is taken out of it. An empty note, or one that says the same as the one before, is dropped.

    Attributes:
        config: How the model thinks and reflects.
        cadence: In place of the config's. None: the config's.
    """

    config: ReasoningConfig = ReasoningConfig()  # noqa: RUF009 - frozen
    cadence: Cadence | str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.config, ReasoningConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"Reflection(config)={self.config!r:.60}: give a ReasoningConfig")
        if self.cadence is not None:
            given = self.config.reflection or ReflectionConfig()
            changed = replace(self.config, reflection=replace(given, cadence=self.cadence))
            object.__setattr__(self, "config", changed)
        object.__setattr__(self, "_resolved", self.config.resolved)

    @property
    def resolved(self) -> ReflectionConfig | None:
        """When the model reflects, with every field that the level gives; None: never."""
        return self._resolved  # type: ignore[attr-defined,no-any-return]

    def parts(self) -> Sequence[Any]:
        """The notes, what the cadence counts, and the summary of older notes."""
        return (Reflections, ReflectionProgress, ReflectionSummary)

    def hooks(self) -> Sequence[Hook]:
        """Reflects before a step, tells the provider how to think, and counts calls after a step."""
        hooks: list[Hook] = []
        if self.config.native_settings:
            hooks.append(Hook(HookPoint.BEFORE_INFERENCE, self._set_native, name=self.name))
        if self.resolved is None:
            return hooks
        if self.resolved.mode == "separate":
            hooks.append(Hook(HookPoint.BEFORE_STEP, self._reflect, priority=_FIRST, name=self.name))
        else:
            hooks.append(Hook(HookPoint.BEFORE_INFERENCE, self._ask_along, name=self.name))
            hooks.append(Hook(HookPoint.AFTER_INFERENCE, self._take_out, name=self.name))
        return (*hooks, Hook(HookPoint.AFTER_STEP, self._count, name=self.name))

    def compile(self, state: AgentState, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Put the last notes behind the conversation."""
        if self.resolved is None:
            return messages
        notes = state.part(Reflections)[-self.resolved.keep_last :]
        if not notes:
            return messages
        summary = state.part(ReflectionSummary).text if self.resolved.summarize else ""
        lines = [f"Older notes in short: {summary}"] if summary else []
        lines += [f"Note after step {each.turn}: {each.text}" for each in notes]
        return (*messages, *map(Message.system, lines))

    def events(self, before: AgentState, after: AgentState) -> Sequence[Mapping[str, Any]]:
        """An event for each new note, unless that is switched off."""
        if self.resolved is None or not self.resolved.emit_events:
            return ()
        known, now = len(before.part(Reflections)), after.part(Reflections)
        return [describe_record(ReflectionEvent, record) for record in now[known:]] if len(now) > known else ()

    # --- cadence ----------------------------------------------------------------------------------------------

    def is_due(self, state: AgentState) -> bool:
        """Tell whether the model reflects before the step that is to come."""
        config, progress, step = self.resolved, state.part(ReflectionProgress), state.last_step
        if config is None or (config.max_per_run is not None and progress.made >= config.max_per_run):
            return False
        if step is None:
            return config.cadence is Cadence.INITIAL_THEN_AFTER_TOOL
        is_early = progress.made > 0 and progress.turns - progress.turns_at_last < config.every_n_turns
        if config.cadence is Cadence.EVERY_TURN and config.every_n_turns == 1:
            return True
        has_branched = config.cadence is not Cadence.ON_BRANCH or progress.has_branched
        return not is_early and has_branched and (step.has_tool_calls() or config.cadence is Cadence.EVERY_TURN)

    def _count(self, context: HookContext) -> HookContext | None:
        step = context.state.current_step
        if step is None or not step.has_tool_calls():
            return None
        progress = context.state.part(ReflectionProgress)
        tools = tuple(sorted({call.name for call in step.requested_tool_calls}))
        counted = progress.replace(
            calls=progress.calls + len(step.requested_tool_calls),
            turns=progress.turns + 1,
            tools=tools,
            has_branched=tools != progress.tools,
        )
        return context.changed(state=context.state.with_part(counted, now=context.state.updated_at))

    # --- notes ------------------------------------------------------------------------------------------------

    def _reflect(self, context: HookContext) -> HookContext | None:
        state, config = context.state, self.resolved
        if config is None or not self.is_due(state):
            return None
        began = time.monotonic()
        try:
            request = AuxiliaryRequest(
                messages=(Message.user(self._question(state)),),
                system_prompt=_SYSTEM,
                settings=_settings(state, config),
            )
            answer = context.ask_model(_KEY, request)
        except DriverError:
            return None
        took = round((time.monotonic() - began) * 1000)
        usage = ReflectionUsage.of(answer.usage)
        state = self._keep(context, answer.content, {"duration_ms": took, "usage": usage})
        return context.changed(state=self._summarize(context, state))

    def _keep(self, context: HookContext, text: str, facts: Mapping[str, Any]) -> AgentState:
        """The state with a note, unless it is empty or says nothing new; either way the cadence has had its turn."""
        state, config = context.state, self.resolved
        assert config is not None
        progress, notes, now = state.part(ReflectionProgress), state.part(Reflections), state.updated_at
        made = progress.made + 1
        after = progress.replace(made=made, calls_at_last=progress.calls, turns_at_last=progress.turns)
        state = state.with_part(after, now=now)
        kept = text.strip()[: config.max_chars]
        if not kept or (len(notes) and says_the_same(kept, notes[-1].text)):
            return state
        step = state.last_step
        record = ReflectionRecord(
            id=f"{context.execution_id}.{context.step}.reflection",
            turn=step.number if step is not None else 0,
            text=kept,
            created_at=now,
            anchor_message_index=len(state.store.section(DEFAULT).messages),
            trigger=Cadence(config.cadence) if config.cadence is not None else None,
            tool_call_ids=tuple(call.id for call in step.requested_tool_calls) if step is not None else (),
            **facts,
        )
        return state.with_part(notes.append(record), now=now)

    def _question(self, state: AgentState) -> str:
        config, step = self.resolved, state.last_step
        assert config is not None
        template = config.prompt_template or (PROMPT if step is not None else INITIAL_PROMPT)
        newest = next((m for m in reversed(state.store.section(DEFAULT).messages) if m.role is Role.USER), None)
        task = "" if newest is None else without_blocked(state, [newest])[0].content
        filled = {"{task}": task[:_TASK_CHARS], "{turn}": str(step.number if step is not None else 0)}
        filled["{results}"] = _results(step) if step is not None else ""
        return re.sub(r"\{task\}|\{turn\}|\{results\}", lambda found: filled[found.group()], template)

    def _summarize(self, context: HookContext, state: AgentState) -> AgentState:
        """The state with the notes that the model no longer sees in short, once there are as many as it sees."""
        config = self.resolved
        assert config is not None
        if not config.summarize:
            return state
        summary, notes = state.part(ReflectionSummary), state.part(Reflections)
        until = len(notes) - config.keep_last
        if until - summary.covered < config.keep_last:
            return state
        older = "\n".join(f"- {each.text}" for each in notes[summary.covered : until])
        text = f"Shorten these notes to the few sentences that still matter.\n{summary.text}\n{older}"
        try:
            answer = context.ask_model(_SUMMARY_KEY, AuxiliaryRequest((Message.user(text),), system_prompt=_SYSTEM))
        except DriverError:
            return state
        shortened = summary.replace(text=answer.content.strip()[: config.max_chars], covered=until)
        return state.with_part(shortened, now=state.updated_at)

    # --- around the step's own call ---------------------------------------------------------------------------

    def _set_native(self, context: HookContext) -> HookContext | None:
        request = context.request
        if request is None:
            return None
        given = request.settings or LLMConfig()
        settings = {**self.config.native_settings, **given.settings}
        config = LLMConfig(model=given.model, base_url=given.base_url, settings=settings)  # pyright: ignore[reportArgumentType]
        return context.changed(request=replace(request, settings=config))

    def _ask_along(self, context: HookContext) -> HookContext | None:
        request = context.request
        if request is None or not self.is_due(context.state):
            return None
        config = self.resolved
        template = None if config is None else config.prompt_template
        question = _PIGGYBACK_QUESTION if template is None else self._question(context.state)
        asked = Message.system(_PIGGYBACK.replace("{question}", question))
        return context.changed(request=request.with_messages((*request.messages, asked)))

    def _take_out(self, context: HookContext) -> HookContext | None:
        response = context.response
        if response is None or not self.is_due(context.state):
            return None
        found = _TAGGED.search(response.content)
        if found is None:
            return None
        said = response.model_copy(update={"content": _TAGGED.sub("", response.content, count=1)})
        state = self._keep(context, found.group(1), {})
        return context.changed(state=self._summarize(context, state), response=said)


def says_the_same(one: str, other: str) -> bool:
    """Tell whether two notes are equal, or share nine tenths of their words."""
    words, others = set(one.lower().split()), set(other.lower().split())
    return words == others or len(words & others) >= _SAME_WORDS * len(words | others)


def _results(step: AgentStep) -> str:
    lines = [
        f"- {each.tool_call.name}({each.tool_call.args_json()[:200]}): {each.as_message()[:_RESULT_CHARS]}"
        for each in step.tool_executions
    ]
    return "\n".join(lines) or f"- said: {step.output_text[:_RESULT_CHARS]}"


def _settings(state: AgentState, config: ReflectionConfig) -> LLMConfig:
    """The session's model, with the tokens that a note may have."""
    given = state.llm_config or LLMConfig()
    settings: Any = {**given.settings, "max_tokens": config.max_tokens}
    return LLMConfig(model=given.model, base_url=given.base_url, settings=settings)
