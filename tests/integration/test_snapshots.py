"""Snapshots: taken on one Redis, resumed on another by the next version of the code; the provider sees one history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from celery_agents.tasks.cli.program import program
from celery_agents.worker.errors import InvalidInput, SessionConflict, SessionDeleted, StateTooNew
from celery_agents.worker.session.snapshots import SessionSnapshot

from support.agents import call, plan
from support.lab import Lab
from support.model_agents import KEY_NAME, PROVIDER_URL
from support.provider import Provider, calls, tool_call
from support.serve_process import ServeProcess
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore:no worker has registered")]


@pytest.fixture
def labs(tmp_path: Path, provider: Provider) -> Iterator[tuple[Lab, Lab]]:
    """Two machines, each with a Redis; the second has a later version of the agents."""
    known = {PROVIDER_URL: provider.base_url, KEY_NAME: "sk-not-a-key"}
    with ExitStack() as stack:
        one = stack.enter_context(Lab(tmp_path / "one", agents="support.model_agents,support.agents", env=known))
        two = stack.enter_context(Lab(tmp_path / "two", agents="support.next_model_agents", env=known))
        yield one, two


def messages(request: dict[str, Any]) -> list[Any]:
    return [(each["role"], each.get("content"), each.get("tool_calls")) for each in request["messages"]]


def test_an_execution_that_was_cut_off_goes_on_elsewhere_with_the_same_history(
    labs: tuple[Lab, Lab], provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = labs
    provider.plan(calls(tool_call("note", {"text": "n1"})), calls(tool_call("note", {"text": "n2"})), "the answer")
    doomed = one.worker(wait=False, crash="c1:1:1")  # dies with the claim of a step
    job = one.client.submit(
        "model", "hello", session_id="order-17", metadata={"ticket": 7, "onDone": "a.function", "on_hold": False}
    )
    doomed.wait(40)
    one.worker()
    wait_until(lambda: one.client.show("order-17").state.step_count >= 1, "a step is committed", 40)
    for worker in one.workers:
        worker.end(patience=0.5)
    taken = one.client.snapshot("order-17", tag="before the move")
    assert (taken.tag, taken.agent, taken.stripped, taken.tools) == (
        "before the move",
        "model",
        ("onDone",),
        ("leak", "note"),
    )
    file = tmp_path / "session.json"
    file.write_bytes(taken.to_json())

    two.worker()
    monkeypatch.setenv("CELERY_AGENTS_REDIS_URL", two.store_url)
    restored = CliRunner().invoke(program, ["restore", str(file)])
    assert restored.output == "order-17\n", restored.output
    result = two.client.job("order-17").result(timeout=60)
    assert (result.status, result.execution_id) == ("completed", job.execution_id)
    asked = [messages(entry["request"]) for entry in provider.ledger()]
    for before, after in pairwise(asked):
        assert after[: len(before)] == before, "the provider sees one history that grows"
    assert two.client.show("order-17").state.context.metadata == {"ticket": 7, "on_hold": False}


def test_a_snapshot_of_an_ended_session_goes_on_with_a_message_and_other_metadata(labs: tuple[Lab, Lab]) -> None:
    one, _ = labs
    one.worker()
    job = one.client.submit("planned", plan([call("keyed", work="once")], answer="done"), metadata={"a": 1, "b": 2})
    job.result(timeout=30)
    taken = json.loads(one.client.snapshot(job.session_id).to_json())
    merged = one.client.resume_snapshot(taken, session_id="merged", context={"b": 3, "logCallback": "x"})
    replaced = one.client.resume_snapshot(
        json.dumps(taken), session_id="replaced", context={"c": 4}, merge_context=False
    )
    assert merged.result(timeout=5).final_response == "done"
    for made, metadata in ((merged, {"a": 1, "b": 3}), (replaced, {"c": 4})):
        state = one.client.show(made.session_id).state
        assert dict(state.context.metadata) == metadata
        assert state.store == one.client.show(job.session_id).state.store
    again = one.client.send_message("merged", plan(answer="and on"))
    assert again.result(timeout=30).final_response == "and on"


def test_a_snapshot_whose_agent_nobody_offers_or_that_waits_says_so(
    labs: tuple[Lab, Lab], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = labs
    taken = one.client.snapshot(one.client.submit("model", "hello", delay=timedelta(hours=1)).session_id)
    with pytest.warns(UserWarning, match=r"no worker has registered agent 'model' \(registered: none\)"):
        job = two.client.resume_snapshot(taken)
    assert "the job waits until one does" in job.notice
    (tmp_path / "session.json").write_bytes(taken.to_json())
    monkeypatch.setenv("CELERY_AGENTS_REDIS_URL", two.store_url)
    command = ["restore", str(tmp_path / "session.json"), "--json", "--session", "again"]
    with pytest.warns(UserWarning, match="no worker has registered"):
        restored = CliRunner().invoke(program, command)
    assert json.loads(restored.stdout) == {"session_id": "again", "notice": job.notice}
    with ServeProcess(tmp_path / "serve", two.store_url) as served, served.http() as http:
        reply = http.post("/v1/snapshots", json={"snapshot": taken.to_dict(), "session_id": "over-http"})
        assert (reply.status_code, reply.json()["notice"]) == (201, job.notice)

    two.worker()
    two.client.wait_for_agent("model")
    two.client.pause(agent="model", reason="an audit")
    with pytest.warns(UserWarning, match="an audit"):
        assert "an audit" in two.client.resume_snapshot(taken, session_id="paused").notice


def test_a_snapshot_of_an_ended_session_says_of_no_job_that_it_waits(labs: tuple[Lab, Lab]) -> None:
    one, two = labs
    one.worker()
    job = one.client.submit("planned", plan(answer="done"))
    job.result(timeout=30)
    assert two.client.resume_snapshot(one.client.snapshot(job.session_id)).notice == ""


def test_what_cannot_be_resumed_is_refused_and_writes_nothing(labs: tuple[Lab, Lab]) -> None:
    one, two = labs
    one.worker()
    job = one.client.submit("planned", plan(answer="done"))
    job.result(timeout=30)
    taken = one.client.snapshot(job.session_id)
    with pytest.raises(SessionConflict):
        one.client.resume_snapshot(taken)
    one.client.delete(job.session_id)
    with pytest.raises(SessionDeleted):
        one.client.resume_snapshot(taken)
    whole = taken.to_dict()
    wrong: list[Any] = ["no JSON", b"[]", {}, {**whole, "format": "another"}, {**whole, "state": {"agent_id": 7}}]
    for given in wrong:
        with pytest.raises(InvalidInput, match="snapshot"):
            two.client.resume_snapshot(given)
    with pytest.raises(StateTooNew):
        two.client.resume_snapshot({**whole, "state": {**whole["state"], "schema_version": 99}})
    assert not two.redis.keys("ca:{*}:s:*")
    assert isinstance(SessionSnapshot.from_json(taken.to_json()), SessionSnapshot)
