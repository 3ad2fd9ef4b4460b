"""What sessions have spent, as real workers have spent it: the sums are those of the ledger, to the cent."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from celery_agents.tasks.cli.program import program
from celery_agents.tasks.client.job import Job
from celery_agents.tasks.client.spending import CostReport
from celery_agents.worker.errors import InvalidInput

from support.agents import plan
from support.lab import Lab
from support.serve_process import ServeProcess
from support.tree_agents import delegate

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("spending") / "lab", agents="support.tree_agents") as started:
        yield started


@pytest.fixture(scope="module")
def jobs(lab: Lab) -> list[Job]:
    """Trees of two customers and of none, one of them continued and forked; a worker is killed in the middle."""
    first = lab.worker()
    client = lab.client
    jobs = [client.submit("adviser", "level 1", labels={"customer": name}) for name in ("ann", "ann", "bo")]
    jobs += [client.submit("spender", "level 2"), client.submit("node", plan([delegate(plan())]))]
    jobs[0].result(timeout=60)
    again = client.submit("adviser", "level 1, again", session_id=jobs[0].session_id)
    first.kill()
    lab.worker()
    for job in (*jobs, again):
        assert job.result(timeout=90).status == "completed"
    client.fork(jobs[0].session_id)
    return jobs


def paid(lab: Lab, jobs: list[Job]) -> float:
    """What the ledger has of the answers that were used: one for each step, the last that was asked for."""
    entries = [each for each in lab.ledger.entries() if each["kind"] == "driver" and each.get("cost")]
    return math.fsum({each["key"]: each["cost"] for each in entries}.values())


def by_name(report: CostReport) -> dict[str, Any]:
    return {each.name: each for each in report.sums}


def test_each_sum_is_what_the_ledger_says(lab: Lab, jobs: list[Job]) -> None:
    reports = {by: lab.client.costs(by=by) for by in ("agent", "model", "day", "label:customer")}
    for by, report in reports.items():
        assert report.total.cost == pytest.approx(paid(lab, jobs)), by
        assert math.fsum(each.cost for each in report.sums) == pytest.approx(report.total.cost), by
        assert report.unread == ()
    agents = by_name(reports["agent"])
    assert agents["adviser"].cost == pytest.approx(4 * (0.01 + 0.01 + 0.03))
    assert (agents["adviser"].executions, agents["adviser"].steps, agents["adviser"].tokens) == (4, 8, 4 * 229)
    assert (agents["node"].executions, agents["node"].unpriced, agents["node"].cost) == (2, 2, 0.0)
    assert agents["spender"].unpriced == 0
    models = by_name(reports["model"])
    assert models["model-1"].cost == models["model-2"].cost == pytest.approx(4 * 0.01)
    customers = by_name(reports["label:customer"])
    assert sorted(customers) == ["", "ann", "bo"]
    assert customers["ann"].executions == 3 * customers["bo"].executions, "one was asked again"
    assert [each.name for each in reports["day"].sums] == [f"{datetime.now(UTC):%Y-%m-%d}"]


def test_a_child_with_another_label_counts_with_that_of_its_root(lab: Lab, jobs: list[Job]) -> None:
    whole = by_name(lab.client.costs(by="label:customer"))
    _, child, *_ = (each.header for each in lab.client.tree(jobs[0].session_id).walk())
    lab.client.label(child.session_id, {"note": "x"})
    assert by_name(lab.client.costs(by="label:customer")) == whole


def test_bounds_choose_executions_by_their_last_step(lab: Lab, jobs: list[Job]) -> None:
    result = lab.client.header(jobs[-1].session_id)
    moment = datetime.fromtimestamp(result.updated_ms / 1000, UTC)
    whole, now = lab.client.costs().total.executions, datetime.now(UTC)
    before = lab.client.costs(until=moment).total.executions
    after = lab.client.costs(since=moment).total.executions
    assert 0 < before < whole
    assert before + after == whole
    assert lab.client.costs(since=now + timedelta(hours=1)).sums == ()


def test_sums_of_times_that_meet_are_the_sum_of_the_whole(lab: Lab, jobs: list[Job]) -> None:
    headers = [lab.client.header(job.session_id) for job in jobs]
    costs, _ = lab.client.store.sessions.costs(headers)
    whole = lab.client.costs().total
    for ended_ms in sorted(each.ended_ms for each in costs):
        between = datetime.fromtimestamp(ended_ms / 1000, UTC)
        parts = [lab.client.costs(until=between).total, lab.client.costs(since=between).total]
        assert sum(each.executions for each in parts) == whole.executions
        assert sum(each.tokens for each in parts) == whole.tokens


def test_command_and_http_give_the_same(lab: Lab, jobs: list[Job], tmp_path: Path) -> None:
    report = lab.client.costs(by="model").to_dict()
    arguments = ["costs", "--by", "model", "--redis-url", lab.store_url]
    assert json.loads(CliRunner().invoke(program, [*arguments, "--json"]).stdout) == report
    lines = CliRunner().invoke(program, [*arguments, "--since", "1h"]).stdout.splitlines()
    assert lines[0].split() == ["model", "executions", "steps", "tokens", "cost", "unpriced"]
    assert lines[-1].split()[:4] == ["all", *(str(report["total"][name]) for name in ("executions", "steps", "tokens"))]
    process = ServeProcess(tmp_path / "serve", lab.store_url)
    process.start()
    try:
        with process.http() as http:
            assert http.get("/v1/costs?by=model").json() == report
            assert http.get("/v1/costs?by=colour").status_code == 422
    finally:
        process.end()


@pytest.mark.parametrize("by", ["", "label:", "label", "colour", "day:1", None, 3])
def test_another_sum_is_refused_by_name(lab: Lab, by: Any) -> None:
    with pytest.raises(InvalidInput, match="by: choose agent, model, day, or label:<key>"):
        lab.client.costs(by=by)


def test_a_damaged_session_is_named_and_the_others_are_added_up(lab: Lab, jobs: list[Job]) -> None:
    whole = lab.client.costs().total
    doomed = lab.client.submit("node", plan())
    doomed.result(timeout=60)
    lab.redis.lset(lab.client.store.context.keys(doomed.session_id).steps(doomed.execution_id), 0, b"{")
    report = lab.client.costs()
    assert report.unread == (doomed.session_id,)
    assert report.total == whole
