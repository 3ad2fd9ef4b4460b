"""A provider in a thread of the test that refuses what OpenAI's and Anthropic's interfaces refuse, and what vLLM does.

    with StrictProvider(answer) as provider:
        provider.url            the base for OpenAI's clients; for Anthropic's without `/v1`
        provider.refused        what it has answered with 400, and why

`answer(body)` gives a `Reply` for each request that is acceptable.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from .strict_schemas import anthropic_refusal, openai_refusal

Body = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A call in an answer; its arguments as the text that the model writes."""

    id: str
    name: str
    args: str


@dataclass(frozen=True)
class Reply:
    """An answer of the model, or an end of the connection within it.

    Attributes:
        text: None for none.
        finish: The provider's reason; None leaves it out.
        cut: Bytes of the body that are sent; None sends all of them.
        is_clean_cut: The cut looks like the end of the body; otherwise the connection is reset.
    """

    text: str | None = None
    calls: tuple[Call, ...] = ()
    finish: str | None = "stop"
    cut: int | None = None
    is_clean_cut: bool = False

    def written(self, body: Body) -> bytes:
        """The body of the HTTP response."""
        is_stream = bool(body.get("stream"))
        if is_anthropic(body):
            return b"".join(_anthropic_events(self)) if is_stream else _json(_anthropic(self))
        return b"".join(_openai_events(self)) if is_stream else _json(_openai(self))

    def says_its_end(self, body: Body) -> bool:
        """Whether the reason and all before it are among the bytes that are sent."""
        if self.cut is None:
            return self.finish is not None
        written = self.written(body)
        if not body.get("stream"):
            return self.cut >= len(written)
        mark = b'"stop_reason": "' if is_anthropic(body) else b'"finish_reason": "'
        at = written.rfind(mark)
        return self.finish is not None and at >= 0 and self.cut > at + len(mark)


def is_anthropic(body: Body) -> bool:
    return str(body.get("model", "")).startswith("claude")


def _json(value: Any) -> bytes:
    # Escaped, so that half a character can be written.
    return json.dumps(value).encode()


def _openai(reply: Reply) -> Body:
    message: Body = {"role": "assistant", "content": reply.text}
    if reply.calls:
        message["tool_calls"] = [
            {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.args}}
            for each in reply.calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": reply.finish}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-5-mini",
        "choices": [choice],
        "usage": usage,
    }


def _openai_events(reply: Reply) -> Iterator[bytes]:
    def event(delta: Body, finish: str | None = None) -> bytes:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return b"data: " + _json({**head, "choices": choices}) + b"\n\n"

    head: Body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5-mini"}
    yield event({"role": "assistant", "content": ""})
    for piece in _halves(reply.text or ""):
        yield event({"content": piece})
    for index, each in enumerate(reply.calls):
        begin = {"index": index, "id": each.id, "type": "function", "function": {"name": each.name, "arguments": ""}}
        yield event({"tool_calls": [begin]})
        for piece in _halves(each.args):
            yield event({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    if reply.finish is not None:
        yield event({}, reply.finish)
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    yield b"data: " + _json({**head, "choices": [], "usage": usage}) + b"\n\n"
    yield b"data: [DONE]\n\n"


def _halves(text: str) -> Sequence[str]:
    middle = (len(text) + 1) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]


def _anthropic(reply: Reply) -> Body:
    blocks: list[Body] = [] if reply.text is None else [{"type": "text", "text": reply.text}]
    blocks += [
        {"type": "tool_use", "id": each.id, "name": each.name, "input": _object(each.args)} for each in reply.calls
    ]
    usage = {"input_tokens": 10, "output_tokens": 5}
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-haiku-4-5", "content": blocks,
        "stop_reason": reply.finish, "stop_sequence": None, "usage": usage,
    }  # fmt: skip


def _object(args: str) -> Any:
    try:
        read = json.loads(args or "{}")
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def _anthropic_events(reply: Reply) -> Iterator[bytes]:
    def event(kind: str, **data: Any) -> bytes:
        return f"event: {kind}\ndata: ".encode() + _json({"type": kind, **data}) + b"\n\n"

    message = {**_anthropic(reply), "content": [], "stop_reason": None}
    yield event("message_start", message=message)
    index = 0
    if reply.text is not None:
        yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        for piece in _halves(reply.text):
            yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
        yield event("content_block_stop", index=0)
        index = 1
    for number, each in enumerate(reply.calls, index):
        block = {"type": "tool_use", "id": each.id, "name": each.name, "input": {}}
        yield event("content_block_start", index=number, content_block=block)
        for piece in _halves(each.args):
            yield event("content_block_delta", index=number, delta={"type": "input_json_delta", "partial_json": piece})
        yield event("content_block_stop", index=number)
    delta = {"stop_reason": reply.finish, "stop_sequence": None}
    usage = {"input_tokens": 10, "output_tokens": 5}
    if reply.finish is not None:
        yield event("message_delta", delta=delta, usage=usage)
        yield event("message_stop")


# --- what the real ones refuse -----------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ANTHROPIC_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_ANTHROPIC_ID = re.compile(r"[A-Za-z0-9_-]+")


class Refused(Exception):
    """The request would be answered with 400."""


def require(holds: object, why: str) -> None:
    if not holds:
        raise Refused(why)


def check_request(raw: bytes) -> Body:
    """Read a request.

    Raises:
        Refused: The provider would not take it.
    """
    try:
        body: Body = json.loads(raw.decode(), parse_constant=_no_constant)
        json.dumps(body, ensure_ascii=False).encode()
    except (UnicodeError, ValueError) as problem:
        raise Refused(f"the body is no JSON in Unicode: {type(problem).__name__} {problem}"[:200]) from None
    require(body.get("messages"), "messages: at least one is required")
    (_check_anthropic if is_anthropic(body) else _check_openai)(body)
    return body


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _check_openai(body: Body) -> None:
    for number, each in enumerate(body.get("tools") or ()):
        function = each["function"]
        require(_NAME.fullmatch(function["name"]), f"tools[{number}].function.name: does not match")
        refusal = openai_refusal(function.get("parameters"), strict=bool(function.get("strict")))
        require(refusal is None, f"tools[{number}]: Invalid schema for function {function['name']!r}: {refusal}")
    waiting: list[str] = []
    for number, message in enumerate(body["messages"]):
        place, role = f"messages[{number}]", message["role"]
        if role == "tool":
            require(message["tool_call_id"] in waiting, f"{place}: no preceding call {message['tool_call_id']!r}")
            waiting.remove(message["tool_call_id"])
            require(message["content"], f"{place}.content: empty")
            continue
        require(not waiting, f"{place}: tool_call_ids {waiting} did not have response messages")
        if role == "assistant":
            waiting = _openai_calls(message, place)
        else:
            _check_content(message["content"], place)
    require(not waiting, f"messages: tool_call_ids {waiting} did not have response messages")


def _openai_calls(message: Body, place: str) -> list[str]:
    calls = message.get("tool_calls") or []
    require(calls or message.get("content"), f"{place}.content: neither content nor tool_calls")
    if message.get("content") is not None:
        _check_content(message["content"], place)
    ids = [each["id"] for each in calls]
    require(len(set(ids)) == len(ids), f"{place}.tool_calls: duplicate ids {ids}")
    for index, each in enumerate(calls):
        at = f"{place}.tool_calls[{index}]"
        require(0 < len(each["id"]) <= 40, f"{at}.id: {len(each['id'])} characters")
        require(_NAME.fullmatch(each["function"]["name"]), f"{at}.function.name: {each['function']['name']!r}")
        require(isinstance(_strict(each["function"]["arguments"], at), dict), f"{at}.function.arguments: no object")
    return ids


def _strict(text: str, place: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError as problem:
        raise Refused(f"{place}: arguments are no JSON: {problem}") from None


def _check_content(content: Any, place: str) -> None:
    """A gateway in front of other providers passes blank texts on to them."""
    texts = [content] if isinstance(content, str) else [each.get("text", "x") for each in content]
    require(texts, f"{place}.content: empty")
    require(all(text.strip() for text in texts), f"{place}.content: blank text")


def _check_anthropic(body: Body) -> None:
    for number, each in enumerate(body.get("tools") or ()):
        require(_ANTHROPIC_NAME.fullmatch(each["name"]), f"tools.{number}.custom.name: {each['name']!r}")
        refusal = anthropic_refusal(each["input_schema"])
        require(refusal is None, f"tools.{number}.custom.{refusal}")
    names = [each["name"] for each in body.get("tools") or ()]
    require(len(set(names)) == len(names), "tools: Tool names must be unique")
    seen: set[str] = set()
    asked: list[str] = []
    for number, message in enumerate(body["messages"]):
        content = message["content"]
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        require(blocks, f"messages.{number}.content: empty")
        results = [each["tool_use_id"] for each in blocks if each["type"] == "tool_result"]
        require(sorted(results) == sorted(asked), f"messages.{number}: tool_use {asked} answered by {results}")
        asked = []
        for index, block in enumerate(blocks):
            _check_block(block, f"messages.{number}.content.{index}", seen)
            if block["type"] == "tool_use":
                asked.append(block["id"])
    require(not asked, f"messages: tool_use {asked} without tool_result")


def _check_block(block: Mapping[str, Any], place: str, seen: set[str]) -> None:
    if block["type"] == "text":
        require(block["text"].strip(), f"{place}: text content blocks must contain non-whitespace text")
    elif block["type"] == "tool_result" and isinstance(block.get("content"), list):
        for each in block["content"]:
            require(each["type"] != "text" or each["text"].strip(), f"{place}.content: blank text")
    elif block["type"] == "tool_use":
        require(isinstance(block["input"], dict), f"{place}.tool_use.input: no object")
        require(_ANTHROPIC_ID.fullmatch(block["id"]), f"{place}.tool_use.id: {block['id']!r}")
        require(_ANTHROPIC_NAME.fullmatch(block["name"]), f"{place}.tool_use.name: {block['name']!r}")
        require(block["id"] not in seen, f"{place}: tool_use ids must be unique")
        seen.add(block["id"])


# --- the server --------------------------------------------------------------------------------------------------


@dataclass
class StrictProvider:
    """The server; see the module.

    Attributes:
        requests: What was accepted.
        refused: Why each of the others was not.
    """

    answer: Callable[[Body], Reply]
    requests: list[Body] = field(default_factory=list[Body])
    refused: list[str] = field(default_factory=list[str])
    keeps_requests: bool = True

    def __enter__(self) -> Self:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

            def do_POST(self) -> None:
                provider._handle(self, self.rfile.read(int(self.headers["content-length"])))

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def _handle(self, handler: BaseHTTPRequestHandler, raw: bytes) -> None:
        try:
            body = check_request(raw)
        except Refused as refused:
            self.refused.append(f"{refused} | {raw[:3000].decode(errors='replace')}")
            said = {"error": {"type": "invalid_request_error", "message": str(refused), "param": None, "code": None}}
            _send(handler, 400, "application/json", _json({"type": "error", **said}))
            return
        if self.keeps_requests:
            self.requests.append(body)
        reply = self.answer(body)
        kind = "text/event-stream" if body.get("stream") else "application/json"
        _send(handler, 200, kind, reply.written(body), reply.cut, is_clean=reply.is_clean_cut)


def _send(
    handler: BaseHTTPRequestHandler,
    status: int,
    kind: str,
    data: bytes,
    cut: int | None = None,
    *,
    is_clean: bool = False,
) -> None:
    sent = data if cut is None else data[:cut]
    handler.send_response(status)
    handler.send_header("content-type", kind)
    handler.send_header("content-length", str(len(sent if is_clean else data)))
    handler.end_headers()
    handler.wfile.write(sent)
    handler.wfile.flush()
    if len(sent) < len(data) and not is_clean:
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True
