"""Every program and every command of docs/caps.md, in their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_agents import AgentClient

from support.documents import read_document
from support.page_runs import run_commands, run_programs

PAGE = read_document("docs/caps.md")


def test_the_programs_do_what_the_page_says(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_AGENTS_REDIS_URL", redis_url)
    assert run_programs(PAGE, tmp_path) == {"caps.py": "customers 20.0 day []\nresearch 500.0 month []\n"}
    with AgentClient(redis_url) as client:
        assert client.caps.remove("research")


def test_the_commands_do_what_the_page_says(redis_url: str) -> None:
    said = run_commands(PAGE, redis_url)
    assert "20 $ a day for each customer (acme 100 $), then wait" in said["celery-agents caps"]
    assert said["celery-agents caps remove customers"] == "removed\n"
