"""A provider that speaks OpenAI's chat completions, in its own process; what was asked and paid is on the disk first.

    POST /v1/chat/completions
    GET  /ledger            every request: {"n", "turn", "billed", "fault", "key", "request": the full body, "answer"}
    POST /plan              what it shall answer, replaces the plan before
    POST /gates/<name>

A plan is JSON:

    {"answers": [answer, …],          by *turn*: how many assistant messages the request holds; the last goes
                                      on. A conversation that is replayed gets the same answers.
     "rules": [{"contains": text, "role": "user"|"tool"|…, "answer": answer}, …],   on the last message, before answers
     "function": "module:name",       name(messages, body) -> answer; wins over both
     "faults": [{"fault": kind, …when…, …how…}, …],      the first that matches a request happens
     "limits": …, "outage": …,                           see `provider_limits`
     "latency": seconds, "gate": name}                   after it was paid, before it is answered

    answer:  "text", or {"content", "reasoning", "tool_calls": [{"name", "arguments": object or raw text, "id"}],
             "finish_reason", "usage": {"prompt_tokens", …}, "model"}
    when:    "on": n or [n, …] (the n-th request, from 1), "every": n, "turn": n (from 0), "times": at most so often
             (without any of them: always)
    kinds:   "status"       {"code": 500, "retry_after": s, "echo_key": true}     not paid; 429, 500, 529, 401 …
             "hang"         paid, never answered
             "cut"          paid, connection reset without an answer
             "truncate"     paid, the answer's first half
             "drip"         paid, a byte each {"interval": s}
             "malformed"    paid, not JSON
             "wrong_types"  paid, JSON whose fields have other types
             "empty"        paid, no choices
             "stall_stream" paid, a stream waits at a gate {"after": pieces, "gate": name}
             "cut_stream"   paid, a stream is reset {"after": pieces}

    A request with `"stream": true` gets its answer in pieces: "piece" characters each (5), with "pause" seconds between.
"""

from __future__ import annotations

import importlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .http_service import Entry, Handler, ServiceProcess, Space, call, serve
from .provider_limits import Limits

Plan = dict[str, Any]

KINDS = ("status", "hang", "cut", "truncate", "drip", "malformed", "wrong_types", "empty", "stall_stream", "cut_stream")


class _ProviderSpace(Space):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.plan: Plan = {"answers": ["ok"]}
        self.limits = Limits({})
        self._happened: dict[int, int] = {}

    def set_plan(self, plan: Plan) -> None:
        self.plan = plan
        self.limits = Limits(plan)
        self._happened = {}

    def fault(self, n: int, turn: int) -> Plan | None:
        """The fault of the n-th request; called under the lock of the records, so counts are exact."""
        for index, fault in enumerate(self.plan.get("faults", ())):
            if _matches(fault, n, turn) and self._happened.get(index, 0) < fault.get("times", float("inf")):
                self._happened[index] = self._happened.get(index, 0) + 1
                return fault
        return None


def _matches(fault: Plan, n: int, turn: int) -> bool:
    numbers = fault.get("on")
    if numbers is not None and n not in (numbers if isinstance(numbers, list) else [numbers]):
        return False
    if "every" in fault and n % fault["every"] != 0:
        return False
    return fault.get("turn") in (None, turn)


class _ProviderHandler(Handler):
    def handle_get(self, space: _ProviderSpace, path: str, query: dict[str, str]) -> None:
        if path == "/ledger":
            self.answer(200, space.records.entries())
        else:
            super().handle_get(space, path, query)

    def handle_post(self, space: _ProviderSpace, path: str, query: dict[str, str], body: Any) -> None:
        if path == "/plan":
            unknown = [fault["fault"] for fault in body.get("faults", ()) if fault["fault"] not in KINDS]
            if unknown:
                self.answer(400, _error(f"unknown faults {unknown}; there are {KINDS}"))
                return
            space.set_plan(body)
            self.answer(200, {})
        elif path == "/v1/chat/completions":
            self._complete(space, body)
        else:
            super().handle_post(space, path, query, body)

    def _complete(self, space: _ProviderSpace, body: Any) -> None:
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or body.get("n", 1) != 1:
            self.answer(400, _error("this provider takes chat completions with messages, one answer each"))
            return
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        plan, limits = space.plan, space.limits

        def pay(earlier: list[Entry]) -> Entry:
            n = len(earlier) + 1
            turn = _turn(body["messages"])
            fault = space.fault(n, turn) or limits.fault(
                str(body.get("model")), key, len(json.dumps(body["messages"])) / 4
            )
            billed = fault is None or fault["fault"] != "status"
            answer = _completion(n, body, _choose(plan, body, turn)) if billed else None
            told = limits.headers(str(body.get("model")), key) if billed else {}
            made = {"turn": turn, "billed": billed, "fault": fault, "key": key, "request": body, "answer": answer}
            return {**made, "headers": told}

        entry = space.records.append(pay)
        if not {"limited", "outage"} & set(entry["fault"] or ()):  # those are refused at once
            self._wait(space, plan)
        self._deliver(space, entry)

    def _wait(self, space: _ProviderSpace, plan: Plan) -> None:
        if plan.get("latency"):
            time.sleep(plan["latency"])
        if plan.get("gate"):
            self.wait_at_gate(space.gate(plan["gate"]))

    def _deliver(self, space: _ProviderSpace, entry: Entry) -> None:
        fault = entry["fault"] or {"fault": None}
        raw = json.dumps(entry["answer"]).encode()
        match fault["fault"]:
            case None | "stall_stream" | "cut_stream" if entry["request"].get("stream"):
                self._stream(space, entry)
            case None | "stall_stream" | "cut_stream":
                self.answer(200, raw, entry["headers"])
            case "status":
                self._refuse(fault, entry["key"])
            case "hang":
                while not self.client_left(0.05):
                    pass
                self.close_connection = True
            case "cut":
                self._reset()
            case "truncate":
                self.send_all(self.head(200, len(raw)) + raw[: len(raw) // 2])
                self.close_connection = True
            case "drip":
                self._drip(raw, fault.get("interval", 0.05))
            case "malformed":
                self.answer(200, raw[:-1] + b",,,")
            case "wrong_types":
                self.answer(200, {**entry["answer"], "choices": "none", "usage": "much", "created": "yesterday"})
            case "empty":
                self.answer(200, {**entry["answer"], "choices": []})

    def _stream(self, space: _ProviderSpace, entry: Entry) -> None:
        """The answer as Server-Sent Events, as OpenAI sends them."""
        plan, fault = space.plan, entry["fault"] or {"fault": None}
        headers = {"Content-Type": "text/event-stream", "Connection": "close", **entry["headers"]}
        self.close_connection = True
        self.send_all(self.head(200, None, headers))
        for number, chunk in enumerate(_chunks(entry["answer"], entry["request"], plan.get("piece", 5))):
            if number and plan.get("pause") and self.client_left(plan["pause"]):
                return
            if number == fault.get("after") and fault["fault"] == "cut_stream":
                self._reset()
                return
            if number == fault.get("after") and not self.wait_at_gate(space.gate(fault["gate"])):
                return
            if not self.send_all(b"data: " + json.dumps(chunk).encode() + b"\n\n"):
                return
        self.send_all(b"data: [DONE]\n\n")

    def _refuse(self, fault: Plan, key: str) -> None:
        code = fault.get("code", 500)
        text = (
            f"Incorrect API key provided: {key}"
            if fault.get("echo_key")
            else fault.get("text", f"status {code}, as planned")
        )
        headers = {"x-request-id": "req_planned", **fault.get("headers", {})}
        if "retry_after" in fault:
            headers["Retry-After"] = str(fault["retry_after"])
        self.answer(code, _error(text), headers)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        # The base class would send an orderly end first.
        self.connection.close()

    def _drip(self, raw: bytes, interval: float) -> None:
        self.send_all(self.head(200, len(raw)))
        for byte in raw:
            if self.client_left(interval) or not self.send_all(bytes([byte])):
                self.close_connection = True
                return


def _turn(messages: list[Entry]) -> int:
    return sum(message.get("role") == "assistant" for message in messages)


def _choose(plan: Plan, body: Entry, turn: int) -> Entry:
    if "function" in plan:
        module, _, name = plan["function"].partition(":")
        answer = getattr(importlib.import_module(module), name)(body["messages"], body)
    else:
        last = body["messages"][-1] if body["messages"] else {}
        ruled = [rule["answer"] for rule in plan.get("rules", ()) if _applies(rule, last)]
        answers = plan.get("answers") or ["ok"]
        answer = ruled[0] if ruled else answers[min(turn, len(answers) - 1)]
    return {"content": answer} if isinstance(answer, str) else answer


def _applies(rule: Plan, message: Entry) -> bool:
    return rule.get("role") in (None, message.get("role")) and rule.get("contains", "") in json.dumps(
        message.get("content")
    )


def _completion(n: int, body: Entry, answer: Entry) -> Entry:
    calls = [_tool_call(n, index, planned) for index, planned in enumerate(answer.get("tool_calls", ()))]
    message: Entry = {"role": "assistant", "content": answer.get("content")}
    if "reasoning" in answer:
        message["reasoning_content"] = answer["reasoning"]
    if calls:
        message["tool_calls"] = calls
    finish = answer.get("finish_reason") or ("tool_calls" if calls else "stop")
    return {
        "id": f"chatcmpl-{n}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": answer.get("model", body.get("model")),
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": answer.get("usage") or _usage(body, message),
    }


def _chunks(answer: Entry, request: Entry, piece: int) -> Iterator[Entry]:
    """An answer in the pieces of a stream: the role, the text, the calls, the end, and the usage where it is asked for."""
    message, finish = answer["choices"][0]["message"], answer["choices"][0]["finish_reason"]
    head = {name: answer[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}

    def chunk(delta: Entry, reason: str | None = None) -> Entry:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], "usage": None}

    yield chunk({"role": "assistant", "content": ""})
    thought, text = message.get("reasoning_content") or "", message.get("content") or ""
    for start in range(0, len(thought), piece):
        yield chunk({"reasoning_content": thought[start : start + piece]})
    for start in range(0, len(text), piece):
        yield chunk({"content": text[start : start + piece]})
    for index, asked in enumerate(message.get("tool_calls", ())):
        yield chunk({"tool_calls": [{"index": index, **asked}]})
    yield chunk({}, finish)
    if (request.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": answer["usage"]}


def _tool_call(n: int, index: int, planned: Entry) -> Entry:
    arguments = planned.get("arguments", {})
    return {
        # As with real providers, asking again gives other ids.
        "id": planned.get("id", f"call_{n}_{index}"),
        "type": "function",
        "function": {
            "name": planned["name"],
            "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
        },
    }


def _usage(body: Entry, message: Entry) -> Entry:
    """About four characters a token, so that long conversations cost more."""
    asked = max(1, len(json.dumps(body["messages"])) // 4)
    given = max(1, len(json.dumps(message)) // 4)
    return {"prompt_tokens": asked, "completion_tokens": given, "total_tokens": asked + given}


def _error(text: str) -> Entry:
    return {"error": {"message": text, "type": "planned", "code": None, "param": None}}


class Provider:
    """One test's view of the provider."""

    def __init__(self, service: ServiceProcess, space: str) -> None:
        self.url = service.space(space)
        self.base_url = f"{self.url}/v1"
        self._service = service
        self._space = space

    def plan(self, *answers: str | Entry, faults: list[Entry] | None = None, **more: Any) -> None:
        """Replace the plan; see the module for what an answer and a fault are."""
        call(f"{self.url}/plan", {"answers": list(answers), "faults": faults or [], **more})

    def ledger(self) -> list[Entry]:
        """Every request it got, in order."""
        return call(f"{self.url}/ledger")

    def paid(self) -> list[Entry]:
        """The requests that were billed."""
        return [entry for entry in self.ledger() if entry["billed"]]

    def records(self) -> list[Entry]:
        """The lines on the disk."""
        return self._service.records(self._space)

    def open(self, gate: str) -> None:
        """Let everybody pass who waits at this gate, now and later."""
        call(f"{self.url}/gates/{gate}", {})


def tool_call(name: str, arguments: Entry | str | None = None, **more: Any) -> Entry:
    """A planned call of a tool."""
    return {"name": name, "arguments": {} if arguments is None else arguments, **more}


def calls(*tool_calls: Entry, **more: Any) -> Entry:
    """A planned answer that asks for tools."""
    return {"content": None, "tool_calls": list(tool_calls), **more}


if __name__ == "__main__":
    serve(_ProviderHandler, _ProviderSpace)
