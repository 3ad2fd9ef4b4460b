"""A Redis that fails over, by real Sentinels: jobs, clients, the connections of a pool, and what doctor says."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Queue

from celery_agents import AgentClient
from celery_agents.config.settings import Settings
from celery_agents.tasks.app import create_app
from celery_agents.tasks.consumer.exits import FORCE_MARGIN_SECONDS
from celery_agents.tasks.housekeeping.callbacks import CallbackCaller
from celery_agents.tasks.observability.doctor.checks import examine
from celery_agents.worker.errors import StoreUnavailable
from celery_agents.worker.store.redis.database import connect
from celery_agents.worker.store.redis.pools import Sentinels

from support.failover_lab import FailoverLab
from support.lab import Lab
from support.redis_server import RedisServer
from support.sentinels import SENTINEL_MISSING, SentinelGroup, find_sentinel
from support.wait import wait_until
from support.worker_process import WorkerProcess

needs_sentinel = pytest.mark.skipif(find_sentinel() is None, reason=SENTINEL_MISSING)


@needs_sentinel
@pytest.mark.timeout(120)
@pytest.mark.parametrize("replicas", [pytest.param(0, marks=pytest.mark.long), 1])
def test_jobs_survive_the_loss_of_the_primary(tmp_path: Path, replicas: int) -> None:
    env = {"CELERY_AGENTS_REPLICAS": str(replicas)}
    with FailoverLab(tmp_path / "lab", group={"down_after_ms": 500}, env=env) as lab:
        workers = [lab.worker(wait=False) for _ in range(2)]
        for worker in workers:
            wait_until(worker._is_registered, "it has registered", 40, details=worker.tail)
        for _ in range(15):
            lab.submit(["keyed", "unsafe"], ["keyed"], *[["pure"]] * 10, after=0.3)  # longer than the failover
        wait_until(lambda: lab.ledger.deliveries().total() >= 15, "the work is under way", 20)
        lab.kill_primary()
        promoted, before = time.monotonic(), lab.ledger.deliveries().total()
        wait_until(lambda: lab.ledger.deliveries().total() > before, "the first step behind the failover", 10)
        assert time.monotonic() - promoted < 10
        lab.submit(["keyed"])
        lab.wait_for_jobs(40)
        verdict = lab.verdict()
        assert not verdict.violations
        assert [worker.alive for worker in workers] == [True, True]
        said = findings(lab.store_url, replicas=replicas)
        assert ("replicas" in said or "replicas ok" in said) == bool(replicas)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    if find_sentinel() is None:
        pytest.skip(SENTINEL_MISSING)
    with SentinelGroup(tmp_path_factory.mktemp("group"), servers=2, sentinels=3, down_after_ms=500) as group:
        yield group


@pytest.fixture(scope="module")
def replica_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a replica that no failover makes a primary, however long a busy machine lets a Sentinel wait."""
    with RedisServer(tmp_path_factory.mktemp("replica"), config={"replicaof": "127.0.0.1 1"}) as server:
        yield server.url()


def findings(url: str, *, replicas: int = 0) -> dict[str, tuple[str, str]]:
    """What doctor finds: levels and sentences by name."""
    found = examine(Settings.build(redis_url=url, replicas=replicas))
    return {each.name: (each.level.value, f"{each.what}: {each.advice}") for each in found if each.level != "ok"} | {
        f"{each.name} ok": ("ok", each.what) for each in found if each.level == "ok"
    }


@pytest.mark.timeout(60)
def test_doctor_names_role_replicas_and_sentinels(group: SentinelGroup) -> None:
    found = findings(group.url)
    assert found["role ok"] == ("ok", "primary; 1 of 1 connected replicas follow")
    assert found["sentinels ok"][1].startswith("3 of 3 name 127.0.0.1:")
    assert "writes" not in found
    on_replica = findings(group.replicas[0].url())
    assert on_replica["role"][0] == "fail"
    assert "point CELERY_AGENTS_REDIS_URL at the primary, or at Sentinels" in on_replica["role"][1]
    assert "refused: Redis is away: READONLY" in on_replica["writes"][1]


@pytest.mark.timeout(60)
def test_more_replicas_than_the_sentinels_know_are_refused(
    group: SentinelGroup, new_worker: Callable[..., WorkerProcess]
) -> None:
    sentence = "CELERY_AGENTS_REPLICAS=2, and the Sentinels know 1: nothing would ever be confirmed; set it to 1"
    level, said = findings(group.url, replicas=2)["replicas"]
    assert level == "fail"
    assert sentence in said
    worker = new_worker(group.url, wait=False, env={"CELERY_AGENTS_REPLICAS": "2"})
    worker.wait_for_text(sentence, 40)
    assert worker.wait(20) != 0
    assert findings(group.url, replicas=1)["replicas ok"] == ("ok", "1 of the 1 that have to confirm follow")


@pytest.mark.long  # a Sentinel asks a replica for its priority every ten seconds
@pytest.mark.timeout(60)
def test_unequal_priorities_and_replicas_that_one_confirmation_does_not_outvote_are_named(tmp_path: Path) -> None:
    if find_sentinel() is None:
        pytest.skip(SENTINEL_MISSING)
    with SentinelGroup(tmp_path, servers=3, sentinels=3) as three:
        level, said = findings(three.url, replicas=1)["replicas"]
        assert level == "fail"
        assert "1 of 2 have to confirm, and a failover may choose one of the others" in said
        assert findings(three.url, replicas=2)["replicas ok"] == ("ok", "2 of the 2 that have to confirm follow")
        with three.replicas[0].client() as client:
            client.config_set("replica-priority", 50)
        wait_until(lambda: "replicas" in findings(three.url, replicas=2), "the Sentinels know it", 30)
        assert "needs equal priorities, and the replicas have 50, 100" in findings(three.url, replicas=2)["replicas"][1]


@pytest.mark.timeout(60)
def test_doctor_names_a_sentinel_that_is_away(group: SentinelGroup) -> None:
    refused = "ConnectionError: Error 111 connecting to 127.0.0.1:1. Connection refused"
    nobody = f"redis+sentinel://127.0.0.1:{group.ports[0]},127.0.0.1:1,127.0.0.1:{group.ports[1]}/mymaster/0"
    assert findings(nobody)["sentinels"] == (
        "warn",
        f"127.0.0.1:1 does not answer: {refused}.: start it, or take it out of CELERY_AGENTS_REDIS_URL",
    )


WRONG_URLS = [
    (
        "redis+sentinel://127.0.0.1:{0}/main/0",
        "the Sentinels watch mymaster and no 'main'; correct the name in CELERY_AGENTS",
    ),
    ("redis+sentinel://127.0.0.1:1/mymaster/0", "no Sentinel answers (127.0.0.1:1: ConnectionError"),
    (
        "redis+sentinel://127.0.0.1:{0},127.0.0.1:{other}/mymaster/0",
        "name the Sentinels of one installation in CELERY_AGENTS",
    ),
    ("{replica}", "CELERY_AGENTS_REDIS_URL leads to a replica; name the primary"),
]


@pytest.mark.timeout(90)
def test_a_url_that_leads_nowhere_is_a_sentence_for_client_doctor_and_worker(
    group: SentinelGroup, replica_url: str, tmp_path: Path, new_worker: Callable[..., WorkerProcess]
) -> None:
    with SentinelGroup(tmp_path, servers=1, sentinels=1) as other:
        places = {"other": other.ports[0], "replica": replica_url}
        cases = [(url.format(*group.ports, **places), sentence) for url, sentence in WRONG_URLS]
        workers = [new_worker(url, wait=False) for url, _ in cases]
        for url, sentence in cases:
            with pytest.raises(StoreUnavailable) as refused:
                AgentClient(url).submit("planned", "hello")
            assert sentence in str(refused.value)
            assert sentence in said_by_doctor(url)
        for worker, (_, sentence) in zip(workers, cases, strict=True):
            worker.wait_for_text(sentence, 40)
            worker.terminate()
        for worker in workers:
            assert worker.wait(20) == 0
            assert "Traceback" not in worker.text()


WRONG_BROKERS = [
    ("redis+sentinel://127.0.0.1:{0}/main/0", "no 'main'; correct the name in CELERY_AGENTS_BROKER_URL"),
    ("redis+sentinel://127.0.0.1:1/mymaster/0", "start them, or correct their addresses in CELERY_AGENTS_BROKER_URL"),
    (
        "{replica}",
        "a replica, which takes no messages: point CELERY_AGENTS_BROKER_URL at the primary",
    ),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("url", "sentence"), WRONG_BROKERS)
def test_a_broker_that_leads_nowhere_is_a_sentence(
    group: SentinelGroup, replica_url: str, redis_url: str, url: str, sentence: str
) -> None:
    broker_url = url.format(*group.ports, replica=replica_url)
    found = examine(Settings.build(redis_url=redis_url, broker_url=broker_url))
    (said,) = [f"{each.what}: {each.advice}" for each in found if each.name == "broker" and each.level == "fail"]
    assert sentence in said


def said_by_doctor(url: str) -> str:
    try:
        return " ".join(sentence for _, sentence in findings(url).values())
    except StoreUnavailable as error:
        return str(error)


@pytest.mark.long  # it waits for a failover of its own
@pytest.mark.timeout(60)
def test_failed_and_former_connections_use_up_no_pool(group: SentinelGroup) -> None:
    """redis-py before 8.1 counts each of them for ever, until the pool may make no connection any more."""
    database = connect(group.url, timeout_seconds=2, connections=3, name="pool")
    with contextlib.closing(database):
        database.pipeline("test", [("PING",)])
        before = group.primary
        before.kill()
        tries = 0
        deadline = time.monotonic() + 20
        while True:
            try:
                (role,) = database.pipeline("test", [("ROLE",)])
                break
            except StoreUnavailable:
                tries += 1
                assert time.monotonic() < deadline, "no connection is made any more"
                time.sleep(0.05)
        assert tries > 3
        assert role[0] == b"master"
    before.start()
    group.wait_for_replicas()


@pytest.mark.long  # it waits for a failover of its own
@pytest.mark.timeout(90)
@pytest.mark.filterwarnings("ignore:no worker has registered")
def test_a_former_primary_that_is_back_takes_messages_of_other_apps_alone(group: SentinelGroup) -> None:
    """It believes that it is primary until the Sentinels demote it, ten seconds later, and then forgets what it took."""
    settings, before = Settings.build(redis_url=group.url), group.primary
    app = create_app(settings)
    with Connection(app.conf.broker_url, transport_options=app.conf.broker_transport_options) as theirs:
        theirs.SimpleQueue("warm").put("hello")
        app.send_task("their.task", queue=Queue("warm"))  # Celery keeps the connection
        before.pause()
        promoted = group.wait_for_failover(before)
        with AgentClient(group.url) as client, before.client() as former, promoted.client() as primary:
            job = client.submit("nobody-offers-this", "hello", on_complete="their.task")
            client.stop(job.session_id, timeout=0)
            before.resume()
            theirs.SimpleQueue("of another app").put("hello")
            app.send_task("their.task", queue=Queue("of our app"))
            assert former.llen("of another app") == 1, "nothing tells it that the server is no primary any more"
            caller = CallbackCaller(app, client.store, settings)
            wait_until(lambda: caller.start_due() >= 0 and primary.llen("celery"), "the callback is made", 20)
            group.wait_until_settled()
            assert (primary.llen("celery"), primary.llen("of our app"), primary.llen("of another app")) == (1, 1, 0)
            caller.close()


class BrokerLab(Lab):
    """A lab whose broker is a group with Sentinels, and whose store is one server."""

    def __init__(self, directory: Path, group: SentinelGroup) -> None:
        super().__init__(directory)
        self.group = group

    @property
    def broker_url(self) -> str:
        """The Sentinels' address."""
        return self.group.url


@pytest.mark.long  # it waits for a failover of its own
@pytest.mark.timeout(90)
def test_steps_that_a_broker_forgets_in_a_failover_are_announced_again(group: SentinelGroup, tmp_path: Path) -> None:
    with BrokerLab(tmp_path / "lab", group) as lab:
        worker = lab.worker()
        for _ in range(10):
            lab.submit(["keyed", "unsafe"], ["keyed"], ["pure"], after=0.3)
        wait_until(lambda: lab.ledger.deliveries().total() >= 10, "the work is under way", 20)
        before = group.primary
        before.pause()
        promoted = group.wait_for_failover(before)
        before.resume()
        for _ in range(5):
            lab.submit(["keyed"], ["unsafe"], ["pure"])
        with promoted.client() as client:
            client.flushall()
        lab.wait_for_jobs(40)
        assert not lab.verdict().violations
        assert worker.alive
    group.wait_until_settled()


@pytest.mark.timeout(60)
def test_a_server_that_sentinels_name_and_that_is_no_primary_is_not_used(
    group: SentinelGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = group.replicas[0]
    with contextlib.closing(connect(group.url, timeout_seconds=2, connections=3, name="role")) as database:
        with monkeypatch.context() as lagging:
            lagging.setattr(Sentinels, "discover_master", lambda *_: (replica.host, replica.port))
            with pytest.raises(StoreUnavailable, match="which the Sentinels name, is no primary"):
                database.pipeline("test", [("EXISTS", "a")])
        assert database.pipeline("test", [("EXISTS", "a")]) == [0]


@pytest.mark.long  # it refuses for longer than a worker's drain
@pytest.mark.timeout(60)
@pytest.mark.parametrize("refusal", ["NOREPLICAS", "READONLY"])
def test_a_redis_that_refuses_everything_for_a_while_ends_no_worker(tmp_path: Path, refusal: str) -> None:
    with Lab(tmp_path / "lab", env={"CELERY_AGENTS_DRAIN_SECONDS": "1"}) as lab:
        worker = lab.worker(CELERY_AGENTS_TASK_EVENTS="true")
        for _ in range(5):
            lab.submit(["keyed", "unsafe"], ["keyed"], after=0.3)
        wait_until(lambda: lab.ledger.deliveries().total() >= 5, "the work is under way", 20)
        _refuse(lab.server, refusal, is_on=True)
        for kind in ("normal", "pubsub"):
            lab.redis.client_kill_filter(_type=kind, skipme=True)
        time.sleep(8)  # before, the worker ended after its drain time and five seconds
        assert worker.alive, worker.tail(40)
        _refuse(lab.server, refusal, is_on=False)
        lab.wait_for_jobs(30)
        verdict = lab.verdict()
        assert not verdict.violations
        assert verdict.counts["deliveries_again"] == 0
        assert worker.alive
        assert lab.client.store.housekeeping.list_dead(3) == []


@pytest.mark.long  # it waits for a worker's drain
@pytest.mark.timeout(60)
@pytest.mark.parametrize("refusal", ["NOREPLICAS", "READONLY", "no answer"])
def test_a_worker_that_is_to_end_ends_in_time_whatever_redis_says(tmp_path: Path, refusal: str) -> None:
    with Lab(tmp_path / "lab", env={"CELERY_AGENTS_DRAIN_SECONDS": "1"}) as lab:
        worker = lab.worker()
        for _ in range(5):
            lab.submit(["keyed", "unsafe"], ["keyed"], after=0.3)
        wait_until(lambda: lab.ledger.deliveries().total() >= 5, "the work is under way", 20)
        if refusal == "no answer":
            lab.server.pause()
        else:
            _refuse(lab.server, refusal, is_on=True)
        began = time.monotonic()
        worker.terminate()
        assert worker.wait(20) == 0
        assert time.monotonic() - began < 1 + FORCE_MARGIN_SECONDS + 1
        lab.server.resume()
        _refuse(lab.server, refusal, is_on=False)
        lab.worker()
        lab.wait_for_jobs(30)
        assert not lab.verdict().violations


def _refuse(server: RedisServer, refusal: str, *, is_on: bool) -> None:
    with server.client() as client:
        if refusal == "NOREPLICAS":
            client.config_set("min-replicas-to-write", int(is_on))
        else:
            place: tuple[Any, ...] = ("127.0.0.1", 1) if is_on else ("NO", "ONE")
            client.execute_command("REPLICAOF", *place)
