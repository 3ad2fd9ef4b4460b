"""Every program and every command of docs/schedules.md, in their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_agents import AgentClient

from support.documents import read_document
from support.page_runs import run_commands, run_programs

PAGE = read_document("docs/schedules.md")

pytestmark = [
    pytest.mark.filterwarnings("ignore:no worker has registered"),
    pytest.mark.leaves_keys("a run is submitted"),
]


def test_the_programs_do_what_the_page_says(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_AGENTS_REDIS_URL", redis_url)
    told = run_programs(PAGE, tmp_path)
    assert told == {"nightly.py": "nightly 0\n", "agents.py": ""}


def test_the_commands_do_what_the_page_says(redis_url: str) -> None:
    said = run_commands(PAGE, redis_url)
    assert "0 2 * * * Europe/Berlin" in said["celery-agents schedules"]
    assert said["celery-agents schedules remove nightly"] == "removed\n"
    with AgentClient(redis_url) as client:
        assert client.schedules.list() == ()
