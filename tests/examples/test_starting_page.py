"""Every program and every command of docs/starting.md, in their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.documents import read_document
from support.page_runs import run_commands, run_programs

PAGE = read_document("docs/starting.md")

pytestmark = [
    pytest.mark.filterwarnings("ignore:no worker has registered"),
    pytest.mark.leaves_keys("jobs are submitted, and there is no worker"),
]


def test_the_programs_and_the_command_do_what_the_page_says(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERY_AGENTS_REDIS_URL", redis_url)
    told = run_programs(PAGE, tmp_path)
    assert told == {"later.py": "pending\n", "pushes.py": "starts\njoins\njoins\n", "expiring.py": "True\n"}
    (said,) = run_commands(PAGE, redis_url).values()
    assert said.startswith("session ")
