"""A real Redis Cluster as the store: jobs while a slot moves, followers of several shards, doctor, and bad addresses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_agents import AgentClient
from celery_agents.config.settings import Settings, SettingsError
from celery_agents.flow import FairShares, ProviderLimit
from celery_agents.tasks.observability.doctor.checks import examine
from celery_agents.worker.errors import ConfigurationError, StoreUnavailable
from celery_agents.worker.store.redis.topology import slot_of

from support.cluster import CLUSTER_MISSING, ClusterGroup, can_cluster
from support.cluster_lab import ClusterLab
from support.deployed import DEPLOY
from support.lab import QUICK
from support.redis_keys import shard_of_session
from support.wait import wait_until
from support.worker_process import WorkerProcess

PASSWORD = "0123456789abcdef"

pytestmark = pytest.mark.skipif(not can_cluster(), reason=CLUSTER_MISSING)


@pytest.mark.timeout(90)
def test_jobs_go_on_while_a_slot_moves_key_by_key_and_back(tmp_path: Path) -> None:
    with ClusterLab(tmp_path / "lab", group={"replicas": 0}) as lab:
        worker = lab.worker()
        for _ in range(30):
            lab.submit(["keyed", "unsafe"], ["keyed"], ["pure"], after=0.2)
        slot = slot_of(shard_of_session(lab.jobs[0].session_id).due)
        home = lab.group.primary_of(slot)
        elsewhere = next(node for node in lab.group.primaries if node is not home)
        for target in (elsewhere, home):
            lab.group.move_slot(slot, target, each=lambda: time.sleep(0.01))
        assert lab.group.primary_of(slot) is home
        lab.wait_for_jobs(40)
        verdict = lab.verdict()
        assert not verdict.violations
        assert verdict.counts["jobs_completed"] == 30
        assert worker.alive
        assert "Traceback" not in worker.text()


@pytest.mark.timeout(60)
def test_a_job_runs_and_is_followed_listed_stopped_and_looked_at(
    cluster: ClusterGroup, redis_url: str, new_worker: Callable[..., WorkerProcess]
) -> None:
    cluster.clear()
    new_worker(cluster.url, env={**QUICK, "CELERY_AGENTS_BROKER_URL": redis_url})
    with AgentClient(cluster.url, broker_url=redis_url) as client:
        jobs = [client.submit("planned", "{}", idempotency_key=f"job-{number}") for number in range(6)]
        assert client.submit("planned", "{}", idempotency_key="job-0").session_id == jobs[0].session_id
        for job in jobs:
            assert job.result(timeout=20).status in ("completed", "failed")
            assert [event.type for event in job.events()]
        assert len(client.list(limit=100).items) == 6
        assert client.shares.get().shares is None
        held = client.submit("nobody-offers-this", "wait", priority="bulk")
        client.shares.set(FairShares("customer", weights={"acme": 2}))
        shared = client.submit("planned", "{}", labels={"customer": "acme"})
        assert shared.result(timeout=20).status in ("completed", "failed")
        assert client.shares.get().waiting == ()
        assert client.shares.remove()
        client.stop(held.session_id, timeout=0)
        assert client.header(held.session_id).status == "stopped"
    found = examine(Settings.build(redis_url=cluster.url, broker_url=redis_url))
    assert {each.name: each.what for each in found if each.level == "fail"} == {}
    assert [each.what for each in found if each.name == "shards"] == ["64; what is written is compressed"]
    whole, *alone = [each.what for each in found if each.name == "cluster"]
    assert whole == "3 nodes serve all slots"
    assert len(alone) == 3
    assert all(each.startswith("no replica follows 127.0.0.1:") for each in alone)


@pytest.mark.timeout(60)
def test_a_client_that_was_idle_while_a_node_left_the_cluster_asks_it_no_more(tmp_path: Path, redis_url: str) -> None:
    config = {"cluster-allow-replica-migration": "no"}
    with (
        ClusterGroup(tmp_path, replicas=0, config=config) as group,
        AgentClient(group.url, broker_url=redis_url) as client,
    ):
        with pytest.warns(UserWarning, match="no worker has registered"):
            session = client.submit("nobody-offers-this", "wait").session_id
        slot, guest = slot_of(shard_of_session(session).due), group.add_node()
        home = group.move_slot(slot, guest)
        assert client.header(session).status == "pending"
        group.move_slot(slot, home)
        group.remove_node(guest)
        assert client.header(session).status == "pending"
        client.stop(session, timeout=0)
        assert client.header(session).status == "stopped"


@pytest.fixture
def roles(cluster: ClusterGroup) -> Iterator[Callable[[str], str]]:
    """The users of deploy/redis/users.acl on every node; gives the cluster's address for one of them."""
    cluster.clear()
    text = (DEPLOY / "redis" / "users.acl").read_text().replace("\\\n", " ")
    users = {words[1]: words[2:] for line in text.splitlines() if (words := line.split())[:1] == ["user"]}
    chosen = ("producer", "worker", "monitor", "http")
    for node in cluster.nodes:
        with node.client() as client:
            is_old = client.info("server")["redis_version"].startswith("6.")
            for role in chosen:
                rules = [word.strip("()") if is_old else word for word in users[role]]
                client.execute_command("ACL", "SETUSER", role, *rules, "on", f">{PASSWORD}")
    yield lambda role: cluster.url.replace("://", f"://{role}:{PASSWORD}@")
    for node in cluster.nodes:
        with node.client() as client:
            client.execute_command("ACL", "DELUSER", *chosen)


@pytest.mark.timeout(90)
def test_each_user_of_the_deployment_can_do_its_part_on_a_cluster(
    roles: Callable[[str], str], redis_url: str, new_worker: Callable[..., WorkerProcess]
) -> None:
    worker = new_worker(roles("worker"), env={**QUICK, "CELERY_AGENTS_BROKER_URL": redis_url})
    for role in ("producer", "http"):
        with AgentClient(roles(role), broker_url=redis_url) as client:
            jobs = [client.submit("planned", "{}") for _ in range(4)]
            assert all(job.result(timeout=20).status in ("completed", "failed") for job in jobs)
            client.limits.set(ProviderLimit("openai:m", rpm=60), by=role)
            client.pause(agent="planned", reason="a look")
            assert client.unpause(agent="planned")
            client.delete(jobs[0].session_id)
            assert len(client.list(limit=100).items) == (3 if role == "producer" else 6)
    found = examine(Settings.build(redis_url=roles("monitor"), broker_url=redis_url))
    assert {each.name: each.what for each in found if each.level == "fail"} == {}
    assert [each.what for each in found if "refuses this user" in each.what] == []
    worker.terminate()
    worker.wait(20)
    assert "refuses this user" not in worker.text()
    assert "Traceback" not in worker.text()


BAD_SETTINGS = [
    (
        {"redis_url": "redis+cluster://127.0.0.1:7000"},
        "set CELERY_AGENTS_BROKER_URL to one server, Sentinels or Rabbit",
    ),
    ({"redis_url": "redis+cluster://a", "broker_url": "redis+cluster://a"}, "Celery has no broker for a Redis Cluster"),
    ({"redis_url": "redis+cluster://a:x", "broker_url": "redis://b"}, "'a:x' is no address of a node; write it like"),
    ({"redis_url": "redis+cluster://a/3", "broker_url": "redis://b"}, "a cluster has the database 0 alone"),
]


@pytest.mark.parametrize(("settings", "sentence"), BAD_SETTINGS)
def test_settings_that_cannot_work_with_a_cluster_are_refused(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        Settings.build(**settings)


@pytest.mark.timeout(90)
def test_a_url_of_no_cluster_is_a_sentence_for_client_doctor_and_worker(
    cluster: ClusterGroup, redis_url: str, new_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    cluster.clear()
    with ClusterGroup(tmp_path, primaries=1, replicas=0) as half:
        (node,) = half.nodes
        with node.client() as client:
            client.execute_command("CLUSTER DELSLOTS", *range(100))
        alone = redis_url.removeprefix("redis://").partition("/")[0]
        cases = [
            (f"{cluster.url},{alone}", ConfigurationError, f"{alone} is no node of a cluster"),
            (f"redis+cluster://127.0.0.1:{node.port}", ConfigurationError, "100 of the 16384 slots of the cluster are"),
            (
                "redis+cluster://127.0.0.1:1",
                StoreUnavailable,
                "no node of the cluster answers (127.0.0.1:1: Connection",
            ),
        ]
        broker = {"CELERY_AGENTS_BROKER_URL": redis_url}
        workers = [new_worker(url, wait=False, env=broker) for url, _, _ in cases]
        for url, kind, sentence in cases:
            with pytest.raises(kind) as refused:
                AgentClient(url, broker_url=redis_url).submit("planned", "hello")
            assert sentence in str(refused.value)
            with pytest.raises(kind) as refused:
                examine(Settings.build(redis_url=url, broker_url=redis_url))
            assert sentence in str(refused.value)
        for worker, (_, _, sentence) in zip(workers, cases, strict=True):
            worker.wait_for_text(sentence, 40)
            worker.terminate()
            worker.wait(20)
            assert "Traceback" not in worker.text()


@pytest.mark.timeout(60)
def test_a_node_that_is_away_holds_up_its_own_sessions_alone(tmp_path: Path) -> None:
    with ClusterLab(tmp_path / "lab", group={"replicas": 0, "timeout_ms": 60_000}) as lab:
        lab.worker()
        fleet = lab.group.primary_of(slot_of(lab.client.store.context.fleet.flow))
        stopped = next(node for node in lab.group.primaries if node is not fleet)
        for _ in range(40):
            lab.submit(["keyed"], ["keyed"], ["pure"], after=0.3)
        homes = {
            job.session_id: lab.group.primary_of(slot_of(shard_of_session(job.session_id).due)) for job in lab.jobs
        }
        others = [job for job in lab.jobs if homes[job.session_id] is not stopped]
        assert 0 < len(others) < 40
        stopped.pause()
        try:
            lab.wait_for_jobs(12, others)
            page = lab.client.list(limit=100)
            assert {each.session_id for each in page.items} == {job.session_id for job in others}
            assert lab.client.store.context.unread
        finally:
            stopped.resume()
        lab.wait_for_jobs(20)
        wait_until(lambda: len(lab.client.list(limit=100).items) == 40, "all are listed again", 10)
        assert not lab.verdict().violations
