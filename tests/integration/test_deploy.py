"""The very commands of docker-compose.yml, of the systemd units and of the probes, against real processes.

One deployment serves the module: Redis as start-redis starts it, with the users of users.acl and random passwords, the
worker and Flower each with its own. Only ports and folders differ from the files, and one more user looks on.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from celery_agents import AgentClient
from celery_agents.tasks.observability.server_policy import parse_version

from support import deployed
from support.deployed import DEPLOY, compose, container
from support.forbidden import EVERYBODY, MAY_NOT, STEPS
from support.processes import Process, free_port
from support.product import ROOT
from support.redis_server import find_binary, servers
from support.wait import wait_until

ROLES = ("producer", "submitter", "worker", "monitor", "http", "flower")
QUESTION = "What is a lease?"


class Deployment:
    """What the files make of one machine.

    Args:
        folder: For secrets, data and logs.
        binary: The redis-server.
    """

    def __init__(self, folder: Path, binary: str) -> None:
        self.folder = folder
        self.port, self.metrics_port, self.flower_port, self.http_port = (free_port() for _ in range(4))
        self.secrets = folder / "secrets"
        self.programs = folder / "bin"
        self._make_programs(binary)
        done = subprocess.run(
            ["sh", DEPLOY / "make-secrets", self.secrets, f"127.0.0.1:{self.port}"], check=True, capture_output=True
        )
        assert b"made" in done.stdout
        self.redis = self._redis()
        self.worker = self._service("worker")
        self.flower = self._service("flower")
        self.http = self._service("http")

    def _make_programs(self, binary: str) -> None:
        """What the image and a machine have on PATH."""
        self.programs.mkdir(parents=True)
        (self.programs / "redis-server").symlink_to(binary)
        (self.programs / "with-secrets").symlink_to(DEPLOY / "docker" / "with-secrets")
        for name in ("celery-agents", "python"):
            (self.programs / name).write_text(
                f'#!/bin/sh\nexec {sys.executable} {"-m celery_agents " if name != "python" else ""}"$@"\n'
            )
            (self.programs / name).chmod(0o755)

    def _redis(self) -> Process:
        configuration = self.folder / "etc-redis"
        shutil.copytree(DEPLOY / "redis", configuration)
        with (configuration / "users.acl").open("a") as users:
            users.write("user onlooker off resetpass ~* &* +@all\n")
        (self.secrets / "redis-onlooker").write_text("0123456789abcdef")
        (self.folder / "data").mkdir()
        command = [
            word.replace("/etc/redis", str(configuration)) for word in compose()["services"]["redis"]["entrypoint"]
        ]
        places = {
            "CREDENTIALS_DIRECTORY": self.secrets,
            "RUNTIME_DIRECTORY": self.folder / "run",
            "STATE_DIRECTORY": self.folder / "data",
        }
        more = ["--port", str(self.port), "--bind", "127.0.0.1"]
        return Process("redis", [*command, *more], self.folder, self.environment(places))

    def _service(self, name: str) -> Process:
        """A service of the compose file, with the secrets that it is given and nothing of this machine's settings."""
        service = compose()["services"][name]
        mounted = self.mounted(name)
        given = {key: str(value) for key, value in service["environment"].items() if value is not None}
        places = {"FLOWER_DB": str(self.folder / "flower"), "CELERY_AGENTS_METRICS_PORT": str(self.metrics_port)}
        given |= {key: value for key, value in places.items() if key in given}
        command = [*deployed.dockerfile("ENTRYPOINT"), *service["command"]]
        command = [str(self.flower_port) if word == "5555" else word for word in command]
        command = [f"127.0.0.1:{self.http_port}" if word == "0.0.0.0:8080" else word for word in command]
        environment = self.environment({**given, "CREDENTIALS_DIRECTORY": mounted})
        return Process(name, command, self.folder, environment)

    def mounted(self, name: str) -> Path:
        """The folder in which a service finds its secrets."""
        home = self.folder / f"{name}-secrets"
        if not home.exists():
            home.mkdir()
            for secret in compose()["services"][name]["secrets"]:
                source = Path(compose()["secrets"][secret["source"]]["file"]).name
                shutil.copy(self.secrets / source, home / secret["target"])
        return home

    def environment(self, more: Mapping[str, Any]) -> dict[str, str]:
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("CELERY_AGENTS_", "FLOWER_"))}
        path = f"{self.programs}:{os.environ['PATH']}"
        return {**mine, "PATH": path, "NO_PROXY": "*", **{name: str(value) for name, value in more.items()}}

    def url(self, role: str) -> str:
        return (self.secrets / f"redis-url-{role}").read_text()

    def client(self, role: str) -> redis.Redis:
        password = (self.secrets / f"redis-{role}").read_text()
        return redis.Redis(port=self.port, username=role, password=password, decode_responses=True)

    def run(self, *command: str | Path, more: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in command]
        environment = self.environment(more)
        program = shutil.which(words[0], path=environment["PATH"]) or words[0]
        return subprocess.run(
            [program, *words[1:]], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip

    def agents(self, role: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`celery-agents` as one of the roles."""
        return self.run("celery-agents", *arguments, more={"CELERY_AGENTS_REDIS_URL": self.url(role)})

    def probe(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """A probe as Docker (with its secrets' folder) or Kubernetes (with its variable) would run it."""
        if command[0] == "with-secrets":
            return self.run(*command, more={"CREDENTIALS_DIRECTORY": self.mounted("worker")})
        return self.run(*command, more={"CELERY_AGENTS_REDIS_URL": self.url("worker")})

    def redis_health(self) -> subprocess.CompletedProcess[str]:
        test = [
            word.replace("/etc/redis", str(DEPLOY / "redis"))
            for word in compose()["services"]["redis"]["healthcheck"]["test"]
        ]
        return self.run(*test[1:], more={"CREDENTIALS_DIRECTORY": self.secrets, "REDIS_PORT": self.port})

    def start(self) -> None:
        self.redis.start()
        wait_until(lambda: self._redis_answers(), "Redis answers", 20, details=self.redis.tail)
        for service in (self.worker, self.flower, self.http):
            service.start()
        wait_until(self._worker_is_known, "the worker is known", 60, interval=0.1, details=self.worker.tail)
        wait_until(self._flower_answers, "Flower answers", 60, interval=0.1, details=self.flower.tail)

    def end(self) -> None:
        for process in (self.http, self.flower, self.worker, self.redis):
            process.end(patience=3.0)

    def _redis_answers(self) -> bool:
        try:
            return bool(self.client("monitor").ping())
        except redis.RedisError:
            return False

    def _worker_is_known(self) -> bool:
        assert self.worker.alive, self.worker.tail()
        return bool(self.client("monitor").hgetall("ca:workers"))

    def _flower_answers(self) -> bool:
        assert self.flower.alive, self.flower.tail()
        try:
            return self.flower_status("/healthcheck", None) == 200
        except OSError:
            return False

    def refused(self) -> list[tuple[str, str, str]]:
        """Who was refused what it wanted, other than in the table below: (user, reason, what)."""
        with self.client("onlooker") as onlooker:
            entries = onlooker.acl_log()
        return [
            (entry["username"], entry["reason"], entry["object"])
            for entry in entries
            # Monitors are refused on purpose, doctor tries whether it may publish, and redis-py tells its version;
            # Redis before 7 does not name what of CLIENT that was. A client tries a script once, and then does without.
            if entry["username"] not in ("monitor", "default")
            and not (entry["username"] in ("producer", "http") and entry["object"].startswith("script"))
            and not (entry["object"] == "client" or entry["object"].startswith("client|set"))
        ]

    def flower_status(self, path: str, credentials: str | None) -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{self.flower_port}{path}")
        if credentials is not None:
            request.add_header("Authorization", f"Basic {b64encode(credentials.encode()).decode()}")
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment(tmp_path_factory.mktemp("deployment"), find_binary())
    try:
        made.start()
        yield made
    finally:
        made.end()


# --- jobs -------------------------------------------------------------------------------------------------------


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
        before = set(monitor.zrevrangebyscore("ca:{0}:sessions", "+inf", "-inf"))
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
            added = set(monitor.zrevrangebyscore("ca:{0}:sessions", "+inf", "-inf")) - before
            return [monitor.hget(f"ca:{{0}}:s:{each}", "status") for each in added]

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
    job = client.submit("support", QUESTION, on_complete="shop.done", session_id="told-of-its-end")
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
        status = lambda: monitor.hget("ca:{0}:s:of-a-submitter", "status")  # noqa: E731
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
            onlooker.hset("ca:{0}:s:has-a-claim:ctl", mapping={"claim": "c", "worker": "w1"})
            onlooker.set("ca:{0}:lease:c", "w1", ex=60)
        listed = deployment.agents("monitor", "list", "--json")
        reasons = {each["session_id"]: each["reason"] for each in map(json.loads, listed.stdout.splitlines())}
        assert "waits for a worker" in reasons["waits-for-a-slot"], listed
        assert "runs on worker w1" in reasons["has-a-claim"]
        for command in (["show", "waits-for-a-slot"], ["show", "has-a-claim", "--json"]):
            seen = deployment.agents("monitor", *command)
            assert seen.returncode == 0, seen.stderr
    finally:
        with deployment.client("onlooker") as onlooker:
            onlooker.hset("ca:{0}:s:has-a-claim:ctl", "claim", "")
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


# --- what nobody may --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=servers())
def users(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Only a Redis with the users, of each server that can be had."""
    made = Deployment(tmp_path_factory.mktemp("users"), request.param)
    made.redis.start()
    try:
        wait_until(made._redis_answers, "Redis answers", 20, details=made.redis.tail)
        yield made
    finally:
        made.redis.end()


@pytest.mark.parametrize("role", ROLES)
def test_a_role_can_do_no_more_than_it_needs(users: Deployment, role: str) -> None:
    allowed = []
    for command in [*EVERYBODY, *MAY_NOT[role]]:
        # Each on a connection of its own: some would change what the connection is for.
        with users.client(role) as client:
            try:
                client.execute_command(*command)
                allowed.append(command)
            except NoPermissionError:
                pass
            except redis.ResponseError as error:
                if not re.search("(?i)permission|not allowed|can't access", str(error)):
                    allowed.append((*command, str(error)))
    assert allowed == []


def test_without_a_password_nobody_gets_in(users: Deployment) -> None:
    nobody = [
        (None, None),
        (None, "x"),
        ("default", ""),
        ("default", "x"),
        ("default", "default"),
        ("worker", "worker"),
    ]
    for name, password in [*nobody, *((role, "") for role in ROLES)]:
        client = redis.Redis(port=users.port, username=name, password=password, retry=Retry(NoBackoff(), 0))
        with client, pytest.raises(redis.RedisError, match=r"(?i)authenticat|WRONGPASS|invalid"):
            client.ping()


def test_what_was_written_is_there_after_a_restart(users: Deployment) -> None:
    """Releases since 7.0 replay a transaction with the rights of the user default."""
    client = AgentClient(users.url("producer"))
    with pytest.warns(UserWarning, match="no worker has registered"):
        submitted = client.submit("nobody", QUESTION)
    client.write_metadata(submitted.session_id, "order", 17)
    with users.client("worker") as worker:
        with worker.pipeline(transaction=True) as transaction:
            transaction.hset("ca:{0}:s:written", "version", "1").zadd("ca:{0}:due", {"written": 1})
            transaction.lpush(STEPS, "x").execute()
        worker.eval("redis.call('set', KEYS[1], '1') redis.call('xadd', KEYS[2], '*', 'a', 'b')", 2, "ca:s", "ca:x")
    users.redis.terminate()
    users.redis.wait(20)
    users.redis.start()
    wait_until(users._redis_answers, "Redis answers", 20, details=users.redis.tail)
    read = AgentClient(users.url("producer")).show(submitted.session_id)
    assert read.state.metadata["order"] == 17
    with users.client("worker") as worker:
        there = ("ca:{0}:s:written", "ca:{0}:due", STEPS, "ca:s", "ca:x")
        assert worker.exists(*there) == len(there)
        worker.delete(*there)
    assert find_restart(users.agents("monitor", "doctor", "--json").stdout)["level"] == "ok"


def find_restart(said: str) -> dict[str, str]:
    """What doctor finds about a restart; about Redis as a whole where this user may ask for nothing."""
    (found,) = (each for each in map(json.loads, said.splitlines()) if each["name"] in ("restart", "redis"))
    return found


@pytest.mark.parametrize("role", ["monitor", "worker", "http"])
def test_doctor_tells_of_users_by_whom_a_restart_would_lose_jobs(users: Deployment, role: str) -> None:
    with users.client("onlooker") as onlooker:
        facts = onlooker.info()
        onlooker.acl_setuser("default", enabled=False, reset_keys=True, reset_channels=True, categories=["-@all"])
        try:
            said = users.agents(role, "doctor", "--json").stdout
        finally:
            onlooker.execute_command("ACL", "SETUSER", "default", "resetpass", "~*", "&*", "+@all")
    found = find_restart(said)
    if role == "http":  # it may not even ask for the version
        assert (found["name"], found["level"]) == ("redis", "warn")
    elif facts["redis_version"].startswith("6.2") or parse_version(facts.get("valkey_version", "0")) >= (9, 1, 2):
        assert found["level"] == "ok"
    else:
        assert found["level"] == "fail"
        assert "HSET" in found["what"]
        assert "user default off resetpass ~* &* +@all" in found["advice"]


def test_a_user_who_may_not_ask_for_rights_gets_a_sentence_and_no_alarm(users: Deployment) -> None:
    with users.client("onlooker") as onlooker:
        onlooker.execute_command("ACL", "SETUSER", "monitor", "-acl")
        try:
            said = users.agents("monitor", "doctor", "--json").stdout
        finally:
            onlooker.execute_command("ACL", "SETUSER", "monitor", "+acl|dryrun")
    assert find_restart(said)["level"] == "ok"


def test_a_password_for_the_user_default_is_refused_before_redis_starts(users: Deployment, tmp_path: Path) -> None:
    (tmp_path / "redis-default").write_text("0123456789abcdef")
    places = {"CREDENTIALS_DIRECTORY": tmp_path, "RUNTIME_DIRECTORY": tmp_path, "STATE_DIRECTORY": tmp_path}
    done = users.run("sh", DEPLOY / "redis" / "start-redis", more=places)
    assert done.returncode == 78
    assert "redis-default" in done.stderr


def test_a_short_password_is_refused_before_redis_starts(users: Deployment, tmp_path: Path) -> None:
    (tmp_path / "redis-worker").write_text("short")
    places = {"CREDENTIALS_DIRECTORY": tmp_path, "RUNTIME_DIRECTORY": tmp_path, "STATE_DIRECTORY": tmp_path}
    done = users.run("sh", DEPLOY / "redis" / "start-redis", more=places)
    assert done.returncode == 78
    assert "less than 16" in done.stderr
