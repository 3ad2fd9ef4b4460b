"""OpenAI's `/v1/files` and `/v1/batches` of a stand-in provider, and what batches of both interfaces share."""

from __future__ import annotations

import email.parser
import email.policy
import json
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

from .patient_answers import last_user_text
from .patient_ledger import Job
from .patient_requests import Answer, Problem, Request, Shop, require
from .patient_responses import check_metadata, check_response, planned_answer, response_body
from .strict_provider import Body

_DAY: Final = 24 * 3600
_CREATE: Final = frozenset({"input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after"})
_MAX_BYTES: Final = 200_000_000
_MAX_REQUESTS: Final = 50_000


# --- what batches share -----------------------------------------------------------------------------------------------


def new_items(shop: Shop, bodies: list[Body], check: Callable[[Body], None]) -> list[Body]:
    """How each request of a batch will end: "end" as in a plan, and "problem": why the provider refuses it, or None."""
    items: list[Body] = []
    for body in bodies:
        try:
            check(body)
            items.append({"end": shop.plan_for(last_user_text(body))["end"], "problem": None})
        except Problem as problem:
            items.append({"end": "errored", "problem": problem.message})
    return items


def batch_text(bodies: list[Body], items: list[Body]) -> str:
    """What its plan is chosen by: the texts of all requests."""
    pairs = zip(bodies, items, strict=True)
    return "\n".join(last_user_text(body) for body, item in pairs if item["problem"] is None)


def item_ends(job: Job) -> list[str]:
    """How each request of a batch ends now: none runs in a batch that was cancelled or has failed."""
    if job.canceled is not None and not job.plan["is_charged"]:
        return ["cancelled"] * len(job.body)
    return [item["end"] for item in job.more["items"]]


def page(request: Request, jobs: list[Job], after: str | None) -> tuple[list[Job], bool]:
    """A page of a list, and whether there are more.

    Raises:
        Problem: `after` is none of them.
    """
    limit = int(request.query.get("limit", 20))
    ids = [job.id for job in jobs]
    require(after is None or after in ids, f"There is no batch '{after}'.", "after")
    start = 0 if after is None else ids.index(after) + 1
    return jobs[start : start + limit], len(jobs) > start + limit


# --- files ------------------------------------------------------------------------------------------------------------


def create_file(shop: Shop, request: Request) -> Answer:
    head = f"Content-Type: {request.headers.get('content-type', '')}\r\n\r\n".encode()
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + request.raw)
    require(message.is_multipart(), "The request has to be multipart/form-data.")
    parts = {part.get_param("name", header="content-disposition"): part for part in message.iter_parts()}
    for name in ("file", "purpose"):
        require(name in parts, f"Missing required parameter: '{name}'.", name, "missing_required_parameter")
    purpose = bytes(parts["purpose"].get_payload(decode=True)).decode()
    require(purpose == "batch", f"'{purpose}' is not one of ['batch'] - 'purpose'", "purpose")
    content, name = bytes(parts["file"].get_payload(decode=True)), parts["file"].get_filename()
    if len(content) > _MAX_BYTES:
        raise Problem(413, f"The file has more than {_MAX_BYTES} bytes.", "file")
    return Answer(_file_body(shop, request, shop.book.add_file(request.owner, name or "", content)))


def retrieve_file(shop: Shop, request: Request) -> Answer:
    return Answer(_file_body(shop, request, request.names["id"]))


def file_content(shop: Shop, request: Request) -> Answer:
    return Answer(_file(shop, request, request.names["id"])[2], plan=shop.plan_for(""))


def delete_file(shop: Shop, request: Request) -> Answer:
    _file(shop, request, request.names["id"])
    shop.book.delete_file(request.names["id"])
    return Answer({"id": request.names["id"], "object": "file", "deleted": True})


def _file(shop: Shop, request: Request, file_id: str) -> tuple[str, float, bytes]:
    found = shop.book.file(file_id, request.owner)
    if found is None:
        raise Problem(404, f"No such File object: {file_id}", "id")
    return found


def _file_body(shop: Shop, request: Request, file_id: str) -> Body:
    name, created, content = _file(shop, request, file_id)
    purpose = "batch_output" if name.endswith(("_output.jsonl", "_error.jsonl")) else "batch"
    known = {"id": file_id, "object": "file", "bytes": len(content), "created_at": int(created), "filename": name}
    return {**known, "purpose": purpose, "status": "processed", "status_details": None, "expires_at": None}


# --- batches ----------------------------------------------------------------------------------------------------------


def create(shop: Shop, request: Request) -> Answer:
    body = request.body()
    for name in body:
        require(name in _CREATE, f"Unknown parameter: '{name}'.", name, "unknown_parameter")
    for name in ("input_file_id", "endpoint", "completion_window"):
        require(body.get(name), f"Missing required parameter: '{name}'.", name, "missing_required_parameter")
    window = body["completion_window"]
    said = f"Invalid value: '{window}'. Supported values are: '24h'."
    require(window == "24h", said, "completion_window", "invalid_value")
    require(body["endpoint"] == "/v1/responses", "This provider has batches of '/v1/responses'.", "endpoint")
    check_metadata(body.get("metadata"))
    file = shop.book.file(body["input_file_id"], request.owner)
    require(file is not None, f"No such File object: {body['input_file_id']}", "input_file_id")
    assert file is not None
    lines, errors = _read_lines(file[2])
    bodies = [line["body"] for line in lines]
    items = new_items(shop, bodies, lambda each: check_response(each, is_batch=True))
    text = batch_text(bodies, items)
    job = Job(
        id=f"batch_{uuid.uuid4().hex}", kind="batch", owner=request.owner, body=lines, plan=shop.plan_for(text),
        status="validating", window="24h",
    )  # fmt: skip
    job.more = {"items": items, "errors": errors, "input": body["input_file_id"], "metadata": body.get("metadata")}
    if errors:
        job.plan |= {"seconds": 0.0, "polls": 1, "held": False, "end": "failed"}
    keys, model = [line["custom_id"] for line in lines], bodies[0].get("model") if bodies else None
    shop.book.add(job, key=body.get("metadata"), keys=keys, model=model, text=text[:200], is_live=False)
    return Answer(_batch_body(job))


def _read_lines(content: bytes) -> tuple[list[Body], list[Body]]:
    """The requests of an input file, and what is wrong with its lines."""
    lines: list[Body] = []
    errors: list[Body] = []
    known: set[str] = set()
    for number, text in enumerate(content.splitlines(), 1):
        code, line = None, {}
        try:
            line = json.loads(text)
            is_request = isinstance(line, dict) and isinstance(line.get("body"), dict) and line.get("method") == "POST"
            if not is_request or not isinstance(line.get("custom_id"), str):
                code = "missing_required_parameter"
            elif line.get("url") != "/v1/responses":
                code = "mismatched_endpoint"
            elif line["custom_id"] in known:
                code = "duplicate_custom_id"
            elif lines and line["body"].get("model") != lines[0]["body"].get("model"):
                code = "mismatched_model"
        except ValueError:
            code = "invalid_json_line"
        if code is None:
            known.add(line["custom_id"])
            lines.append({"custom_id": line["custom_id"], "body": line["body"]})
        else:
            errors.append({"code": code, "line": number, "message": f"Line {number}: {code}.", "param": None})
    if not lines and not errors:
        errors.append({"code": "empty_file", "line": None, "message": "The file is empty.", "param": None})
    if len(lines) > _MAX_REQUESTS:
        errors.append({"code": "too_many_tasks", "line": None, "message": f"More than {_MAX_REQUESTS}.", "param": None})
    return lines, errors


def list_batches(shop: Shop, request: Request) -> Answer:
    shop.book.write("list", None)
    jobs, has_more = page(request, shop.book.newest("batch", request.owner), request.query.get("after"))
    data = [_batch_body(job) for job in jobs]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return Answer({"object": "list", "data": data, **ends, "has_more": has_more})


def retrieve(shop: Shop, request: Request) -> Answer:
    return Answer(_batch_body(shop.poll("batch", request)))


def cancel(shop: Shop, request: Request) -> Answer:
    with shop.book.change():
        job = shop.find("batch", request)
        shop.book.write("cancel", job.id, was=job.status)
        require(job.ended is None, f"Cannot cancel a batch with status '{job.status}'.")
        if job.canceled is None:
            job.canceled = time.time()
            shop.book.save(job)
        return Answer(_batch_body(job))


def end(shop: Shop, job: Job) -> None:
    """End a batch; called once."""
    job.answer = {"output_file_id": None, "error_file_id": None, "completed": 0, "failed": 0, "errors": []}
    if job.canceled is None and (job.more["errors"] or job.plan["end"] == "failed"):
        planned = {"code": "failed", "line": None, "message": "The batch has failed, as planned.", "param": None}
        job.status, job.answer["errors"] = "failed", job.more["errors"] or [planned]
        return
    ends = item_ends(job)
    job.status = "expired" if "expired" in ends else "completed" if job.canceled is None else "cancelled"
    output: list[Body] = []
    errors: list[Body] = []
    for line, item, how in zip(job.body, job.more["items"], ends, strict=True):
        result = _result(shop, job, line, item | {"end": how})
        is_answered = result["response"] is not None and result["response"]["status_code"] == 200
        (output if is_answered else errors).append(result)
    job.answer |= {"completed": len(output), "failed": len(errors)}
    for name, results in (("output", output), ("error", errors)):
        if results:
            content = "".join(json.dumps(each) + "\n" for each in results).encode()
            content = content[:-9] if job.plan["garbled"] else content
            job.answer[f"{name}_file_id"] = shop.book.add_file(job.owner, f"{job.id}_{name}.jsonl", content)


def _result(shop: Shop, job: Job, line: Body, item: Body) -> Body:
    """A line of the output or the error file."""
    ending = uuid.uuid4().hex
    result: Body = {"id": f"batch_req_{ending}", "custom_id": line["custom_id"], "response": None, "error": None}
    if item["end"] in {"expired", "cancelled"}:
        message = f"This request was not executed: the batch is {item['end']}."
        return {**result, "error": {"code": f"batch_{item['end']}", "message": message}}
    if item["end"] in {"errored", "failed"}:
        status = 500 if item["problem"] is None else 400
        problem = Problem(status, item["problem"] or "The request has failed, as planned.")
        body = problem.body("openai")
        return {**result, "response": {"status_code": status, "request_id": f"req_{ending}", "body": body}}
    answered = Job(
        id=f"resp_{ending}", kind="response", owner=job.owner, body=line["body"], plan={**job.plan, "end": item["end"]},
        status=item["end"], ended=time.time(), more={"is_background": False, "is_stored": True},
    )  # fmt: skip
    answered.answer = planned_answer(shop, answered)
    usage = answered.answer["usage"]
    shop.book.charge(job, line["body"]["model"], usage, key=line["custom_id"])
    return {
        **result,
        "response": {"status_code": 200, "request_id": f"req_{ending}", "body": response_body(answered)},
    }


def _batch_body(job: Job) -> Body:
    status, ended = job.status, job.ended and int(job.ended)
    if ended is None:
        is_last = 3 <= job.plan["polls"] == job.polls + 1
        status = "validating" if job.polls <= 1 else "finalizing" if is_last else "in_progress"
        status = status if job.canceled is None else "cancelling"
    answer: Any = job.answer or {"output_file_id": None, "error_file_id": None, "completed": 0, "failed": 0}
    times = {
        f"{name}_at": ended if status == name else None for name in ("completed", "failed", "expired", "cancelled")
    }
    counts = {"total": len(job.body), "completed": answer["completed"], "failed": answer["failed"]}
    errors = {"object": "list", "data": answer["errors"]} if answer.get("errors") else None
    return {
        "id": job.id, "object": "batch", "endpoint": "/v1/responses", "errors": errors, "status": status,
        "input_file_id": job.more["input"], "completion_window": "24h", "created_at": int(job.created),
        "output_file_id": answer["output_file_id"], "error_file_id": answer["error_file_id"],
        "in_progress_at": int(job.created), "expires_at": int(job.created) + _DAY, "finalizing_at": ended,
        "cancelling_at": job.canceled and int(job.canceled), **times, "request_counts": counts,
        "metadata": job.more["metadata"],
    }  # fmt: skip


ROUTES: Final = (
    ("POST", r"/v1/files", "file.create", create_file),
    ("GET", r"/v1/files/(?P<id>[^/]+)", "file.retrieve", retrieve_file),
    ("GET", r"/v1/files/(?P<id>[^/]+)/content", "file.content", file_content),
    ("DELETE", r"/v1/files/(?P<id>[^/]+)", "file.delete", delete_file),
    ("POST", r"/v1/batches", "batch.create", create),
    ("GET", r"/v1/batches", "batch.list", list_batches),
    ("GET", r"/v1/batches/(?P<id>[^/]+)", "batch.retrieve", retrieve),
    ("POST", r"/v1/batches/(?P<id>[^/]+)/cancel", "batch.cancel", cancel),
)
