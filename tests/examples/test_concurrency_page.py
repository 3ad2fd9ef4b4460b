"""Every program and every command of docs/concurrency.md, in their order."""

from __future__ import annotations

import runpy
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from celery_agents import AgentClient
from celery_agents.flow import ConcurrencyLimit
from celery_agents.tasks.cli.program import program

from support.documents import read_document

PAGE = read_document("docs/concurrency.md")


@pytest.mark.filterwarnings("ignore:no worker has registered")
def test_the_programs_do_what_the_page_says(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CELERY_AGENTS_REDIS_URL", redis_url)
    PAGE.write(tmp_path)
    told: dict[str, str] = {}
    for name in PAGE.files:
        runpy.run_path(str(tmp_path / name))
        told[name] = capsys.readouterr().out
    assert told == {"crm_agents.py": "", "two_at_a_time.py": PAGE.outputs[0]}


def test_the_commands_do_what_the_page_says(redis_url: str) -> None:
    said: dict[str, str] = {}
    for line in PAGE.commands:
        done = CliRunner().invoke(program, [*shlex.split(line)[1:], "--redis-url", redis_url])
        assert done.exit_code == 0, f"{line}: {done.output}"
        said[line] = done.stdout
    assert "20 in all, 2 for each customer" in said["celery-agents concurrency"]
    assert said["celery-agents concurrency remove crm"] == "removed\n"
    with AgentClient(redis_url) as client:
        assert client.concurrency.list() == ()
        assert client.concurrency.get("crm") is None
        client.concurrency.set(ConcurrencyLimit("crm", total=1))
        assert client.concurrency.get("crm") is not None
