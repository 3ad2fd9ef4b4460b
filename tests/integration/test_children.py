"""Agents that call agents, with real workers: they are killed, stopped and asked, and the ledger counts what happened."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from celery_agents import Approve, Deny
from celery_agents.tasks.cli.program import program
from celery_agents.tasks.client.job import Job
from celery_agents.tasks.observability.waiting_reasons import waiting_reason

from support.agents import call, driver_key, plan
from support.lab import Lab
from support.tree_agents import delegate
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]

AGENTS = "support.tree_agents"
_TESTS = Path(__file__).parents[1]


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


@pytest.mark.parametrize(
    ("point", "separate"),
    [("w4", False), ("w5", False), ("w4", True), ("w5", True)],
)
def test_a_worker_killed_at_any_point_makes_and_joins_each_child_once(
    tmp_path: Path, point: str, separate: bool
) -> None:
    with Lab(tmp_path / "lab", agents=AGENTS, separate=separate) as lab:
        doomed = lab.worker(wait=False, crash=f"{point}:1:1")
        job = submit(lab, delegate(leaf("a")), delegate(leaf("b")), call("keyed", work="mine"))
        doomed.wait(40)
        assert doomed.exit_code == -9
        lab.worker()
        end(job)
        assert effects(lab) == {"a": 1, "b": 1, "mine": 1}
        assert results(lab, job) == ["leaf", "leaf", "mine done"]
        assert len(sessions(lab, job)) == 3  # a model call that was in flight beside the death is made again


def test_nothing_of_a_tree_runs_after_its_stop_has_returned(lab: Lab) -> None:
    lab.worker()
    lab.worker()
    slow = plan(*[[call("keyed", work=f"s{n}")] for n in range(40)], before=0.2)
    middle = plan([delegate(slow), delegate(slow)], [call("keyed", work="late")])
    job = submit(lab, delegate(middle), delegate(slow))
    wait_until(lambda: len(sessions(lab, job)) == 5, "the whole tree has begun", 30)
    wait_until(lambda: sum(effects(lab).values()) >= 3, "its leaves work", 30)
    result = lab.client.stop(job.session_id, timeout=60, by="operator")
    assert result is not None
    assert result.status == "stopped"
    stopped_at, before = time.monotonic(), len(lab.ledger.entries())
    assert {node.header.status for node in sessions(lab, job).values()} == {"stopped"}
    wait_until(lambda: time.monotonic() > stopped_at + 2, "two seconds have passed")
    assert len(lab.ledger.entries()) == before
    texts = results(lab, job)
    assert len(texts) == 2, "each call has its one result"
    assert all(json.loads(text)["partial"] for text in texts)


def test_a_stop_of_the_parent_alone_reaches_its_children_without_the_client(lab: Lab) -> None:
    lab.worker()
    slow = plan(*[[call("keyed", work=f"s{n}")] for n in range(40)], before=0.2)
    job = submit(lab, delegate(slow), delegate(slow))
    wait_until(lambda: sum(effects(lab).values()) >= 2, "the children work", 30)
    lab.client.stop(job.session_id, timeout=0, tree=False)
    assert job.result(timeout=30).status == "stopped"
    assert {node.header.status for node in sessions(lab, job).values()} == {"stopped"}


def test_the_question_of_a_grandchild_is_answered_at_the_root_and_wakes_only_the_one_that_asked(lab: Lab) -> None:
    lab.worker()
    asking = leaf("a", answer="asked", tool="approved_unsafe")
    job = submit(lab, delegate(plan([delegate(asking)], answer="middle")))

    def of_people() -> list[Any]:
        found = lab.client.requests(job.session_id, tree=True).requests
        return [each for each in found if each.summary.kind == "approval"]

    (request,) = wait_until(of_people, "the grandchild asks", 30)
    assert request.summary.session_id.startswith(f"{job.session_id}.")

    def answer() -> str:
        given = {request.summary.id: Approve()}
        return lab.client.answer(job.session_id, given, by="reviewer", idempotency_key="once").outcome

    assert answer() == "woken"
    assert end(job).final_response == "done"
    assert answer() == "again", "a client that has lost the reply asks again"
    assert effects(lab) == {"a": 1}
    woken = [event for event in lab.client.store.sessions.events(job.session_id) if event.type == "execution_resumed"]
    assert [event.data["cause"] for event in woken] == ["child"]


def test_a_subagent_asks_by_its_parents_rules_and_the_person_at_the_root_decides(lab: Lab) -> None:
    lab.worker()
    spawn = [call("spawn_subagent", subagent="assistant", prompt=leaf(work, tool="unsafe")) for work in ("yes", "no")]
    job = submit(lab, *spawn, agent="careful")

    def asked() -> list[Any]:
        found = lab.client.requests(job.session_id, tree=True).requests
        approvals = [each for each in found if each.summary.kind == "approval"]
        return approvals if len(approvals) == 2 else []

    found = wait_until(asked, "both subagents ask", 30)
    requests = [lab.client.request(each.summary.session_id, each.summary.id) for each in found]
    assert {each.request.to for each in requests} == {"operators"}
    assert effects(lab) == {}
    for each in requests:
        answer = Approve() if each.request.args["work"] == "yes" else Deny("no")
        lab.client.answer(job.session_id, {each.summary.id: answer}, by="reviewer")
    end(job)
    assert effects(lab) == {"yes": 1}


@pytest.mark.parametrize("separate", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_client_killed_after_it_has_answered_a_childs_question_costs_time_only(
    tmp_path: Path, separate: bool
) -> None:
    with Lab(tmp_path / "lab", agents=AGENTS, separate=separate) as lab:
        lab.worker()
        job = submit(lab, delegate(leaf("a", tool="approved_unsafe")), delegate(leaf("b")))

        def of_people() -> list[Any]:
            found = lab.client.requests(job.session_id, tree=True).requests
            return [each.summary for each in found if each.summary.kind == "approval"]

        (request,) = wait_until(of_people, "the child asks", 30)
        address = [lab.store_url, lab.broker_url or "-", request.session_id, request.id, "w2:1:1"]
        died = subprocess.run(
            [sys.executable, "-m", "support.answering", *address], cwd=_TESTS, check=False, capture_output=True
        )
        assert died.returncode == -9, died.stderr
        end(job)
        assert effects(lab) == {"a": 1, "b": 1}
        assert results(lab, job) == ["leaf", "leaf"]


def test_a_held_tree_goes_on_when_it_is_resumed(lab: Lab) -> None:
    lab.worker()
    job = submit(lab, delegate(plan([call("keyed", work="first", gate="held")], [call("keyed", work="second")])))
    wait_until(lambda: effects(lab) == {"first": 1}, "the child works", 30)
    assert lab.client.suspend(job.session_id, reason="audit")
    lab.ledger.open("held")
    (child,) = [node for node in sessions(lab, job).values() if node.parent is not None]
    wait_until(lambda: lab.client.store.sessions.step_facts(child.session_id).claimed is False, "its step ended", 30)
    assert effects(lab) == {"first": 1}
    assert lab.client.header(child.session_id).hold is not None
    assert lab.client.resume(job.session_id)
    end(job)
    assert effects(lab) == {"first": 1, "second": 1}


def test_a_child_of_another_queue_runs_there_and_one_that_nobody_offers_ends_by_its_timeout(lab: Lab) -> None:
    common = lab.worker(CELERY_AGENTS_QUEUES="default")
    other = lab.worker(CELERY_AGENTS_QUEUES="other")
    assert common.alive
    assert other.alive
    job = submit(lab, delegate(leaf("a"), "delegate_elsewhere"), delegate(leaf("b"), "delegate_nowhere"))

    def reason() -> str:
        return waiting_reason(lab.client.store, lab.client.header(job.session_id))

    wait_until(lambda: "no live worker offers agent 'nowhere'" in reason(), "the reason names the child", 10)
    end(job)
    assert effects(lab) == {"a": 1}
    first, second = results(lab, job)
    assert first == "leaf"
    assert json.loads(second) == {"partial": True, "stopped_by": "timeout", "message": "it had 3 s", "result": ""}


@pytest.mark.parametrize("agent", ["node", "wide"])
def test_64_children_of_one_step_are_joined_once_in_order(lab: Lab, agent: str) -> None:
    lab.worker()
    lab.worker()
    job = submit(lab, *[delegate(leaf(f"w{n}", answer=f"r{n}")) for n in range(64)], agent=agent)
    end(job)
    assert effects(lab) == {f"w{n}": 1 for n in range(64)}
    assert results(lab, job) == [f"r{n}" for n in range(64)]
    assert_each_model_call_happened_once(lab, job)


def test_a_tool_that_spawns_gets_the_ends_and_a_race_stops_the_slower_one(lab: Lab) -> None:
    lab.worker()
    slow = plan(*[[call("keyed", work=f"s{n}")] for n in range(40)], before=0.2)
    job = submit(
        lab,
        call("survey", prompts=[leaf("x", answer="one"), leaf("y", answer="two")]),
        delegate(leaf("fast", answer="first"), "race"),
        delegate(slow, "race"),
    )
    end(job)
    spawned, won, lost = results(lab, job)
    assert (spawned, won) == ("one + two", "first")
    assert "another agent was first" in lost or "partial" in lost
    assert {node.header.status for node in sessions(lab, job).values() if node.parent is None} == {"completed"}


def test_show_and_watch_print_a_tree(lab: Lab) -> None:
    lab.worker()
    job = submit(lab, delegate(plan([delegate(leaf("a"))], answer="middle")))
    arguments = [job.session_id, "--tree", "--redis-url", lab.store_url]
    watched = CliRunner().invoke(program, ["watch", *arguments, "--json"])
    assert watched.exit_code == 0, watched.output
    *events, result = [json.loads(line) for line in watched.stdout.splitlines()]
    assert result["status"] == "completed"
    depths = Counter(len(each["path"]) for each in events if each["type"] == "execution_completed")
    assert depths == {1: 1, 2: 1, 3: 1}
    assert [each["type"] for each in events][-1] == "execution_completed"
    lines = CliRunner().invoke(program, ["watch", *arguments]).stdout.splitlines()
    assert any("node: step 1: delegate starts agent node" in line for line in lines)
    shown = CliRunner().invoke(program, ["show", *arguments]).stdout.splitlines()
    assert [line.split().count("node") for line in shown[1:4]] == [1, 1, 1]
    assert [line.count("└") for line in shown[1:4]] == [0, 1, 1]
    assert shown[-1].startswith("3 sessions, 6 steps")
    value = json.loads(CliRunner().invoke(program, ["show", *arguments, "--json"]).stdout)
    assert value["children"][0]["children"][0]["status"] == "completed"
