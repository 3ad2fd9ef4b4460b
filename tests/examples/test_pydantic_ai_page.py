"""The programs of the page about agents of pydantic-ai."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery_agents import AgentClient

from support.documents import read_document


def test_the_pages_agent_finds_the_refund(tmp_path: Path, redis_url: str, new_worker: Any) -> None:
    read_document("docs/pydantic-ai.md").write(tmp_path)
    new_worker(agents="helpdesk_agents", env={"PYTHONPATH": str(tmp_path)})
    client = AgentClient(redis_url)
    job = client.submit("helpdesk", "Where is my refund?", metadata={"customer": "Ada"})
    result = job.result(timeout=60)
    assert "The refund of Ada was sent on Monday." in result.final_response
