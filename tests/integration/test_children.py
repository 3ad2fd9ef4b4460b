"""Agents that call agents, with real workers: they are killed, stopped and asked, and the ledger counts what happened."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from celery_agents import Approve
from celery_agents.tasks.cli.program import program
from celery_agents.tasks.client.job import Job
from celery_agents.tasks.observability.waiting_reasons import waiting_reason
from celery_agents.worker.state import ExecutionBudget

from support.agents import call, driver_key, plan
from support.lab import Lab
from support.tree_agents import delegate
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]

AGENTS = "support.tree_agents"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path / "lab", agents=AGENTS) as started:
        yield started


def leaf(*works: str, answer: str = "leaf", tool: str = "keyed", **driver: Any) -> str:
    """The plan of a child: one step with these effects, then the answer."""
    return plan([call(tool, work=work) for work in works], answer=answer, **driver)


def submit(lab: Lab, *calls: dict[str, Any], agent: str = "node", **options: Any) -> Job:
    return lab.client.submit(agent, plan(list(calls)), **options)


def end(job: Job) -> Any:
    result = job.result(timeout=90)
    assert result.status == "completed", result
    return result


def effects(lab: Lab) -> Counter[str]:
    return Counter(entry["work"] for entry in lab.ledger.entries() if entry["kind"] == "effect" and entry["effect"])


def results(lab: Lab, job: Job, step: int = 0) -> list[str]:
    """What the model of a session has read as the results of a step, in the order of its calls."""
    return [made.as_message() for made in lab.client.show(job.session_id).state.steps[step].tool_executions]


def sessions(lab: Lab, job: Job) -> dict[str, Any]:
    """All sessions of a tree by id, the root first."""
    return {node.session_id: node for node in lab.client.tree(job.session_id).walk()}


def wait_for_status(lab: Lab, job: Job, status: str) -> None:
    wait_until(lambda: lab.client.header(job.session_id).status == status, f"it is {status}", 30)


def assert_each_model_call_happened_once(lab: Lab, job: Job) -> None:
    asked = lab.ledger.deliveries()
    for node in sessions(lab, job).values():
        state = lab.client.show(node.session_id).state
        keys = [driver_key(state.execution.execution_id, number + 1) for number in range(state.execution.step_count)]
        assert [asked[key] for key in keys] == [1] * len(keys), node.session_id


def test_a_tree_of_three_levels_runs_on_two_workers_and_gives_each_result_once_in_order(lab: Lab) -> None:
    lab.worker()
    lab.worker()
    middle = plan([delegate(leaf(f"a{n}", answer=f"answer {n}")) for n in range(3)], answer="middle")
    job = submit(lab, delegate(middle), call("keyed", work="mine"), delegate(leaf("b", answer="second")))
    end(job)
    assert effects(lab) == {"mine": 1, "a0": 1, "a1": 1, "a2": 1, "b": 1}
    assert results(lab, job) == ["middle", "mine done", "second"]
    tree = lab.client.tree(job.session_id)
    assert [node.parent.depth if node.parent else 0 for node in tree.walk()] == [0, 1, 2, 2, 2, 1]
    assert tree.steps == lab.client.show(job.session_id).state.execution.steps_used == 12
    assert_each_model_call_happened_once(lab, job)


@pytest.mark.parametrize("separate", [False, True], ids=["one database", "another broker"])
@pytest.mark.parametrize("point", ["w0", "w1", "w3", "w4", "w5", "c7"])
def test_a_worker_killed_at_any_point_makes_and_joins_each_child_once(
    tmp_path: Path, point: str, separate: bool
) -> None:
    if separate and point in ("w0", "w1", "w3"):
        pytest.skip("the same with either broker: nothing is published there")
    with Lab(tmp_path / "lab", agents=AGENTS, separate=separate) as lab:
        doomed = lab.worker(wait=False, crash=f"{point}:1:1")
        job = submit(lab, delegate(leaf("a")), delegate(leaf("b", tool="unsafe")), call("keyed", work="mine"))
        doomed.wait(40)
        assert doomed.exit_code == -9
        lab.worker()
        end(job)
        assert effects(lab) == {"a": 1, "b": 1, "mine": 1}
        assert results(lab, job) == ["leaf", "leaf", "mine done"]
        assert len(sessions(lab, job)) == 3
        if point != "w5" and point != "c7":
            assert_each_model_call_happened_once(lab, job)
