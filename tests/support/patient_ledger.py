"""The book of a stand-in provider: its jobs, files and faults, and what it was asked and paid, in one SQLite file.

The file survives a kill of the server. Any process can open it beside the server and read it, also while that is dead.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

Line = dict[str, Any]

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS jobs (n INTEGER PRIMARY KEY, id TEXT UNIQUE, kind TEXT, due REAL, body TEXT, data TEXT);
CREATE INDEX IF NOT EXISTS jobs_due ON jobs (due) WHERE due IS NOT NULL;
CREATE TABLE IF NOT EXISTS ledger (n INTEGER PRIMARY KEY, at REAL, kind TEXT, job TEXT, data TEXT);
CREATE UNIQUE INDEX IF NOT EXISTS paid_once ON ledger (job, data ->> 'key') WHERE kind = 'paid';
CREATE TABLE IF NOT EXISTS files (id TEXT PRIMARY KEY, owner TEXT, name TEXT, created REAL, content BLOB);
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, data TEXT);
CREATE TABLE IF NOT EXISTS plans (n INTEGER PRIMARY KEY, data TEXT);
CREATE TABLE IF NOT EXISTS faults (n INTEGER PRIMARY KEY, left_over INTEGER, data TEXT);
"""

PRICES: Final = {"gpt-5-mini": (0.25, 2.0), "claude-haiku-4-5": (1.0, 5.0), "gemini-2.5-flash-lite": (0.1, 0.4)}
"""Dollars for a million tokens, in and out; other models cost as the first."""
FACTORS: Final = {None: 1.0, "soonest": 1.0, "2h": 0.7, "8h": 0.6, "24h": 0.5}
"""Share of the price that is paid for an answer within a window."""


def price(model: str, usage: tuple[int, int], window: str | None) -> float:
    """Dollars for an answer with so many tokens in and out."""
    known = next((each for name, each in PRICES.items() if model.startswith(name)), PRICES["gpt-5-mini"])
    return (usage[0] * known[0] + usage[1] * known[1]) / 1_000_000 * FACTORS[window]


@dataclass
class Job:
    """A job, or a live request that was answered.

    Attributes:
        kind: "response", "batch" (OpenAI), "messages_batch" (Anthropic), "message" (live, Anthropic) or "google_batch".
        owner: The credential that created it.
        body: What was asked for; of a batch the list of its requests.
        plan: See `patient_provider`; fixed at the creation.
        status: In the words of the provider.
        window: None for a live request.
        released: When the test has said that it ends; None: it did not.
        answer: What `end` of its kind has made, when it has ended.
    """

    id: str
    kind: str
    owner: str
    body: Any
    plan: dict[str, Any]
    status: str
    window: str | None = None
    created: float = field(default_factory=time.time)
    polls: int = 0
    released: float | None = None
    canceled: float | None = None
    ended: float | None = None
    forgotten: bool = False
    answer: Any = None
    more: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def due(self) -> float | None:
        """When it ends; infinite while that depends on the test or on polls, None when it has ended."""
        if self.ended is not None:
            return None
        if self.released is not None or self.canceled is not None:
            return self.released or self.canceled
        if self.plan["held"] or self.polls < self.plan["polls"]:
            return math.inf
        return self.created + self.plan["seconds"]


class Book:
    """The book in a file; `None` keeps it in the memory of this process."""

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.RLock()
        self._db = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None, timeout=30)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = OFF")  # a kill of a process loses nothing that was written
        self._db.executescript(_TABLES)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """Write all of the block, or nothing of it; no other thread writes or reads meanwhile."""
        with self._lock:
            if self._db.in_transaction:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with self._lock:
            return self._db.execute(query, values).fetchall()

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def add(self, job: Job, **created: Any) -> None:
        """Store a new job, and that it was created."""
        with self.change():
            values = (job.id, job.kind, job.due, json.dumps(job.body), _data(job))
            self._db.execute("INSERT INTO jobs (id, kind, due, body, data) VALUES (?, ?, ?, ?, ?)", values)
            self.write("created", job.id, kind_of_job=job.kind, window=job.window, **created)

    def save(self, job: Job) -> None:
        with self.change():
            self._db.execute("UPDATE jobs SET due = ?, data = ? WHERE id = ?", (job.due, _data(job), job.id))

    def find(self, id: str, kind: str | None = None, owner: str | None = None) -> Job | None:
        for row in self._rows("SELECT id, kind, body, data FROM jobs WHERE id = ?", id):
            job = _job(row)
            if kind in {None, job.kind} and owner in {None, job.owner}:
                return job
        return None

    def newest(self, kind: str, owner: str) -> list[Job]:
        rows = self._rows("SELECT id, kind, body, data FROM jobs WHERE kind = ? ORDER BY n DESC", kind)
        return [job for job in map(_job, rows) if job.owner == owner and not job.forgotten]

    def due_ids(self, now: float) -> list[str]:
        return [row[0] for row in self._rows("SELECT id FROM jobs WHERE due <= ? LIMIT 200", now)]

    def jobs(self) -> list[Job]:
        """Every job and live request, in the order of their creation."""
        return [_job(row) for row in self._rows("SELECT id, kind, body, data FROM jobs ORDER BY n")]

    # --- files --------------------------------------------------------------------------------------------------------

    def add_file(self, owner: str, name: str, content: bytes, prefix: str = "file-") -> str:
        file_id = f"{prefix}{uuid.uuid4().hex}"
        with self.change():
            values = (file_id, owner, name, time.time(), content)
            self._db.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?)", values)
            self.write("file", file_id, name=name, bytes=len(content))
        return file_id

    def file(self, id: str, owner: str) -> tuple[str, float, bytes] | None:
        """Name, time and content."""
        rows = self._rows("SELECT name, created, content FROM files WHERE id = ? AND owner = ?", id, owner)
        return rows[0] if rows else None

    def delete_file(self, id: str) -> None:
        with self.change():
            self._db.execute("DELETE FROM files WHERE id = ?", (id,))
            self.write("delete", id)

    def files(self) -> list[str]:
        """The ids of all files that it keeps."""
        return [row[0] for row in self._rows("SELECT id FROM files")]

    # --- plans and faults ---------------------------------------------------------------------------------------------

    def add_plan(self, plan: dict[str, Any]) -> None:
        with self.change():
            self._db.execute("INSERT INTO plans (data) VALUES (?)", (json.dumps(plan),))

    def plans(self) -> list[dict[str, Any]]:
        return [json.loads(row[0]) for row in self._rows("SELECT data FROM plans ORDER BY n")]

    def add_fault(self, fault: dict[str, Any]) -> None:
        with self.change():
            values = (fault.get("times", 1), json.dumps(fault))
            self._db.execute("INSERT INTO faults (left_over, data) VALUES (?, ?)", values)

    def take_fault(self, action: str, text: str) -> dict[str, Any] | None:
        """The first fault that is left for a request; it counts as happened."""
        with self.change():
            for n, data in self._rows("SELECT n, data FROM faults WHERE left_over > 0 ORDER BY n"):
                fault = json.loads(data)
                if action.startswith(fault["on"]) and fault.get("contains", "") in text:
                    self._db.execute("UPDATE faults SET left_over = left_over - 1 WHERE n = ?", (n,))
                    self.write("fault", None, action=action, fault=fault["fault"])
                    return fault
        return None

    def set(self, name: str, value: Any) -> None:
        with self.change():
            self._db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, json.dumps(value)))

    def setting(self, name: str) -> Any:
        """None: it was not set."""
        rows = self._rows("SELECT data FROM settings WHERE name = ?", name)
        return json.loads(rows[0][0]) if rows else None

    # --- the ledger ---------------------------------------------------------------------------------------------------

    def write(self, kind: str, job: str | None, **data: Any) -> None:
        with self.change():
            values = (time.time(), kind, job, json.dumps(data))
            self._db.execute("INSERT INTO ledger (at, kind, job, data) VALUES (?, ?, ?, ?)", values)

    def charge(self, job: Job, model: str, usage: tuple[int, int], *, key: str | None = None) -> None:
        """Charge an answer; one job, or one request of a batch, a second time is an error of this provider."""
        dollars = price(model, usage, job.window)
        self.write("paid", job.id, key=key or "", model=model, window=job.window, usage=usage, dollars=dollars)

    def lines(self, *kinds: str) -> list[Line]:
        """The lines of the ledger, each with `at`, `kind` and `id` (of its job or file).

        Kinds:
            created: A job or a live request: kind_of_job, window, key, keys, model, text.
            paid: An answer: key (custom_id of a batch), model, window, usage, dollars.
            poll, cancel, delete, attach, list, results: A request of that kind, for a job that was there.
            refused: A request with a 4xx: action, message.
            fault: One that was planned: action, fault.
            file: An upload, or an output: name, bytes.
            webhook: A delivery: type, how, status (0: nobody answered).
        """
        rows = self._rows("SELECT at, kind, job, data FROM ledger ORDER BY n")
        read = [{"at": at, "kind": kind, "id": job, **json.loads(data)} for at, kind, job, data in rows]
        return [line for line in read if not kinds or line["kind"] in kinds]

    def created(self) -> list[Line]:
        return self.lines("created")

    def paid(self) -> list[Line]:
        return self.lines("paid")

    def polls(self, id: str | None = None) -> list[Line]:
        """Each poll, or each of one job."""
        return [line for line in self.lines("poll") if id in {None, line["id"]}]

    def dollars(self) -> float:
        """All that was charged."""
        return sum(line["dollars"] for line in self.paid())


def _data(job: Job) -> str:
    known = asdict(job)
    del known["body"], known["id"], known["kind"]
    return json.dumps(known)


def _job(row: Any) -> Job:
    job_id, kind, body, data = row
    return Job(id=job_id, kind=kind, body=json.loads(body), **json.loads(data))
