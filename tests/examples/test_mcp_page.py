"""The programs of the page about MCP servers: its server, and its agent with a model in place of the provider's."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from celery_agents import AgentClient, Approve

from support.documents import ROOT, read_document
from support.processes import Process, free_port
from support.wait import wait_until

# The page's agent asks a provider; here a script answers, with the page's server and rules.
AGENT = """
from celery_agents import Agent, CallTool
from crm_agents import desk

steps = [CallTool("crm_create_ticket", title="Leak"), CallTool("crm_search", text="T-")]
crm = Agent("crm", driver=lambda state: steps[state.execution.step_count] if state.execution.step_count < 2 else "done",
            mcp=desk.mcp, capabilities=desk.capabilities)
"""


def test_the_pages_agent_opens_a_ticket_in_the_pages_server(tmp_path: Path, redis_url: str, new_worker: Any) -> None:
    read_document("docs/mcp.md").write(tmp_path)
    (tmp_path / "crm_script.py").write_text(AGENT)
    port = free_port()
    server = Process("crm", [sys.executable, "crm_server.py", str(port)], tmp_path, {"PYTHONPATH": None})
    server.start()
    try:
        server.wait_for_text("Uvicorn running", 30)
        environment = {"PYTHONPATH": str(tmp_path), "CRM_URL": f"http://127.0.0.1:{port}/mcp", "CRM_TOKEN": None}
        environment["OPENAI_API_KEY"] = "nobody-asks-a-provider"
        new_worker(agents="crm_script", env=environment)
        client = AgentClient(redis_url)
        job = client.submit("crm", "There is a leak.")
        assert job.result(timeout=60).status == "completed"
        texts = [step.tool_executions[0].as_message() for step in client.show(job.session_id).state.steps[:2]]
        assert texts == ["T-1: Leak", '["T-1"]']
    finally:
        server.end(patience=2.0)


def test_the_example_asks_before_it_destroys(tmp_path: Path, redis_url: str, new_worker: Any) -> None:
    example = ROOT / "examples" / "mcp_notes"
    environment = {"PYTHONPATH": str(example), "NOTES": str(tmp_path / "notes.json"), "PATH": os.environ["PATH"]}
    new_worker(agents="notes_agents", env=environment)
    client = AgentClient(redis_url)
    job = client.submit("notes", "write milk; write bread; delete milk; list")
    wait_until(lambda: bool(client.requests(job.session_id).requests), "it asks", 40)
    (asked,) = client.requests(job.session_id).requests
    assert asked.summary.tool == "notes_delete"
    client.answer(job.session_id, {asked.summary.id: Approve()}, by="reviewer")
    result = job.result(timeout=60)
    assert result.final_response == "1: bread"
