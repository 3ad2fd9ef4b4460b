"""Every program and every command of docs/concurrency.md, in their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_agents import AgentClient
from celery_agents.flow import ConcurrencyLimit

from support.documents import read_document
from support.page_runs import run_commands, run_programs

PAGE = read_document("docs/concurrency.md")


@pytest.mark.filterwarnings("ignore:no worker has registered")
def test_the_programs_do_what_the_page_says(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_AGENTS_REDIS_URL", redis_url)
    told = run_programs(PAGE, tmp_path)
    assert told == {"crm_agents.py": "", "two_at_a_time.py": PAGE.outputs[0]}


def test_the_commands_do_what_the_page_says(redis_url: str) -> None:
    said = run_commands(PAGE, redis_url)
    assert "20 in all, 2 for each customer" in said["celery-agents concurrency"]
    assert said["celery-agents concurrency remove crm"] == "removed\n"
    with AgentClient(redis_url) as client:
        assert client.concurrency.list() == ()
        assert client.concurrency.get("crm") is None
        client.concurrency.set(ConcurrencyLimit("crm", total=1))
        assert client.concurrency.get("crm") is not None
