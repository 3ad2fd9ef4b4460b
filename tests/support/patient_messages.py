"""Anthropic's `/v1/messages` and `/v1/messages/batches` of a stand-in provider."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from .patient_answers import last_user_text, usage_of, with_ids
from .patient_batches import batch_text, item_ends, new_items, page
from .patient_ledger import Job
from .patient_requests import Answer, Problem, Request, Shop, params_of, require
from .strict_provider import Body, Refused, Reply, check_request

_CUSTOM_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MAX_REQUESTS: Final = 100_000
_ENDS: Final = {"completed": "succeeded", "incomplete": "succeeded", "failed": "errored", "cancelled": "canceled"}


def _known() -> frozenset[str]:
    own = params_of("anthropic", "types/beta/message_create_params.py", "MessageCreateParamsBase")
    return own - {"betas"} | {"stream"}


def check_message(body: Body, *, is_batch: bool = False) -> None:
    """
    Raises:
        Problem: Anthropic would answer 400, or 404 for a model that it does not have.
    """
    for name in body:
        require(name in _known(), f"{name}: Extra inputs are not permitted")
    for name in ("model", "max_tokens", "messages"):
        require(body.get(name), f"{name}: Field required")
    if not str(body["model"]).startswith("claude"):
        raise Problem(404, f"model: {body['model']}")
    require(not (is_batch and body.get("stream")), "stream: Batches do not stream")
    try:
        check_request(json.dumps(body).encode())
    except Refused as refused:
        raise Problem(400, str(refused)) from None


# --- live -------------------------------------------------------------------------------------------------------------


def create_message(shop: Shop, request: Request) -> Answer:
    body = request.body()
    check_message(body)
    text = last_user_text(body)
    job = Job(
        id=f"msg_{uuid.uuid4().hex}", kind="message", owner=request.owner, body=body, status="in_progress",
        plan=shop.plan_for(text) | {"polls": 0, "held": False},
    )  # fmt: skip
    shop.book.add(job, model=body["model"], text=text[:200], key=body.get("metadata"), is_live=True)
    time.sleep(job.plan["seconds"])
    shop.release(job.id)
    job = shop.book.find(job.id) or job
    if job.status == "failed":
        raise Problem(500, "The model failed, as planned.")
    return Answer(_stream(job) if body.get("stream") else _message_body(job.id, body, job.answer), plan=job.plan)


def end_message(shop: Shop, job: Job) -> None:
    """End a live message; called once."""
    job.status = "completed" if job.plan["end"] in {"completed", "incomplete"} else "failed"
    if job.status == "completed":
        job.answer = _planned(shop, job.id, job.body, job.plan["end"])
        shop.book.charge(job, job.body["model"], job.answer["usage"])


def _planned(shop: Shop, message_id: str, body: Body, end: str) -> Body:
    reply = with_ids(shop.answer(body), message_id)
    stop = "tool_use" if reply.calls else "end_turn"
    if end == "incomplete":
        reply, stop = Reply((reply.text or "")[: len(reply.text or "") // 2]), "max_tokens"
    blocks: list[Body] = [] if reply.text is None else [{"type": "text", "text": reply.text}]
    for call in reply.calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.args)})
    return {"blocks": blocks, "stop": stop, "usage": usage_of(body, reply)}


def _message_body(message_id: str, body: Body, answer: Any) -> Body:
    asked, answered = answer["usage"]
    return {
        "id": message_id, "type": "message", "role": "assistant", "model": body["model"], "content": answer["blocks"],
        "stop_reason": answer["stop"], "stop_sequence": None,
        "usage": {"input_tokens": asked, "output_tokens": answered},
    }  # fmt: skip


def _stream(job: Job) -> Iterator[bytes]:
    def event(kind: str, **data: Any) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()

    whole = _message_body(job.id, job.body, job.answer)
    begun = {"content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    yield event("message_start", message={**whole, **begun})
    for index, block in enumerate(whole["content"]):
        is_text = block["type"] == "text"
        empty = {**block, **({"text": ""} if is_text else {"input": {}})}
        yield event("content_block_start", index=index, content_block=empty)
        name, kind = ("text", "text_delta") if is_text else ("partial_json", "input_json_delta")
        text = block["text"] if is_text else json.dumps(block["input"])
        size = max(8, len(text) // 1000)
        for at in range(0, len(text), size):
            yield event("content_block_delta", index=index, delta={"type": kind, name: text[at : at + size]})
        yield event("content_block_stop", index=index)
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=delta, usage=whole["usage"])
    yield event("message_stop")


# --- batches ----------------------------------------------------------------------------------------------------------


def create(shop: Shop, request: Request) -> Answer:
    given = request.body()
    for name in given:
        require(name == "requests", f"{name}: Extra inputs are not permitted")
    requests: list[Body] = given.get("requests") or []
    require(requests, "requests: Field required")
    require(len(requests) <= _MAX_REQUESTS, f"requests: At most {_MAX_REQUESTS}")
    for number, each in enumerate(requests):
        fits = set(each) == {"custom_id", "params"} and _CUSTOM_ID.fullmatch(each["custom_id"])
        require(fits, f"requests.{number}.custom_id: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
    keys = [each["custom_id"] for each in requests]
    require(len(set(keys)) == len(keys), "requests: custom_id has to be unique within a batch")
    bodies = [each["params"] for each in requests]
    items = new_items(shop, bodies, lambda each: check_message(each, is_batch=True))
    text = batch_text(bodies, items)
    job = Job(
        id=f"msgbatch_{uuid.uuid4().hex}", kind="messages_batch", owner=request.owner, status="in_progress",
        body=requests, plan=shop.plan_for(text), window="24h",
    )  # fmt: skip
    job.more = {"items": items}
    shop.book.add(job, key=None, keys=keys, model=bodies[0].get("model"), text=text[:200], is_live=False)
    return Answer(_batch_body(request, job))


def list_batches(shop: Shop, request: Request) -> Answer:
    require("before_id" not in request.query, "before_id: this provider has after_id only")
    shop.book.write("list", None)
    jobs, has_more = page(request, shop.book.newest("messages_batch", request.owner), request.query.get("after_id"))
    data = [_batch_body(request, job) for job in jobs]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return Answer({"data": data, **ends, "has_more": has_more})


def retrieve(shop: Shop, request: Request) -> Answer:
    return Answer(_batch_body(request, shop.poll("messages_batch", request)))


def results(shop: Shop, request: Request) -> Answer:
    job = shop.advance(shop.find("messages_batch", request))
    if job.ended is None:
        raise Problem(404, f"Batch {job.id} has no results yet; it is in_progress")
    shop.book.write("results", job.id)
    return Answer("".join(json.dumps(each) + "\n" for each in job.answer).encode(), plan=job.plan)


def cancel(shop: Shop, request: Request) -> Answer:
    with shop.book.change():
        job = shop.find("messages_batch", request)
        shop.book.write("cancel", job.id, was=job.status)
        require(job.ended is None, f"Batch {job.id} has ended and cannot be canceled")
        if job.canceled is None:
            job.canceled, job.status = time.time(), "canceling"
            shop.book.save(job)
        return Answer(_batch_body(request, job))


def delete(shop: Shop, request: Request) -> Answer:
    with shop.book.change():
        job = shop.advance(shop.find("messages_batch", request))
        require(job.ended is not None, f"Batch {job.id} is {job.status}; only one that has ended can be deleted")
        shop.book.write("delete", job.id, was=job.status)
        job.forgotten = True
        shop.book.save(job)
    return Answer({"id": job.id, "type": "message_batch_deleted"})


def end(shop: Shop, job: Job) -> None:
    """End a batch; called once."""
    job.status, job.answer = "ended", []
    for each, item, how in zip(job.body, job.more["items"], item_ends(job), strict=True):
        kind = _ENDS.get(how, how)
        result: Body = {"type": kind}
        if kind == "succeeded":
            answer = _planned(shop, message_id := f"msg_{uuid.uuid4().hex}", each["params"], how)
            shop.book.charge(job, each["params"]["model"], answer["usage"], key=each["custom_id"])
            result["message"] = _message_body(message_id, each["params"], answer)
        elif kind == "errored":
            status = 500 if item["problem"] is None else 400
            problem = Problem(status, item["problem"] or "The request has failed, as planned.")
            result["error"] = problem.body("anthropic")
        job.answer.append({"custom_id": each["custom_id"], "result": result})


def _batch_body(request: Request, job: Job) -> Body:
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    for each in job.answer or ():
        counts[each["result"]["type"]] += 1
    counts["processing"] = 0 if job.ended else len(job.body)
    created = datetime.fromtimestamp(job.created, UTC)
    address = f"http://{request.headers['host']}/v1/messages/batches/{job.id}/results"
    return {
        "id": job.id, "type": "message_batch", "processing_status": job.status, "request_counts": counts,
        "created_at": created.isoformat(), "expires_at": (created + timedelta(days=1)).isoformat(),
        "ended_at": _time(job.ended), "cancel_initiated_at": _time(job.canceled), "archived_at": None,
        "results_url": address if job.ended else None,
    }  # fmt: skip


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat()


ROUTES: Final = (
    ("POST", r"/v1/messages", "message.create", create_message),
    ("POST", r"/v1/messages/batches", "messages_batch.create", create),
    ("GET", r"/v1/messages/batches", "messages_batch.list", list_batches),
    ("GET", r"/v1/messages/batches/(?P<id>[^/]+)", "messages_batch.retrieve", retrieve),
    ("GET", r"/v1/messages/batches/(?P<id>[^/]+)/results", "messages_batch.results", results),
    ("POST", r"/v1/messages/batches/(?P<id>[^/]+)/cancel", "messages_batch.cancel", cancel),
    ("DELETE", r"/v1/messages/batches/(?P<id>[^/]+)", "messages_batch.delete", delete),
)
