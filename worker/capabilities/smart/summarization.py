"""`Summarization`: keeps the conversation under a limit of tokens, with summaries of its beginning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from ...drivers.protocol import AuxiliaryRequest
from ...errors import DriverError
from ...hooks import HookContext
from ...redaction import whole_unicode
from ...state.agent_state import AgentState
from ...state.conversation.messages import DEFAULT, Message, Role
from ...state.execution.inference import InferenceResponse
from ..guardrails.findings import without_blocked
from ..numbers import check_share, check_whole
from .compacted import (
    Compaction,
    StableFact,
    Summaries,
    SummaryRecord,
    is_boundary,
    last_summary,
    newest_turn,
    pinned_of,
)
from .tokens import ReflectionUsage, message_tokens
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
        last_turns_to_keep: Most answers of the model that are kept with a new summary, from 1.
        max_prompt_tokens: The tokens of the messages that the model is given to summarize, from 200.
        max_summary_tokens: The tokens of a summary; a longer one is cut. From 50.
    """

    target_ratio: float = 0.45
    last_turns_to_keep: int = 16
    max_prompt_tokens: int = 12_000
    max_summary_tokens: int = 2_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("Summarization(target_ratio)", self.target_ratio, above_zero=True)
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
        """The index from which on messages stay in sight after a new summary."""
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


INSTRUCTIONS: Final = (
    "You summarize the beginning of a conversation between a user, an assistant and its tools, so that the assistant "
    'can go on without it. Answer with one JSON object and nothing else: {"stable_facts": [{"key": text, '
    '"value": text, "confidence": 0 to 1}], "active_goals": [text], "open_questions": [text], '
    '"discarded_obsolete": [text], "summary": text}. Keep every fact of the former summary that still holds; name '
    "in discarded_obsolete the keys of those that do not. Keep ids, numbers and names exactly."
)
MAX_FACTS: Final = 60
_LINE_CHARS: Final = 160
_ITEM_CHARS: Final = 400
_MOST_ITEMS: Final = 20
_CUT: Final = " [cut]"


@dataclass(frozen=True)
class ParsedSummary:
    """A summary before it is checked against the facts that were known."""

    text: str
    stable_facts: tuple[StableFact, ...] = ()
    active_goals: tuple[str, ...] = ()
    open_questions: tuple[str, ...] = ()
    discarded_obsolete: tuple[str, ...] = ()


def render(before: SummaryRecord | None, messages: Sequence[Message], most_chars: int) -> str:
    """The former summary and the messages as text, each message cut so that all of them fit."""
    head = "" if before is None else f"FORMER SUMMARY\n{before.text}\n{_fact_lines(before.stable_facts)}\n\n"
    room = max(_LINE_CHARS, (most_chars - len(head)) // max(1, len(messages)))
    return head + "MESSAGES\n" + "\n".join(_line(each, room) for each in messages)


def local_summary(before: SummaryRecord | None, messages: Sequence[Message], most_chars: int) -> ParsedSummary:
    """A summary without a model: the former one, and the beginning of each message; the newest where not all fit."""
    lines = [] if before is None else before.text.splitlines()
    lines += [_line(each, _LINE_CHARS) for each in messages]
    kept: list[str] = []
    room = most_chars
    for line in reversed(lines):
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return ParsedSummary(
        text="\n".join(reversed(kept)),
        active_goals=before.active_goals if before is not None else (),
        open_questions=before.open_questions if before is not None else (),
    )


def parse_summary(content: str) -> ParsedSummary:
    """Read the model's answer.

    Raises:
        ValueError: It is no JSON object with a summary.
    """
    try:
        data: dict[str, Any] = json.loads(content[content.find("{") : content.rfind("}") + 1])  # models write around it
    except RecursionError:
        raise ValueError("the summary is nested too deeply") from None
    summary = data.get("summary") or data.get("rawSummary")
    if not isinstance(summary, str) or not summary.strip():
        raise ValueError("the summary has no text")
    return ParsedSummary(
        text=whole_unicode(summary),  # a model may cut a character in the middle of its escapes
        stable_facts=tuple(fact for each in _items(data, "stable_facts") if (fact := _fact(each)) is not None),
        active_goals=_texts(data, "active_goals"),
        open_questions=_texts(data, "open_questions"),
        discarded_obsolete=_texts(data, "discarded_obsolete"),
    )


def merge_facts(before: Compaction, parsed: ParsedSummary) -> tuple[tuple[StableFact, ...], tuple[str, ...]]:
    """The facts after a summary, and those that must not come back.

    A fact that was known and that the summary has neither repeated nor declared obsolete is kept. A key with another
    value replaces the former one, which is obsolete from then on, as are those that the summary discards.
    """
    facts = {fact.key: fact for fact in before.facts}
    obsolete = set(before.obsolete)
    for key in parsed.discarded_obsolete:
        if key in facts:
            obsolete.add(_pair(facts.pop(key)))
    for fact in parsed.stable_facts:
        if _pair(fact) in obsolete:
            continue
        former = facts.pop(fact.key, None)
        if former is not None and former.value != fact.value:
            obsolete.add(_pair(former))
        facts[fact.key] = fact
    return tuple(facts.values())[-MAX_FACTS:], tuple(sorted(obsolete))[-MAX_FACTS:]


def _pair(fact: StableFact) -> str:
    return f"{fact.key}={fact.value}"


def _fact_lines(facts: Sequence[StableFact]) -> str:
    return "\n".join(f"{fact.key} = {fact.value}" for fact in facts)


def _line(message: Message, room: int) -> str:
    calls = "".join(f" [calls {call.name} {call.args_json()[:_LINE_CHARS]}]" for call in message.tool_calls)
    name = f" {message.name}" if message.role is Role.TOOL and message.name else ""
    text = f"{message.role.value}{name}: {message.content}{calls}"
    return text if len(text) <= room else text[: max(0, room - len(_CUT))] + _CUT


def _items(data: Mapping[str, Any], name: str) -> list[Any]:
    found = data.get(name)
    return cast("list[Any]", found)[:MAX_FACTS] if isinstance(found, list) else []


def _texts(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    texts = (each for each in _items(data, name) if isinstance(each, str))
    return tuple(whole_unicode(each)[:_ITEM_CHARS] for each in texts)[:_MOST_ITEMS]


def _fact(item: object) -> StableFact | None:
    """A fact of the answer; None for what is none."""
    if not isinstance(item, dict):
        return None
    data = cast("dict[str, Any]", item)
    key, value = data.get("key"), data.get("value")
    confidence: Any = data.get("confidence")
    if not isinstance(key, str) or not key or value is None:
        return None
    is_share = isinstance(confidence, int | float) and not isinstance(confidence, bool) and 0 <= confidence <= 1
    text = value if isinstance(value, str) else json.dumps(value)
    key, text = whole_unicode(key), whole_unicode(text)
    return StableFact(key=key[:_ITEM_CHARS], value=text[:_ITEM_CHARS], confidence=confidence if is_share else 0.8)
