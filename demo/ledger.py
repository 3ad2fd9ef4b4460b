"""The shop's ledger in a process of its own: refunds that were paid out, and model answers that were paid for.

    python -m celery_agents.demo.ledger PORT FILE

POST / with a JSON object writes one line. A refund under a key that the ledger knows pays nothing. The first refund
with `"hold": seconds` is answered only after that time: it is paid, and its caller does not know it yet. GET / returns
all lines.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from ..worker.errors import ConfigurationError

URL_VARIABLE: Final = "CELERY_AGENTS_DEMO_LEDGER"
"""Environment variable with the ledger's address, for the workers."""

WORKER_VARIABLE: Final = "CELERY_AGENTS_DEMO_WORKER"
"""Environment variable with the name by which a worker's lines are shown."""

HOLD_VARIABLE: Final = "CELERY_AGENTS_DEMO_HOLD"
"""Environment variable with the seconds for which the ledger keeps the first refund of a job waiting."""

# The ledger is on this machine, whatever proxy the environment names.
_direct: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Side(StrEnum):
    """The two ways in which the demo does the same job."""

    AGENTS = "celery-agents"
    PLAIN = "plain Celery"


class Kind(StrEnum):
    """The kinds of lines in the ledger."""

    STARTED = "started"
    ANSWER = "answer"
    REFUND = "refund"
    ENDED = "ended"


@dataclass(frozen=True)
class Entry:
    """One line of the ledger.

    Attributes:
        key: Idempotency key of a refund; "" for other lines.
        pid: Process that wrote the line.
        worker: Name of this process, for people.
        at: Time in seconds since the epoch.
        repeated: The ledger knew the key of this refund, so nothing was paid out.
        cents: Amount of a refund.
        tool: The tool that a model's answer asks for; "" when it is the answer to the customer.
        text: Text of a model's answer, or of the answer to the customer.
    """

    side: Side
    kind: Kind
    at: float
    pid: int
    worker: str
    key: str = ""
    repeated: bool = False
    cents: int = 0
    tool: str = ""
    text: str = ""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Entry:
        """Read a line; values that only the server needs are left out."""
        known: dict[str, Any] = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
        known |= {"side": Side(value["side"]), "kind": Kind(value["kind"])}
        return cls(**known)


@dataclass(frozen=True)
class Ledger:
    """The ledger as another process sees it."""

    url: str

    @classmethod
    def from_environment(cls) -> Ledger | None:
        """Return the ledger that `CELERY_AGENTS_DEMO_LEDGER` names; None outside the demo."""
        url = os.environ.get(URL_VARIABLE)
        return cls(url) if url else None

    def write(self, side: Side, kind: Kind, *, timeout_seconds: float = 10.0, **fields: Any) -> Entry:
        """Write a line and return it as the ledger has stored it."""
        worker = os.environ.get(WORKER_VARIABLE, "")
        line = {"side": side, "kind": kind, "pid": os.getpid(), "worker": worker, **fields}
        with _direct.open(self.url, json.dumps(line).encode(), timeout=timeout_seconds) as reply:
            return Entry.from_json(json.load(reply))

    def entries(self) -> list[Entry]:
        """Read all lines in the order in which they were written."""
        with _direct.open(self.url, timeout=10.0) as reply:
            return [Entry.from_json(line) for line in json.load(reply)]

    def answers(self) -> bool:
        """Whether the ledger's process answers."""
        try:
            self.entries()
        except OSError:
            return False
        return True


def hold_seconds() -> float:
    """Read how long the ledger keeps the first refund of a job waiting: long enough to be killed meanwhile."""
    value = os.environ.get(HOLD_VARIABLE, "0")
    try:
        return float(value)
    except ValueError:
        raise ConfigurationError(f"{HOLD_VARIABLE}={value!r} must be a number of seconds") from None


class _Book:
    """The file, and the lines in it."""

    def __init__(self, path: Path) -> None:
        self.lines: list[dict[str, Any]] = []
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def add(self, line: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Store a line on the disk; also return whether it is the first refund of its side."""
        with self._lock:
            refunds = [each for each in self.lines if (each["side"], each["kind"]) == (line["side"], Kind.REFUND)]
            is_refund = line["kind"] == Kind.REFUND
            repeated = is_refund and any(each["key"] == line["key"] for each in refunds)
            stored = {**line, "at": time.time(), "repeated": repeated}
            self._file.write(json.dumps(stored) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            self.lines.append(stored)
            return stored, is_refund and not refunds


class _Handler(BaseHTTPRequestHandler):
    book: _Book

    def do_POST(self) -> None:
        line, is_first_refund = self.book.add(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if is_first_refund:
            time.sleep(line.get("hold", 0.0))
        self._answer(line)

    def do_GET(self) -> None:
        self._answer(self.book.lines)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 — the base class says so
        """Write nothing: the file is the log."""

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        try:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the caller was killed meanwhile


def serve(port: int, path: Path) -> None:
    """Serve on the loopback interface until the process ends."""
    handler = type("Handler", (_Handler,), {"book": _Book(path)})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
