"""The example of a long task: two of its workers are killed, and its plan and notes are shown while they grow."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from celery_agents import AgentClient

from support.documents import ROOT
from support.wait import wait_until

RESEARCH = ROOT / "examples" / "long_research"
SOURCES = 56
STEPS = 60

pytestmark = pytest.mark.timeout(150)


class Research:
    """Workers of the example, its services, and its watcher.

    Attributes:
        killed: Model calls that were in flight at a kill can be paid for again; one for each killed worker.
    """

    def __init__(self, new_worker: Any, ledger: Any, folder: Path, redis_url: str, **environment: str) -> None:
        self.new_worker, self.ledger, self.folder, self.redis_url = new_worker, ledger, folder, redis_url
        url = f"{ledger.url}/effect"
        self.environment = {
            "PYTHONPATH": None, "LIBRARY_URL": url, "MODEL_URL": url, "CELERY_AGENTS_LEASE_SECONDS": "2",
            "CELERY_AGENTS_LEASE_RENEW_SECONDS": "0.3", **environment,
        }  # fmt: skip
        for number in (1, 2, 3):
            shutil.copytree(RESEARCH, folder / f"worker-{number}")

    def worker(self) -> Any:
        return self.new_worker(agents="long_research_agent", env=self.environment)

    def watch(self, session: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(RESEARCH / "watch_research.py"), session]
        environment = {"CELERY_AGENTS_REDIS_URL": self.redis_url, "PYTHONPATH": str(ROOT.parent)}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    def entries(self, *kinds: str) -> list[dict[str, Any]]:
        return [entry for entry in self.ledger.entries() if not kinds or entry["kind"] in kinds]

    def paid(self) -> Counter[str]:
        """How often each answer of the model was paid for."""
        return Counter(entry["key"] for entry in self.entries("step", "Reflection.note", "Summarization"))


def test_a_plan_and_its_notes_outlive_two_workers_and_nothing_is_paid_for_twice(
    new_worker: Any, ledger: Any, tmp_path: Path, redis_url: str
) -> None:
    research = Research(new_worker, ledger, tmp_path, redis_url)
    worker = research.worker()
    with AgentClient(redis_url) as client:
        job = client.submit("long_research", "What do the sources say about the tides?", session_id="tides")
        watching = research.watch("tides")
        for sources in (15, 35):
            wait_until(lambda: len(research.entries("source")) >= sources, f"{sources} sources are read", 60)  # noqa: B023
            worker.kill()
            worker = research.worker()
        result = job.result(timeout=90)
        state = client.show("tides").state
    printed = watching.communicate(timeout=30)[0]
    assert (result.status, state.step_count) == ("completed", STEPS)
    assert result.final_response.startswith(
        f"I read {SOURCES} sources and made {STEPS - 1} notes. tide at station 20: 3"
    )

    # The plan and the notes, as they were shown and as they are stored.
    assert [int(each) for each in re.findall(r"^plan (\d+):", printed, re.MULTILINE)] == [1, 2, 3, 4, 5]
    assert [int(each) for each in re.findall(r"^note (\d+):", printed, re.MULTILINE)] == list(range(1, STEPS))
    assert [each.turn for each in state.smart.reflections] == list(range(1, STEPS))
    assert state.smart.plan is not None
    assert (state.smart.plan_version, state.smart.plan.adherence_score) == (5, 1.0)
    assert printed.count("\nsummary: ") == len(state.smart.summaries) > 2
    assert printed.splitlines()[-1].startswith(f"completed after {STEPS} steps for ${state.cost:.2f}: I read")
    assert len(state.smart.messages) > STEPS * 2, "no message has left the session"

    # Each answer was paid for once, but for one that a killed worker had asked for and not journaled.
    paid = research.paid()
    again = {key: times for key, times in paid.items() if times > 1}
    assert len(again) <= 2
    assert all(times == 2 for times in again.values()), again
    assert state.cost == len(paid) / 64
    assert max(entry["chars"] for entry in research.entries("step")) <= 4 * 1_500


def test_the_limit_of_dollars_ends_it_with_what_it_has(
    new_worker: Any, ledger: Any, tmp_path: Path, redis_url: str
) -> None:
    research = Research(new_worker, ledger, tmp_path, redis_url, RESEARCH_MAX_USD="0.25")
    research.worker()
    with AgentClient(redis_url) as client:
        result = client.submit("long_research", "And for a quarter?", session_id="cheap").result(timeout=60)
        state = client.show("cheap").state
    assert (result.status, result.stop_reason) == ("stopped", "cost_limit")
    assert state.cost == 0.25
    assert len(research.paid()) == 16
    assert state.smart.plan_version is not None
    assert len(state.smart.reflections) >= 3
