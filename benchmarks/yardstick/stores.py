"""The servers that engines store in, each started for one engine in a folder of its own, and what they count."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import redis

from celery_agents.tasks.local.embedded_redis import redis_binary
from celery_agents.worker.errors import ConfigurationError

from .engine import NotMeasuredError
from .environments import restate_binary
from .processes import Started, free_port, wait_for


@dataclasses.dataclass(frozen=True)
class Counters:
    """What a store has counted so far. None: it does not count that."""

    cpu_seconds: float = 0.0
    bytes_in: int | None = None
    bytes_out: int | None = None
    stored: int | None = None
    commands: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def since(self, earlier: Counters) -> Counters:
        return Counters(
            cpu_seconds=self.cpu_seconds - earlier.cpu_seconds,
            bytes_in=_difference(self.bytes_in, earlier.bytes_in),
            bytes_out=_difference(self.bytes_out, earlier.bytes_out),
            stored=_difference(self.stored, earlier.stored),
            commands={
                name: count - earlier.commands.get(name, 0)
                for name, count in self.commands.items()
                if count > earlier.commands.get(name, 0)
            },
        )


def _difference(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


class Store(Protocol):
    def environment(self) -> dict[str, str]: ...
    def counters(self) -> Counters: ...
    def since(self, earlier: Counters) -> Counters: ...
    def end(self) -> None: ...


class RedisStore:
    """redis-server with an append-only file, fsync every second."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": folder,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            # As deploy/redis/redis.conf has it.
            "stream-node-max-bytes": "1280",
            "hash-max-ziplist-value": "2048",
        }
        argv = [_redis_binary(), *(str(part) for name, value in options.items() for part in (f"--{name}", value))]
        self.server = Started(argv, folder, "redis-server")
        self._client = redis.Redis(port=self.port, decode_responses=True)
        wait_for(self._answers, "redis-server answers", 10, self.server)
        first = self._read()
        self._own = self._read().since(first)

    def environment(self) -> dict[str, str]:
        url = f"redis://127.0.0.1:{self.port}/0"
        return {"BENCH_REDIS": url, "CELERY_AGENTS_REDIS_URL": url}

    def counters(self) -> Counters:
        return self._read()

    def since(self, earlier: Counters) -> Counters:
        # Reading the counters is counted by the server too: once between two reads.
        passed = self._read().since(earlier)
        return dataclasses.replace(
            passed,
            bytes_in=_difference(passed.bytes_in, self._own.bytes_in),
            bytes_out=_difference(passed.bytes_out, self._own.bytes_out),
        )

    def end(self) -> None:
        self._client.close()
        self.server.end()

    def _read(self) -> Counters:
        info = self._client.info("everything")
        commands = {name.removeprefix("cmdstat_"): value["calls"] for name, value in info.items() if "cmdstat_" in name}
        return Counters(
            cpu_seconds=self.server.cpu_seconds(),
            bytes_in=info["total_net_input_bytes"],
            bytes_out=info["total_net_output_bytes"],
            stored=info["used_memory"],
            commands={name: calls for name, calls in commands.items() if name != "info"},
        )

    def _answers(self) -> bool:
        try:
            return bool(self._client.ping())
        except redis.ConnectionError:
            return False


def _redis_binary() -> str:
    try:
        return redis_binary()
    except ConfigurationError as error:
        raise NotMeasuredError(str(error)) from None


class PostgresStore:
    """PostgreSQL as it is installed, with `synchronous_commit` off.

    That loses at most a fraction of a second at a crash of the machine, as Redis does with an fsync every second;
    with an fsync at every commit it would be slower.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        home = folder / "postgres"
        home.mkdir()
        # PostgreSQL refuses to run as root.
        self._user = "postgres" if os.geteuid() == 0 else ""
        if self._user:
            for path in (folder, *folder.parents[:1]):
                path.chmod(path.stat().st_mode | 0o055)
            shutil.chown(home, self._user)
        binaries = postgres_folder()
        if binaries is None:
            raise NotMeasuredError("there is no PostgreSQL on this machine (apt-get install postgresql)")
        auth = ["-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "-D", str(home)]
        made = subprocess.run(self._as_user([str(binaries / "initdb"), *auth]), capture_output=True, text=True)
        if made.returncode:
            raise NotMeasuredError(f"initdb failed\n{made.stderr}")
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": home,
            "max_connections": 300,
            "synchronous_commit": "off",
        }
        argv = [str(binaries / "postgres"), "-D", str(home)]
        for name, value in options.items():
            argv += ["-c", f"{name}={value}"]
        self.server = Started(self._as_user(argv), folder, "postgres")
        self._psql = [str(binaries / "psql"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-XAtqc"]
        wait_for(self._answers, "PostgreSQL answers", 20, self.server)
        self._ask("CREATE DATABASE bench")

    def environment(self) -> dict[str, str]:
        return {"BENCH_POSTGRES": f"postgresql://postgres@127.0.0.1:{self.port}/bench"}

    def counters(self) -> Counters:
        wal, size = self._ask("SELECT pg_current_wal_lsn() - '0/0', pg_database_size('bench')").split("|")
        return Counters(cpu_seconds=self.server.cpu_seconds(), bytes_in=int(wal), stored=int(size))

    def since(self, earlier: Counters) -> Counters:
        return self.counters().since(earlier)

    def end(self) -> None:
        self.server.end(signal.SIGINT)

    def _as_user(self, argv: list[str]) -> list[str]:
        return (
            ["setpriv", f"--reuid={self._user}", f"--regid={self._user}", "--clear-groups", *argv]
            if self._user
            else argv
        )

    def _ask(self, sql: str) -> str:
        return subprocess.run([*self._psql, sql], capture_output=True, text=True, check=True).stdout.strip()

    def _answers(self) -> bool:
        return subprocess.run([*self._psql, "SELECT 1"], capture_output=True).returncode == 0


def postgres_folder() -> Path | None:
    """The newest installed PostgreSQL's programs; None when there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


class FileStore:
    """A folder: SQLite engines store in it themselves, so there is no server to measure."""

    def __init__(self, folder: Path) -> None:
        self._home = folder / "files"
        self._home.mkdir()

    def environment(self) -> dict[str, str]:
        return {"BENCH_FILES": str(self._home)}

    def counters(self) -> Counters:
        return Counters(stored=sum(path.stat().st_size for path in self._home.rglob("*") if path.is_file()))

    def since(self, earlier: Counters) -> Counters:
        return self.counters().since(earlier)

    def end(self) -> None:
        return None


class RestateStore:
    """Restate's own server, from its npm package, without an fsync at every entry, as with the other stores."""

    def __init__(self, folder: Path) -> None:
        self.ingress, self.admin, self.service = free_port(), free_port(), free_port()
        self._home = folder / "restate"
        argv = [str(restate_binary()), "--no-logo", "--listen-mode", "tcp", "--bind-ip", "127.0.0.1"]
        argv += ["--bind-port", str(free_port()), "--base-dir", str(self._home)]
        env = {
            "RESTATE_ADMIN__BIND_PORT": str(self.admin),
            "RESTATE_INGRESS__BIND_PORT": str(self.ingress),
            "RESTATE_BIFROST__LOCAL__ROCKSDB_DISABLE_WAL_FSYNC": "true",
            "RESTATE_LOG_SERVER__ROCKSDB_DISABLE_WAL_FSYNC": "true",
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RUST_LOG": "warn",
        }
        self.server = Started(argv, folder, "restate-server", env)

    def environment(self) -> dict[str, str]:
        return {
            "BENCH_RESTATE_INGRESS": str(self.ingress),
            "BENCH_RESTATE_ADMIN": str(self.admin),
            "BENCH_RESTATE_SERVICE": str(self.service),
        }

    def counters(self) -> Counters:
        stored = sum(path.stat().st_size for path in self._home.rglob("*") if path.is_file())
        return Counters(cpu_seconds=self.server.cpu_seconds(), stored=stored)

    def since(self, earlier: Counters) -> Counters:
        return self.counters().since(earlier)

    def end(self) -> None:
        self.server.end()
