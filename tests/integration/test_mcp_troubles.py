"""Sentences about servers that cannot be used, with real sockets and commands: nobody there, no MCP, no entry."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_agents.worker.mcp import MCPServer, ServerConnections
from celery_agents.worker.mcp.outages import AnswerUnreadable, ConnectionLost, ServerAway
from celery_agents.worker.mcp.questions import RemoteCall

from support.local_server import LocalServer, QuietHandler
from support.wait import wait_until

pytestmark = pytest.mark.timeout(60)

SHORT = timedelta(seconds=2)


class Handler(QuietHandler):
    """Answers with the status in the path."""

    def do_POST(self) -> None:
        status, _, kind = self.path.strip("/").partition("/")
        body = b"<html>a page</html>"
        self.send_response(int(status))
        self.send_header("Content-Type", "application/json" if kind == "json" else "text/html")
        self.send_header("Location", "https://login.example/?token=a-token-in-an-address")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = LocalServer(Handler)
    yield server.url
    server.close()


def trouble(server: MCPServer) -> str:
    """What is said when the server is to be used."""

    async def use() -> None:
        async with ServerConnections().to(server, server.fixed_credentials).use():
            pass

    with pytest.raises(ServerAway) as caught:
        asyncio.run(use())
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/401", "refuses the credentials: HTTP 401 Unauthorized"),
        ("/403", "refuses the credentials: HTTP 403 Forbidden"),
        ("/404", "cannot be used: HTTP 404 Not Found"),
        ("/429", "is away: HTTP 429 Too Many Requests"),
        ("/503", "is away: HTTP 503 Service Unavailable"),
        ("/200", "cannot be used: it answers with HTTP 200 and text/html, which is no answer"),
        ("/200/json", "cannot be used: Failed to parse JSON response"),
        ("/302", "cannot be used: Redirect to https://login.example/ not followed"),
    ],
)
def test_an_address_says_what_is_wrong_with_it(
    url: str, path: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        text = trouble(MCPServer(url + path, name="crm", connect_timeout=SHORT))
    assert text.startswith(f"the MCP server 'crm' {said}")
    assert "a-token-in-an-address" not in text + caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://no-such-host.invalid/mcp", "is away: ConnectError"),
        ("http://127.0.0.1:9/mcp", "is away: ConnectError: All connection attempts failed"),
    ],
)
def test_an_unknown_server_is_away(address: str, said: str) -> None:
    assert f"the MCP server 'crm' {said}" in trouble(MCPServer(address, name="crm", connect_timeout=SHORT))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["false"], "is away: Connection closed"),
        (["echo", "hello"], "is away: Connection closed"),
        (["/no/such/program"], "is away: FileNotFoundError"),
        (["sleep", "60"], "is away: no answer in time"),
        (["cat"], "cannot be used: Method not found"),
    ],
)
def test_a_command_that_is_no_server_says_so(command: list[str], said: str) -> None:
    assert f"the MCP server 'crm' {said}" in trouble(MCPServer(command=command, name="crm", connect_timeout=SHORT))


@pytest.mark.parametrize("error", [PermissionError(1, "of a sandbox"), OSError(38, "of an older system")])
def test_a_system_that_watches_no_process_starts_commands_all_the_same(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(process: int, flags: int = 0) -> int:
        raise error

    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    said = trouble(MCPServer(command=["cat"], name="crm", connect_timeout=SHORT))
    assert "the MCP server 'crm' cannot be used: Method not found" in said


# Has one tool. Knows only the messages of the older protocol, and hangs when another one comes first, as servers of the
# official library of 2025 do. A call starts a child that keeps its output open, and ends the server.
OLDER = """
import json, os, subprocess, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "server/discover":
        time.sleep(60)
    if asked["method"] == "tools/call":
        subprocess.Popen(["sleep", "3"], stdin=subprocess.DEVNULL)
        os._exit(1)
    results = {
        "initialize": {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}},
        "tools/list": {"tools": [{"name": "put", "inputSchema": {"type": "object"}}]},
    }
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": results[asked["method"]]}), flush=True)
"""


def test_a_server_that_knows_the_older_protocol_only_is_used_and_is_started_again_when_it_has_died() -> None:
    server = MCPServer(command=[sys.executable, "-S", "-c", OLDER], name="crm", connect_timeout=SHORT)
    connections = ServerConnections()

    async def put() -> None:
        async with connections.to(server, server.fixed_credentials).use() as session:
            assert session.tools.names() == ("put",)
            await session.call(RemoteCall("put", {}, "key"))

    async def use() -> None:
        with pytest.raises(ServerAway, match="no answer in time"):
            await put()
        for _ in range(2):
            await asyncio.sleep(1)
            with pytest.raises(ConnectionLost):
                async with asyncio.timeout(2):
                    await put()
            with pytest.raises(ServerAway, match="no answer in time"):
                await put()
        await connections.to(server, server.fixed_credentials).close()
        await asyncio.sleep(2)  # the last child has ended

    asyncio.run(use())


class CutText(QuietHandler):
    """A server whose tool gives a text that ends in half a character, as JavaScript cuts them."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = '"a\\ud83d\\ude00\\ud83d"'
        result = {
            "tools/list": f'{{"tools": [{{"name": "put", "description": {text}, "inputSchema": {{"type": "object"}}}}]}}',
            "tools/call": f'{{"content": [{{"type": "text", "text": {text}}}]}}',
        }.get(asked["method"])
        said = f'"result": {result}' if result else '"error": {"code": -32601, "message": "Method not found"}'
        if asked["method"] == "initialize":
            about = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
            said = f'"result": {json.dumps(about)}'
        is_stream = self.path == "/sse"
        answer = f'{{"jsonrpc": "2.0", "id": {json.dumps(asked.get("id"))}, {said}}}'
        body = (f"event: message\ndata: {answer}\n\n" if is_stream else answer).encode() if "id" in asked else b""
        self.send_response(200 if body else 202)
        self.send_header("Content-Type", "text/event-stream" if is_stream else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.mark.parametrize("path", ["/json", "/sse"])
def test_a_text_that_ends_in_half_a_character_is_read(path: str) -> None:
    http = LocalServer(CutText)
    server = MCPServer(http.url + path, name="crm", connect_timeout=SHORT)

    async def use() -> None:
        connection = ServerConnections().to(server, server.fixed_credentials)
        async with connection.use() as session:
            assert session.tools.tools[0].description == "a\U0001f600\ufffd"
            assert await session.call(RemoteCall("put", {}, "key")) == "a\U0001f600\ufffd"
        await connection.close()

    try:
        asyncio.run(use())
    finally:
        http.close()


# Has one tool, whose result is what its argument says, in the words of the line that is written.
TELLS = """
import json, os, subprocess, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    given = asked.get("params", {}).get("arguments", {})
    results = {
        "initialize": {"protocolVersion": VERSION, "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}},
        "tools/list": {"tools": [{"name": "put", "inputSchema": {"type": "object"}}]},
        "tools/call": given.get("result"),
    }
    said = {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "Method not found"}}
    if asked["method"] in results:
        said = {"jsonrpc": "2.0", "id": asked["id"], "result": results[asked["method"]]}
    if "child" in given:
        child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        open(given["child"], "w").write(str(child.pid))
        os._exit(1)
    print(json.dumps([said] if given.get("is_batch") else said), flush=True)
"""


def call_told(arguments: dict[str, Any], version: str = "2025-06-18") -> object:
    """The result of a call of the tool that is told it."""
    script = TELLS.replace("VERSION", repr(version))
    server = MCPServer(command=[sys.executable, "-S", "-c", script], name="crm", connect_timeout=timedelta(seconds=20))

    async def use() -> object:
        connection = ServerConnections().to(server, server.fixed_credentials)
        try:
            async with connection.use() as session, asyncio.timeout(10):
                return await session.call(RemoteCall("put", arguments, "key"))
        finally:
            await connection.close()

    return asyncio.run(use())


ODD_RESULTS: list[tuple[dict[str, Any], object]] = [
    ({"structuredContent": {"sum": 5}}, {"sum": 5}),
    ({"content": None, "structuredContent": {"sum": 5}, "isError": None}, {"sum": 5}),
    ({"content": [{"type": "text", "text": "paid"}, {"type": "hologram", "of": "it"}]},
     "paid\n[hologram is left out: only text can be stored]"),
    ({"content": [{"type": "image", "data": "no base64"}, "plain", {"type": "text", "text": None}, {"text": "paid"}]},
     "[image is left out: only text can be stored]\nplain\n[text is left out: only text can be stored]\npaid"),
    ({"content": [{"type": "resource", "resource": {"uri": "x", "text": "paid"}}, {"type": "resource_link", "uri": "at://x"}]},
     "paid\nat://x"),
    ({"content": "paid"}, "paid"),
    ({"structuredContent": [1, 2]}, [1, 2]),
    ({"content": [], "structuredContent": 0}, 0),
    ({"structuredContent": "paid"}, "paid"),
    ({"content": {"type": "text", "text": "paid"}}, "paid"),
]  # fmt: skip


@pytest.mark.parametrize(("result", "read"), ODD_RESULTS)
def test_what_a_result_has_is_read_whatever_it_lacks(result: dict[str, Any], read: object) -> None:
    assert call_told({"result": result}) == read


def test_an_answer_in_a_batch_is_unreadable_at_once() -> None:
    with pytest.raises(AnswerUnreadable, match="no message of the protocol"):
        call_told({"result": {"content": []}, "is_batch": True})


def test_children_of_a_command_that_has_died_end_with_its_connection(tmp_path: Path) -> None:
    with pytest.raises(ConnectionLost):
        call_told({"child": str(tmp_path / "child")})
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not Path(f"/proc/{child}/cmdline").is_file() or not Path(f"/proc/{child}/cmdline").read_bytes(),
               "the child has ended", 5)  # fmt: skip
