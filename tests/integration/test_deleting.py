"""Deleting sessions that run, wait, are delayed, or are held by a worker that stands still; with real workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from celery_agents import AsyncAgentClient
from celery_agents.tasks.app import create_app
from celery_agents.tasks.cli.program import program
from celery_agents.worker.errors import ActionRefused, InvalidInput, SessionConflict, SessionDeleted

from support.agents import call, plan
from support.lab import Lab
from support.tree_agents import delegate
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab with one worker, for tests that kill nobody."""
    with Lab(
        tmp_path_factory.mktemp("deleting") / "lab", agents="support.tree_agents,support.agents,support.waiting_agents"
    ) as lab:
        lab.worker(CELERY_AGENTS_CONTROL_TASKS="all")
        yield lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path / "lab") as started:
        yield started


def left_of(lab: Lab, session: str) -> list[str]:
    """Every key with the session's id, but leases, and each index that names it or a session below it."""
    names: list[str] = lab.redis.keys("ca:*")
    own = [name for name in names if f":s:{session}" in name]
    indexes = [name for name in names if lab.redis.type(name) == "zset"]
    return own + [name for name in indexes if any(session in each for each in lab.redis.zrange(name, 0, -1))]


def mark_of(lab: Lab, session: str) -> str:
    return lab.client.store.context.keys(session).session


def works(lab: Lab) -> list[str]:
    return [str(entry.get("work")) for entry in lab.ledger.entries() if entry.get("effect")]


def wait_for_work(lab: Lab, work: str) -> None:
    wait_until(lambda: any(entry.get("work") == work for entry in lab.ledger.entries()), f"{work} has begun", 30)


def test_a_running_session_is_stopped_and_then_nothing_is_left_of_it(shared: Lab) -> None:
    slow = [[call("keyed", work=f"slow {number}")] for number in range(100)]
    job = shared.client.submit("planned", plan(*slow, before=0.1), webhook=None, metadata={"ticket": 7})
    wait_for_work(shared, "slow 2")
    assert shared.client.delete(job.session_id, by="operator") is True
    assert left_of(shared, job.session_id) == [mark_of(shared, job.session_id)]
    asked = len(shared.ledger.entries())
    deleted_at = time.monotonic()
    wait_until(lambda: time.monotonic() > deleted_at + 1.5, "a while has passed")
    assert len(shared.ledger.entries()) == asked
    assert left_of(shared, job.session_id) == [mark_of(shared, job.session_id)]
    assert shared.client.delete(job.session_id) is False
    for attempt in (
        lambda: shared.client.send_message(job.session_id, "still there?"),
        lambda: shared.client.submit("planned", "again", session_id=job.session_id),
        lambda: job.result(timeout=5),
        lambda: shared.client.show(job.session_id),
    ):
        with pytest.raises(SessionDeleted):
            attempt()


def test_a_waiting_tree_is_deleted_from_its_leaves_to_its_root(shared: Lab) -> None:
    question = plan([call("approved_unsafe", work="asked")])
    job = shared.client.submit("node", plan([delegate(plan([delegate(question)])), delegate(plan(answer="leaf"))]))
    wait_until(lambda: len(list(shared.client.tree(job.session_id).walk())) == 4, "the tree is there", 30)
    wait_until(lambda: shared.client.header(job.session_id).status == "waiting", "it waits", 30)
    below = [node.session_id for node in shared.client.tree(job.session_id).walk()]
    assert shared.client.delete(job.session_id) is True
    assert sorted(left_of(shared, job.session_id)) == sorted(mark_of(shared, each) for each in below)


def test_a_waiter_learns_that_its_session_was_deleted(shared: Lab) -> None:
    job = shared.client.submit("planned", plan([call("keyed", work="gated", gate="waiter")]))
    wait_for_work(shared, "gated")
    code = (
        "import sys; from celery_agents import AgentClient; client = AgentClient(sys.argv[1]);"
        "client.job(sys.argv[2]).result(timeout=30)"
    )
    waiter = subprocess.Popen(
        [sys.executable, "-c", code, shared.store_url, job.session_id], stderr=subprocess.PIPE, text=True
    )
    time.sleep(0.5)
    shared.ledger.open("waiter")
    shared.client.delete(job.session_id)
    _, said = waiter.communicate(timeout=40)
    # It may have read the end before the deletion.
    assert waiter.returncode == 0 or "SessionDeleted" in said


def test_an_expected_version_protects_what_was_changed_meanwhile_or_runs(shared: Lab) -> None:
    job = shared.client.submit("planned", plan(answer="done"))
    job.result(timeout=30)
    seen = shared.client.header(job.session_id).version
    shared.client.write_metadata(job.session_id, "color", "red")
    with pytest.raises(SessionConflict, match=f"version {seen}") as conflict:
        shared.client.delete(job.session_id, expected_version=seen)
    assert (conflict.value.expected, conflict.value.stored) == (seen, seen + 1)
    running = shared.client.submit("planned", plan([call("keyed", work="kept", gate="kept")]))
    wait_for_work(shared, "kept")
    with pytest.raises(ActionRefused, match="stop it"):
        shared.client.delete(running.session_id, expected_version=shared.client.header(running.session_id).version)
    shared.ledger.open("kept")
    assert running.result(timeout=30).status == "completed"
    assert shared.client.delete(job.session_id, expected_version=seen + 1) is True


def test_all_that_ended_before_a_time_are_deleted_and_no_other(shared: Lab) -> None:
    old = [shared.client.submit("planned", plan(answer=f"old {n}")) for n in range(3)]
    parent = shared.client.submit("node", plan([delegate(plan(answer="leaf"))]))
    for each in (*old, parent):
        each.result(timeout=30)
    time.sleep(0.01)
    before = datetime.now(UTC)
    young = shared.client.submit("planned", plan(answer="young"))
    young.result(timeout=30)
    listed = set(shared.client.delete_all(before=before, agent="planned", dry_run=True))
    assert {job.session_id for job in old} <= listed
    assert not {young.session_id, parent.session_id} & listed
    assert set(shared.client.delete_all(before=before, agent="planned")) == listed
    assert set(shared.client.delete_all(before=before, agent="planned")) == set()
    assert parent.session_id in set(shared.client.delete_all(before=before, agent="node"))
    assert len(left_of(shared, parent.session_id)) == 2  # the marks of it and of its child
    assert shared.client.header(young.session_id).status == "completed"
    for wrong in ({"before": datetime(2030, 1, 1)}, {"before": before, "status": "waiting"}):  # noqa: DTZ001
        with pytest.raises(InvalidInput):
            shared.client.delete_all(**wrong)  # type: ignore[arg-type]


def test_the_async_client_deletes_too(shared: Lab) -> None:
    asyncio.run(_delete_by_the_async_client(AsyncAgentClient.of(shared.client)))


async def _delete_by_the_async_client(client: AsyncAgentClient) -> None:
    jobs = [await client.submit("planned", plan(answer="done")) for _ in range(2)]
    for job in jobs:
        await job.result(timeout=30)
    assert await client.delete(jobs[0].session_id)
    later = datetime.now(UTC) + timedelta(minutes=1)
    assert jobs[1].session_id in [each async for each in client.delete_all(before=later, agent="planned")]


def test_the_command_deletes_one_by_the_beginning_of_its_id_or_many_after_asking(
    shared: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERY_AGENTS_REDIS_URL", shared.store_url)
    jobs = [shared.client.submit("planned", plan(answer="done")) for _ in range(3)]
    for job in jobs:
        job.result(timeout=30)
    runner = CliRunner()

    def run(*arguments: str, **options: Any) -> Any:
        return runner.invoke(program, ["delete", *arguments], **options)

    deleted = run(jobs[0].session_id[:20])
    assert (deleted.exit_code, deleted.output) == (0, "deleted\n")
    again = run(jobs[0].session_id, "--json")
    assert json.loads(again.output)["outcome"] == "it was deleted before"
    assert run("--all").exit_code != 0
    left = [job.session_id for job in jobs[1:]]
    many = ("--all", "--older-than", "1s", "--agent", "planned")
    wait_until(lambda: all(each in run(*many, "--dry-run").output for each in left), "they are old enough", 10)
    assert run(*many, input="n\n").exit_code != 0
    assert shared.client.header(left[0]).status == "completed"
    deleted = run(*many, "--yes").output
    assert all(each in deleted for each in left)
    assert "sessions deleted" in deleted


def test_a_task_by_name_deletes_a_session_that_runs(shared: Lab) -> None:
    job = shared.client.submit("planned", plan(*[[call("keyed", work=f"t{n}")] for n in range(50)], before=0.1))
    wait_for_work(shared, "t1")
    create_app(shared.client.settings).send_task(
        "celery_agents.delete", kwargs={"session_id": job.session_id}, queue=shared.client.settings.control_queue
    )
    wait_until(lambda: left_of(shared, job.session_id) == [mark_of(shared, job.session_id)], "it is deleted", 30)


# --- workers that die, stand still, or wait ---------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["c5", *(pytest.param(each, marks=pytest.mark.long) for each in ("c1", "c3", "c7"))])
def test_a_session_whose_worker_was_killed_is_deleted_by_another_and_stays_away(lab: Lab, point: str) -> None:
    doomed = lab.worker(wait=False, crash=f"{point}:1:1")
    job = lab.client.submit("planned", plan([call("keyed", work="once")], [call("unsafe", work="never")]))
    doomed.wait(40)
    assert doomed.exit_code == -9
    lab.worker()
    assert lab.client.delete(job.session_id, timeout=60) is True
    asked = len(lab.ledger.entries())
    deleted_at = time.monotonic()
    wait_until(lambda: time.monotonic() > deleted_at + 3, "a lease has passed")
    assert left_of(lab, job.session_id) == [mark_of(lab, job.session_id)]
    assert len(lab.ledger.entries()) == asked


def test_a_worker_that_stood_still_brings_nothing_back_when_it_wakes(lab: Lab) -> None:
    still = lab.worker()
    job = lab.client.submit("planned", plan([call("keyed", work="first", gate="held")], [call("keyed", work="second")]))
    wait_for_work(lab, "first")
    os.kill(still.pid, signal.SIGSTOP)
    lab.worker()
    assert lab.client.delete(job.session_id, timeout=60) is True
    lab.ledger.open("held")
    os.kill(still.pid, signal.SIGCONT)
    woken = lab.client.submit("planned", plan([call("keyed", work="of the next")]))
    assert woken.result(timeout=30).status == "completed"
    resumed_at = time.monotonic()
    wait_until(lambda: time.monotonic() > resumed_at + 2, "it has tried to go on")
    assert left_of(lab, job.session_id) == [mark_of(lab, job.session_id)]
    assert "second" not in works(lab)


def test_a_delayed_step_is_deleted_at_once(lab: Lab) -> None:
    lab.worker()
    job = lab.client.submit("planned", plan(answer="never"), delay=timedelta(hours=1))
    began = time.monotonic()
    assert lab.client.delete(job.session_id, timeout=30) is True
    assert time.monotonic() - began < 20
    assert left_of(lab, job.session_id) == [mark_of(lab, job.session_id)]


def test_without_a_worker_what_is_claimed_is_not_deleted_and_the_caller_is_told(lab: Lab) -> None:
    doomed = lab.worker(wait=False, crash="c3:1:1")
    job = lab.client.submit("planned", plan(answer="never"))
    doomed.wait(40)
    with pytest.raises(TimeoutError, match="not ended"):
        lab.client.delete(job.session_id, timeout=0.5)
    assert lab.client.header(job.session_id).status == "in_progress"
    lab.worker()
    wait_until(lambda: lab.client.header(job.session_id).status == "stopped", "the stop has come through", 30)
    assert lab.client.delete(job.session_id) is True
