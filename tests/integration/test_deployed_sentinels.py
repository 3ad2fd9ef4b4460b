"""The scripts of deploy/redis with Sentinels, in real processes: a new group, and servers that come back."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from celery_agents import AgentClient
from celery_agents.config.settings import Settings
from celery_agents.tasks.observability.doctor.checks import examine
from celery_agents.worker.errors import StoreUnavailable

from support.deployed import DEPLOY
from support.processes import Process, free_port
from support.redis_server import find_binary
from support.sentinels import MASTER
from support.wait import wait_until

pytestmark = [
    pytest.mark.long,  # it waits for failovers of its own
    pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is not on this machine"),
    pytest.mark.timeout(120),
]
_WAIT_SECONDS = 4


class Group:
    """Three servers, each with a Sentinel, as the files of deploy/ start them."""

    def __init__(self, folder: Path) -> None:
        self.ports = [free_port() for _ in range(3)]
        self.sentinel_ports = [free_port() for _ in range(3)]
        places = ",".join(f"127.0.0.1:{port}" for port in self.sentinel_ports)
        programs = folder / "bin"
        programs.mkdir()
        (programs / "redis-server").symlink_to(find_binary())
        subprocess.run(["sh", DEPLOY / "make-secrets", folder / "secrets", places, MASTER], check=True)
        env = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "CREDENTIALS_DIRECTORY": str(folder / "secrets"),
            "SENTINELS": places,
            "SENTINEL_NAME": MASTER,
            "OWN_HOST": "127.0.0.1",
            "FIRST_HOST": f"127.0.0.1:{self.ports[0]}",
            "SENTINEL_DOWN_AFTER_MS": "1000",
            "SENTINEL_FAILOVER_MS": "3000",
            "FAILOVER_SECONDS": str(_WAIT_SECONDS),
        }
        self.servers = [self._process("redis", folder, number, env) for number in range(3)]
        self.sentinels = [self._process("sentinel", folder, number, env) for number in range(3)]
        self.secrets = folder / "secrets"

    def _process(self, what: str, folder: Path, number: int, env: dict[str, str]) -> Process:
        home = folder / f"{what}-{number + 1}"
        (home / "data").mkdir(parents=True)
        port = str(self.ports[number])
        places = {"RUNTIME_DIRECTORY": str(home / "run"), "STATE_DIRECTORY": str(home / "data"), "REDIS_PORT": port}
        more = ["--port", port, "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0"] if what == "redis" else []
        return Process(
            what, ["sh", str(DEPLOY / "redis" / f"start-{what}"), *more], home,
            {**env, **places, "SENTINEL_PORT": str(self.sentinel_ports[number])},
        )  # fmt: skip

    def url(self, user: str) -> str:
        return (self.secrets / f"redis-url-{user}").read_text()

    def info(self, number: int) -> dict[str, object]:
        """INFO replication of a server; empty while it does not answer."""
        password = (self.secrets / "redis-monitor").read_text()
        try:
            with redis.Redis(port=self.ports[number], username="monitor", password=password, retry=None) as client:
                return client.info("replication")
        except redis.RedisError:
            return {}

    def primaries(self) -> list[int]:
        return [number for number in range(3) if self.info(number).get("role") == "master"]

    def has_settled(self) -> bool:
        """Whether one server is primary, both others follow it, and every Sentinel knows that."""
        primaries = self.primaries()
        found = self.info(primaries[0]) if len(primaries) == 1 else {}
        online = [each for each in found.values() if isinstance(each, dict) and each.get("state") == "online"]
        return len(online) == 2 and all(self.known_replicas(port) == 2 for port in self.sentinel_ports)

    def known_replicas(self, port: int) -> int:
        """How many replicas a Sentinel knows; 0 while it does not answer."""
        password = (self.secrets / "sentinel").read_text()
        try:
            with redis.Redis(port=port, password=password, decode_responses=True) as client:
                return client.sentinel_masters()[MASTER]["num-slaves"]
        except redis.RedisError:
            return 0

    def look(self) -> str:
        return "\n".join(each.tail(12) for each in (*self.servers, *self.sentinels))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    found = Group(tmp_path)
    try:
        for each in (*found.sentinels, *found.servers):
            each.start()
        wait_until(found.has_settled, "one is primary and two follow", 30, details=found.look)
        yield found
    finally:
        for each in (*found.servers, *found.sentinels):
            each.end(patience=0.0)


def test_a_new_group_is_what_doctor_wants_and_takes_jobs(group: Group) -> None:
    assert group.primaries() == [0]
    wait_until(
        lambda: "3 of 3 name" in said(group, "sentinels"),
        "the Sentinels know each other",
        20,
        ignoring=(StoreUnavailable,),
    )
    assert said(group, "role") == "primary; 2 of 2 connected replicas follow"
    with pytest.warns(UserWarning, match="no worker has registered"):
        AgentClient(group.url("producer")).submit("support", "hello", session_id="s1")
    assert AgentClient(group.url("monitor")).header("s1").session_id == "s1"
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=group.sentinel_ports[0]).execute_command("SENTINEL", "MASTERS")


def said(group: Group, name: str) -> str:
    """What doctor, as monitor, says of one thing that is fine."""
    found = examine(Settings.build(redis_url=group.url("monitor")))
    return "; ".join(f"{each.what}: {each.advice}".removesuffix(": ") for each in found if each.name == name)


def test_a_primary_that_comes_back_at_once_waits_and_follows_its_replica(group: Group) -> None:
    wait_until(
        lambda: "3 of 3 name" in said(group, "sentinels"),
        "the Sentinels know each other",
        20,
        ignoring=(StoreUnavailable,),
    )
    former = group.servers[0]
    former.kill()
    former.start()
    former.wait_for_text(f"this server was primary; it waits {_WAIT_SECONDS} s", 10)
    wait_until(lambda: group.primaries() not in ([], [0]), "another server is primary", 20, details=group.look)
    wait_until(group.has_settled, "the former primary follows", 30, details=group.look)
    assert group.primaries() != [0]


def test_a_server_with_data_waits_for_a_sentinel_that_knows(group: Group) -> None:
    for each in (*group.sentinels, group.servers[2]):
        each.kill()
    group.servers[2].start()
    group.servers[2].wait_for_text("no Sentinel of", 15)
    assert group.info(2) == {}, "it would follow the wrong one, or be a second primary"
    for each in group.sentinels:
        each.start()
    wait_until(group.has_settled, "it follows", 30, details=group.look)
    assert group.primaries() == [0]
