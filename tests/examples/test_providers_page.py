"""Every program and every command of docs/providers.md, in their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_agents import AgentClient
from celery_agents.worker.engine.flow_texts import HELD, bucket_state

from support.documents import ROOT, read_document
from support.page_runs import run_commands, run_programs

PAGE = read_document("docs/providers.md")
TEXT = (ROOT / "docs" / "providers.md").read_text(encoding="utf-8")


def test_the_programs_do_what_the_page_says(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_AGENTS_REDIS_URL", redis_url)
    told = run_programs(PAGE, tmp_path)
    assert told["bank.py"] == PAGE.outputs[0]
    assert "rpm=500.0" in told["limits.py"]
    assert told["careful.py"] == told["desks.py"] == ""
    with AgentClient(redis_url) as client:
        assert (client.pauses(), client.limits.list()) == ((), ())


def test_the_commands_do_what_the_page_says(redis_url: str) -> None:
    said = run_commands(PAGE, redis_url)
    assert "500 requests a minute (as it was set), 200 000 tokens a minute" in said["celery-agents limits"]
    assert said["celery-agents limits remove openai:gpt-5-mini"] == "removed\n"
    assert "the bank is down" in said["celery-agents pauses"]
    assert said["celery-agents unpause tool refund"] == "unpaused\n"
    with AgentClient(redis_url) as client:
        groups = {each.limit.group for each in client.limits.list() if each.limit is not None}
        assert groups == {"support", "batch"}
        for group in groups:
            client.limits.remove("openai:gpt-5-mini", group)


@pytest.mark.parametrize("state", [*HELD, "open", "slow"])
def test_the_page_has_every_state(state: str) -> None:
    assert f"| `{state}` |" in TEXT
    assert f'"{state}"' in (bucket_state.__doc__ or "")
