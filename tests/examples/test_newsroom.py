"""The example of agents that call agents: its workers die while the tree works, and the publisher is asked at the root."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from celery_agents import AgentClient
from celery_agents.tasks.cli.program import program

from support.documents import ROOT
from support.wait import wait_until

NEWSROOM = ROOT / "examples" / "newsroom"
ARTICLE = "Three articles about tides; three articles about whales; a photo of the sea."


def test_an_edition_is_written_once_though_each_worker_is_killed_and_the_publisher_pays_once(
    new_worker: Any, ledger: Any, tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{ledger.url}/effect"
    environment = {"PYTHONPATH": None, "ARCHIVE_URL": url, "LICENCES_URL": url}
    for number in (1, 2, 3):
        shutil.copytree(NEWSROOM, tmp_path / f"worker-{number}")
    worker = new_worker(agents="newsroom_agents", env=environment)
    with AgentClient(redis_url) as client:
        job = client.submit("editor", "Write about the sea.", session_id="edition-1")
        wait_until(lambda: len(ledger.entries()) == 2, "the researchers have read", 30)
        wait_until(lambda: bool(client.requests(to="publisher").requests), "the publisher is asked", 30)
        wait_until(lambda: client.header("edition-1").status == "waiting", "the editor waits", 30)
        worker.kill()
        monkeypatch.setenv("CELERY_AGENTS_REDIS_URL", redis_url)
        approved = CliRunner().invoke(program, ["approve", "edition-1", "--by", "publisher"])
        assert approved.exit_code == 0, approved.output

        worker = new_worker(agents="newsroom_agents", env=environment)
        result = job.result(timeout=60)
        assert (result.status, result.final_response) == ("completed", ARTICLE)
        assert client.show("edition-1").state.context.metadata["topics"] == ("tides", "whales")
        agents = [node.header.agent for node in client.tree("edition-1").walk()]
        assert sorted(agents) == ["editor", "photographer", "proofreader", "researcher", "researcher"]
    # A call that was cut off is made again, with the key by which the service recognises it.
    paid = {entry["key"]: entry.get("topic") or entry["subject"] for entry in ledger.entries()}
    assert sorted(paid.values()) == ["the sea", "tides", "whales"]
