"""A stand-in provider that sells time: OpenAI's background responses, and batches of OpenAI, Anthropic and Google.

    with PatientProvider(answer) as provider:       in a thread of the test; `answer(body)` gives a `Reply`
        provider.url                                the base for OpenAI's clients (with `/v1`)
        provider.root                               the base for Anthropic's and Google's
        provider.book                               what was created, polled, cancelled, deleted and paid; see `Book`
    python -m support.patient_provider DIRECTORY PORT     as a process, by the rules of `patient_answers`; its book is
                                                    `DIRECTORY/provider.sqlite`; see `patient_process`

It takes any credential, and shows each what it has created itself. A test steers it by POST to `/control/<verb>`, or by
the methods of the same name:

    plan        {"contains": text of the last user message, …} for jobs created from now on; later plans over earlier:
                "seconds" until it ends, "polls": the one that sees its end, "held" until `release`; all have to be true.
                "end": "completed" | "failed" | "incomplete" | "expired" | "cancelled", of a request of a batch also
                "errored". "is_charged": it costs although it has no answer. "keep_seconds": where `store` is false.
                "garbled": the results of a batch of OpenAI have a line that is no JSON.
                "pieces" and "piece_seconds": the body of an answer comes so. "event_seconds" between events of a stream,
                "held_after": so many of them while it is held.
    fault       {"on": action, "fault": kind, "contains": text of the body or path, "times": 1} for the next requests:
                "status" {"code", "retry_after"}: nothing is done; "lost": all is done, and the connection closed;
                "slow" {"seconds"}: all is done, and the reply late; "no_window": refuses `completion_window`;
                "cut" {"after": bytes}: an answer ends there. An action is the beginning of response.create, .retrieve,
                .cancel, .delete, file.create, .content, .delete, batch.create, .list, .retrieve, .cancel,
                messages_batch.create, .list, .retrieve, .results, .cancel, .delete, message.create,
                google_file.create, .content, .delete, google_batch.create, .list, .retrieve, .cancel, .delete.
                On "webhook": "lost", "double", "slow" {"seconds"}, "forged" (another secret), "old" (an hour).
    release     {"id": of a job or null for all, "end": how or null}: they end now
    forget      {"id"}: 404 from now on
    webhooks    {"url", "secret"}: tells of each end of a background response or a batch of OpenAI
    webhook     {"kind": "response.completed", "id"}: sends one, also one that is not true
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

from . import patient_batches, patient_google, patient_messages, patient_responses
from .patient_answers import rule_answer
from .patient_ledger import Book
from .patient_requests import DEFAULT_PLAN, Answer, Problem, Request, Shop
from .patient_webhooks import HOW, Webhooks
from .strict_provider import Body, Reply

_FAULTS: Final = frozenset({"status", "lost", "slow", "no_window", "cut"})
_ROUTES: Final = tuple(
    (method, re.compile(pattern), action, verb)
    for module in (patient_responses, patient_batches, patient_messages, patient_google)
    for method, pattern, action, verb in module.ROUTES
)


class PatientProvider:
    """The server; see the module.

    Args:
        path: The file of its book; None keeps that in memory.
        port: 0 takes a free one.
    """

    def __init__(self, answer: Callable[[Body], Reply] = rule_answer, path: Path | None = None, port: int = 0) -> None:
        self.book = Book(path)
        self.shop = Shop(self.book, answer)
        self.shop.ends = {
            "response": patient_responses.end,
            "batch": patient_batches.end,
            "message": patient_messages.end_message,
            "messages_batch": patient_messages.end,
            "google_batch": patient_google.end,
        }
        self._webhooks = Webhooks(self.book)
        self.shop.told = self._webhooks.tell
        self._server = _Server(("127.0.0.1", port), type("_OfShop", (_Handler,), {"provider": self}))
        self._is_closed = threading.Event()
        self.root = f"http://127.0.0.1:{self._server.server_port}"
        self.url = f"{self.root}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()
        self._webhooks.stop()
        self._server.shutdown()
        self._server.server_close()

    def serve(self) -> None:
        """Serve until the process is killed."""
        self._start()
        self._server.serve_forever()

    def _start(self) -> None:
        self._webhooks.start()
        threading.Thread(target=self._tick, daemon=True).start()

    def plan(self, **plan: Any) -> None:
        unknown = set(plan) - set(DEFAULT_PLAN) - {"contains"}
        if unknown:
            raise ValueError(f"a plan has no {sorted(unknown)}; there are {sorted(DEFAULT_PLAN)}")
        self.book.add_plan(plan)

    def fault(self, on: str, fault: str, **more: Any) -> None:
        actions, kinds = ([action for *_, action, _ in _ROUTES], _FAULTS) if on != "webhook" else ([on], HOW)
        if fault not in kinds or not any(action.startswith(on) for action in actions):
            raise ValueError(f"no fault {fault!r} on {on!r}; there are {sorted(kinds)} on {actions}")
        needed = {"no_window": "completion_window"}.get(fault)
        self.book.add_fault({"on": on, "fault": fault, **({"contains": needed} if needed else {}), **more})

    def release(self, id: str | None = None, end: str | None = None) -> int:
        """End one open job or all; the number of them."""
        return self.shop.release(id, end)

    def forget(self, id: str) -> None:
        self.shop.forget(id)

    def webhooks(self, url: str, secret: str) -> None:
        """Tell an address of each end from now on; the secret begins with "whsec_"."""
        self.book.set("webhooks", {"url": url, "secret": secret})

    def webhook(self, kind: str, id: str) -> None:
        """Send a webhook by hand, also one that is not true."""
        self._webhooks.send(kind, id)

    def control(self, verb: str, arguments: dict[str, Any]) -> Any:
        """Do what a test asks of a provider in another process."""
        known = (self.plan, self.fault, self.release, self.forget, self.webhooks, self.webhook)
        return {each.__name__: each for each in known}[verb](**arguments)

    def handle(self, request: Request, action: str, verb: Callable[[Shop, Request], Answer]) -> tuple[Answer, Body]:
        """What a provider answers to a request, and the fault that comes with it, which may be empty."""
        text = request.raw.decode(errors="replace") + urllib.parse.unquote(request.path)
        fault = self.book.take_fault(action, text) or {}
        try:
            if fault.get("fault") == "status":
                problem = Problem(fault.get("code", 500), fault.get("message", "As planned."))
                problem.headers |= {"Retry-After": str(fault["retry_after"])} if "retry_after" in fault else {}
                raise problem
            if fault.get("fault") == "no_window":
                said = "Unsupported value: 'completion_window' is not supported with this model."
                raise Problem(400, said, "background_options.completion_window", "unsupported_value")
            if not request.owner:
                raise Problem(401, "You didn't provide an API key.", None, "invalid_api_key")
            return verb(self.shop, request), fault
        except Problem as problem:
            self.book.write("refused", None, action=action, status=problem.status, message=problem.message)
            raise

    def _tick(self) -> None:
        while not self._is_closed.wait(0.02):
            self.shop.advance_all()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    provider: PatientProvider

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._dispatch()

    def do_POST(self) -> None:
        self._dispatch()

    def do_DELETE(self) -> None:
        self._dispatch()

    def _dispatch(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urllib.parse.urlsplit(self.path)
        if url.path.startswith("/control/"):
            self._control(url.path.removeprefix("/control/"), raw)
            return
        for method, pattern, action, verb in _ROUTES:
            found = pattern.fullmatch(url.path)
            if found is not None and method == self.command:
                query = dict(urllib.parse.parse_qsl(url.query))
                keys = (self.headers.get(name) for name in ("x-api-key", "x-goog-api-key", "Authorization"))
                key = next(filter(None, keys), "").removeprefix("Bearer ")
                owner = hashlib.sha256(key.encode()).hexdigest()[:16] if key else query.get("upload_of", "")
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, url.path, query, headers, raw, owner, found.groupdict())
                self._answer(request, action, verb)
                return
        error = {"message": f"Invalid URL ({self.command} {url.path})", "type": "invalid_request_error"}
        self._send(404, {"error": {**error, "param": None, "code": None}})

    def _control(self, verb: str, raw: bytes) -> None:
        try:
            self._send(200, {"result": self.provider.control(verb, json.loads(raw or b"{}"))})
        except Exception as error:
            self._send(400, {"error": f"{type(error).__name__}: {error}"})

    def _answer(self, request: Request, action: str, verb: Callable[[Shop, Request], Answer]) -> None:
        try:
            answer, fault = self.provider.handle(request, action, verb)
        except Problem as problem:
            self._send(problem.status, problem.body(request.interface), problem.headers)
            return
        if fault.get("fault") == "lost":
            self._hang_up()
            return
        if fault.get("fault") == "slow":
            time.sleep(fault["seconds"])
        cut = fault["after"] if fault.get("fault") == "cut" else None
        if isinstance(answer.body, Iterator):
            self._stream(answer.body, cut)
        else:
            self._send_body(answer, cut)

    def _send(self, status: int, body: Body, headers: dict[str, str] | None = None) -> None:
        self._head(status, {"Content-Type": "application/json", **(headers or {})}, raw := json.dumps(body).encode())
        self.wfile.write(raw)

    def _send_body(self, answer: Answer, cut: int | None) -> None:
        is_raw = isinstance(answer.body, bytes)
        raw = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        kind = "application/octet-stream" if is_raw else "application/json"
        self._head(answer.status, {"Content-Type": kind, **answer.headers}, raw)
        if cut is not None:
            self.wfile.write(raw[:cut])
            self._hang_up()
            return
        size = -(-len(raw) // answer.plan.get("pieces", 1)) or 1
        for at in range(0, len(raw), size):
            if at:
                time.sleep(answer.plan["piece_seconds"])
            self.wfile.write(raw[at : at + size])

    def _stream(self, events: Iterator[bytes], cut: int | None) -> None:
        self._head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}, None)
        left = cut
        for event in events:
            sent = event if left is None else event[:left]
            self.wfile.write(f"{len(sent):x}\r\n".encode() + sent + b"\r\n")
            if left is not None and (left := left - len(event)) <= 0:
                self._hang_up()
                return
        self.wfile.write(b"0\r\n\r\n")

    def _head(self, status: int, headers: dict[str, str], raw: bytes | None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if raw is not None:
            self.send_header("Content-Length", str(len(raw)))
        self.send_header("x-request-id", "req_planned")
        self.end_headers()

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    PatientProvider(path=Path(sys.argv[1]) / "provider.sqlite", port=int(sys.argv[2])).serve()
