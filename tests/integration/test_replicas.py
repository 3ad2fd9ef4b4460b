"""`CELERY_AGENTS_REPLICAS`: what is acknowledged, given or begun has reached a replica, by a real primary and replica."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from celery_agents import Job
from celery_agents.tasks.observability.doctor.checks import examine
from celery_agents.worker.errors import NotConfirmed, StoreUnavailable
from celery_agents.worker.state.execution.tool_calls import ToolOutcome

from support.agents import call, plan
from support.lab import Lab
from support.redis_server import RedisServer
from support.wait import wait_until

_TIMEOUT_SECONDS = 0.4


class ReplicatedLab(Lab):
    """A lab whose Redis has one replica, which has to confirm."""

    def __init__(self, directory: Path) -> None:
        env = {"CELERY_AGENTS_REPLICAS": "1", "CELERY_AGENTS_REPLICA_TIMEOUT_SECONDS": str(_TIMEOUT_SECONDS)}
        super().__init__(directory, env=env, redis_options={"append_only": "everysec"})
        self.replica = self.new_replica("replica")

    def new_replica(self, name: str) -> RedisServer:
        config = {"repl-diskless-sync-delay": "0"}
        return RedisServer(self.directory / name, append_only="everysec", config=config)

    def _start_redis(self) -> redis.Redis:
        client = super()._start_redis()
        self._closing.append(self.replica.end)
        self.follow(self.replica)
        wait_until(lambda: self.following(client) == 1, "the replica follows", 20)
        return client

    def follow(self, replica: RedisServer) -> None:
        """Let a server be a replica."""
        if not replica.alive:
            replica.start()
        with replica.client() as client:
            client.replicaof(self.server.host, str(self.server.port))

    @staticmethod
    def following(client: redis.Redis) -> int:
        """How many replicas follow."""
        found = client.info("replication")
        return sum(isinstance(each, dict) and each.get("state") == "online" for each in found.values())

    def confirmations(self) -> int:
        """How often somebody has waited for the replica."""
        return self.redis.info("commandstats").get("cmdstat_wait", {}).get("calls", 0)

    def effects(self) -> int:
        """How many calls of tools have had their effect."""
        return sum(count for key, count in self.ledger.deliveries().items() if not key.startswith("driver:"))

    def run(self, *tools: str) -> Job:
        """Submit a job that calls these tools in one step."""
        calls = [call(tool, work=f"{self.confirmations()}.{place}") for place, tool in enumerate(tools)]
        return self.client.submit("planned", plan(calls, after=0.3))


def doctor(lab: ReplicatedLab) -> str:
    """What doctor says of the replicas."""
    settings = lab.client.settings
    return next(
        f"{each.level.value}: {each.what}: {each.advice}" for each in examine(settings) if each.name == "replicas"
    )


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedLab]:
    with ReplicatedLab(tmp_path_factory.mktemp("replicated")) as lab:
        lab.worker()
        yield lab


@pytest.fixture
def stopped(lab: ReplicatedLab) -> Iterator[ExitStack]:
    """Resumes the replica that the test stops, when it is closed and at the end."""
    with ExitStack() as until:
        until.callback(lab.replica.resume)
        yield until


@pytest.mark.timeout(60)
def test_an_action_without_a_replica_is_refused_and_asked_again_it_is_taken_once(
    lab: ReplicatedLab, stopped: ExitStack
) -> None:
    message = plan([call("pure", work="again")])
    lab.replica.pause()
    began = time.monotonic()
    with pytest.raises(NotConfirmed) as refused:
        lab.client.submit("planned", message, idempotency_key="once")
    assert _TIMEOUT_SECONDS <= time.monotonic() - began < _TIMEOUT_SECONDS + 2
    assert str(refused.value) == "written, and not confirmed by a replica; ask again (0 of 1 replicas have it)"
    assert isinstance(refused.value, StoreUnavailable), "callers that know of no replicas handle it"
    with pytest.raises(NotConfirmed):  # it was applied before, and is no more confirmed than the first time
        lab.client.submit("planned", message, idempotency_key="once")
    stopped.close()
    job = wait_until(
        lambda: lab.client.submit("planned", message, idempotency_key="once"), "it is confirmed", ignoring=NotConfirmed
    )
    assert job.result(timeout=20).status == "completed"
    assert [event.type for event in job.events(timeout=5)].count("execution_submitted") == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize("tool", ["unsafe", pytest.param("keyed", marks=pytest.mark.long)])
def test_a_call_with_effects_does_not_begin_before_a_replica_knows_of_it(
    lab: ReplicatedLab, stopped: ExitStack, tool: str
) -> None:
    job = lab.run(tool)
    lab.replica.pause()
    before = lab.effects()

    def is_put_off() -> bool:
        return "wait for the replicas of Redis: 0 of 1" in lab.client.store.sessions.step_facts(job.session_id).reason

    wait_until(is_put_off, "the step is put off", 10)
    facts = lab.client.store.sessions.step_facts(job.session_id)
    assert (facts.put_off, facts.attempts, facts.delays) == ("replicas", 0, 0)
    time.sleep(1)
    assert lab.effects() == before
    stopped.close()
    assert job.result(timeout=20).status == "completed"
    assert lab.effects() == before + 1
    step = lab.client.show(job.session_id).state.steps[0]
    assert [each.outcome for each in step.tool_executions] == [ToolOutcome.OK], "it never began, so it is not unknown"


@pytest.mark.timeout(60)
def test_a_result_is_not_given_before_a_replica_has_it_and_reading_a_session_never_waits(
    lab: ReplicatedLab, stopped: ExitStack
) -> None:
    job = lab.run("pure")
    lab.replica.pause()
    wait_until(lambda: lab.client.header(job.session_id).status == "completed", "it has ended", 10)
    began = time.monotonic()
    lab.client.show(job.session_id)
    list(job.events(timeout=0.2))
    assert time.monotonic() - began < _TIMEOUT_SECONDS * 3
    with pytest.raises(NotConfirmed):
        job.result(timeout=5)
    stopped.close()
    result = wait_until(lambda: job.result(timeout=5), "it is confirmed", ignoring=NotConfirmed)
    assert result.status == "completed"


@pytest.mark.timeout(60)
def test_a_pure_step_waits_for_no_replica_and_one_with_effects_once(lab: ReplicatedLab) -> None:
    def count(*tools: str) -> int:
        before = lab.confirmations()
        job = lab.run(*tools)
        safe = lab.client.store.context.keys(job.session_id).session
        wait_until(lambda: lab.redis.hget(safe, "safe") is not None, "its end is safe", 10)
        counted = lab.confirmations() - before
        assert job.result(timeout=5).status == "completed"
        assert lab.confirmations() - before == counted, "whoever finds the mark waits for nothing"
        return counted

    assert count("pure") == 2, "its submit and its end"
    assert count("keyed", "keyed", "pure") == 3, "calls that begin together, with one confirmation"


@pytest.mark.long  # it waits for servers and workers to start
@pytest.mark.timeout(60)
def test_a_client_that_acknowledges_like_a_replica_does_not_count(lab: ReplicatedLab, stopped: ExitStack) -> None:
    other = lab.new_replica("other")
    stopped.callback(other.end)
    lab.follow(other)
    wait_until(lambda: lab.following(lab.redis) == 2, "two follow", 20)
    with pytest.raises(NotConfirmed, match="2 replicas are connected, and there are to be at most 1"):
        lab.run("pure")
    assert doctor(lab).startswith("fail: 2 are connected: end what acknowledges like a replica")
    other.end()
    wait_until(lambda: lab.following(lab.redis) == 1, "one follows", 20)
    assert doctor(lab).startswith("ok: 1 of the 1 that have to confirm follow")
    assert lab.run("pure").result(timeout=20).status == "completed"


@pytest.mark.timeout(60)
def test_what_was_written_to_another_primary_is_not_confirmed_by_this_one(lab: ReplicatedLab) -> None:
    confirmer = lab.client.store.context.confirmer
    shard = lab.client.store.context.shards[0]
    assert confirmer is not None
    with confirmer.noting() as used:
        lab.client.header(lab.run("pure").session_id)
    (known,) = used
    confirmer.confirm(shard, {known})
    with pytest.raises(NotConfirmed, match="another server is primary by now"):
        confirmer.confirm(shard, {known, "another-id"})
    assert lab.run("pure").result(timeout=20).status == "completed"
    lab.redis.replicaof("127.0.0.1", "1")
    lab.redis.replicaof("NO", "ONE")  # the same server is primary, with another history
    wait_until(lambda: lab.following(lab.redis) == 1, "the replica follows again", 20)
    with pytest.raises(NotConfirmed):
        lab.run("pure")
    assert lab.run("pure").result(timeout=20).status == "completed", "its connections are new, and know the id"


@pytest.mark.long  # it waits for servers and workers to start
@pytest.mark.timeout(60)
def test_a_server_that_cannot_keep_what_is_promised_is_refused_at_start(lab: ReplicatedLab) -> None:
    lab.redis.config_set("appendonly", "no")
    try:
        worker = lab.worker(wait=False)
        worker.wait_for_text("CELERY_AGENTS_REPLICAS=1 needs an append-only file on all servers", 30)
        assert worker.wait(20) != 0
        assert doctor(lab).startswith("fail: CELERY_AGENTS_REPLICAS=1 needs an append-only file")
    finally:
        lab.redis.config_set("appendonly", "yes")


@pytest.mark.long  # it waits for servers and workers to start
@pytest.mark.timeout(60)
def test_missing_replicas_keep_no_worker_from_starting(lab: ReplicatedLab, stopped: ExitStack) -> None:
    with lab.replica.client() as replica:
        replica.replicaof("NO", "ONE")
    stopped.callback(lab.follow, lab.replica)
    wait_until(lambda: lab.following(lab.redis) == 0, "none follows", 20)
    lab.worker().end()
    assert doctor(lab).startswith("fail: 0 of the 1 that have to confirm follow: start them")
