"""Agents whose servers are those of `support.mcp_hostile`; `TEST_HOSTILE_URL` is the address of the HTTP server."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

from celery_agents.worker.agent import Agent
from celery_agents.worker.mcp import MCPServer

from .agents import _follow, pure

URL = os.environ.get("TEST_HOSTILE_URL", "http://127.0.0.1:9")
TESTS = str(Path(__file__).resolve().parents[1])
OVER_HTTP = ("endless", "many-values", "many-tools", "long-description", "output-schema", "flood")
OVER_STDIO = ("endless", "many-values", "flood", "questions", "log", "long-question")


def _server(mode: str, way: str) -> MCPServer:
    if way == "stdio":
        command = [sys.executable, "-m", "support.mcp_hostile", mode]
        return MCPServer(command=command, name="s", cwd=TESTS, trust="annotations", patience=timedelta(seconds=5))
    path = f"sse-{mode}" if way == "sse" else mode
    return MCPServer(f"{URL}/{path}/mcp", name="s", trust="annotations", patience=timedelta(seconds=5))


def _agent(mode: str, way: str) -> Agent:
    name = f"{way}_{mode}".replace("-", "_")
    return Agent(name, driver=_follow, mcp=[_server(mode, way)], tool_timeout=30)


hostile = [_agent(mode, way) for way in ("json", "sse") for mode in OVER_HTTP]
hostile += [_agent(mode, "stdio") for mode in OVER_STDIO]
for _each in hostile:
    globals()[_each.name] = _each
plain = Agent("planned", driver=_follow, tools=(pure,))
