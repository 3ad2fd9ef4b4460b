"""`CELERY_AGENTS_REPLICAS` in a real cluster: each node confirms what it stores, and one without its replica nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import pytest

from celery_agents.flow import ProviderLimit
from celery_agents.tasks.app import create_app
from celery_agents.tasks.housekeeping.jobs import Inspection
from celery_agents.tasks.observability.doctor.checks import examine
from celery_agents.tasks.runtime import LazyRuntime
from celery_agents.worker.errors import NotConfirmed
from celery_agents.worker.store.redis.topology import slot_of

from support.agents import call, plan
from support.cluster import CLUSTER_MISSING, can_cluster
from support.cluster_lab import ClusterLab
from support.redis_keys import shard_of_session
from support.redis_server import RedisServer
from support.wait import wait_until

pytestmark = pytest.mark.skipif(not can_cluster(), reason=CLUSTER_MISSING)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterLab]:
    env = {"CELERY_AGENTS_REPLICAS": "1", "CELERY_AGENTS_REPLICA_TIMEOUT_SECONDS": "2"}
    with ClusterLab(tmp_path_factory.mktemp("lab"), env=env) as lab:
        lab.worker()
        yield lab


def replicas_doctor(lab: ClusterLab, **settings: object) -> list[tuple[str, str]]:
    """What doctor says of the replicas that confirm."""
    found = examine(lab.client.settings.model_copy(update=settings))
    return [(each.level.value, f"{each.what}: {each.advice}") for each in found if each.name == "replicas"]


def replica_of(lab: ClusterLab, primary: RedisServer) -> RedisServer:
    """The node that copies another one."""
    for node in lab.group.nodes:
        with node.client() as client:
            said = client.info("replication")
            if said["role"] == "slave" and said["master_port"] == primary.port:
                return node
    raise AssertionError("nothing copies it")


def names_on(lab: ClusterLab, primary: RedisServer, prefix: str) -> Iterator[str]:
    """Ids of sessions to come that are stored on a node."""
    for number in itertools.count():
        name = f"{prefix}-{number}"
        if lab.group.primary_of(slot_of(shard_of_session(name).due)) is primary:
            yield name


@pytest.mark.timeout(60)
def test_each_action_is_confirmed_by_the_replica_of_its_node(lab: ClusterLab) -> None:
    client = lab.client
    for primary in lab.group.primaries:
        names = names_on(lab, primary, "acts")
        job = client.submit("planned", plan([call("keyed", work=f"at {primary.port}")]), session_id=next(names))
        assert job.result(timeout=20).status == "completed"
        client.send_message(job.session_id, "{}").result(timeout=20)
        fork = client.fork(job.session_id)
        client.suspend(job.session_id, reason="a look")
        client.resume(job.session_id)
        held = client.submit("nobody-offers-this", "wait", session_id=next(names))
        client.stop(held.session_id, timeout=0)
        client.retry(held.session_id)
        client.stop(held.session_id, timeout=0)
        for session_id in (held.session_id, fork, job.session_id):
            client.delete(session_id)
    client.limits.set(ProviderLimit("openai:m", rpm=60), by="test")
    client.pause(agent="nobody", reason="a look")
    assert client.unpause(agent="nobody")
    client.limits.remove("openai:m")


@pytest.mark.timeout(60)
def test_a_node_without_its_replica_holds_up_its_own_sessions_alone(lab: ClusterLab) -> None:
    first, *others = lab.group.primaries
    own, elsewhere = names_on(lab, first, "alone"), names_on(lab, others[0], "elsewhere")
    replica = replica_of(lab, first)
    submit = partial(lab.client.submit, "planned", plan([call("unsafe", work="alone")], [call("pure", work="pure")]))
    pure = partial(lab.client.submit, "planned", plan([call("pure", work="pure")], after=0.3))
    ends = pure(session_id=next(own))
    replica.pause()
    try:
        with pytest.raises(NotConfirmed, match="0 of 1 replicas have it"):
            submit(session_id=(refused := next(own)), idempotency_key="refused")
        for _ in range(3):
            assert submit(session_id=next(elsewhere)).result(timeout=10).status == "completed"

        def is_put_off() -> bool:
            return "wait for the replicas of Redis" in lab.client.store.sessions.step_facts(refused).reason

        wait_until(is_put_off, "its call with effects waits", 10)
        wait_until(lambda: lab.client.header(ends.session_id).status == "completed", "its pure step does not", 10)
        with pytest.raises(NotConfirmed):
            ends.result(timeout=5)
    finally:
        replica.resume()
    job = submit(session_id=refused, idempotency_key="refused")
    assert job.result(timeout=20).status == "completed"
    assert [event.type for event in job.events(timeout=5)].count("execution_submitted") == 1


@pytest.mark.timeout(60)
def test_doctor_looks_at_each_node_and_a_number_that_does_not_fit_is_refused(lab: ClusterLab) -> None:
    assert replicas_doctor(lab) == [
        ("ok", f"1 of the 1 that have to confirm follow 127.0.0.1:{node.port}: ")
        for node in sorted(lab.group.primaries, key=lambda node: f"127.0.0.1:{node.port}")
    ]
    sentence = (
        "CELERY_AGENTS_REPLICAS=2, and the cluster has 3 nodes besides its 3 primaries: on some of them nothing would "
        "ever be confirmed; set it to 1, or add replicas"
    )
    assert replicas_doctor(lab, replicas=2) == [("fail", f"{sentence}: workers do not start before that is corrected")]
    worker = lab.worker(wait=False, CELERY_AGENTS_REPLICAS="2")
    worker.wait_for_text(sentence, 30)
    assert worker.wait(20) != 0
    assert "Traceback" not in worker.text()
    replica = replica_of(lab, lab.group.primaries[0])
    with replica.client() as client:
        port = client.info("replication")["master_port"]
    with lab.group.primary_of(0).client() as node:
        node.config_set("appendonly", "no")
        try:
            ((level, said),) = replicas_doctor(lab)
            assert level == "fail"
            assert "CELERY_AGENTS_REPLICAS=1 needs an append-only file on all servers" in said
        finally:
            node.config_set("appendonly", "yes")
    replica.kill()
    try:
        wait_until(lambda: any(level == "fail" for level, _ in replicas_doctor(lab)), "doctor misses it", 20)
        said = next(said for level, said in replicas_doctor(lab) if level == "fail")
        assert said.startswith(f"0 of the 1 that have to confirm follow 127.0.0.1:{port}: start them")
        settings = lab.client.settings.model_copy(update={"agents": "support.agents"})
        runtime = LazyRuntime(create_app(settings), settings)
        try:
            Inspection(runtime).run(())
            (problem,) = runtime().facts["problems"]
            assert problem.startswith(f"127.0.0.1:{port}: 0 of the 1 replicas that have to confirm follow; start them")
        finally:
            runtime.close()
    finally:
        replica.start()
        lab.group.wait_until_whole()
