"""Servers that do all they can to a worker: over HTTP, where the path says how, and over standard streams.

python -m support.mcp_hostile MODE
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from .local_server import LocalServer, QuietHandler

MEGABYTE = b"x" * 1_000_000
SLOW = "^(a+)+$"
SCHEMA = {"type": "object", "properties": {"x": {"type": "string", "pattern": SLOW}}}
MANY_VALUES = ",".join(['{"":0}'] * 130_000)


def tool(name: str = "go", **fields: Any) -> dict[str, Any]:
    return {"name": name, "description": "d", "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}, **fields}


def tools(mode: str) -> list[dict[str, Any]]:
    """The list of tools in a mode."""
    if mode == "many-tools":
        return [tool(f"t{number:05d}") for number in range(4_000)] + [tool()]
    if mode == "long-description":
        return [tool(description="d" * 700_000)]
    if mode == "output-schema":
        return [tool(outputSchema={"type": "object", "properties": {"x": {"type": "string", "pattern": SLOW}}})]
    return [tool()]


def answer(request: dict[str, Any], mode: str) -> dict[str, Any] | None:
    """The answer to a request; None for the call of a tool, whose answer depends on the way."""
    head = {"jsonrpc": "2.0", "id": request.get("id")}
    match request["method"]:
        case "initialize":
            info = {"name": "hostile", "version": "1"}
            version = request["params"]["protocolVersion"]
            return {**head, "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
        case "tools/list":
            return {**head, "result": {"tools": tools(mode), "ttlMs": 0}}
        case "tools/call":
            return None
        case _:
            return {**head, "error": {"code": -32601, "message": "no"}}


def result(request: dict[str, Any], **fields: Any) -> bytes:
    """The answer to a call."""
    body = {"content": [{"type": "text", "text": "went"}], **fields}
    return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": body}).encode()


def called(request: dict[str, Any], mode: str) -> Iterator[bytes]:
    """The answer to a call, in pieces."""
    head = b'{"jsonrpc":"2.0","id":%d,"result":' % request["id"]
    if mode == "endless":
        yield head + b'{"content":[{"type":"text","text":"'
        for _ in range(100):
            yield MEGABYTE
        yield b'"}]}}'
    elif mode == "many-values":
        yield head + b'{"content":[],"structuredContent":{"result":[' + MANY_VALUES.encode() + b"]}}}"
    elif mode == "output-schema":
        yield result(request, structuredContent={"x": "a" * 40 + "!"})
    else:
        yield result(request)


def question() -> bytes:
    """A question of half a megabyte."""
    form = {"type": "object", "properties": {"x": {"type": "string", "pattern": SLOW}}}
    params = {"message": "q" * 500_000, "requestedSchema": form, "mode": "form"}
    return json.dumps({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": params}).encode()


def notes() -> Iterator[bytes]:
    """Log messages without end."""
    note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 200}}
    while True:
        yield json.dumps(note).encode()


class HostileServer(LocalServer):
    """The HTTP server; the first part of the path is the mode, with `sse-` before it for an answer by events."""

    def __init__(self) -> None:
        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._empty(405)

            do_DELETE = do_GET

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if "id" not in request:
                    return self._empty(202)
                mode = self.path.split("/")[1]
                kind = mode.removeprefix("sse-")
                body = answer(request, kind)
                pieces = called(request, kind) if body is None else iter([json.dumps(body).encode()])
                with contextlib.suppress(OSError):
                    self._send(pieces, is_stream=mode != kind, flood=kind == "flood" and body is None)
                return None

            def _empty(self, status: int) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def _send(self, pieces: Iterator[bytes], *, is_stream: bool, flood: bool) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream" if is_stream else "application/json")
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                if flood:
                    until = time.monotonic() + 8
                    for note in notes():
                        self.wfile.write(b"data: " + note + b"\n\n")
                        if time.monotonic() > until:
                            break
                self.wfile.write(b"data: " if is_stream else b"")
                for piece in pieces:
                    self.wfile.write(piece)
                self.wfile.write(b"\n\n" if is_stream else b"")

        super().__init__(Handler)


def run_stdio(mode: str) -> None:
    """Serve over standard streams."""
    out = sys.stdout.buffer
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request or "method" not in request:
            continue
        body = answer(request, mode)
        if body is None and mode == "flood":
            threading.Thread(target=_flood, args=(request,), daemon=True).start()
            continue
        if body is None and mode == "questions":
            for number in range(10_000):
                ask = {"jsonrpc": "2.0", "id": f"q{number}", "method": "elicitation/create", "params": {}}
                out.write(json.dumps(ask).encode() + b"\n")
        if body is None and mode == "long-question":
            out.write(question() + b"\n")
            out.flush()
            sys.stdin.readline()
        if body is None and mode == "log":
            for _ in range(200):
                sys.stderr.write("y" * 1_000_000 + "\nshort\n")
        for piece in called(request, mode) if body is None else [json.dumps(body).encode()]:
            out.write(piece)
        out.write(b"\n")
        out.flush()


def _flood(request: dict[str, Any]) -> None:
    out, until = sys.stdout.buffer, time.monotonic() + 8
    for note in notes():
        out.write(note + b"\n")
        if time.monotonic() > until:
            break
    out.write(result(request) + b"\n")
    out.flush()


if __name__ == "__main__":
    run_stdio(sys.argv[1])
