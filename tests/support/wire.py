"""The interfaces of OpenAI and Anthropic, as a transport in the process: whole answers, and streams of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

FAMILIES = ("openai", "anthropic")
_ENDS = {
    "stop": ("stop", "end_turn"),
    "tool_calls": ("tool_calls", "tool_use"),
    "length": ("length", "max_tokens"),
    "content_filter": ("content_filter", "refusal"),
}


@dataclass(frozen=True)
class Said:
    """An answer: a text, and calls as (id, tool, arguments).

    Attributes:
        end: Why it ends; "" follows from the calls.
    """

    text: str = ""
    calls: Sequence[tuple[str, str, dict[str, Any]]] = ()
    end: str = ""


@dataclass
class Wire:
    """A provider that gives these answers, by how many answers a request holds.

    Attributes:
        requests: The bodies of all requests.
    """

    family: str
    answers: Sequence[Said]
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def model(self) -> Any:
        client = httpx2.AsyncClient(transport=httpx2.MockTransport(self._answer))
        if self.family == "openai":
            return OpenAIChatModel("gpt-5-mini", provider=OpenAIProvider(api_key="no-key", http_client=client))
        return AnthropicModel("claude-haiku-4-5", provider=AnthropicProvider(api_key="no-key", http_client=client))

    def results(self) -> list[tuple[str, Any]]:
        """The ids and contents of the results in the latest request."""
        messages = self.requests[-1]["messages"]
        if self.family == "openai":
            return [(each["tool_call_id"], each["content"]) for each in messages if each["role"] == "tool"]
        blocks = [block for each in messages if isinstance(each["content"], list) for block in each["content"]]
        return [(block["tool_use_id"], block["content"]) for block in blocks if block["type"] == "tool_result"]

    def answer_to(self, body: dict[str, Any]) -> dict[str, Any]:
        """The whole answer to a request."""
        said, end = self._said_to(body)
        whole: Callable[[Said, str], Any] = _openai if self.family == "openai" else _anthropic
        return whole(said, _ENDS[end][self.family != "openai"])

    def _said_to(self, body: dict[str, Any]) -> tuple[Said, str]:
        said = self.answers[sum(each["role"] == "assistant" for each in body["messages"])]
        return said, said.end or ("tool_calls" if said.calls else "stop")

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        self.requests.append(body)
        if not body.get("stream"):
            return httpx2.Response(200, json=self.answer_to(body))
        said, end = self._said_to(body)
        events = _openai_events(said, _ENDS[end][0]) if self.family == "openai" else _anthropic_events(said, end)
        return httpx2.Response(200, text="".join(events), headers={"content-type": "text/event-stream"})


def _openai(said: Said, end: str) -> dict[str, Any]:
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
        for call_id, name, args in said.calls
    ]
    message = {"role": "assistant", "content": said.text or None, **({"tool_calls": calls} if calls else {})}
    return {
        "id": "c", "object": "chat.completion", "created": 1, "model": "gpt-5-mini",
        "choices": [{"index": 0, "message": message, "finish_reason": end}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }  # fmt: skip


def _openai_events(said: Said, end: str) -> list[str]:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5-mini"}
    calls = _openai(said, end)["choices"][0]["message"].get("tool_calls", [])
    deltas: list[Any] = [{"role": "assistant", "content": said.text}]
    deltas += [{"tool_calls": [{"index": place, **call}]} for place, call in enumerate(calls)]
    chunks = [{**head, "choices": [{"index": 0, "delta": each, "finish_reason": None}]} for each in deltas]
    chunks += [
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": end}]},
        {**head, "choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}},
    ]
    return [*(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks), "data: [DONE]\n\n"]


def _anthropic(said: Said, end: str) -> dict[str, Any]:
    texts = [{"type": "text", "text": said.text}] if said.text else []
    calls = [{"type": "tool_use", "id": call_id, "name": name, "input": args} for call_id, name, args in said.calls]
    return {
        "id": "m", "type": "message", "role": "assistant", "model": "claude-haiku-4-5", "content": [*texts, *calls],
        "stop_reason": end, "stop_sequence": None, "usage": {"input_tokens": 10, "output_tokens": 5},
    }  # fmt: skip


def _anthropic_events(said: Said, end: str) -> list[str]:
    whole = _anthropic(said, _ENDS[end][1])
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
    ]
    for place, block in enumerate(whole["content"]):
        empty = {**block, "text": ""} if block["type"] == "text" else {**block, "input": {}}
        delta = (
            {"type": "text_delta", "text": block["text"]}
            if block["type"] == "text"
            else {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        )
        events += [
            {"type": "content_block_start", "index": place, "content_block": empty},
            {"type": "content_block_delta", "index": place, "delta": delta},
            {"type": "content_block_stop", "index": place},
        ]
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    events += [{"type": "message_delta", "delta": ending, "usage": {"output_tokens": 5}}, {"type": "message_stop"}]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
