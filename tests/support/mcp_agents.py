"""Agents of which some tools are those of MCP servers; the message is the plan, as with `support.agents`.

`TEST_MCP_URL` is the address of an HTTP server, `TEST_MCP_LEDGER` the file of the server that each worker starts.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import Approvals, Rule
from celery_agents.worker.mcp import MCPServer

from .agents import _follow, keyed, pure

URL = os.environ.get("TEST_MCP_URL", "http://127.0.0.1:9/mcp")
SHORT = timedelta(seconds=2)

LEDGER = os.environ.get("TEST_MCP_LEDGER", os.devnull)
TESTS = str(Path(__file__).resolve().parents[1])

over_stdio = MCPServer(
    command=[sys.executable, "-m", "support.mcp_server", "stdio", LEDGER],
    name="s",
    cwd=TESTS,
    trust="annotations",
)
over_http = MCPServer(URL, name="h", trust="annotations", connect_timeout=SHORT, list_for=timedelta(minutes=10))

ledgers = Agent("ledgers", driver=_follow, tools=(pure, keyed), mcp=[over_stdio, over_http])
untrusted = Agent("untrusted", driver=_follow, mcp=[MCPServer(URL, name="u", only=["look", "put_*"])])
impatient = Agent(
    "impatient",
    driver=_follow,
    mcp=[MCPServer(URL, name="i", trust="annotations", patience=SHORT, connect_timeout=SHORT)],
)
careful = Agent(
    "careful",
    driver=_follow,
    mcp=[MCPServer(URL, name="c", trust="annotations")],
    capabilities=[Approvals([Rule(destructive=True)])],
)
legacy = Agent(
    "legacy",
    driver=_follow,
    mcp=[MCPServer(command=[sys.executable, "-m", "support.mcp_legacy_server", LEDGER], name="old", cwd=TESTS)],
)
stuck = Agent(
    "stuck",
    driver=_follow,
    mcp=[MCPServer(os.environ.get("TEST_STUCK_URL", URL), name="stuck", connect_timeout=timedelta(seconds=1))],
)
brief = Agent(
    "brief",
    driver=_follow,
    mcp=[
        MCPServer(
            command=[sys.executable, "-S", "-m", "support.mcp_legacy_server", LEDGER],
            name="brief",
            cwd=TESTS,
            idle=timedelta(seconds=0.5),
        )
    ],
)
of_the_older_protocol = [sys.executable, "-S", "-m", "support.mcp_legacy_server", LEDGER]
many = Agent(
    "many",
    driver=_follow,
    mcp=[
        *(MCPServer(URL, name=f"m{n}", only=["look"]) for n in range(10)),
        *(MCPServer(command=of_the_older_protocol, name=f"m{n}", cwd=TESTS, only=["grow"]) for n in range(10, 20)),
    ],
)
plain = Agent("planned", driver=_follow, tools=(pure, keyed))
