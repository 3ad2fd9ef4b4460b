"""Texts of summaries: what the model is given to summarize, and how its answer is read and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from ...state.conversation.messages import Message, Role
from ...state.views.smart_parts import Compaction, StableFact, SummaryRecord

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
    text = content.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("the summary is no JSON object")
    data = cast("dict[str, Any]", found)
    summary = data.get("summary") or data.get("rawSummary")
    if not isinstance(summary, str) or not summary.strip():
        raise ValueError("the summary has no text")
    return ParsedSummary(
        text=summary,
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
    return tuple(each[:_ITEM_CHARS] for each in _items(data, name) if isinstance(each, str))[:_MOST_ITEMS]


def _fact(item: object) -> StableFact | None:
    """A fact of the answer; None for what is none."""
    if not isinstance(item, dict):
        return None
    data = cast("dict[str, Any]", item)
    key, value, confidence = data.get("key"), data.get("value"), data.get("confidence", 0.8)
    if not isinstance(key, str) or not key or value is None:
        return None
    is_share = isinstance(confidence, int | float) and not isinstance(confidence, bool) and 0 <= confidence <= 1
    text = value if isinstance(value, str) else json.dumps(value)
    return StableFact(key=key[:_ITEM_CHARS], value=text[:_ITEM_CHARS], confidence=confidence if is_share else 0.8)
