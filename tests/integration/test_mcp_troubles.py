"""Sentences about servers that cannot be used, with real sockets and commands: nobody there, no MCP, no entry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import timedelta

import pytest

from celery_agents.worker.mcp import MCPServer, ServerConnections
from celery_agents.worker.mcp.outages import ServerAway

from support.local_server import LocalServer, QuietHandler

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
