"""What a stand-in provider and its three interfaces share: requests, replies, and how each interface refuses."""

from __future__ import annotations

import ast
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from .patient_ledger import Book, Job
from .strict_provider import Body, Reply

DEFAULT_PLAN: Final[dict[str, Any]] = {
    "seconds": 0.0, "polls": 0, "held": False, "end": "completed", "keep_seconds": 600.0, "is_charged": False,
    "pieces": 1, "piece_seconds": 0.0, "event_seconds": 0.0, "held_after": 2, "garbled": False,
}  # fmt: skip


@cache
def params_of(package: str, module: str, name: str) -> frozenset[str]:
    """The names of a class of a provider's library; read, as its import would let the first request wait for seconds."""
    spec = find_spec(package)
    assert spec is not None, f"{package} is not installed"
    read = ast.parse((Path(spec.origin or "").parent / module).read_text(encoding="utf-8"))
    (found,) = (each for each in read.body if isinstance(each, ast.ClassDef) and each.name == name)
    return frozenset(ast.unparse(each.target) for each in found.body if isinstance(each, ast.AnnAssign))


@dataclass(frozen=True)
class Request:
    """One HTTP request.

    Attributes:
        owner: The credential that came with it.
        names: What the pattern of its path has found.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    raw: bytes
    owner: str
    names: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def interface(self) -> str:
        """Whose it is: "anthropic", "google", or "openai"."""
        if self.path.startswith("/v1/messages"):
            return "anthropic"
        return "google" if "/v1beta/" in self.path else "openai"

    def body(self) -> Body:
        """
        Raises:
            Problem: It is no JSON object.
        """
        try:
            read = json.loads(self.raw)
        except ValueError as error:
            raise Problem(400, f"We could not parse the JSON body of your request: {error}") from None
        if not isinstance(read, dict):
            raise Problem(400, "The body of the request has to be a JSON object.")
        return read


@dataclass(frozen=True)
class Answer:
    """An HTTP response; an iterator is a stream of events, bytes are sent as they are."""

    body: Body | bytes | Iterator[bytes]
    status: int = 200
    plan: Mapping[str, Any] = field(default_factory=dict[str, Any])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class Problem(Exception):
    """A refusal, in the words of the interface that was asked."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers: dict[str, str] = {}

    def body(self, interface: str) -> Body:
        """The body of a reply of this interface; see `Request.interface`."""
        if interface == "google":
            names = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}
            return {
                "error": {"code": self.status, "message": self.message, "status": names.get(self.status, "INTERNAL")}
            }
        if interface == "anthropic":
            kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
            more = {429: "rate_limit_error", 529: "overloaded_error", 413: "request_too_large"}
            kind = (kinds | more).get(self.status, "api_error")
            return {"type": "error", "error": {"type": kind, "message": self.message}, "request_id": "req_planned"}
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def require(holds: object, message: str, param: str | None = None, code: str | None = None) -> None:
    """
    Raises:
        Problem: It does not hold: 400.
    """
    if not holds:
        raise Problem(400, message, param, code)


@dataclass
class Shop:
    """The state of a stand-in provider.

    Attributes:
        answer: Gives the answer to the body of a request of any interface.
        ends: How a job of each kind ends: sets its status, its answer, and charges it.
        told: Is given each job that has ended.
    """

    book: Book
    answer: Callable[[Body], Reply]
    told: Callable[[Job], None] = lambda job: None
    ends: dict[str, Callable[[Shop, Job], None]] = field(default_factory=dict[str, "Callable[[Shop, Job], None]"])

    def plan_for(self, text: str) -> dict[str, Any]:
        """The plan of a new job: all that match its text, later ones over earlier ones."""
        plan = dict(DEFAULT_PLAN)
        for each in self.book.plans():
            if each.get("contains", "") in text:
                plan |= {name: value for name, value in each.items() if name != "contains"}
        return plan

    def find(self, kind: str, request: Request) -> Job:
        """The job that a request names.

        Raises:
            Problem: There is none, or not any more: 404.
        """
        job = self.book.find(request.names["id"], kind, request.owner)
        if job is None or self._is_forgotten(job):
            raise Problem(404, f"No {kind} found with id '{request.names['id']}'.")
        return job

    def poll(self, kind: str, request: Request) -> Job:
        """The job that a request asks for, counted, as it is now."""
        with self.book.change():
            job = self.find(kind, request)
            job.polls += 1
            self.book.write("poll", job.id)
            self.book.save(job)
            return self.advance(job)

    def advance(self, job: Job) -> Job:
        """End a stored job when it is due, once; the job as it is now, which may have ended since it was read."""
        with self.book.change():
            job = self.book.find(job.id) or job
            if job.due is None or job.due > time.time():
                return job
            job.ended = time.time()
            self.ends[job.kind](self, job)
            self.book.save(job)
        self.told(job)
        return job

    def advance_all(self) -> None:
        """End what is due, also where nobody polls."""
        for job_id in self.book.due_ids(time.time()):
            with self.book.change():
                job = self.book.find(job_id)
                assert job is not None
                self.advance(job)

    def release(self, id: str | None, end: str | None = None) -> int:
        """End one open job or all, and how; the number of them."""
        with self.book.change():
            found = [job for job in self.book.jobs() if job.ended is None and id in {None, job.id}]
            for job in found:
                job.released = time.time()
                if end is not None:
                    job.plan["end"] = end
                    for item in job.more.get("items", ()):
                        item["end"] = item["end"] if item["problem"] else end
                self.book.save(job)
                self.advance(job)
            return len(found)

    def forget(self, id: str) -> None:
        """Answer 404 for a job from now on, as a provider does that has deleted it."""
        with self.book.change():
            job = self.book.find(id)
            assert job is not None, f"no job {id}"
            job.forgotten = True
            self.book.save(job)

    def _is_forgotten(self, job: Job) -> bool:
        keeps = job.more.get("is_stored", True) or job.ended is None
        return job.forgotten or not (keeps or time.time() < (job.ended or 0.0) + job.plan["keep_seconds"])


def server_sent(event: Body, name: str | None = None) -> bytes:
    """An event of a stream."""
    return f"event: {name or event['type']}\ndata: {json.dumps(event)}\n\n".encode()
