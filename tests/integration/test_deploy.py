"""The very commands of docker-compose.yml, of the systemd units and of the probes, against real processes.

One deployment serves the module: Redis as start-redis starts it, with the users of users.acl and random passwords, the
worker and Flower each with its own. Only ports and folders differ from the files, and one more user looks on.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import httpx
import pytest
import redis

from celery_agents import AgentClient
from celery_agents.worker.store.keys import shard_keys
from celery_agents.worker.store.shards import NEW

from support import deployed
from support.deployed import compose, container
from support.deployment import Deployment
from support.forbidden import STEPS
from support.processes import free_port
from support.product import ROOT
from support.redis_keys import session_key, shard_of_session
from support.redis_server import find_binary
from support.wait import wait_until

QUESTION = "What is a lease?"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment(tmp_path_factory.mktemp("deployment"), find_binary())
    try:
        made.start()
        yield made
    finally:
        made.end()


# --- jobs -------------------------------------------------------------------------------------------------------


def _sessions(client: redis.Redis) -> set[str]:
    """The sessions of the listings of all shards."""
    indexes = (shard.sessions for shard in shard_keys(NEW))
    return {name for index in indexes for name in client.zrevrangebyscore(index, "+inf", "-inf")}  # type: ignore[union-attr]


def test_a_job_of_a_producer_runs_and_a_monitor_sees_it(deployment: Deployment) -> None:
    done = deployment.agents("producer", "submit", "support", QUESTION, "--wait", "--json")
    assert done.returncode == 0, done.stderr + deployment.worker.tail()
    session = json.loads(done.stdout)["session_id"]
    assert deployment.agents("producer", "send", session, "And a claim?", "--wait").returncode == 0
    for look_at in (["list"], ["watch", session], ["doctor"]):
        seen = deployment.agents("monitor", *look_at)
        assert seen.returncode == 0, f"{look_at}: {seen.stdout}{seen.stderr}"
    assert deployment.agents("monitor", "send", session, "no").returncode != 0
    assert deployment.agents("monitor", "submit", "support", "no").returncode != 0

    # Celery alone does as well, by name.
    with deployment.client("monitor") as monitor:
        before = _sessions(monitor)
    code = f"""
        from celery import Celery
        Celery(broker={deployment.url("producer")!r}).send_task(
            "celery_agents.submit", queue="celery_agents.control",
            kwargs={{"agent": "support", "message": {QUESTION!r}, "idempotency_key": "by-name"}})
    """
    sent = deployment.run("python", "-c", "\n".join(line.strip() for line in code.strip().splitlines()), more={})
    assert sent.returncode == 0, sent.stderr
    with deployment.client("monitor") as monitor:

        def statuses() -> list[str | None]:
            added = _sessions(monitor) - before
            return [monitor.hget(session_key(each), "status") for each in added]

        wait_until(lambda: statuses() == ["completed"], "the job that was sent by name is done", 30)
    assert deployment.refused() == []


def test_a_producer_follows_the_text_of_a_job_as_it_comes(deployment: Deployment) -> None:
    """What was committed before somebody looked is read from the steps."""
    client = AgentClient(deployment.url("producer"))
    job = client.submit("support", QUESTION)
    assert job.result(timeout=30).status == "completed"
    assert list(client.stream(job.session_id, timeout=1))
    assert deployment.refused() == []


def test_queues_of_agents_and_sessions_that_wait_for_a_worker_are_within_the_roles(deployment: Deployment) -> None:
    with deployment.client("onlooker") as onlooker:
        onlooker.hset("ca:agents", "painter", '{"hash": "h", "queue": "gpu"}')
    with pytest.warns(UserWarning, match="no worker has registered agent 'nobody'"):
        waiting = AgentClient(deployment.url("producer")).submit("nobody", QUESTION)
    queued = AgentClient(deployment.url("producer")).submit("painter", QUESTION)
    with deployment.client("monitor") as monitor:
        assert monitor.llen("celery_agents.steps.gpu") == 1
    seen = deployment.agents("monitor", "doctor").stdout
    assert "sessions of agent nobody" in seen
    assert "queue gpu" in seen
    assert "no live worker offers agent 'nobody'" in deployment.agents("monitor", "show", waiting.session_id).stdout
    assert "support" in deployment.agents("monitor", "workers").stdout
    time.sleep(5.5)  # the worker has registered once more, and looked for sessions that wait for its agents
    assert deployment.refused() == []
    for job in (waiting, queued):
        AgentClient(deployment.url("producer")).stop(job.session_id)
    assert deployment.refused() == []
    with deployment.client("onlooker") as onlooker:
        onlooker.hdel("ca:agents", "painter")
        onlooker.delete("celery_agents.steps.gpu")


def test_the_end_of_a_job_is_told_to_a_task_of_the_default_queue(deployment: Deployment) -> None:
    client = AgentClient(deployment.url("producer"))
    job = client.submit(
        "support", QUESTION, on_complete="shop.done", session_id="told-of-its-end", priority="interactive"
    )
    assert job.result(timeout=30).status == "completed"
    with deployment.client("onlooker") as onlooker:
        wait_until(lambda: onlooker.llen("celery") == 1, "the task is sent", 10, details=deployment.worker.tail)
        onlooker.delete("celery")
    assert deployment.refused() == []


def test_a_submitter_submits_jobs_by_name_and_reads_nothing(deployment: Deployment) -> None:
    code = f"""
        from celery import Celery
        Celery(broker={deployment.url("submitter")!r}).send_task(
            "celery_agents.submit", queue="celery_agents.control",
            kwargs={{"agent": "support", "message": {QUESTION!r}, "session_id": "of-a-submitter"}})
    """
    sent = deployment.run("python", "-c", "\n".join(line.strip() for line in code.strip().splitlines()), more={})
    assert sent.returncode == 0, sent.stderr
    with deployment.client("monitor") as monitor:
        status = lambda: monitor.hget(session_key("of-a-submitter"), "status")  # noqa: E731
        wait_until(lambda: status() == "completed", "the job is done", 30, details=deployment.worker.tail)
    assert deployment.refused() == []
    assert deployment.agents("submitter", "show", "of-a-submitter").returncode != 0
    with deployment.client("onlooker") as onlooker:
        onlooker.acl_log_reset()  # refused on purpose


def test_stop_retry_listing_and_sweep_work_under_the_users(deployment: Deployment) -> None:
    client = AgentClient(deployment.url("producer"))
    deployment.worker.pause()
    try:
        job = client.submit("support", QUESTION, session_id="stopped-first")
        client.stop("stopped-first", timeout=0)
        lost = client.submit("support", QUESTION, session_id="lost-message")
        with deployment.client("onlooker") as onlooker:
            onlooker.delete(STEPS)
    finally:
        deployment.worker.resume()
    assert lost.result(timeout=40).status == "completed", "the sweep publishes what was lost"
    assert job.result(timeout=20).status == "stopped"
    assert client.retry("stopped-first").result(timeout=30).status == "completed"
    shown = deployment.agents("monitor", "list", "--json")
    assert {"stopped-first", "lost-message"} <= {
        json.loads(line).get("session_id") for line in shown.stdout.splitlines()
    }
    assert deployment.refused() == []


def test_a_monitor_sees_why_jobs_wait_and_run(deployment: Deployment) -> None:
    client = AgentClient(deployment.url("producer"))
    deployment.worker.pause()
    try:
        client.submit("support", QUESTION, session_id="waits-for-a-slot")
        # A step that a worker has: its lease is looked at, too.
        client.submit("support", QUESTION, session_id="has-a-claim")
        with deployment.client("onlooker") as onlooker:
            onlooker.hset(session_key("has-a-claim", ":ctl"), mapping={"claim": "c", "worker": "w1"})
            onlooker.set(shard_of_session("has-a-claim").lease("c"), "w1", ex=60)
        listed = deployment.agents("monitor", "list", "--json")
        reasons = {each["session_id"]: each["reason"] for each in map(json.loads, listed.stdout.splitlines())}
        assert "waits for a worker" in reasons["waits-for-a-slot"], listed
        assert "runs on worker w1" in reasons["has-a-claim"]
        for command in (["show", "waits-for-a-slot"], ["show", "has-a-claim", "--json"]):
            seen = deployment.agents("monitor", *command)
            assert seen.returncode == 0, seen.stderr
    finally:
        with deployment.client("onlooker") as onlooker:
            onlooker.hset(session_key("has-a-claim", ":ctl"), "claim", "")
        deployment.worker.resume()
    for session in ("waits-for-a-slot", "has-a-claim"):
        client.job(session).result(timeout=40)
    with deployment.client("onlooker") as onlooker:
        refused = {entry["object"] for entry in onlooker.acl_log() if entry["username"] == "monitor"}
        onlooker.acl_log_reset()
    assert not {each for each in refused if not each.startswith("client")}


def test_doctor_looks_at_everything_as_monitor_and_says_what_a_producer_may_not(deployment: Deployment) -> None:
    seen = [json.loads(line) for line in deployment.agents("monitor", "doctor", "--json").stdout.splitlines()]
    assert {"key types", "index entries", "unacknowledged", "eviction", "queue", "due"} <= {
        each["name"] for each in seen
    }
    assert not [each for each in seen if "refuses this user" in each["what"]]
    told = deployment.agents("producer", "doctor", "--json")
    findings = {json.loads(line)["name"]: json.loads(line) for line in told.stdout.splitlines()}
    assert "refuses this user" in findings["redis"]["what"]
    assert "monitor" in findings["redis"]["advice"]
    assert "Traceback" not in told.stderr
    with deployment.client("onlooker") as onlooker:
        onlooker.acl_log_reset()  # refused on purpose


def test_the_commands_of_the_page_work_inside_the_worker(deployment: Deployment) -> None:
    page = (ROOT / "docs" / "deploying.md").read_text()
    commands = re.findall(r"^docker compose exec worker (with-secrets .*)$", page, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        done = deployment.probe(shlex.split(command))
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert deployment.refused() == []


# --- probes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "command"), list(deployed.probe_commands()), ids=lambda value: str(value)[:40])
def test_a_probe_passes_while_the_worker_works(deployment: Deployment, place: str, command: list[str]) -> None:
    done = deployment.probe(command)
    assert done.returncode == 0, f"{place}: {done.stdout}{done.stderr}"
    assert "works" in done.stdout


def test_a_worker_that_stands_still_fails_its_probes(deployment: Deployment) -> None:
    deployment.worker.pause()
    try:
        time.sleep(2.0)
        for arguments in (["health", "--within", "1s"], ["health", "--alive", "--within", "1s"]):
            done = deployment.agents("worker", *arguments)
            assert done.returncode == 1, done.stdout + done.stderr
            assert "was last heard of" in done.stdout
    finally:
        deployment.worker.resume()


def test_without_redis_a_worker_is_not_ready_and_yet_not_to_be_restarted(deployment: Deployment) -> None:
    nowhere = {"CELERY_AGENTS_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"}
    ready = deployment.run("celery-agents", "health", more=nowhere)
    assert (ready.returncode, "Redis" in ready.stderr) == (3, True)
    assert deployment.run("celery-agents", "health", "--alive", more=nowhere).returncode == 0


def test_redis_is_asked_for_its_health_by_a_user(deployment: Deployment) -> None:
    if shutil.which("redis-cli") is None:
        pytest.skip("redis-cli comes with Redis's own packages; there is none here")
    assert deployment.redis_health().returncode == 0
    (deployment.secrets / "redis-monitor").rename(deployment.secrets / "away")
    try:
        assert deployment.redis_health().returncode != 0
    finally:
        (deployment.secrets / "away").rename(deployment.secrets / "redis-monitor")


def test_flower_asks_who_is_there_and_shows_the_workers(deployment: Deployment) -> None:
    credentials = (deployment.secrets / "flower-basic-auth").read_text()
    assert deployment.flower_status("/workers", None) == 401
    assert deployment.flower_status("/workers", "operator:operator") == 401
    assert deployment.flower_status("/workers", credentials) == 200
    assert deployment.flower_status("/api/workers?refresh=1", credentials) == 200
    assert deployment.refused() == []
    test = [
        word.replace("5555", str(deployment.flower_port))
        for word in compose()["services"]["flower"]["healthcheck"]["test"]
    ]
    assert deployment.run(*test[1:], more={}).returncode == 0
    assert not deployment.run(*[word.replace(str(deployment.flower_port), "9") for word in test[1:]], more={}).stdout


def test_metrics_are_where_prometheus_asks_for_them(deployment: Deployment) -> None:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        f"http://127.0.0.1:{deployment.metrics_port}/metrics", timeout=10
    ) as answer:
        text = answer.read().decode()
    assert "celery_agents_due_sessions" in text


def test_the_http_interface_does_everything_within_its_role(deployment: Deployment) -> None:
    deployment.http.wait_for_text("celery-agents serves", 30)
    operator, admin = (each.partition(":")[0] for each in (deployment.secrets / "http-tokens").read_text().split(","))
    with httpx.Client(base_url=f"http://127.0.0.1:{deployment.http_port}", trust_env=False, timeout=60) as http:
        assert http.get("/v1/agents").status_code == 401
        http.headers["Authorization"] = f"Bearer {operator}"
        job = http.post("/v1/agents/support/jobs", params={"wait": 60}, json={"message": QUESTION}).json()
        assert job["status"] == "completed", job
        session = f"/v1/sessions/{job['session_id']}"
        for path in ("", "/state", "/messages", "/steps", "/tree", "/executions", "/requests", "/grants"):
            assert http.get(session + path).status_code == 200, path
        with http.stream("GET", f"{session}/events", params={"until": "end"}) as stream:
            assert "execution_completed" in stream.read().decode()
        again = http.post(f"{session}/messages", params={"wait": 60}, json={"message": QUESTION})
        assert again.json()["status"] == "completed"
        assert http.post(f"{session}/stop").status_code == 200
        assert http.put(f"{session}/metadata/a", json={"value": 1}).status_code == 204
        for path in ("/v1/sessions", "/v1/requests", "/v1/agents", "/v1/workers", "/v1/health"):
            assert http.get(path).status_code == 200, path
        assert http.post(f"{session}/tokens", json={"scopes": ["read"]}).status_code == 403
        http.headers["Authorization"] = f"Bearer {admin}"
        assert http.post(f"{session}/tokens", json={"scopes": ["read"]}).status_code == 201
    test = [
        word.replace("8080", str(deployment.http_port)) for word in compose()["services"]["http"]["healthcheck"]["test"]
    ]
    assert deployment.run(*test[1:], more={}).returncode == 0


def test_systemd_and_kubernetes_start_what_compose_starts() -> None:
    entry = deployed.dockerfile("ENTRYPOINT")
    services = compose()["services"]
    for name in ("worker", "http", "flower"):
        assert [*entry, *container("Deployment", f"celery-agents-{name}")["args"]] == [
            *entry,
            *services[name]["command"],
        ]
        theirs = [
            word.replace("127.0.0.1", "0.0.0.0") for word in deployed.unit_command(f"celery-agents-{name}.service")
        ]
        assert theirs == [*entry, *services[name]["command"]]
    assert container("StatefulSet", "celery-agents-redis")["command"] == services["redis"]["entrypoint"]
    startup = container("StatefulSet", "celery-agents-redis")["startupProbe"]["exec"]["command"]
    assert ["CMD", *startup] == services["redis"]["healthcheck"]["test"]
