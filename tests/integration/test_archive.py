"""The archive with real workers: sessions move there, and clients, commands and HTTP find them as they were."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_agents import AgentClient
from celery_agents.config.settings import Settings
from celery_agents.flow import Debounce, Schedule
from celery_agents.tasks.app import create_app
from celery_agents.tasks.client.job import Job
from celery_agents.worker.errors import (
    ArchiveUnavailable,
    SessionArchived,
    SessionConflict,
    SessionDeleted,
    SessionNotFound,
)

from support import fork_server
from support.agents import call, plan
from support.lab import Lab
from support.processes import free_port
from support.tree_agents import delegate
from support.wait import wait_until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def lab(tmp_path: Path, archive_url: str) -> Iterator[Lab]:
    """Workers with an archive, who move nothing yet."""
    env = {"CELERY_AGENTS_ARCHIVE_URL": archive_url}
    with Lab(tmp_path / "lab", agents="support.agents,support.tree_agents", env=env) as started:
        started.worker()
        yield started


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_archived(lab: Lab, session: str) -> bool:
    key = lab.client.store.context.keys(session).session
    return lab.redis.hexists(key, "archived") and not lab.redis.hexists(key, "version")


def archive(lab: Lab, *sessions: str) -> None:
    """Move all sessions now, these among them."""
    lab.client.archive_now(older_than=timedelta(0))
    assert all(is_archived(lab, each) for each in sessions)


def test_workers_move_what_ended_and_clients_find_it(tmp_path: Path, archive_url: str) -> None:
    env = {"CELERY_AGENTS_ARCHIVE_URL": archive_url, "CELERY_AGENTS_ARCHIVE_AFTER_SECONDS": "0.5"}
    with Lab(tmp_path / "lab", agents="support.agents,support.tree_agents", env=env) as lab:
        lab.worker()
        lab.worker()
        job = lab.client.submit("node", plan([delegate(plan(answer="below"))], answer="above"))
        result = job.result(timeout=60)
        (below,) = [each.session_id for each in lab.client.tree(job.session_id).walk()][1:]
        for session in (job.session_id, below):
            wait_until(lambda session=session: is_archived(lab, session), f"{session} is archived", 60)
        assert lab.client.job(job.session_id).result() == result
        second = lab.client.send_message(job.session_id, plan(answer="again"))
        assert second.result(timeout=60).final_response == "again"


def test_a_session_is_the_same_for_its_readers_before_and_after(lab: Lab) -> None:
    other = AgentClient(settings=Settings.build(redis_url=lab.store_url))
    job = lab.client.submit(
        "planned", plan([call("keyed", work="w")], answer="the teapot is here"), labels={"customer": "42"}
    )
    client, name = lab.client, job.session_id
    reads: tuple[Callable[[], Any], ...] = (
        lambda: job.result(timeout=60),
        lambda: client.show(name),
        lambda: list(client.job(name).events(timeout=5)),
        lambda: client.tree(name),
        lambda: client.state(name, at=1),
        lambda: replace(client.timeline(name), now=EPOCH),
        lambda: list(client.requests(session_id=name)),
        lambda: client.trace(name).to_dict(),
        lambda: client.snapshot(name).state,
    )
    before = [read() for read in reads]
    archive(lab, name)
    assert [read() for read in reads] == before
    assert client.header(name).is_archived
    for listed in (client.list(label={"customer": "42"}), client.list(text="teapot"), client.list(agent="planned")):
        assert [each.session_id for each in listed] == [name]
    assert client.list(status="failed").items == client.list(status="in_progress").items == ()
    with pytest.raises(SessionArchived, match="CELERY_AGENTS_ARCHIVE_URL"):
        other.show(name)
    with pytest.raises(SessionArchived):
        other.send_message(name, "hello")
    assert list(other.list()) == []
    assert is_archived(lab, name)  # nothing of this has restored it


def test_a_message_restores_a_session_and_its_next_end_archives_it_again(lab: Lab) -> None:
    job = lab.client.submit("planned", plan(answer="one"), idempotency_key="mine")
    job.result(timeout=60)
    archive(lab, job.session_id)
    again = lab.client.submit("planned", plan(answer="one"), idempotency_key="mine")
    assert (again.session_id, again.execution_id) == (job.session_id, job.execution_id)
    second = lab.client.send_message(job.session_id, plan(answer="two"))
    assert second.result(timeout=60).final_response == "two"
    assert len([m for m in lab.client.show(job.session_id).state.messages if m.role == "user"]) == 2
    assert lab.client.archive_now(older_than=timedelta(0)).later == 1  # its row is of the earlier state


def test_a_message_of_a_burst_that_was_archived_is_not_delivered_again(lab: Lab) -> None:
    debounce = Debounce("bursts", quiet=timedelta(milliseconds=1), at_most=timedelta(milliseconds=1))

    def send(answer: str) -> Job:
        return lab.client.submit("planned", plan(answer=answer), debounce=debounce, idempotency_key=answer)

    first = send("one")
    first.result(timeout=60)
    archive(lab, first.session_id)
    again = send("one")
    assert (again.session_id, again.result(timeout=60).final_response) == (first.session_id, "one")
    assert is_archived(lab, first.session_id)
    assert send("two").session_id != first.session_id


def test_deleting_and_erasing_reach_the_archive(lab: Lab) -> None:
    jobs = [lab.client.submit("planned", plan(answer="x"), labels={"user": "7"}) for _ in range(3)]
    for job in jobs:
        job.result(timeout=60)
    names = [job.session_id for job in jobs]
    archive(lab, *names)
    assert lab.client.delete(names[0])
    with pytest.raises(SessionDeleted):
        lab.client.show(names[0])
    erased = lab.client.erase(label={"user": "7"})
    assert sorted(erased.sessions) == sorted(names[1:])
    assert list(lab.client.list(label={"user": "7"})) == []
    shards = lab.client.store.context.shards
    for shard in shards:  # as if a minute had passed, in which Redis could have lost the deletions
        for note in lab.redis.zrange(shard.archive, 0, -1):
            lab.redis.zadd(shard.archive, {note: 1})
    assert lab.client.store.archiver is not None
    lab.client.store.archiver.bury_deleted(shards)
    assert (lab.client.archive_status().tombstones, lab.client.archive_status().sessions) == (3, 0)


def test_no_snapshot_takes_the_id_of_a_session_in_the_archive(lab: Lab) -> None:
    job = lab.client.submit("planned", plan(answer="x"))
    job.result(timeout=60)
    snapshot, before = lab.client.snapshot(job.session_id), lab.client.show(job.session_id)
    archive(lab, job.session_id)
    for has_mark in (True, False):
        if not has_mark:  # as when its life is over
            lab.redis.delete(lab.client.store.context.keys(job.session_id).session)
        with pytest.raises(SessionConflict, match=job.session_id):
            lab.client.resume_snapshot(snapshot)
    assert lab.client.show(job.session_id) == before


def test_a_tree_moves_and_is_read_whole(lab: Lab) -> None:
    job = lab.client.submit("node", plan([delegate(plan(answer="below"))], answer="above"))
    job.result(timeout=60)
    before = lab.client.tree(job.session_id)
    below = [each.session_id for each in before.walk()][1:]
    assert len(below) == 1
    archive(lab, job.session_id, *below)
    assert lab.client.tree(job.session_id) == before
    assert [each.header.is_archived for each in lab.client.tree(job.session_id).walk()] == [True, True]
    assert lab.client.delete(job.session_id)
    with pytest.raises(SessionNotFound):
        lab.client.show(below[0])


def test_costs_are_the_same_wherever_sessions_are(lab: Lab) -> None:
    tree = plan([delegate(plan([call("keyed", work="w")], answer="below"))], answer="above")
    jobs = [lab.client.submit("node", tree, labels={"customer": str(number)}) for number in range(3)]
    for job in jobs:
        job.result(timeout=60)
    kinds = ("agent", "model", "day", "label:customer")
    before = [lab.client.costs(by=by) for by in kinds]
    assert before[0].total.steps > 6
    archive(lab, *(job.session_id for job in jobs))
    assert [lab.client.costs(by=by) for by in kinds] == before
    assert lab.client.store.archived is not None
    lab.client.store.archived.restore(jobs[0].session_id)  # its row stays, and does not count
    assert [lab.client.costs(by=by) for by in kinds] == before
    archive(lab, jobs[0].session_id)
    assert [lab.client.costs(by=by) for by in kinds] == before


def test_commands_find_what_is_archived(lab: Lab, archive_url: str, tmp_path: Path) -> None:
    job = lab.client.submit("planned", plan(answer="the teapot"))
    job.result(timeout=60)
    archive(lab, job.session_id)

    def run(*arguments: str) -> str:
        env = {"CELERY_AGENTS_REDIS_URL": lab.store_url, "CELERY_AGENTS_ARCHIVE_URL": archive_url}
        command = [sys.executable, "-m", "celery_agents", *arguments]
        done = fork_server.run(command, cwd=tmp_path, env={**os.environ, **env})
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "1 session" in run("archive", "status")
    assert json.loads(run("archive", "status", "--json"))["sessions"] == 1
    (exported,) = map(json.loads, run("archive", "export").splitlines())
    assert exported["session_id"] == job.session_id
    assert exported["results"][0]["final_response"] == "the teapot"
    assert exported["events"][-1]["type"] == "execution_completed"
    assert "0 sessions moved" in run("archive", "now")
    assert job.session_id in run("list")
    assert "the teapot" in run("show", job.session_id[:8])


def test_commands_without_the_archive_say_what_to_set(lab: Lab, tmp_path: Path) -> None:
    lab.client.submit("planned", plan(), session_id="refund").result(timeout=60)
    archive(lab, "refund")
    lab.client.submit("planned", plan(), session_id="refund-2").result(timeout=60)  # an id that begins like it
    env = {name: value for name, value in os.environ.items() if name != "CELERY_AGENTS_ARCHIVE_URL"}
    command = [sys.executable, "-m", "celery_agents", "show", "refund"]
    done = fork_server.run(command, cwd=tmp_path, env={**env, "CELERY_AGENTS_REDIS_URL": lab.store_url})
    assert done.returncode != 0
    assert "CELERY_AGENTS_ARCHIVE_URL" in done.stderr


def test_a_session_whose_id_another_one_has_is_exported_and_erased(lab: Lab) -> None:
    job = lab.client.submit("planned", plan(answer="the first"), session_id="again", labels={"user": "7"})
    job.result(timeout=60)
    archive(lab, "again")
    created_ms = lab.client.header("again").created_ms
    lab.redis.delete(
        lab.client.store.context.keys("again").session
    )  # Redis has lost the mark, and hears of the id anew
    client = AgentClient(settings=Settings.build(redis_url=lab.store_url))
    client.submit("planned", plan(answer="the second"), session_id="again").result(timeout=60)

    def exported() -> list[tuple[str, str]]:
        found = lab.client.export_archive()
        return [(each["session_id"], each["results"][0]["final_response"]) for each in found]

    assert exported() == [(f"again@{created_ms}", "the first")]
    assert [each.created_ms for each in lab.client.list()] == [lab.client.header("again").created_ms]
    archive(lab, "again")
    assert exported() == [("again", "the second"), (f"again@{created_ms}", "the first")]
    assert lab.client.job("again").result().final_response == "the second"
    assert lab.client.erase(label={"user": "7"}).sessions == (f"again@{created_ms}",)
    assert exported() == [("again", "the second")]
    assert lab.client.archive_status().sessions == 2  # a worker removes it, once Redis cannot lose that any more


def test_sessions_stay_in_redis_while_the_archive_is_away(tmp_path: Path) -> None:
    away = f"postgresql://postgres@127.0.0.1:{free_port()}/postgres"
    env = {"CELERY_AGENTS_ARCHIVE_URL": away, "CELERY_AGENTS_ARCHIVE_AFTER_SECONDS": "0.1"}
    with Lab(tmp_path / "lab", env=env) as lab:
        worker = lab.worker()
        job = lab.client.submit("planned", plan(answer="x"))
        job.result(timeout=60)
        worker.wait_for_text("sessions stay in Redis for now", 60)
        key = lab.client.store.context.keys(job.session_id).session
        assert lab.redis.hexists(key, "version")
        assert lab.redis.ttl(key) == -1
        assert lab.client.show(job.session_id).state.final_response == "x"
        with pytest.raises(ArchiveUnavailable):
            lab.client.archive_status()
        with pytest.raises(ArchiveUnavailable):
            lab.client.show("nobody")


def test_what_is_sent_while_the_archive_is_away_is_carried_out_when_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    with Lab(tmp_path / "lab", env={"CELERY_AGENTS_ARCHIVE_URL": f"sqlite:///{folder}/history.db"}) as lab:
        worker, client = lab.worker(), lab.client
        client.schedules.set(Schedule("nightly", cron="* * * * * *", agent="planned", message="go on", session="night"))
        submitted = {"agent": "planned", "message": "go on", "session_id": "afar"}
        app = create_app(client.settings)
        app.send_task("celery_agents.submit", kwargs=submitted, queue="celery_agents.control")
        worker.wait_for_text("schedule nightly is tried again", 30)
        worker.wait_for_text("Task celery_agents.submit", 30)
        folder.mkdir()
        for name in ("night", "afar"):
            key = client.store.context.keys(name).session
            wait_until(lambda key=key: lab.redis.hexists(key, "version"), f"{name} was submitted", 60)
        status = client.schedules.get("nightly")
        assert status is not None
        assert status.refused == 0
