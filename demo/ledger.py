"""A ledger in a process of its own: what reached the world outside of the workers, on the disk before it answers.

    python -m celery_agents.demo.ledger PORT FILE

POST / with a JSON object writes one line. The first delivery of a `key` with `"hold": seconds` is answered only after
that time: the effect has happened, and its caller does not know it yet. GET / gives all lines.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

URL_VARIABLE: Final = "CELERY_AGENTS_DEMO_LEDGER"
"""Environment variable with the ledger's address, for the workers."""

DRIVER_CALL: Final = "driver call"
EFFECT: Final = "effect"

Entry = dict[str, Any]

# The ledger is on this machine, whatever proxy the environment names.
_direct: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Ledger:
    """The ledger as seen from another process."""

    url: str

    @classmethod
    def from_environment(cls) -> Ledger:
        """The one that `CELERY_AGENTS_DEMO_LEDGER` names."""
        return cls(os.environ[URL_VARIABLE])

    def write(self, kind: str, key: str, *, timeout_seconds: float = 10.0, **fields: Any) -> Entry:
        """Write a line and return it, with `n` (its number) and `repeated` (the key was there before)."""
        body = json.dumps({"kind": kind, "key": key, "pid": os.getpid(), **fields}).encode()
        with _direct.open(self.url, body, timeout=timeout_seconds) as reply:
            return json.load(reply)

    def entries(self, kind: str | None = None) -> list[Entry]:
        """All lines, or those of one kind, in the order they were written."""
        with _direct.open(self.url, timeout=10.0) as reply:
            return [entry for entry in json.load(reply) if kind in (None, entry["kind"])]


class _Book:
    """The file, and what is in it."""

    def __init__(self, path: Path) -> None:
        self.entries: list[Entry] = []
        self._file = path.open("a", encoding="utf-8")
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, body: Entry) -> Entry:
        with self._lock:
            repeated = self._seen[body["key"]] > 0
            entry = {**body, "n": len(self.entries) + 1, "at": time.time(), "repeated": repeated}
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            self._seen[body["key"]] += 1
            self.entries.append(entry)
            return entry


class _Handler(BaseHTTPRequestHandler):
    book: _Book

    def do_POST(self) -> None:
        entry = self.book.add(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if not entry["repeated"]:
            time.sleep(entry.get("hold", 0.0))
        self._answer(entry)

    def do_GET(self) -> None:
        self._answer(self.book.entries)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 — the base class says so
        """Nothing: the file is the log."""

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        try:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # whoever asked was killed meanwhile


def serve(port: int, path: Path) -> None:
    """Serve on the loopback interface until the process ends."""
    handler = type("Handler", (_Handler,), {"book": _Book(path)})
    ThreadingHTTPServer(("127.0.0.1", port), handler).serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
