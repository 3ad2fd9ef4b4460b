"""Answers of a stand-in provider by rules: the words of the last user message say them.

call TOOL {"a": 1}       that tool once, with these arguments; "done: RESULT" when its result is there
loop N TOOL {"n": $n}    that tool until N results are there; `$n` counts from 1. "done after N: RESULT"
say N MB                 so much text
anything else            itself
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from .strict_provider import Body, Call, Reply

_CALL: Final = re.compile(r"\bcall ([A-Za-z0-9_-]+) (?=\{)")
_LOOP: Final = re.compile(r"\bloop (\d+) ([A-Za-z0-9_-]+)(?: (?=(\{)))?")
_SAY: Final = re.compile(r"\bsay (\d+) MB")


@dataclass(frozen=True)
class Turn:
    """A part of a conversation: a text of a role, or the result of a tool with the role "tool"."""

    role: str
    text: str


def conversation(body: Body) -> list[Turn]:
    """The turns of a request to any interface, without calls."""
    if "contents" in body:
        return list(_google_turns(body["contents"]))
    return list(_openai_turns(body["input"]) if "input" in body else _anthropic_turns(body["messages"]))


def last_user_text(body: Body) -> str:
    return next((turn.text for turn in reversed(conversation(body)) if turn.role == "user"), "")


def rule_answer(body: Body) -> Reply:
    """The answer by the rules of this module."""
    turns = conversation(body)
    at = max((number for number, turn in enumerate(turns) if turn.role == "user"), default=-1)
    text = turns[at].text if at >= 0 else ""
    results = [turn.text for turn in turns[at + 1 :] if turn.role == "tool"]
    if found := _LOOP.search(text):
        wanted, tool = int(found[1]), found[2]
        if len(results) >= wanted:
            return Reply(f"done after {wanted}: {results[-1]}")
        arguments = _object_at(text, found.end()) if found[3] else '{"n": $n}'
        return Reply(calls=(Call("", tool, arguments.replace("$n", str(len(results) + 1))),))
    if found := _CALL.search(text):
        return (
            Reply(f"done: {results[-1]}")
            if results
            else Reply(calls=(Call("", found[1], _object_at(text, found.end())),))
        )
    if found := _SAY.search(text):
        return Reply("x" * int(found[1]) * 1_000_000)
    return Reply(text or "nothing was said")


def with_ids(reply: Reply, job_id: str) -> Reply:
    """The answer whose calls have ids; those without get one of the job, so that a second answer has others."""
    calls = tuple(
        call if call.id else replace(call, id=f"call_{job_id[-12:]}_{number}")
        for number, call in enumerate(reply.calls)
    )
    return replace(reply, calls=calls)


def usage_of(body: Body, reply: Reply) -> tuple[int, int]:
    """Tokens in and out: about four characters each."""
    asked = sum(
        len(json.dumps(body.get(name) or ""))
        for name in ("input", "messages", "contents", "system", "systemInstruction", "instructions", "tools")
    )
    answered = len(reply.text or "") + sum(len(call.name) + len(call.args) for call in reply.calls)
    return asked // 4 + 1, answered // 4 + 1


def _object_at(text: str, start: int) -> str:
    """The JSON object that begins there; placeholders need not be JSON."""
    depth = 0
    for end, character in enumerate(text[start:], start + 1):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[start:end]
    return text[start:]


def _openai_turns(given: Any) -> Iterator[Turn]:
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        if item.get("type") == "function_call_output":
            yield Turn("tool", _text(item["output"]))
        elif "role" in item:
            yield Turn(item["role"], _text(item["content"]))


def _anthropic_turns(messages: Any) -> Iterator[Turn]:
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        yield from (Turn("tool", _text(each.get("content") or "")) for each in blocks if each["type"] == "tool_result")
        texts = [each["text"] for each in blocks if each["type"] == "text"]
        if texts:
            yield Turn(message["role"], "\n".join(texts))


def _google_turns(contents: Any) -> Iterator[Turn]:
    for content in contents:
        for part in content["parts"]:
            if "functionResponse" in part:
                response = part["functionResponse"]["response"]
                yield Turn("tool", str(response.get("return_value", response.get("output", json.dumps(response)))))
        texts = [part["text"] for part in content["parts"] if "text" in part]
        if texts:
            yield Turn({"model": "assistant"}.get(content["role"], content["role"]), "\n".join(texts))


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(each.get("text", "") for each in content)
