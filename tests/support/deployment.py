"""One machine as the files of deploy/ and docker-compose.yml make it, in real processes."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis

from support import deployed, fork_server
from support.deployed import DEPLOY, compose
from support.processes import Process, free_port
from support.wait import wait_until

ROLES = ("producer", "submitter", "worker", "monitor", "http", "flower", "operator")


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
                f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {"-m celery_agents " if name != "python" else ""}"$@"\n'
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
        command = [sys.executable, "-m", "celery_agents", *arguments]
        environment = self.environment({"CELERY_AGENTS_REDIS_URL": self.url(role)})
        return fork_server.run(command, cwd=self.folder, env=environment)

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
