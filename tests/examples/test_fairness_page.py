"""Every program and every command of docs/fairness.md, in their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.documents import read_document
from support.page_runs import run_commands, run_programs

PAGE = read_document("docs/fairness.md")


@pytest.mark.filterwarnings("ignore:no worker has registered")
def test_the_programs_do_what_the_page_says(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_AGENTS_REDIS_URL", redis_url)
    assert run_programs(PAGE, tmp_path) == {"shares.py": "customer {'acme': 2.0} ()\n"}


def test_the_commands_do_what_the_page_says(redis_url: str) -> None:
    said = run_commands(PAGE, redis_url)
    assert said["celery-agents shares"].startswith("slots are shared by customer (acme 2), as ")
    assert said["celery-agents shares remove"] == "removed\n"
