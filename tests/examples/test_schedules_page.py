"""Every program and every command of docs/schedules.md, in their order."""

from __future__ import annotations

import runpy
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from celery_agents import AgentClient
from celery_agents.tasks.cli.program import program

from support.documents import read_document

PAGE = read_document("docs/schedules.md")

pytestmark = [
    pytest.mark.filterwarnings("ignore:no worker has registered"),
    pytest.mark.leaves_keys("a run is submitted"),
]


def test_the_programs_do_what_the_page_says(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CELERY_AGENTS_REDIS_URL", redis_url)
    PAGE.write(tmp_path)
    told: dict[str, str] = {}
    for name in PAGE.files:
        told[name] = ""
        runpy.run_path(str(tmp_path / name))
        told[name] = capsys.readouterr().out
    assert told == {"nightly.py": "nightly 0\n", "agents.py": ""}


def test_the_commands_do_what_the_page_says(redis_url: str) -> None:
    said: dict[str, str] = {}
    for line in PAGE.commands:
        done = CliRunner().invoke(program, [*shlex.split(line)[1:], "--redis-url", redis_url])
        assert done.exit_code == 0, f"{line}: {done.output}"
        said[line] = done.stdout
    assert "0 2 * * * Europe/Berlin" in said["celery-agents schedules"]
    assert said["celery-agents schedules remove nightly"] == "removed\n"
    with AgentClient(redis_url) as client:
        assert client.schedules.list() == ()
