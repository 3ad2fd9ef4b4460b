"""`Summarization`: keeps the conversation under a limit of tokens, with summaries of its beginning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...drivers.protocol import AuxiliaryRequest
from ...errors import DriverError
from ...hooks import HookContext
from ...state.agent_state import AgentState
from ...state.conversation.messages import DEFAULT, Message, Role
from ...state.execution.inference import InferenceResponse
from ...state.views.guardrail_parts import without_blocked
from ...state.views.smart_parts import Compaction, ReflectionUsage, Summaries, SummaryRecord
from .compacted import is_boundary, last_summary, newest_turn, pinned_of
from .summary_texts import INSTRUCTIONS, ParsedSummary, local_summary, merge_facts, parse_summary, render
from .tokens import check_share, check_whole, message_tokens
from .tool_archive import ToolArchive

_KEY: Final = "Summarization"
_SLACK: Final = 0.15


@dataclass(frozen=True)
class Summarization(ToolArchive):
    """Archives tool results as `ToolArchive` does, and summarizes the beginning of the conversation where it must.

    A summary is an auxiliary model call, journaled and billed to the execution. A call and its result are never parted,
    the results of the newest answer stay as they are, and so do system messages and the first and the latest message of
    the user. When the model gives no usable summary, a local one is made of the messages' beginnings.

    Attributes:
        target_ratio: The share of the maximum that the conversation has after a summary, above 0 and up to 1.
        last_turns_to_keep: Most answers of the model that are kept beside a new summary, from 1.
        max_prompt_tokens: The tokens of the messages that the model is given to summarize, from 200.
        max_summary_tokens: The tokens of a summary; a longer one is cut. From 50.
    """

    target_ratio: float = 0.45
    last_turns_to_keep: int = 16
    max_prompt_tokens: int = 12_000
    max_summary_tokens: int = 2_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("Summarization(target_ratio)", self.target_ratio)
        check_whole("Summarization(last_turns_to_keep)", self.last_turns_to_keep, least=1)
        check_whole("Summarization(max_prompt_tokens)", self.max_prompt_tokens, least=200)
        check_whole("Summarization(max_summary_tokens)", self.max_summary_tokens, least=50)

    def compact(self, context: HookContext, part: Compaction) -> AgentState:
        """The state with its results archived and, where that is not enough, with a new summary."""
        state = context.state
        archived = self.archive(state, part)
        tokens = self.count(state, archived)
        cut = self.choose_cut(state, archived) if tokens > self.trigger else archived.covered
        if not self._is_worth_it(state, archived, cut, tokens):
            return super().compact(context, part)
        record, compaction = self._summarize(context, archived, cut)
        now = state.updated_at
        return state.with_part(state.part(Summaries).append(record), now=now).with_part(compaction, now=now)

    def choose_cut(self, state: AgentState, part: Compaction) -> int:
        """The index from which on messages stay in sight beside a new summary."""
        messages = state.store.section(DEFAULT).messages
        newest = newest_turn(messages, part.covered)
        room = round(self.max_context_tokens * self.target_ratio) - self._summary_room
        cut, turns, index = newest, 0, len(messages)
        while index > part.covered:
            index -= 1
            room -= self._shown_tokens(messages[index], is_archived=index < part.archived)
            turns += messages[index].role is Role.ASSISTANT
            if index < newest and (room < 0 or turns > self.last_turns_to_keep):
                break
            if is_boundary(messages, index):
                cut = min(cut, index)
        return cut

    def _shown_tokens(self, message: Message, *, is_archived: bool) -> int:
        """The tokens of a message as the model sees it."""
        return message_tokens(self.shown.show(message, is_archived=is_archived), self.token_counter)

    @property
    def summary_chars(self) -> int:
        """Characters of a summary that the model sees."""
        return min(4 * self.max_summary_tokens, super().summary_chars)

    @property
    def _summary_room(self) -> int:
        return self.summary_chars // 4

    def _is_worth_it(self, state: AgentState, part: Compaction, cut: int, tokens: int) -> bool:
        """Tell whether a summary frees enough to be paid for; above the maximum, anything is enough."""
        if cut <= part.covered:
            return False
        messages = state.store.section(DEFAULT).messages
        pinned = pinned_of(messages, part, cut)
        freed = sum(
            self._shown_tokens(messages[index], is_archived=True)
            for index in range(part.covered, cut)
            if index not in pinned
        )
        return freed > 0 if tokens > self.max_context_tokens else freed >= self.max_context_tokens * _SLACK

    def _summarize(self, context: HookContext, part: Compaction, cut: int) -> tuple[SummaryRecord, Compaction]:
        state = context.state
        messages = state.store.section(DEFAULT).messages
        covered = without_blocked(state, messages[part.covered : cut])
        before = last_summary(state) if part.covered else None
        parsed, answer = self._ask(context, before, covered)
        facts, obsolete = merge_facts(part, parsed)
        record = SummaryRecord(
            id=f"{context.execution_id}.{context.step}.summary",
            text=parsed.text[: self.summary_chars],
            created_at=state.updated_at,
            step=context.step,
            covered_from=part.covered,
            covered_upto=cut,
            source="model" if answer is not None else "local",
            stable_facts=facts,
            active_goals=parsed.active_goals,
            open_questions=parsed.open_questions,
            discarded_obsolete=parsed.discarded_obsolete,
            usage=ReflectionUsage.of(answer.usage) if answer is not None else None,
        )
        after = part.replace(
            covered=cut, archived=max(part.archived, cut), pinned=pinned_of(messages, part, cut), facts=facts,
            obsolete=obsolete,
        )  # fmt: skip
        return record, after

    def _ask(
        self, context: HookContext, before: SummaryRecord | None, covered: Sequence[Message]
    ) -> tuple[ParsedSummary, InferenceResponse | None]:
        """The summary of the model with its answer, or a local one without."""
        text = render(before, covered, self.max_prompt_tokens * 4)
        request = AuxiliaryRequest(messages=(Message.user(text),), system_prompt=INSTRUCTIONS)
        try:
            answer = context.ask_model(_KEY, request)
            return parse_summary(answer.content), answer
        except (DriverError, ValueError):
            return local_summary(before, covered, self.summary_chars // 2), None
