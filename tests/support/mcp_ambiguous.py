"""An MCP server over HTTP that does what a call wants, and then fails to say so in the way that a test names."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .local_server import LocalServer, QuietHandler

Way = Callable[["_Handler", Any], None]


class AmbiguousServer:
    """A server with one tool, `put`, whose calls are answered in the given ways, in order; the last one stays.

    Attributes:
        keys: The idempotency keys of the calls that had their effect, in order.
    """

    def __init__(self, *ways: str) -> None:
        self.keys: list[str] = []
        self._ways = list(ways)
        outer = self

        class Handler(_Handler):
            server_of = outer

        self._server = LocalServer(Handler)
        self.url = f"{self._server.url}/mcp"

    def next_way(self) -> Way:
        """How the next call is answered."""
        return WAYS[self._ways.pop(0) if len(self._ways) > 1 else self._ways[0]]

    def close(self) -> None:
        self._server.close()


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    server_of: AmbiguousServer

    def do_GET(self) -> None:
        self.say(405, "text/plain", b"")

    do_DELETE = do_GET

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method = asked["method"]
        if "id" not in asked:
            return self.say(202, "text/plain", b"")
        if method == "initialize":
            version = asked["params"]["protocolVersion"]
            info = {"name": "ambiguous", "version": "1"}
            return self.answer(asked, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
        if method == "tools/list":
            return self.answer(asked, {"tools": [{"name": "put", "inputSchema": {"type": "object"}}]})
        if method != "tools/call":
            return self.fail(asked, -32601, "Method not found")
        return self.server_of.next_way()(self, asked)

    def answer(self, asked: Any, result: Any) -> None:
        body = {"jsonrpc": "2.0", "id": asked["id"], "result": result}
        self.say(200, "application/json", json.dumps(body).encode())

    def fail(self, asked: Any, code: int, message: str) -> None:
        body = {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": code, "message": message}}
        self.say(200, "application/json", json.dumps(body).encode())

    def say(self, status: int, kind: str, body: bytes, *, missing: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) + missing))
        self.end_headers()
        self.wfile.write(body)

    def break_off(self) -> None:
        self.say(200, "application/json", b'{"jsonrpc": "2.0", "id"', missing=100)
        self.close_connection = True

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def do(self, asked: Any) -> None:
        """Have the effect of the call."""
        self.server_of.keys.append(asked["params"]["_meta"]["celery-agents/idempotency-key"])


def _after(then: Callable[[_Handler, Any], Any]) -> Way:
    """The effect, and then this in the place of its result."""

    def run(handler: _Handler, asked: Any) -> None:
        handler.do(asked)
        then(handler, asked)

    return run


def _say(status: int, kind: str = "text/html", body: bytes = b"<html>") -> Way:
    return lambda handler, _: handler.say(status, kind, body)


SILENT: dict[str, Way] = {
    "hangs up": _after(lambda handler, _: handler.hang_up()),
    "half an answer": _after(lambda handler, _: handler.break_off()),
    **{f"HTTP {status}": _after(_say(status)) for status in (408, 500, 502, 503, 504, 507, 520, 524, 529)},
    "HTTP 500 as JSON": _after(_say(500, "application/json", b'{"title": "Internal"}')),
    "HTTP 522 as JSON": _after(_say(522, "application/json", b'{"title": "Timed out"}')),
    "a page": _after(_say(200)),
    "nothing": _after(_say(202, body=b"")),
    "no content": _after(_say(204, body=b"")),
    "no JSON": _after(_say(200, "application/json", b"<html>")),
    "another protocol": _after(_say(200, "application/json", b'{"ok": true}')),
    "a result of another kind": _after(lambda handler, asked: handler.answer(asked, {"content": 5})),
    "a stream without an end": _after(_say(200, "text/event-stream", b": hello\n\n")),
    "a stream of no messages": _after(_say(200, "text/event-stream", b"data: {}\n\n")),
}
"""What leaves open whether a call was carried out; here it was."""

FAILING: dict[str, Way] = {
    "an error of the protocol": lambda handler, asked: handler.fail(asked, -32603, "it is broken"),
    "an error of its own": lambda handler, asked: handler.fail(asked, -32000, "Order 7 is not known"),
    "another error of its own": lambda handler, asked: handler.fail(asked, -32001, "Session not found"),
    "HTTP 400": _say(400),
    "HTTP 403": _say(403),
    "HTTP 404": _say(404),
    "HTTP 405": _say(405),
}
"""What says that this try failed, and nothing of an earlier one."""

WAYS: dict[str, Way] = {
    **SILENT,
    **FAILING,
    "HTTP 429": _say(429),
    "done": _after(lambda handler, asked: handler.answer(asked, {"content": [{"type": "text", "text": "done"}]})),
    "failed": lambda handler, asked: handler.answer(
        asked, {"content": [], "structuredContent": {"code": "RATE_LIMITED"}, "isError": True}
    ),
}
