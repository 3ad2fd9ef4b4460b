"""The spine with real workers: killed, without Redis, with messages nobody sent, seen from another process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_agents import AgentClient
from celery_agents.tasks.app import create_app
from celery_agents.tasks.names import STEP
from celery_agents.tasks.observability.waiting_reasons import waiting_reason

from support.agents import call, driver_key, plan
from support.lab import Lab
from support.ledger import Ledger
from support.product import ROOT
from support.redis_keys import count_entries
from support.redis_server import RedisServer
from support.wait import wait_until
from support.worker_process import WorkerProcess

pytestmark = pytest.mark.timeout(240)

STEPS_QUEUE = "celery_agents.steps"


@pytest.fixture
def new_lab(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """Starts a Redis, a ledger and a client: `new_lab(quick=False)`."""
    labs: list[Lab] = []

    def start(**options: Any) -> Lab:
        lab = Lab(tmp_path / f"lab-{len(labs)}", **options)
        labs.append(lab)
        return lab.__enter__()

    yield start
    for lab in reversed(labs):
        lab.__exit__()


@pytest.mark.alone
def test_a_worker_killed_in_a_driver_call_or_a_tool_or_a_lost_message_costs_ten_seconds_at_most(
    new_lab: Callable[..., Lab],
) -> None:
    lab = new_lab(quick=False)
    lab.worker().end()  # the agent is registered: a job of an agent that nobody knows has no message to lose
    lost = lab.submit(["keyed"], ["keyed"])
    with lab.broker() as broker:
        assert broker.delete(STEPS_QUEUE) == 1
    deleted_at = time.monotonic()
    doomed = lab.worker()
    lab.wait_for_jobs(30, [lost])
    assert time.monotonic() - deleted_at <= 10

    in_driver = lab.submit(["keyed"], gate="driver")
    kinds = ("keyed", "keyed_async", "unsafe")
    in_tools = [lab.submit([call(kind, work=kind, gate="tools")]) for kind in kinds]
    wait_until(
        lambda: lab.ledger.deliveries()[driver_key(in_driver.execution_id, 1)] == 1
        and sum(entry.get("gate") == "tools" for entry in lab.ledger.entries()) == 3,
        "the driver call and the tool calls are under way", 20,
    )  # fmt: skip
    lab.worker()
    doomed.kill()
    killed_at = time.monotonic()
    lab.ledger.open("driver")
    lab.ledger.open("tools")
    lab.wait_for_jobs(30)
    took = time.monotonic() - killed_at

    verdict = lab.verdict()
    assert not verdict.violations, str(verdict)
    assert took <= 10, f"{took:.1f} s"
    asked = lab.ledger.deliveries()
    for job in in_tools:
        assert asked[driver_key(job.execution_id, 1)] == 1, "a journaled answer was asked for again"
    assert asked[driver_key(in_driver.execution_id, 1)] == 2
    assert verdict.counts["deliveries_again"] == 2
    assert verdict.counts["unknown_unsafe"] == 1


def test_a_killed_worker_is_not_said_to_work_while_its_lease_lives(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab(quick=False)  # leases of six seconds
    doomed = lab.worker()
    job = lab.submit(["keyed"], gate="driver")
    store = lab.client.store

    def reason() -> str:
        return waiting_reason(store, store.sessions.header(job.session_id))

    wait_until(lambda: f"runs on worker {lab_worker(lab)}" in reason(), "the step runs", 20)
    doomed.kill()
    killed_at = time.monotonic()
    wait_until(lambda: "was not heard of for" in reason(), "the reason says that the worker is silent", 5)
    assert time.monotonic() - killed_at < 4.5
    lab.ledger.open("driver")
    lab.worker()
    lab.wait_for_jobs(30)


def lab_worker(lab: Lab) -> str:
    """Name of the one live worker."""
    (name,) = lab.client.store.registry.workers()
    return name


@pytest.mark.alone
def test_a_worker_killed_between_commit_and_publish_costs_ten_seconds_at_most(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab(quick=False, separate=True)
    job = lab.submit(["keyed"], ["keyed"])
    doomed = lab.worker(crash="c8:1:1", wait=False)
    doomed.wait(30)
    killed_at = time.monotonic()
    assert lab.client.header(job.session_id).step == 2
    assert lab.queue_length() == 0, "the next message was published"
    lab.worker()
    lab.wait_for_jobs(30)
    assert time.monotonic() - killed_at <= 10
    verdict = lab.verdict()
    assert not verdict.violations, str(verdict)
    assert verdict.counts["model_calls_extra"] == 0
    assert verdict.counts["deliveries_again"] == 0


def test_two_hundred_sessions_of_three_agents_on_two_workers_commit_each_step_once(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab(agents="support.fault_agents")
    lab.worker()
    lab.worker()
    for name in ("planned", "second", "third"):
        lab.client.wait_for_agent(name)
    for number in range(200):
        lab.submit(["keyed", "pure"], ["unsafe"], agent=("planned", "second", "third")[number % 3])
    lab.wait_for_jobs(90)
    verdict = lab.verdict()
    assert not verdict.violations, str(verdict)
    assert verdict.counts["commits"] == verdict.counts["model_calls"] == 600
    assert verdict.counts["recovered"] == verdict.counts["deliveries_again"] == 0
    assert len(lab.client.store.registry.workers()) == 2


def test_a_redis_that_is_gone_for_five_seconds_under_load_loses_nothing(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab(quick=False, redis_options={"append_only": "always"})
    workers = [lab.worker(), lab.worker()]
    jobs = [lab.submit(["keyed", "unsafe"], [call("keyed_async", work="x", after=0.5)], after=0.4) for _ in range(40)]
    wait_until(lambda: lab.ledger.deliveries().total() > 30, "the work is under way", 20)
    lab.server.stop()
    time.sleep(5)
    lab.server.start()
    lab.wait_for_jobs(60, jobs)
    assert [worker.alive for worker in workers] == [True, True]
    verdict = lab.verdict()
    assert not verdict.violations, str(verdict)
    assert verdict.counts["model_calls_extra"] == 0, "an answer was held until Redis was back, and not asked for again"
    assert verdict.counts["outcome_unknown"] == 0


def test_a_password_that_is_refused_for_a_while_costs_no_paid_answer(
    redis_server: RedisServer, new_worker: Callable[..., WorkerProcess], ledger: Ledger
) -> None:
    with redis_server.client() as admin:
        admin.acl_setuser("w", enabled=True, passwords="+first", keys="*", channels="*", commands=["+@all"])
        worker = new_worker(redis_server.url().replace("//", "//w:first@"), agents="support.agents", env=ledger.env)
        with AgentClient(redis_server.url()) as client:
            job = client.submit("planned", plan([call("pure", work="a")], gate="driver"))
            key = driver_key(job.execution_id, 1)
            wait_until(lambda: ledger.deliveries()[key] == 1, "its model is asked", 20)
            admin.acl_setuser("w", enabled=True, passwords=["-first", "+second"])
            admin.execute_command("CLIENT", "KILL", "USER", "w")
            ledger.open("driver")
            worker.wait_for_text(f"of session {job.session_id} waits: Redis refuses this user")
            admin.acl_setuser("w", enabled=True, passwords="+first")
            assert job.result(timeout=30).status == "completed"
        assert ledger.deliveries()[key] == 1
        admin.acl_deluser("w")


def test_a_message_that_nobody_should_have_sent_changes_nothing(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab()
    worker = lab.worker()
    done = lab.submit(["keyed"])
    lab.wait_for_jobs(30)
    running = lab.submit(["keyed"], gate="later")
    wait_until(lambda: lab.ledger.deliveries()[driver_key(running.execution_id, 1)] == 1, "the step runs", 20)
    before = _everything(lab)
    wrong: list[dict[str, Any]] = [
        {"session_id": done.session_id, "execution_id": done.execution_id, "step": 1},
        {"session_id": done.session_id, "execution_id": done.execution_id, "step": 3},
        {"session_id": running.session_id, "execution_id": running.execution_id, "step": 1},
        {"session_id": running.session_id, "execution_id": running.execution_id, "step": 2},
        {"session_id": running.session_id, "execution_id": done.execution_id, "step": 1},
        {"session_id": "nobody", "execution_id": "nothing", "step": 1},
    ]
    malformed: list[dict[str, Any]] = [
        {},
        {"session_id": running.session_id},
        {"session_id": running.session_id, "execution_id": running.execution_id, "step": "1"},
        {"session_id": running.session_id, "execution_id": running.execution_id, "step": 1, "prompt": "obey"},
        {"session_id": "../../etc", "execution_id": running.execution_id, "step": 1},
        {"session_id": ["a"], "execution_id": {}, "step": -1},
    ]
    app = create_app(lab.client.settings)
    for _ in range(2):
        for kwargs in wrong:  # with the id that follows from the step; another one is refused before it is read
            app.send_task(STEP, kwargs=kwargs, queue=STEPS_QUEUE, task_id=f"{kwargs['execution_id']}.{kwargs['step']}")
        for kwargs in malformed:
            app.send_task(STEP, kwargs=kwargs, queue=STEPS_QUEUE)
    wait_until(
        lambda: len(lab.client.store.housekeeping.list_dead()) == 2 * len(malformed),
        "the malformed are quarantined",
        20,
    )
    wait_until(lambda: lab.queue_length() == 0, "the messages are consumed", 20)
    assert _everything(lab) == before
    lab.ledger.open("later")
    lab.wait_for_jobs(30)
    verdict = lab.verdict()
    assert not verdict.violations, str(verdict)
    assert verdict.counts["model_calls_extra"] == verdict.counts["deliveries_again"] == 0
    assert worker.alive


def _everything(lab: Lab) -> dict[str, object]:
    """What is stored of all sessions. A large hash has no order: reading it may change that of its dump."""
    with redis.Redis.from_url(lab.store_url) as raw:
        names = list(raw.scan_iter("ca:{*}:s:*"))
        return {str(name): raw.hgetall(name) if raw.type(name) == b"hash" else raw.dump(name) for name in names}


@pytest.mark.parametrize(
    "separate", [pytest.param(False, id="fused"), pytest.param(True, id="separate", marks=pytest.mark.long)]
)
def test_the_sweep_does_not_multiply_the_messages_of_five_thousand_due_sessions(
    new_lab: Callable[..., Lab], separate: bool
) -> None:
    lab = new_lab(separate=separate, agents="support.fault_agents", env={"CELERY_AGENTS_CONCURRENCY": "10"})
    lab.redis.hset("ca:agents", "sleepy", json.dumps({"hash": "", "seen": lab.now_ms()}))
    for _ in range(5000):
        lab.client.submit("sleepy", "hello")
    assert lab.queue_length() == 5000
    with lab.broker() as broker:
        broker.delete(STEPS_QUEUE)  # now all of them are due and none has a message
    lab.worker()
    lengths: list[int] = []
    end = time.monotonic() + 9  # more than four times the wait after which a published step is looked at again
    while time.monotonic() < end:
        lengths.append(lab.queue_length())
        time.sleep(0.1)
    done, total = count_entries(lab.redis, "ending", "due")
    assert done + total == 5000
    assert done >= 20, "the slots were not kept busy"
    assert max(lengths) <= 5000
    queued = _queued_steps(lab)
    assert len(queued) == len(set(queued)), "a step is queued more than once"
    for worker in lab.workers:
        worker.kill()
    lab.redis.flushall()


def _queued_steps(lab: Lab) -> list[str]:
    with lab.broker() as broker:
        return [json.loads(element)["headers"]["id"] for element in broker.lrange(STEPS_QUEUE, 0, -1)]


def test_a_process_in_another_folder_submits_watches_and_reads_with_the_wheel(
    new_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = tmp_path / "clone"
    build.mkdir()
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            (build / name).parent.mkdir(parents=True, exist_ok=True)
            (build / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path / "wheel"), str(build)], check=True)
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    service = tmp_path / "service"
    service.mkdir()
    for name in ("tasks", "config", "worker"):
        (service / f"{name}.py").write_text("raise ImportError('not ours')\n")

    lab = new_lab()
    lab.worker()
    lab.client.wait_for_agent("planned")

    def command(*arguments: str) -> str:
        code = "import celery_agents, sys; assert celery_agents.__file__.startswith(sys.argv.pop(1)); "
        code += "from celery_agents.__main__ import main; main()"
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(target), "CELERY_AGENTS_REDIS_URL": lab.store_url}
        argv = [sys.executable, "-c", code, str(target), *arguments]
        done = subprocess.run(argv, cwd=service, capture_output=True, text=True, timeout=60, check=False, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    text = json.dumps({"steps": [[call("keyed", work="w")]], "answer": "the answer", "driver": {}})
    submitted = json.loads(command("submit", "planned", text, "--idempotency-key", "k", "--json"))
    again = json.loads(command("submit", "planned", text, "--idempotency-key", "k", "--wait", "--json"))
    assert again["session_id"] == submitted["session_id"]
    assert again["final_response"] == "the answer"
    assert "execution_completed" in command("watch", submitted["session_id"], "--json")
    assert "the answer" in command("show", submitted["session_id"], "--json")
    assert len(lab.ledger.effects()) == 3
