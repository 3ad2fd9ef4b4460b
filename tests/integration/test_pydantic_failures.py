"""A pydantic-ai tool that raises in a real worker: what a service and an operator see, and a retry after the repair."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic_ai.exceptions import AgentRunError

from celery_agents import durable

from support import fork_server
from support.lab import Lab
from support.pydantic_raising import till

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path / "lab", agents="support.pydantic_raising") as started:
        started.worker()
        yield started


def test_a_failed_call_is_found_and_made_again_by_the_commands_for_failed_sessions(lab: Lab, tmp_path: Path) -> None:
    job = lab.client.submit("till", "pay", metadata={"folder": str(tmp_path)})
    result = job.result(timeout=60)
    assert (result.status, result.stop_reason) == ("failed", "error")
    assert result.errors == ("ConnectionError: the till does not answer, password=[redacted]",)
    assert [each.session_id for each in lab.client.list(status="failed")] == [job.session_id]
    (tmp_path / "repaired").touch()
    command = [
        sys.executable,
        "-m",
        "celery_agents",
        "retry",
        "--failed",
        "--agent",
        "till",
        "--redis-url",
        lab.store_url,
    ]
    done = fork_server.run(command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.session_id in done.stdout
    result = job.result(timeout=60)
    assert (result.status, result.final_response) == ("completed", '{"pay":"paid"}')
    keys = (tmp_path / "keys").read_text().split()
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_a_durable_run_raises_what_the_tool_has_said(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(AgentRunError, match="the till does not answer"):
        asyncio.run(durable(till, lab.client).run("pay", metadata={"folder": str(tmp_path)}))
