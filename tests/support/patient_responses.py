"""OpenAI's `/v1/responses` of a stand-in provider: live, streamed, and in the background."""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from .patient_answers import last_user_text, usage_of, with_ids
from .patient_ledger import Job
from .patient_requests import Answer, Request, Shop, params_of, require, server_sent
from .strict_provider import Body, Reply
from .strict_schemas import openai_refusal

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ITEMS: Final = frozenset({"message", "function_call", "function_call_output", "reasoning", "item_reference"})
_STATUSES: Final = {"expired": "failed", "errored": "failed"}
"""Ends of plans that this interface has no word for."""
_NOTHING: Final[Body] = {"text": None, "calls": [], "usage": None}
_PIECE: Final = 8
"""Characters of a delta."""


# --- what it refuses --------------------------------------------------------------------------------------------------


def _known() -> frozenset[str]:
    return params_of("openai", "types/responses/response_create_params.py", "ResponseCreateParamsBase") | {"stream"}


def check_response(body: Body, *, is_batch: bool = False) -> None:
    """
    Raises:
        Problem: OpenAI would answer 400.
    """
    for name in body:
        require(name in _known(), f"Unknown parameter: '{name}'.", name, "unknown_parameter")
    for name in ("model", "input"):
        require(body.get(name), f"Missing required parameter: '{name}'.", name, "missing_required_parameter")
    require(not (is_batch and (body.get("stream") or body.get("background"))), "A batch has no stream or background.")
    _check_background(body)
    check_metadata(body.get("metadata"))
    for number, tool in enumerate(body.get("tools") or ()):
        _check_tool(tool, f"tools[{number}]")
    if not isinstance(body["input"], str):
        _check_items(body["input"])


def _check_background(body: Body) -> None:
    options = body.get("background_options") or {}
    place, window = "background_options.completion_window", options.get("completion_window", "soonest")
    for name in options:
        known = name in {"completion_window", "continuation_id"}
        require(known, f"Unknown parameter: 'background_options.{name}'.", name, "unknown_parameter")
    said = f"Invalid value: '{window}'. Supported values are: 'soonest', '2h', and '8h'."
    require(window in {"soonest", "2h", "8h"}, said, place, "invalid_value")
    require(not options or body.get("background"), "'background_options' needs 'background': true.", place)
    if window != "soonest":
        require(not body.get("stream"), f"A completion window of '{window}' cannot be streamed.", "stream")
        is_standard = body.get("service_tier") in {None, "auto", "default"}
        require(is_standard, f"A completion window of '{window}' needs Standard processing.", "service_tier")
        require(body.get("store", True), f"A completion window of '{window}' needs 'store': true.", "store")


def check_metadata(metadata: Mapping[str, Any] | None) -> None:
    require(len(metadata or {}) <= 16, "Invalid 'metadata': too many properties.", "metadata")
    for name, value in (metadata or {}).items():
        fits = len(name) <= 64 and isinstance(value, str) and len(value) <= 512
        require(fits, f"Invalid 'metadata.{name}': a string of at most 512 characters is expected.", "metadata")


def _check_tool(tool: Body, place: str) -> None:
    if tool.get("type") != "function":
        require(tool.get("type"), f"Missing required parameter: '{place}.type'.", place)
        return
    require(tool.get("name"), f"Missing required parameter: '{place}.name'.", place, "missing_required_parameter")
    require(_NAME.fullmatch(tool["name"]), f"Invalid '{place}.name': string does not match pattern.", place)
    refusal = openai_refusal(tool.get("parameters"), strict=bool(tool.get("strict", True)))
    require(refusal is None, f"Invalid schema for function '{tool['name']}': {refusal}", f"{place}.parameters")


def _check_items(items: list[Body]) -> None:
    calls: dict[str, bool] = {}
    for number, item in enumerate(items):
        place, kind = f"input[{number}]", item.get("type", "message")
        require(kind in _ITEMS, f"Invalid value: '{kind}' at {place}.type.", f"{place}.type", "invalid_value")
        if kind == "message":
            require(item.get("role") in {"user", "assistant", "system", "developer"}, f"{place}.role", f"{place}.role")
            require("content" in item, f"Missing required parameter: '{place}.content'.", place)
        elif kind == "function_call":
            require(_NAME.fullmatch(item["name"]), f"Invalid '{place}.name'.", place)
            require(item["call_id"] not in calls, f"Duplicate call_id '{item['call_id']}'.", place)
            calls[item["call_id"]] = False
        elif kind == "function_call_output":
            call_id = item["call_id"]
            require(call_id in calls, f"No tool call found for function call output with call_id {call_id}.", "input")
            require(
                isinstance(item.get("output"), (str, list)), f"Missing required parameter: '{place}.output'.", place
            )
            calls[call_id] = True
    for call_id, answered in calls.items():
        require(answered, f"No tool output found for function call {call_id}.", "input")


# --- the verbs --------------------------------------------------------------------------------------------------------


def create(shop: Shop, request: Request) -> Answer:
    body = request.body()
    check_response(body)
    text = last_user_text(body)
    is_background = bool(body.get("background"))
    options = body.get("background_options") or {}
    job = Job(
        id=f"resp_{uuid.uuid4().hex}", kind="response", owner=request.owner, body=body, plan=shop.plan_for(text),
        status="queued" if is_background else "in_progress",
        window=options.get("completion_window", "soonest") if is_background else None,
    )  # fmt: skip
    job.more = {"is_stored": body.get("store", True) is not False, "is_background": is_background}
    if not is_background:  # nobody can poll it
        job.plan |= {"polls": 0, "held": False}
    if body.get("stream"):
        job.more["answer"] = planned_answer(shop, job)
        job.plan["seconds"] = max(job.plan["seconds"], (len(_events(job)) - 1) * job.plan["event_seconds"])
    key = body.get("metadata") or None
    shop.book.add(job, model=body["model"], text=text[:200], key=key, is_live=not is_background)
    if body.get("stream"):
        return Answer(_stream(shop, job.id, -1), plan=job.plan)
    if not is_background:
        time.sleep(job.plan["seconds"])
        shop.release(job.id)
        job = shop.book.find(job.id) or job
    return Answer(response_body(job), plan=job.plan)


def retrieve(shop: Shop, request: Request) -> Answer:
    if request.query.get("stream") not in {"true", "True"}:
        require("starting_after" not in request.query, "'starting_after' needs 'stream': true.", "starting_after")
        job = shop.poll("response", request)
        return Answer(response_body(job), plan=job.plan)
    job = shop.find("response", request)
    require(job.more["is_background"], "Only a background response can be streamed again.", "stream")
    require(job.body.get("stream"), "This response was not created with 'stream': true.", "stream")
    after = int(request.query.get("starting_after", -1))
    shop.book.write("attach", job.id, after=after)
    return Answer(_stream(shop, job.id, after), plan=job.plan)


def cancel(shop: Shop, request: Request) -> Answer:
    with shop.book.change():
        job = shop.find("response", request)
        require(job.more["is_background"], "Only responses with background=true can be cancelled.")
        shop.book.write("cancel", job.id, was=job.status)
        if job.ended is None:
            job.canceled = time.time()
            shop.book.save(job)
            job = shop.advance(job)
        return Answer(response_body(job))


def delete(shop: Shop, request: Request) -> Answer:
    with shop.book.change():
        job = shop.find("response", request)
        shop.book.write("delete", job.id, was=job.status)
        job.forgotten = True
        shop.book.save(job)
    return Answer({"id": job.id, "object": "response", "deleted": True})


def end(shop: Shop, job: Job) -> None:
    """End a response; called once."""
    wanted = "cancelled" if job.canceled is not None else job.plan["end"]
    job.status = _STATUSES.get(wanted, wanted)
    job.answer = _NOTHING
    if job.status in {"completed", "incomplete"} or job.plan["is_charged"]:
        job.answer = job.more.get("answer") or planned_answer(shop, job)
        shop.book.charge(job, job.body["model"], tuple(job.answer["usage"]))


def planned_answer(shop: Shop, job: Job) -> Body:
    """The answer that it has by its plan: all, half of the text, or nothing."""
    reply = with_ids(shop.answer(job.body), job.id)
    if job.plan["end"] != "completed":
        reply = Reply((reply.text or "")[: len(reply.text or "") // 2])
    calls = [[call.id, call.name, call.args] for call in reply.calls]
    return {"text": reply.text, "calls": calls, "usage": usage_of(job.body, reply)}


# --- its values -------------------------------------------------------------------------------------------------------


def response_body(job: Job) -> Body:
    """The response as it is now."""
    body, is_ended = job.body, job.ended is not None
    status = job.status if is_ended else ("in_progress" if job.polls > 1 or not job.more["is_background"] else "queued")
    errors = {
        "failed": {"code": "server_error", "message": "The model failed, as planned."},
        "expired": {"code": "server_error", "message": "The response was not completed within its window."},
    }
    reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
    return {
        "id": job.id, "object": "response", "created_at": int(job.created), "status": status,
        "background": job.more["is_background"], "background_options": body.get("background_options"),
        "completed_at": int(job.ended) if job.ended and status == "completed" else None,
        "error": errors.get(job.plan["end"], errors["failed"]) if status == "failed" else None, "incomplete_details": reason,
        "instructions": body.get("instructions"), "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {}, "model": body["model"], "output": _output(job) if is_ended else [],
        "parallel_tool_calls": body.get("parallel_tool_calls", True), "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None}, "service_tier": "default", "store": job.more["is_stored"],
        "temperature": body.get("temperature", 1.0), "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice", "auto"), "tools": body.get("tools") or [],
        "top_p": body.get("top_p", 1.0), "truncation": "disabled", "usage": _usage(job) if is_ended else None,
        "user": None,
    }  # fmt: skip


def _usage(job: Job) -> Body | None:
    if job.answer["usage"] is None:
        return None
    asked, answered = job.answer["usage"]
    return {
        "input_tokens": asked, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": answered, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": asked + answered,
    }  # fmt: skip


def _output(job: Job) -> list[Body]:
    answer, ending, given = job.answer, job.id[-12:], []
    if answer["text"] is not None:
        part = {"type": "output_text", "text": answer["text"], "annotations": [], "logprobs": []}
        done = "completed" if job.status == "completed" else "incomplete"
        given.append({"id": f"msg_{ending}", "type": "message", "status": done, "role": "assistant", "content": [part]})
    for number, (call_id, name, args) in enumerate(answer["calls"]):
        call = {"id": f"fc_{ending}_{number}", "type": "function_call", "status": "completed"}
        given.append({**call, "call_id": call_id, "name": name, "arguments": args})
    return given


# --- streams ----------------------------------------------------------------------------------------------------------


def _stream(shop: Shop, id: str, after: int) -> Iterator[bytes]:
    """The events behind a number, each when it is there; a job goes on where its reader has left."""
    sent = after
    while (job := shop.book.find(id)) is not None and not job.forgotten:
        job, now = shop.advance(job), time.time()
        events, pause = _events(job), job.plan["event_seconds"]
        there = len(events) if job.ended is not None else len(events) - 1
        if pause and job.canceled is None:
            there = min(there, int((now - job.created) / pause) + 1)
        if job.due == math.inf:
            there = min(there, job.plan["held_after"])
        yield from map(server_sent, events[sent + 1 : there])
        if job.ended is not None and there == len(events):
            return
        sent = max(sent, there - 1)
        time.sleep(0.005)


def _events(job: Job) -> list[Body]:
    """All events of a response with their numbers; the same ones before its end and after it."""
    shown = job
    if job.ended is None:
        end, answer = job.plan["end"], job.more["answer"]
        shown = replace(job, status=_STATUSES.get(end, end), ended=time.time(), answer=answer)
    nothing = {"output": [], "usage": None, "completed_at": None, "error": None, "incomplete_details": None}
    begun = {**response_body(shown), "status": "in_progress", **nothing}
    bodies = [{"type": "response.created", "response": begun}, {"type": "response.in_progress", "response": begun}]
    if shown.status in {"completed", "incomplete"}:
        bodies += _part_events(_output(shown))
    if shown.status != "cancelled":  # there is no event of that
        bodies.append({"type": f"response.{shown.status}", "response": response_body(shown)})
    return [{**body, "sequence_number": number} for number, body in enumerate(bodies)]


def _part_events(output: list[Body]) -> list[Body]:
    events: list[Body] = []
    for index, item in enumerate(output):
        at = {"output_index": index, "item_id": item["id"]}
        is_text = item["type"] == "message"
        empty = {**item, "status": "in_progress", **({"content": []} if is_text else {"arguments": ""})}
        events.append({"type": "response.output_item.added", "output_index": index, "item": empty})
        if is_text:
            part, at = item["content"][0], {**at, "content_index": 0}
            events.append({"type": "response.content_part.added", **at, "part": {**part, "text": ""}})
            deltas = [
                {"type": "response.output_text.delta", "delta": each, "logprobs": []} for each in _pieces(part["text"])
            ]
            events += [{**delta, **at} for delta in deltas]
            events.append({"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []})
            events.append({"type": "response.content_part.done", **at, "part": part})
        else:
            kind, args = "response.function_call_arguments", item["arguments"]
            events += [{"type": f"{kind}.delta", **at, "delta": each} for each in _pieces(args)]
            events.append({"type": f"{kind}.done", **at, "name": item["name"], "arguments": args})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return events


def _pieces(text: str) -> list[str]:
    size = max(_PIECE, len(text) // 1000)
    return [text[at : at + size] for at in range(0, len(text), size)]


ROUTES: Final = (
    ("POST", r"/v1/responses", "response.create", create),
    ("GET", r"/v1/responses/(?P<id>[^/]+)", "response.retrieve", retrieve),
    ("POST", r"/v1/responses/(?P<id>[^/]+)/cancel", "response.cancel", cancel),
    ("DELETE", r"/v1/responses/(?P<id>[^/]+)", "response.delete", delete),
)
