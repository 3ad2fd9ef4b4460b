"""One act on many sessions: those that the filter finds and the act can concern, each with its outcome."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from celery_agents import AgentClient, ExecutionBudget
from celery_agents.tasks.cli.program import program
from celery_agents.tasks.client.bulk import ActOutcome, cost_of_retry
from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.state import ExecutionState

from support.agents import call, plan
from support.lab import Lab
from support.serve_process import ServeProcess
from support.tree_agents import delegate
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore:no worker has registered")]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path / "lab", agents="support.agents,support.tree_agents") as started:
        yield started


def submit(lab: Lab, customer: str, message: str, agent: str = "planned", **options: Any) -> str:
    return lab.client.submit(agent, message, labels={"customer": customer}, **options).session_id


def wait_for(lab: Lab, sessions: list[str], status: str) -> None:
    for session in sessions:
        wait_until(lambda session=session: lab.client.header(session).status == status, f"{session} is {status}", 60)


def test_each_act_does_what_its_verb_does_to_those_that_it_concerns(lab: Lab) -> None:
    client, worker = lab.client, lab.worker()
    held = [submit(lab, "ann", plan([call("keyed", work="a", gate="later")])) for _ in range(3)]
    tree = submit(lab, "ann", plan([delegate(plan([call("keyed", work="b", gate="later")]))]), agent="node")
    others = [submit(lab, "bo", plan([call("keyed", work="c", gate="later")]))]
    done = [submit(lab, "ann", plan()) for _ in range(2)]
    wait_for(lab, done, "completed")
    seen: list[ActOutcome] = []
    report = client.act_on_many("suspend", label={"customer": "ann"}, reason="a look", progress=seen.append)
    assert sorted(each.session_id for each in report.outcomes) == sorted([*held, tree])
    assert (report.counts, report.more, tuple(seen)) == ({"done": 4}, False, report.outcomes)
    assert client.act_on_many("suspend", label={"customer": "ann"}, reason="again").outcomes == ()
    assert client.header(others[0]).hold is None
    assert client.act_on_many("resume", label={"customer": "ann"}).counts["done"] >= 4
    assert client.act_on_many("label", text="steps", status="completed", labels={"seen": "yes"}).counts == {"done": 2}
    assert {each.session_id for each in client.list(label={"seen": "yes"})} == set(done)
    stopped = client.act_on_many("stop", label={"customer": "ann"}, by="ann")
    assert stopped.counts == {"done": 4}
    lab.ledger.open("later")
    wait_for(lab, [*held, tree], "stopped")
    wait_for(lab, others, "completed")
    deleted = client.act_on_many("delete", label={"customer": "ann"})
    assert sorted(each.session_id for each in deleted.outcomes) == sorted([*held, tree, *done])
    assert {each.session_id for each in client.list()} == set(others)
    assert worker.alive


def test_one_that_goes_on_since_it_was_found_is_not_deleted(lab: Lab) -> None:
    lab.worker()
    older, newer = (submit(lab, "ann", plan(answer=f"number {n}")) for n in range(2))
    wait_for(lab, [older, newer], "completed")
    going_on = plan([call("keyed", work="a", gate="later")])

    def go_on(outcome: ActOutcome) -> None:
        if outcome.outcome == "done":
            other = older if outcome.session_id == newer else newer
            lab.client.submit("planned", going_on, session_id=other)

    report = lab.client.act_on_many("delete", label={"customer": "ann"}, progress=go_on)
    assert [each.outcome for each in report.outcomes] == ["done", "refused"]
    kept = report.outcomes[1].session_id
    assert {each.session_id for each in lab.client.list()} == {kept}
    lab.ledger.open("later")
    wait_for(lab, [kept], "completed")


def test_one_that_has_begun_anew_since_it_was_found_is_not_stopped(lab: Lab) -> None:
    lab.worker()
    gates = {submit(lab, "ann", plan([call("keyed", work=gate, gate=gate)])): gate for gate in ("a", "b")}
    wait_for(lab, list(gates), "in_progress")
    begun: list[str] = []

    def begin_the_other(outcome: ActOutcome) -> None:
        if begun:
            return
        begun.extend({*gates} - {outcome.session_id})
        lab.ledger.open(gates[begun[0]])
        wait_for(lab, begun, "completed")
        lab.client.submit("planned", plan([call("keyed", work="c", gate="later")]), session_id=begun[0])

    lab.client.act_on_many("stop", label={"customer": "ann"}, progress=begin_the_other)
    lab.ledger.open("later")
    wait_for(lab, begun, "completed")


@pytest.mark.parametrize(
    ("cost", "steps", "budget", "most"),
    [
        (0.4, 4, ExecutionBudget(max_steps=10), 0.6),
        (0.4, 4, ExecutionBudget(max_steps=10, max_cost=0.5), 0.1),
        (0.4, 4, ExecutionBudget(max_steps=3), 0.0),
        (0.4, 4, ExecutionBudget(max_tokens=10), None),
        (0.0, 0, ExecutionBudget(max_steps=10), None),
        (None, 4, ExecutionBudget(max_steps=10), None),
    ],
)
def test_the_cost_of_a_retry_is_bound_by_what_its_budget_leaves(
    cost: float | None, steps: int, budget: ExecutionBudget, most: float | None
) -> None:
    execution = ExecutionState(cost=cost, step_count=steps, budget=budget)
    assert cost_of_retry(execution) == (None if most is None else pytest.approx(most))


def test_many_are_retried_and_a_preview_does_nothing(lab: Lab) -> None:
    lab.worker()
    failed = [submit(lab, "ann", "no plan at all") for _ in range(4)]
    wait_for(lab, failed, "failed")
    (error, *_) = {lab.client.job(each).result(timeout=0).errors[-1] for each in failed}
    stopped = submit(lab, "ann", plan([call("keyed", work="s", gate="later")]))
    wait_until(lambda: lab.client.header(stopped).status == "in_progress", "it runs", 30)
    lab.client.stop(stopped, timeout=0)
    lab.ledger.open("later")
    wait_for(lab, [stopped], "stopped")
    preview = lab.client.act_on_many("retry", error=error[:30].upper(), dry_run=True)
    assert {each.outcome for each in preview.outcomes} == {"planned"}
    assert sorted(each.session_id for each in preview.outcomes) == sorted(failed)
    assert {lab.client.header(each).status for each in failed} == {"failed"}
    two = lab.client.act_on_many("retry", error=error[:30].upper(), limit=2)
    assert (len(two.outcomes), two.more, two.counts) == (2, True, {"done": 2})
    wait_for(lab, failed, "failed")
    assert lab.client.act_on_many("retry", status="stopped").outcomes[0].session_id == stopped
    wait_for(lab, [stopped], "completed")


def test_a_refusal_is_named_and_the_others_are_done(lab: Lab) -> None:
    sessions = [lab.client.submit("planned", plan(), session_id=name).session_id for name in ("one", "two", "three")]
    lab.client.label("two", {f"k{number}": "v" for number in range(16)})
    report = lab.client.act_on_many("label", everything=True, labels={"one": "more"})
    refused = {each.session_id: each.reason for each in report.outcomes if each.outcome == "refused"}
    assert list(refused) == ["two"]
    assert "16" in refused["two"]
    assert report.counts == {"done": 2, "refused": 1}
    assert len(sessions) == 3


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"act": "stop"}, "everything: name status, agent"),
        ({"act": "stop", "label": {}}, "everything: name status, agent"),
        ({"act": "explode", "everything": True}, "act: there are retry, stop, suspend"),
        ({"act": "suspend", "everything": True}, "reason: say why"),
        ({"act": "stop", "everything": True, "reason": "a look"}, "reason: it is shown where a session is held"),
        ({"act": "label", "everything": True}, "labels: they are what"),
        ({"act": "stop", "everything": True, "labels": {"a": "b"}}, "labels: they are what"),
        ({"act": "stop", "status": "odd"}, "status"),
        ({"act": "stop", "everything": True, "limit": 0}, "limit"),
        ({"act": "stop", "waits_for": "rain"}, "waits_for"),
        ({"act": "stop", "since": datetime(2026, 1, 1)}, "since"),  # noqa: DTZ001
    ],
)
def test_what_cannot_be_done_is_named_and_nothing_is(given: dict[str, Any], sentence: str, redis_url: str) -> None:
    client = AgentClient(redis_url)
    client.submit("planned", plan())
    with pytest.raises(InvalidInput, match=sentence):
        client.act_on_many(**given)
    assert [each.status for each in client.list()] == ["pending"]


def test_command_and_http_do_the_same(lab: Lab, tmp_path: Path) -> None:
    sessions = sorted(submit(lab, "ann", plan()) for _ in range(3))

    def run(*words: str) -> Any:
        return CliRunner().invoke(program, ["act", *words, "--redis-url", lab.store_url])

    planned = run("stop", "--label", "customer=ann", "--dry-run")
    assert sorted(planned.stdout.splitlines()) == sorted([*(f"{each} planned" for each in sessions), "stop: 3 planned"])
    assert "everything" in str(run("stop").exception)
    labelled = json.loads(run("label", "--all", "--set", "team=blue", "--json").stdout)
    assert labelled["counts"] == {"done": 3}
    process = ServeProcess(tmp_path / "serve", lab.store_url)
    process.start()
    try:
        with process.http() as http:
            assert http.post("/v1/acts", json={"act": "stop"}).status_code == 422
            since = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
            reply = http.post("/v1/acts", json={"act": "stop", "label": {"team": "blue"}, "since": since, "limit": 2})
            assert (reply.status_code, reply.json()["more"]) == (200, True)
            assert reply.json()["counts"] == {"done": 2}
    finally:
        process.end()
    assert sorted(each.status for each in lab.client.list()) == ["pending", "stopped", "stopped"]
