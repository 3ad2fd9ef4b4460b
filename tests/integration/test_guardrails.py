"""Guardrails of real workers that die: nothing forbidden is sent, done or shown, and no verdict is paid for twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_agents import Result
from celery_agents.tasks.client.stream_items import StreamItem
from celery_agents.worker.capabilities.guardrails.findings import REMOVED

from support.guarded_agents import USAGE
from support.lab import Lab

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore:no worker has registered")]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path / "lab", agents="support.guarded_agents") as lab:
        yield lab


def calls(lab: Lab, kind: str = "driver") -> Counter[str]:
    """How often each model call, or each effect, happened."""
    entries = [entry for entry in lab.ledger.entries() if entry["kind"] == kind]
    return Counter(entry["key"].split(":", 2)[-1] if kind == "driver" else entry["key"] for entry in entries)


def ended(lab: Lab, agent: str, text: str, crash: str) -> Result:
    """The result of a job whose first worker dies at a point, and whose second goes on."""
    doomed = lab.worker(wait=False, crash=crash)
    job = lab.client.submit(agent, text, session_id="guarded")
    doomed.wait(60)
    lab.worker()
    return job.result(timeout=60)


@pytest.mark.parametrize("point", ["c3", pytest.param("c7", marks=pytest.mark.long)])
def test_a_worker_that_dies_pays_for_no_verdict_twice(lab: Lab, point: str) -> None:
    result = ended(lab, "asks_first", "allowed", f"{point}:1:1")
    assert (result.status, result.final_response) == ("completed", "This is allowed.")
    assert calls(lab) == {
        "1:Guardrails.judge.1.request.0": 1, "1:": 1, "2:Guardrails.judge.1.request.2": 1, "2:": 1,
    }  # fmt: skip
    assert lab.client.show("guarded").state.usage.total == 4 * USAGE.total
    assert len(calls(lab, "effect")) == 1


@pytest.mark.parametrize("point", ["c7", pytest.param("c8", marks=pytest.mark.long)])
def test_a_blocked_request_is_never_sent_whoever_finds_it(lab: Lab, point: str) -> None:
    result = ended(lab, "asks_first", "forbidden", f"{point}:1:1")
    assert (result.status, result.stop_reason) == ("stopped", "stop_requested")
    assert "it is about something forbidden" in result.final_response
    assert calls(lab) == {"1:Guardrails.judge.1.request.0": 1}
    lab.client.send_message("guarded", "and now?")
    job = lab.client.job("guarded")
    assert job.result(timeout=60).status == "stopped", "the result of its tool names the word again"
    sent = lab.client.show("guarded").state.smart
    assert sent.messages[0].content == "forbidden"
    assert REMOVED not in [each.content for each in sent.messages]


@pytest.mark.parametrize("point", ["c3", pytest.param("c7", marks=pytest.mark.long)])
def test_a_blocked_answer_is_shown_to_nobody(lab: Lab, point: str) -> None:
    seen: list[StreamItem] = []
    doomed = lab.worker(wait=False, crash=f"{point}:1:1")
    job = lab.client.submit("asks_after", "forbidden", session_id="guarded")
    doomed.wait(60)
    lab.worker()
    seen += job.stream(timeout=60)
    result = job.result(timeout=10)
    assert result.status == "stopped"
    assert "This is forbidden" not in result.final_response + repr([(each.delta, each.event) for each in seen])
    assert not any(entry["emits"] for entry in lab.ledger.entries() if entry["kind"] == "driver")
    verdicts = {key: times for key, times in calls(lab).items() if "Guardrails" in key}
    assert verdicts == {"1:Guardrails.judge.1.response.0": 1, "2:Guardrails.judge.1.response.0": 1}
    (incident,) = lab.client.show("guarded").state.smart.guardrail_result.incidents
    assert incident.original == "This is forbidden."
