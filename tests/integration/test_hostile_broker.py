"""A real worker and a Redis in which somebody writes what no part of the product writes."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_agents import AgentClient
from celery_agents.tasks.app import create_app
from celery_agents.tasks.message_template import MessageTemplate
from celery_agents.worker.store import StepRef

from support.agents import plan
from support.redis_server import RedisServer
from support.wait import wait_until
from support.worker_process import WorkerProcess

STEPS, CONTROL = "celery_agents.steps", "celery_agents.control"
RECORDS, TIMES = f"{CONTROL}.unacked", f"{CONTROL}.unacked_index"
EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
FAR = "2099-01-01T00:00:00+00:00"
PAST = "2001-01-01T00:00:00+00:00"

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.leaves_keys("what was quarantined or damaged stays"),
    pytest.mark.filterwarnings("ignore:no worker has registered"),
]


class Attacker:
    """Somebody who may write to the Redis of a worker, and a client who only works."""

    def __init__(self, url: str, broker: redis.Redis, worker: WorkerProcess) -> None:
        self.broker = broker
        self.worker = worker
        self.client = AgentClient(url)
        self.app = create_app(self.client.settings)
        self._template = MessageTemplate(self.app, self.client.settings, has_parent=False)

    def element(self, ref: StepRef | None = None, **headers: Any) -> dict[str, Any]:
        """A step message for nobody, or for a step."""
        message = json.loads(self._template.message(ref or StepRef("nobody", "nothing", 1), 0))
        message["headers"] |= headers
        message["properties"]["delivery_tag"] = uuid.uuid4().hex
        return message

    def wish(self, task: str, **kwargs: Any) -> dict[str, Any]:
        message = self.element(task=task, id=uuid.uuid4().hex)
        message["body"] = base64.b64encode(json.dumps([[], kwargs, EMBED]).encode()).decode()
        return message

    def push(self, queue: str, *messages: Any) -> None:
        self.broker.lpush(queue, *(each if isinstance(each, bytes) else json.dumps(each) for each in messages))

    def dead(self) -> list[dict[str, str]]:
        return self.client.store.housekeeping.list_dead(1000)

    def quarantined(self, number: int, why: str) -> list[str]:
        wait_until(lambda: len(self.dead()) >= number, why, 20, details=self.worker.tail)
        return [entry["reason"] for entry in self.dead()]

    def refused(self, source: str) -> dict[str, Any]:
        found = [facts["refused"].get(source) for facts in self.client.store.registry.workers().values()]
        return next((each for each in found if each), {})

    def works(self) -> None:
        """The worker is the same as before, and takes and ends jobs."""
        assert self.worker.alive, self.worker.tail()
        job = self.client.submit("planned", plan(answer="fine"))
        assert job.result(timeout=20).status == "completed", self.worker.tail()


@pytest.fixture
def attacker(
    redis_url: str, redis_client: redis.Redis, new_worker: Callable[..., WorkerProcess], ledger: Any
) -> Attacker:
    worker = new_worker(env={**ledger.env, "CELERY_AGENTS_SWEEP_SECONDS": "0.2", "CELERY_AGENTS_CONTROL_TASKS": "all"})
    return Attacker(redis_url, redis_client, worker)


def test_a_consumer_tag_of_any_type_does_not_end_the_worker(attacker: Attacker) -> None:
    for tag in ({}, [], 7, None, "celery-agents-no-ack"):
        wish = attacker.wish("celery_agents.stop", session_id="nobody")
        wish["properties"]["delivery_info"]["consumer_tag"] = tag
        attacker.push(CONTROL, wish, wish)
    wait_until(lambda: attacker.broker.llen(CONTROL) == 0, "the wishes are taken", 10)
    wait_until(lambda: attacker.broker.hlen(RECORDS) == 0, "and acknowledged", 20, details=attacker.worker.tail)
    attacker.works()


def test_a_forged_address_with_a_far_eta_is_quarantined_and_leaves_no_record(attacker: Attacker) -> None:
    keys: list[Any] = [{}, 7, None, "unacked", "foreign", "\ud800"]
    for key in keys:
        wish = attacker.wish("celery_agents.stop", session_id="nobody")
        wish["headers"]["eta"] = FAR
        wish["properties"]["delivery_info"] |= {"exchange": key, "routing_key": key}
        attacker.push(CONTROL, wish)
    assert all("eta=" in reason for reason in attacker.quarantined(len(keys), "each is quarantined"))
    wait_until(lambda: attacker.broker.hlen(RECORDS) == 0, "no record of it is left", 10)
    attacker.works()


def test_a_control_message_of_a_killed_worker_comes_again_from_its_queue_wherever_its_sender_wants_it(
    redis_url: str, redis_client: redis.Redis, new_worker: Callable[..., WorkerProcess], ledger: Any
) -> None:
    """The wish waits for its time, so that its record can be looked at."""
    worker = new_worker(env={**ledger.env, "CELERY_AGENTS_CONTROL_TASKS": "all"})
    attacker = Attacker(redis_url, redis_client, worker)
    wish = attacker.wish("celery_agents.stop", session_id="nobody")
    wish["headers"]["eta"] = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() + 50))
    wish["properties"]["delivery_info"] = {"exchange": "x", "routing_key": {}, "consumer_tag": {}}
    attacker.push(CONTROL, wish)
    wait_until(lambda: redis_client.hlen(RECORDS) == 1, "it is recorded", 10, details=worker.tail)
    (record,) = redis_client.hkeys(RECORDS)
    assert record != wish["properties"]["delivery_tag"], "another message with the same tag would share its record"
    # The submitter's Redis user may add bindings of the control queue's exchange.
    redis_client.sadd(f"_kombu.binding.{CONTROL}", "\x06\x16".join((CONTROL, "", "celery")), "no binding")
    worker.kill()
    redis_client.zadd(TIMES, {record: 1})
    other = new_worker(env={**ledger.env, "CELERY_AGENTS_CONTROL_TASKS": "all"})
    wait_until(
        lambda: redis_client.hlen(RECORDS) == 1 and not redis_client.hexists(RECORDS, record),
        "it is taken again", 30, details=other.tail,
    )  # fmt: skip
    assert redis_client.llen("celery") == 0
    assert not redis_client.exists("unacked"), "what another app's worker would fail at is not among its records"
    assert other.stop() == 0
    assert redis_client.llen(CONTROL) == 1, "a worker that ends puts back what has not ended"
    assert not redis_client.exists(RECORDS, TIMES)


def test_a_forged_step_under_the_id_of_another_stops_nobody(attacker: Attacker) -> None:
    client = attacker.client
    job = client.submit("planned", plan([{"tool": "pure", "arguments": {"work": "a", "before": 1.5}}], answer="done"))
    forged = [attacker.element(id=f"{job.execution_id}.{step}", expires=PAST) for step in (1, 2, 3)]
    wishes = [attacker.wish("celery_agents.stop", session_id="nobody") for _ in range(3)]
    for step, wish in enumerate(wishes, 1):
        wish["headers"] |= {"id": f"{job.execution_id}.{step}", "expires": PAST}
    attacker.push(STEPS, *forged)
    attacker.push(CONTROL, *wishes)
    reasons = attacker.quarantined(6, "all are quarantined")
    assert all("id=" in reason or "expires=" in reason for reason in reasons)
    assert job.result(timeout=30).status == "completed"
    attacker.works()


@pytest.mark.parametrize("queue", ["ca:{0}:due", "ca:agents", "unacked_index", "_kombu.binding.celery", STEPS])
def test_a_callback_is_sent_to_no_key_of_ours(attacker: Attacker, queue: str) -> None:
    """A sender that may only submit does not write with the worker's rights."""
    receiver = {"task": "x", "options": {"queue": queue}}
    wishes = [
        attacker.wish("celery_agents.submit", agent="planned", message="x", session_id=field, **{field: receiver})
        for field in ("on_complete", "on_request")
    ]
    attacker.push(CONTROL, *wishes)
    wait_until(lambda: attacker.worker.text().count("options.queue") >= 2, "both are refused", 10)
    # The broker makes and removes its own keys meanwhile; what a worker sends is an element of a list.
    assert queue == STEPS or attacker.broker.type(queue) != "list"
    assert attacker.dead() == [], "nothing of it came to the queue of steps"
    attacker.works()


def test_celerys_own_tasks_are_not_run_on_our_queues(attacker: Attacker) -> None:
    for queue in (STEPS, CONTROL):
        for task in ("celery.chord_unlock", "celery.group", "celery.backend_cleanup", "celery.accumulate"):
            attacker.push(queue, *[{**attacker.wish(task, group_id="x", callback={})} for _ in range(10)])
    reasons = attacker.quarantined(80, "all are quarantined")
    assert all("unknown task" in reason for reason in reasons)
    attacker.works()


BAD_RECORDS = [
    "not json", "[]", "{}", "7", "null", "[1, 2, 3]", '[{"body": 1}, "a", "celery_agents.control"]',
    '[{}, "a", "celery_agents.steps"]', "[" * 50_000, b"\xff\xfe",
]  # fmt: skip


def test_malformed_unacknowledged_records_end_no_worker_and_are_named(attacker: Attacker) -> None:
    good = attacker.wish("celery_agents.stop", session_id="nobody")
    records = [
        *BAD_RECORDS,
        json.dumps([good, {}, CONTROL]),
        json.dumps([good, CONTROL, {}]),
        json.dumps([good, CONTROL, ["x"]]),
    ]
    for number, record in enumerate(records):
        attacker.broker.hset("unacked", f"tag-{number}", record)
    attacker.broker.hset("unacked", "good", json.dumps([good, "", CONTROL]))
    attacker.broker.zadd("unacked_index", {**{f"tag-{n}": 1.0 for n in range(len(records))}, "good": 1.0, "gone": 1.0})
    reasons = attacker.quarantined(len(records), "each record is quarantined")
    assert len(reasons) == len(records), reasons
    wait_until(lambda: attacker.broker.hlen("unacked") == 0, "no record is left", 20, details=attacker.worker.tail)
    wait_until(lambda: attacker.broker.zcard("unacked_index") == 0, "no index entry is left", 20)
    wait_until(lambda: attacker.refused("redelivery"), "the worker tells doctor", 10)
    attacker.works()


def test_keys_of_another_type_end_no_worker_and_are_named(attacker: Attacker) -> None:
    # The worker goes on with what is left; whoever broke the keys may also delete the sessions.
    broken = {"unacked": "list", "unacked_index": "string", CONTROL: "string", RECORDS: "list", TIMES: "string"}
    for key, kind in broken.items():
        attacker.broker.delete(key)
        attacker.broker.set(key, "x") if kind == "string" else attacker.broker.rpush(key, "x")
    time.sleep(3)
    attacker.works()
    found = {
        damage.key
        for damage in attacker.client.store.housekeeping.wrong_types(
            {"unacked": "hash", CONTROL: "list", RECORDS: "hash", TIMES: "zset"}
        )
    }
    assert found == {"unacked", CONTROL, RECORDS, TIMES}
    attacker.broker.delete(*broken)
    attacker.push(CONTROL, attacker.wish("celery_agents.submit", agent="planned", message=plan(), session_id="by-name"))
    status = lambda: attacker.client.header("by-name").status  # noqa: E731
    wait_until(lambda: status() == "completed", "control works again", 30, ignoring=(Exception,))


def test_a_broken_steps_queue_stops_no_worker(attacker: Attacker) -> None:
    attacker.broker.delete(STEPS)
    attacker.broker.set(STEPS, "x")
    time.sleep(2)
    assert attacker.worker.alive, attacker.worker.tail()
    attacker.broker.delete(STEPS)
    attacker.works()
    wait_until(lambda: "WRONGTYPE" in attacker.refused("fetch").get("reason", ""), "doctor is told", 15)


def command(method: str, **parts: Any) -> dict[str, Any]:
    body = {"method": method, "arguments": {}, "destination": None, "pattern": None, "matcher": None, **parts}
    return {
        "body": base64.b64encode(json.dumps(body).encode()).decode(), "content-type": "application/json",
        "content-encoding": "utf-8", "headers": {},
        "properties": {
            "body_encoding": "base64", "delivery_tag": uuid.uuid4().hex, "priority": 0,
            "delivery_info": {"exchange": "celery-agents.pidbox", "routing_key": ""},
        },
    }  # fmt: skip


def test_remote_control_that_hangs_or_bursts_a_worker_is_refused(attacker: Attacker) -> None:
    import zlib

    bomb = command("ping")
    bomb["headers"]["compression"] = "application/x-gzip"
    bomb["body"] = base64.b64encode(zlib.compress(b" " * 200_000_000, 9)).decode()
    hang = command("ping", pattern="(a|a)*" * 10 + "$", matcher="pcre")
    forged = command("ping", reply_to={"exchange": "", "routing_key": STEPS}, ticket="x")
    for each in (bomb, hang, forged):
        attacker.broker.publish("/0.celery-agents.pidbox", json.dumps(each))
    wait_until(lambda: attacker.refused("remote control").get("count") == 3, "each is refused", 15)
    attacker.works()


def resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


@pytest.mark.long
def test_commands_that_a_worker_would_remember_for_ever_do_not_fill_its_memory(attacker: Attacker) -> None:
    """Celery keeps 50 000 revoked ids of any length, and all revoked stamps."""
    attacker.broker.config_set("client-output-buffer-limit", "pubsub 0 0 0")  # it hangs up on slow readers of 32 MB
    before = resident_kb(attacker.worker.pid)
    for number in range(600):
        long = f"{number}-" + "x" * 180_000
        for each in (
            command("revoke", arguments={"task_id": long}),
            command("hello", arguments={"from_node": "x@y", "revoked": {long: 1}}),
            command("revoke_by_stamped_headers", arguments={"headers": {long: ["y"]}}),
        ):
            attacker.broker.publish("/0.celery-agents.pidbox", json.dumps(each))
        time.sleep(0.005)
    wait_until(lambda: attacker.refused("remote control").get("count") == 1_800, "each is refused", 60)
    assert resident_kb(attacker.worker.pid) - before < 60_000
    attacker.works()


def test_a_worker_consumes_no_queue_that_its_app_does_not_know(attacker: Attacker) -> None:
    control = attacker.app.control
    (answer,) = (control.add_consumer("foreign", reply=True, timeout=5, limit=1).pop().values(),)
    assert "refused" in str(answer)
    for limit in (
        lambda: control.rate_limit("celery_agents.step", "1/h", reply=True, timeout=5, limit=1),
        lambda: control.time_limit("celery_agents.step", soft=1, hard=2, reply=True, timeout=5, limit=1),
        lambda: control.pool_grow(10**9, reply=True, timeout=5, limit=1),
        lambda: control.pool_grow(1, reply=True, timeout=5, limit=1),  # slots that share a thread do not grow
        lambda: control.pool_shrink(1, reply=True, timeout=5, limit=1),
    ):
        assert "refused" in str(limit())
    assert control.ping(timeout=5, limit=1)
    attacker.works()


@pytest.fixture
def doctor(redis_url: str) -> Callable[[], dict[str, list[str]]]:
    def examine() -> dict[str, list[str]]:
        from celery_agents.tasks.observability.doctor.checks import examine as look

        found: dict[str, list[str]] = {}
        for finding in look(AgentClient(redis_url).settings):
            if finding.level != "ok":
                found.setdefault(finding.name, []).append(finding.what)
        return found

    return examine


def test_doctor_names_damaged_keys_entries_and_records_and_goes_on(
    redis_url: str, redis_client: redis.Redis, doctor: Callable[[], dict[str, list[str]]]
) -> None:
    redis_client.zadd("ca:{0}:due", {b"\xff": 5, "nobody": float("inf")})
    redis_client.zadd("ca:{0}:callbacks", {"gibberish": 5})
    redis_client.rpush("ca:{0}:failed", "x")
    redis_client.hset("unacked", "tag-1", "[1, 2, 3]")
    redis_client.set(CONTROL, "x")
    redis_client.xadd("ca:{0}:dead", {"kind": "message"})
    redis_client.hset("ca:workers", b"\xff", "{}")  # type: ignore[arg-type]
    found = doctor()
    assert {"'ca:{0}:failed'", f"'{CONTROL}'"} <= {
        what.split(":  ")[0].partition(": it")[0] for what in found["key type"]
    }
    assert len(found["index entry"]) == 3
    assert "tag-1" in found["unacknowledged message"][0]
    assert "no reason" in found["quarantined message"][0]


def test_doctor_names_each_broken_key_whichever_it_is(
    redis_url: str, redis_client: redis.Redis, doctor: Callable[[], dict[str, list[str]]]
) -> None:
    shard = ("due", "sessions", "failed", "ending", "callbacks", "dead", "sweeper")
    keys = [
        "ca:agents",
        "ca:workers",
        "ca:shards",
        *(f"ca:{{0}}:{name}" for name in shard),
        STEPS,
        CONTROL,
        "unacked",
        RECORDS,
    ]
    for key in keys:
        redis_client.flushall()
        if key in (STEPS, CONTROL):
            redis_client.set(key, "x")
        else:
            redis_client.rpush(key, "x")
        found = doctor()
        assert any(key in what for name in ("key type", "shards") for what in found.get(name, ())), key


def test_who_may_not_run_info_is_told_so(new_redis: Callable[..., RedisServer], tmp_path: Any) -> None:
    from celery_agents.config.settings import Settings
    from celery_agents.tasks.observability.doctor.checks import examine

    server = new_redis()
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "short", "on", ">not-a-real-one", "~*", "&*", "+@all", "-info")
    url = server.url().replace("redis://", "redis://short:not-a-real-one@")
    findings = {finding.name: finding for finding in examine(Settings.build(redis_url=url))}
    assert "info" in findings["redis"].what
    assert "permissions" in findings["redis"].what
    assert "monitor" in findings["redis"].advice
    assert "shards" in findings, "the other checks go on"
    assert "eviction" not in findings


def test_an_eviction_policy_that_is_changed_at_run_time_is_named_by_the_worker(
    new_redis: Callable[..., RedisServer],
) -> None:
    from celery_agents.config.settings import Settings
    from celery_agents.tasks.housekeeping.jobs import Inspection
    from celery_agents.tasks.runtime import LazyRuntime

    server = new_redis()
    settings = Settings.build(redis_url=server.url(), agents="support.agents")
    runtime = LazyRuntime(create_app(settings), settings)
    try:
        job = Inspection(runtime)
        job.run(())
        assert runtime().facts["problems"] == []
        assert runtime().redis_memory_share == 0, "it has no limit"
        with server.client() as admin:
            admin.config_set("maxmemory", "1gb")
            admin.config_set("maxmemory-policy", "allkeys-lru")
            admin.rpush("ca:{0}:due", "x")
        job.run(())
        eviction, key = runtime().facts["problems"]
        assert "allkeys-lru" in eviction
        assert "'ca:{0}:due'" in key
        assert 0 < runtime().redis_memory_share < 1
    finally:
        with server.client() as admin:
            admin.delete("ca:{0}:due")
        runtime.close()


def test_a_client_whose_user_runs_no_scripts_tries_once_and_submits_all_the_same(
    new_redis: Callable[..., RedisServer],
) -> None:
    from celery_agents.config.settings import Settings

    server = new_redis()
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "plain", "on", ">not-a-real-one", "~*", "&*", "+@all", "-@scripting")
        client = AgentClient(settings=Settings.build(redis_url=server.url().replace("//", "//plain:not-a-real-one@")))
        began = time.monotonic()
        for number in range(10):
            client.submit("planned", plan(), session_id=f"plain-{number}")
        assert time.monotonic() - began < 5
        assert len(client.list().items) == 10
        assert sum(int(entry["count"]) for entry in admin.acl_log()) == 1
