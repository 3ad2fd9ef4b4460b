"""A real HTTP server that lets nobody in without a token, and agents that know it in different ways.

`TEST_GUARDED_URL` is its address. `TEST_TOKEN_FILE` holds the token that functions give; without it the "vault" is down.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2

from celery_agents.worker.agent import Agent
from celery_agents.worker.mcp import MCPServer
from celery_agents.worker.state import AgentState

from .agents import _follow
from .local_server import LocalServer, QuietHandler
from .mcp_hostile import answer, tool

URL = os.environ.get("TEST_GUARDED_URL", "http://127.0.0.1:9")
TOKEN = "the-token-that-opens-the-door"
VAULT = Path(os.environ.get("TEST_TOKEN_FILE", os.devnull))


class GuardedServer(LocalServer):
    """Answers 401 without the token. Its tool says what it was shown; below `/strict` each call is answered with 403."""

    def __init__(self) -> None:
        self.calls = 0
        guarded = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._reply(405)

            do_DELETE = do_GET

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                shown = self.headers.get("Authorization") or f"Bearer {self.headers.get('X-Api-Key')}"
                if shown != f"Bearer {TOKEN}":
                    return self._reply(401, {"error": "invalid_token"})
                if "id" not in request:
                    return self._reply(202)
                if request["method"] == "tools/list":
                    return self._reply(200, _answered(request, {"tools": [tool()], "ttlMs": 0}))
                if request["method"] != "tools/call":
                    return self._reply(200, answer(request, ""))
                guarded.calls += 1
                if self.path.startswith("/strict"):
                    return self._reply(403, {"error": "insufficient_scope"})
                return self._reply(200, _answered(request, {"content": [{"type": "text", "text": f"saw {shown}"}]}))

            def _reply(self, status: int, body: Any = None) -> None:
                text = b"" if body is None else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        super().__init__(Handler)


def _answered(request: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


class TokenAuth(httpx2.Auth):
    """Shows the token that it was made with."""

    def __init__(self, token: str) -> None:
        self.token = token

    def auth_flow(self, request: httpx2.Request) -> Iterator[httpx2.Request]:  # type: ignore[override]
        request.headers["Authorization"] = f"Bearer {self.token}"
        yield request


def from_vault(_: AgentState) -> str:
    """The token in the file, a moment later."""
    time.sleep(0.1)
    return VAULT.read_text()


async def from_vault_async(_: AgentState) -> dict[str, str]:
    """The same as a header of another name."""
    await asyncio.sleep(0.1)
    return {"X-Api-Key": VAULT.read_text()}


def _agent(name: str, auth: Any, path: str = "open") -> Agent:
    server = MCPServer(
        f"{URL}/{path}/mcp", name="g", auth=auth, trust="annotations", patience=timedelta(seconds=6),
        connect_timeout=timedelta(seconds=3), list_for=timedelta(milliseconds=1),
    )  # fmt: skip
    return Agent(name, driver=_follow, mcp=[server])


by_text = _agent("by_text", TOKEN)
by_auth = _agent("by_auth", TokenAuth(TOKEN))
by_function = _agent("by_function", from_vault)
by_async_function = _agent("by_async_function", from_vault_async)
by_wrong_text = _agent("by_wrong_text", "not-the-token-of-the-door")
strict = _agent("strict", TOKEN, "strict")
