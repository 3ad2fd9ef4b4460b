"""The way from one server to three, as docs/growing.md has it: nothing that was acknowledged is lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import redis

from celery_agents import AgentClient
from celery_agents.worker.errors import StoreUnavailable

from support.product import ROOT
from support.redis_server import RedisServer
from support.wait import wait_until

PAGE = (ROOT / "docs" / "growing.md").read_text(encoding="utf-8")


def test_a_server_is_moved_under_writes_and_loses_nothing(tmp_path: Path, recwarn: Any) -> None:
    del recwarn  # no worker has registered the agent
    for command in (
        "REPLICAOF old-host 6379",
        "CLIENT PAUSE 5000 WRITE",
        "REPLICAOF NO ONE",
        "REPLICAOF first-host 6379",
    ):
        assert command in PAGE
    config = {"repl-diskless-sync-delay": "0"}
    with (
        RedisServer(tmp_path / "old", append_only="everysec", config=config) as old,
        RedisServer(tmp_path / "first", append_only="everysec", config=config) as first,
        RedisServer(tmp_path / "second", append_only="everysec", config=config) as second,
    ):
        accepted: list[str] = []
        ended = threading.Event()

        def submit() -> None:
            client = AgentClient(old.url())
            while not ended.is_set():
                try:
                    accepted.append(client.submit("nobody", "hello").session_id)
                except StoreUnavailable:
                    return

        writer = threading.Thread(target=submit)
        writer.start()
        wait_until(lambda: len(accepted) > 20, "jobs are submitted", 10)
        clients = [server.client() for server in (old, first, second)]
        for client in clients[1:]:
            client.replicaof("127.0.0.1", str(old.port))
        wait_until(lambda: all(role(client) == "slave up" for client in clients[1:]), "both follow", 15)
        clients[0].execute_command("CLIENT", "PAUSE", "5000", "WRITE")
        wait_until(lambda: offset(clients[0]) == offset(clients[1]), "the first has everything", 5)
        clients[1].execute_command("REPLICAOF", "NO", "ONE")
        clients[2].replicaof("127.0.0.1", str(first.port))
        ended.set()
        old.kill()
        writer.join(10)
        wait_until(lambda: role(clients[2]) == "slave up", "the second follows the first", 15)
        moved = AgentClient(first.url())
        assert [moved.header(session).session_id for session in accepted] == accepted
        assert moved.submit("nobody", "hello").session_id


def role(client: redis.Redis) -> str:
    found: dict[str, Any] = client.info("replication")  # type: ignore[assignment]
    return f"{found['role']} {found.get('master_link_status', '')}"


def offset(client: redis.Redis) -> int:
    found: dict[str, Any] = client.info("replication")  # type: ignore[assignment]
    return found.get("slave_repl_offset", found["master_repl_offset"])
