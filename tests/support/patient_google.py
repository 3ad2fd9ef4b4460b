"""Google's files and batches of a stand-in provider, as the Gemini API has them; answers at once it has not.

As with Google, the name of a file of results is longer than the one that may be deleted.
"""

from __future__ import annotations

import json
import time
import uuid
from datetime import UTC, datetime
from typing import Final

from .patient_answers import usage_of, with_ids
from .patient_batches import batch_text, item_ends, new_items, page
from .patient_ledger import Job
from .patient_requests import Answer, Problem, Request, Shop, require
from .strict_provider import Body

_LONGEST_NAME: Final = 40
_BODY: Final = frozenset({"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings"})
_PART: Final = frozenset({"text", "functionCall", "functionResponse", "thoughtSignature"})
_STATES: Final = {"completed": "SUCCEEDED", "failed": "FAILED", "cancelled": "CANCELLED", "expired": "EXPIRED"}
_TYPE: Final = "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch"


# --- files ------------------------------------------------------------------------------------------------------------


def begin_file(shop: Shop, request: Request) -> Answer:
    """The first half of an upload: the answer's header says where the bytes go."""
    headers = request.headers
    require(headers.get("x-goog-upload-protocol") == "resumable", "Uploads have to be resumable.")
    require(headers.get("x-goog-upload-command") == "start", "An upload begins with the command 'start'.")
    file = request.body()["file"]
    name = file.get("displayName") or file.get("display_name")
    require(name, "file.display_name: required")
    kind = headers.get("x-goog-upload-header-content-type")
    require(kind in {"application/jsonl", "jsonl"}, f"Unsupported MIME type: {kind}")
    upload = f"http://{headers['host']}/upload/v1beta/files?upload_id={uuid.uuid4().hex}&name={name}&upload_of={request.owner}"
    return Answer({}, headers={"X-Goog-Upload-URL": upload, "X-Goog-Upload-Status": "active"})


def create_file(shop: Shop, request: Request) -> Answer:
    if "upload_id" not in request.query:
        return begin_file(shop, request)
    require(request.headers.get("x-goog-upload-command") == "upload, finalize", "This provider takes one piece.")
    file_id = shop.book.add_file(request.owner, request.query["name"], request.raw)
    file = {"name": f"files/{file_id}", "sizeBytes": str(len(request.raw)), "mimeType": "application/jsonl"}
    return Answer({"file": file}, headers={"X-Goog-Upload-Status": "final"})


def file_content(shop: Shop, request: Request) -> Answer:
    require(request.query.get("alt") == "media", "A download needs alt=media.")
    return Answer(_file(shop, request), plan=shop.plan_for(""))


def delete_file(shop: Shop, request: Request) -> Answer:
    file_id = request.names["id"]
    said = (
        f"* DeleteFileRequest.name: File ID (name excluding 'files/') cannot be more than {_LONGEST_NAME} characters."
    )
    require(len(file_id) <= _LONGEST_NAME, said)
    _file(shop, request)
    shop.book.delete_file(file_id)
    return Answer({})


def _file(shop: Shop, request: Request) -> bytes:
    found = shop.book.file(request.names["id"], request.owner)
    if found is None:
        raise Problem(404, f"No file found with id '{request.names['id']}'.")
    return found[2]


# --- batches ----------------------------------------------------------------------------------------------------------


def check_content(body: Body) -> None:
    """
    Raises:
        Problem: Google would answer 400.
    """
    for name in body:
        require(name in _BODY, f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.')
    contents = body.get("contents")
    require(contents, "* GenerateContentRequest.contents: contents is not specified")
    called: list[str] = []
    for number, content in enumerate(contents or ()):
        require(content.get("role") in {"user", "model"}, "Please use a valid role: user, model.")
        require(content.get("parts"), f"* contents[{number}].parts: must not be empty")
        for part in content["parts"]:
            require(set(part) <= _PART, f'Unknown name "{min(set(part) - _PART, default="")}" at contents[{number}].')
        answered = [part["functionResponse"]["name"] for part in content["parts"] if "functionResponse" in part]
        said = "Please ensure that the number of function response parts is equal to the number of function call parts"
        require(answered == called, said)
        called = [part["functionCall"]["name"] for part in content["parts"] if "functionCall" in part]


def create(shop: Shop, request: Request) -> Answer:
    given = request.body().get("batch") or {}
    model = request.names["model"]
    require(given.get("displayName"), "batch.display_name: required")
    if not model.startswith("gemini"):
        raise Problem(404, f"models/{model} is not found for API version v1beta.")
    name = (given.get("inputConfig") or {}).get("fileName", "")
    file = shop.book.file(name.removeprefix("files/"), request.owner)
    if file is None:
        raise Problem(404, f"No file found with name '{name}'.")
    lines = [json.loads(line) for line in file[2].splitlines()]
    for line in lines:
        require(set(line) == {"key", "request"}, "Each line needs a key and a request.")
    bodies = [line["request"] for line in lines]
    items = new_items(shop, bodies, check_content)
    text = batch_text(bodies, items)
    job = Job(
        id=uuid.uuid4().hex, kind="google_batch", owner=request.owner, body=lines, plan=shop.plan_for(text),
        status="PENDING", window="24h", more={"items": items, "name": given["displayName"], "model": model},
    )  # fmt: skip
    keys = [line["key"] for line in lines]
    shop.book.add(job, key=given["displayName"], keys=keys, model=model, text=text[:200], is_live=False)
    return Answer(_operation(job))


def list_batches(shop: Shop, request: Request) -> Answer:
    """A page of all batches, the oldest first: Google documents no order."""
    shop.book.write("list", None)
    jobs = shop.book.newest("google_batch", request.owner)[::-1]
    asked = Request(**{**vars(request), "query": {"limit": request.query.get("pageSize", "20")}})
    found, has_more = page(asked, jobs, request.query.get("pageToken"))
    more = {"nextPageToken": found[-1].id} if has_more else {}
    return Answer({"operations": [_operation(job) for job in found], **more})


def retrieve(shop: Shop, request: Request) -> Answer:
    return Answer(_operation(shop.poll("google_batch", request)))


def cancel(shop: Shop, request: Request) -> Answer:
    with shop.book.change():
        job = shop.find("google_batch", request)
        shop.book.write("cancel", job.id, was=job.status)
        require(job.ended is None, f"Batch {job.id} has ended and cannot be cancelled.")
        job.canceled = job.canceled or time.time()
        shop.book.save(job)
        return Answer({})


def delete(shop: Shop, request: Request) -> Answer:
    with shop.book.change():
        job = shop.advance(shop.find("google_batch", request))
        shop.book.write("delete", job.id, was=job.status)
        job.forgotten = True
        shop.book.save(job)
    return Answer({})


def end(shop: Shop, job: Job) -> None:
    """End a batch; called once. One that has failed, was cancelled or expired has no file of results."""
    ends = item_ends(job)
    wanted = next((how for how in ends if how in {"cancelled", "expired"}), "completed")
    job.status = _STATES["failed" if job.canceled is None and job.plan["end"] == "failed" else wanted]
    job.answer = {"file": None}
    if job.status != "SUCCEEDED":
        return
    lines: list[Body] = []
    for line, item, how in zip(job.body, job.more["items"], ends, strict=True):
        if how == "errored":
            said = item["problem"] or "The request has failed, as planned."
            lines.append({"key": line["key"], "error": {"code": 3 if item["problem"] else 13, "message": said}})
            continue
        response = _response(shop, job, line["request"], how)
        usage = response["usageMetadata"]
        counts = (usage["promptTokenCount"], usage["candidatesTokenCount"])
        shop.book.charge(job, job.more["model"], counts, key=line["key"])
        lines.append({"key": line["key"], "response": response})
    content = "".join(json.dumps(each) + "\n" for each in lines).encode()
    job.answer["file"] = shop.book.add_file(job.owner, f"{job.id}_results", content, prefix="batch-of-results-")


def _response(shop: Shop, job: Job, body: Body, how: str) -> Body:
    reply = with_ids(shop.answer(body), job.id)
    parts: list[Body] = []
    if reply.text is not None:
        parts.append({"text": reply.text if how == "completed" else reply.text[: len(reply.text) // 2]})
    for call in reply.calls:
        parts.append({"functionCall": {"id": call.id, "name": call.name, "args": json.loads(call.args)}})
    asked, answered = usage_of(body, reply)
    reason = "STOP" if how == "completed" else "MAX_TOKENS"
    return {
        "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": reason, "index": 0}],
        "usageMetadata": {
            "promptTokenCount": asked, "candidatesTokenCount": answered, "totalTokenCount": asked + answered,
        },
        "modelVersion": job.more["model"], "responseId": uuid.uuid4().hex,
    }  # fmt: skip


def _operation(job: Job) -> Body:
    state = job.status if job.ended else "RUNNING" if job.polls > 1 else "PENDING"
    made = datetime.fromtimestamp(job.created, UTC).isoformat().replace("+00:00", "Z")
    metadata = {
        "@type": _TYPE, "model": f"models/{job.more['model']}", "displayName": job.more["name"], "createTime": made,
        "updateTime": made, "name": f"batches/{job.id}", "state": f"BATCH_STATE_{state}",
    }  # fmt: skip
    if job.answer and job.answer["file"]:
        metadata["output"] = {"responsesFile": f"files/{job.answer['file']}"}
    return {"name": f"batches/{job.id}", "metadata": metadata, **({"done": True} if job.ended else {})}


ROUTES: Final = (
    ("POST", r"/upload/v1beta/files", "google_file.create", create_file),
    ("GET", r"/v1beta/files/(?P<id>[^/:]+):download", "google_file.content", file_content),
    ("DELETE", r"/v1beta/files/(?P<id>[^/:]+)", "google_file.delete", delete_file),
    ("POST", r"/v1beta/models/(?P<model>[^/:]+):batchGenerateContent", "google_batch.create", create),
    ("GET", r"/v1beta/batches", "google_batch.list", list_batches),
    ("GET", r"/v1beta/batches/(?P<id>[^/:]+)", "google_batch.retrieve", retrieve),
    ("POST", r"/v1beta/batches/(?P<id>[^/:]+):cancel", "google_batch.cancel", cancel),
    ("DELETE", r"/v1beta/batches/(?P<id>[^/:]+)", "google_batch.delete", delete),
)
