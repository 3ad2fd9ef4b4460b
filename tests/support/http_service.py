"""What the ledger and the provider share: an HTTP server in its own process that writes to the disk before it answers.

Every test has a *space* of its own, the first part of the path: `http://127.0.0.1:4711/space-3/effect`. Its records are
the lines of `<space>.jsonl`. A *gate* holds an answer back until the test opens it.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from .processes import TESTS, Process
from .wait import wait_until

Entry = dict[str, Any]


class Records:
    """An append-only file of JSON lines; what is returned from `append` is on the disk."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = path.open("a+b")
        self._file.seek(0)
        # A last line without its end was cut off by a kill: it was never answered.
        whole = [line for line in self._file.read().splitlines(keepends=True) if line.endswith(b"\n")]
        self._file.truncate(sum(map(len, whole)))
        self._entries: list[Entry] = [json.loads(line) for line in whole]

    def append(self, make: Callable[[list[Entry]], Entry]) -> Entry:
        """Append what `make` gives for all earlier entries, with its number `n` from 1 and the wall-clock time `at`."""
        with self._lock:
            entry = {"n": len(self._entries) + 1, "at": time.time(), **make(self._entries)}
            self._file.write(json.dumps(entry, ensure_ascii=True).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            self._entries.append(entry)
            return entry

    def entries(self) -> list[Entry]:
        with self._lock:
            return list(self._entries)


class Space:
    """What one test sees of a service."""

    def __init__(self, path: Path) -> None:
        self.records = Records(path)
        self._gates: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def gate(self, name: str) -> threading.Event:
        with self._lock:
            return self._gates.setdefault(name, threading.Event())


class Spaces:
    """All spaces of one service, made at their first use."""

    def __init__(self, directory: Path, make: Callable[[Path], Any]) -> None:
        self._directory = directory
        self._make = make
        self._spaces: dict[str, Any] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> Any:
        with self._lock:
            if name not in self._spaces:
                self._spaces[name] = self._make(self._directory / f"{name}.jsonl")
            return self._spaces[name]


class Handler(BaseHTTPRequestHandler):
    """One request. A service overrides `handle_get` and `handle_post`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    spaces: ClassVar[Spaces]

    def do_GET(self) -> None:
        self._dispatch(self.handle_get)

    def do_POST(self) -> None:
        self._dispatch(self.handle_post)

    def handle_get(self, space: Any, path: str, query: dict[str, str]) -> None:
        self.answer(404, {"error": f"no such page: {path}"})

    def handle_post(self, space: Any, path: str, query: dict[str, str], body: Any) -> None:
        self.answer(404, {"error": f"no such page: {path}"})

    def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_all(self.head(status, len(raw), headers) + raw)

    def head(self, status: int, length: int | None, headers: dict[str, str] | None = None) -> bytes:
        """The head of a response; without a length it ends with the connection."""
        lines = [f"HTTP/1.1 {status} {self.responses.get(status, ('Other',))[0]}"]
        size = {} if length is None else {"Content-Length": str(length)}
        fields = {"Content-Type": "application/json", **size, **(headers or {})}
        lines += [f"{name}: {value}" for name, value in fields.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def send_all(self, raw: bytes) -> bool:
        """Send in one piece; False when the client has gone, which is not an error."""
        try:
            self.wfile.write(raw)
        except OSError:
            self.close_connection = True
            return False
        return True

    def client_left(self, seconds: float) -> bool:
        """Wait up to `seconds` for the client to close its side."""
        readable, _, _ = select.select([self.connection], [], [], seconds)
        if not readable:
            return False
        try:
            return self.connection.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            return True

    def wait_at_gate(self, gate: threading.Event) -> bool:
        """Wait until the gate is open; False when the client has left before."""
        while not gate.is_set():
            if self.client_left(0.01):
                return False
        return True

    def log_message(self, format: str, *args: object) -> None:
        """Every request in the process's log is more than anybody reads."""

    def _dispatch(self, handle: Callable[..., None]) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        name, _, path = url.path.lstrip("/").partition("/")
        arguments: list[Any] = [self.spaces.get(name), f"/{path}", query]
        if self.command == "POST":
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                arguments.append(json.loads(raw) if raw else None)
            except ValueError as error:
                self.answer(400, {"error": f"the body is not JSON: {error}"})
                return
        if path.startswith("gates/") and self.command == "POST":
            arguments[0].gate(path.removeprefix("gates/")).set()
            self.answer(200, {"open": path.removeprefix("gates/")})
            return
        handle(*arguments)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def serve(handler: type[Handler], make_space: Callable[[Path], Any]) -> None:
    """Run a service until it is killed: the body of `python -m support.<service> --directory DIR [--port N] [--host H]`.

    The port is written to `DIR/port` once it listens.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--host", default="127.0.0.1")
    options = parser.parse_args()
    handler.spaces = Spaces(options.directory, make_space)
    server = _Server((options.host, options.port), handler)
    staged = options.directory / "port.part"
    staged.write_text(str(server.server_port))
    staged.rename(options.directory / "port")
    server.serve_forever()


_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def call(url: str, body: Any = None, *, method: str | None = None, timeout: float = 30.0) -> Any:
    """One HTTP request with a JSON answer; POST when there is a body. Proxy settings of the environment are ignored.

    Raises:
        urllib.error.HTTPError: A status of 400 or above.
        OSError: No connection, or cut.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with _opener.open(request, timeout=timeout) as answer:
        return json.loads(answer.read())


class ServiceProcess:
    """A service in a process of its own; `space(name)` is the address of one test's part.

    Args:
        module: For example "support.ledger".
        directory: Home of its log and its records.
        host: The address at which it listens.
    """

    def __init__(self, module: str, directory: Path, host: str = "127.0.0.1") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.host = host
        self.process = Process(
            module.rpartition(".")[2],
            [sys.executable, "-m", module, "--directory", str(directory), "--host", host],
            directory,
            {"PYTHONPATH": str(TESTS)},
        )

    def start(self) -> ServiceProcess:
        self.process.start()
        port = self.directory / "port"
        wait_until(
            lambda: port.exists() or not self.process.alive, "the service listens", 20, details=self.process.tail
        )
        assert port.exists(), self.process.tail()
        self.port = int(port.read_text())
        return self

    def space(self, name: str) -> str:
        return f"http://{self.host}:{self.port}/{name}"

    def records(self, name: str) -> list[Entry]:
        """What is on the disk, read past the service."""
        path = self.directory / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    def end(self) -> None:
        self.process.end(patience=0.0)

    def __enter__(self) -> ServiceProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()
