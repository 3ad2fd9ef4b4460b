"""`DevStack`: an embedded Redis, workers, the HTTP interface and Flower as child processes on this machine."""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

from ...config.settings import Settings
from ...worker.errors import ConfigurationError
from .child_processes import Child
from .embedded_redis import LOOPBACK, EmbeddedRedis, free_port

DATA_FOLDER: Final = ".celery-agents"
"""Folder of a stack's data below the current folder, unless another one is given."""

_STOP_SECONDS: Final = 3.0
_COMMAND: Final = (sys.executable, "-P", "-m", "celery_agents")
_DRAIN_MARGIN_SECONDS: Final = 5.0


class DevStack:
    """Child processes that share one embedded Redis and end together, the workers first.

    Args:
        environment: Added to the environment of every part, such as `CELERY_AGENTS_AGENTS`.
        data: Folder of Redis's data and of the logs; None: temporary, removed at the end.
        redis_port: Port of Redis when it is free; None: any.
        drain_seconds: How long running steps may finish when a worker is stopped.
        logs: Write the parts' output to files in the data folder; else it goes where this process's output goes.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        data: Path | None = None,
        redis_port: int | None = None,
        drain_seconds: float = 30.0,
        logs: bool = False,
    ) -> None:
        self.redis = EmbeddedRedis(data, redis_port)
        self.workers: list[Child] = []
        self.flower_url: str | None = None
        self.http_url: str | None = None
        self.environment = dict(environment)
        self._drain_seconds = drain_seconds
        self._logs = logs
        self._parts: list[tuple[Child, float]] = []
        self._is_kept = False

    def start_worker(self, number: int | None = None) -> Child:
        """Start a worker process, without waiting until it takes work.

        Args:
            number: Number in its name; None: the next one.
        """
        number = number or len(self.workers) + 1
        command = [*_COMMAND, "worker", "--name", f"worker{number}@{os.uname().nodename}"]
        worker = self.start(f"worker {number}", command, self._drain_seconds + _DRAIN_MARGIN_SECONDS)
        self.workers.append(worker)
        return worker

    def start_flower(self, preferred_port: int, credentials: str) -> Child:
        """Start Flower on the loopback interface.

        Args:
            credentials: `user:password` that the browser asks for.
        """
        port = free_port(preferred_port)
        self.flower_url = f"http://{LOOPBACK}:{port}"
        self.environment["FLOWER_BASIC_AUTH"] = credentials
        return self.start("flower", [*_COMMAND, "flower", "--port", str(port)])

    def start_http(self, preferred_port: int) -> Child:
        """Start the HTTP interface on the loopback interface, where it needs no token."""
        address = f"{LOOPBACK}:{free_port(preferred_port)}"
        self.http_url = f"http://{address}"
        return self.start("http", [*_COMMAND, "serve", "--address", address])

    def start(self, name: str, command: Sequence[str], timeout_seconds: float = _STOP_SECONDS) -> Child:
        """Start a further part, with the stack's environment. It gets SIGTERM before the parts that started earlier."""
        part = Child(name=name, command=command, log=self.log_file(name), environment=self._child_environment())
        self._parts.append((part, timeout_seconds))
        return part

    def stop(self, part: Child) -> None:
        """Stop a part, or kill what is left of one that has ended, and forget it."""
        for known, timeout_seconds in self._parts:
            if known is part:
                part.stop(timeout_seconds)
        self._parts = [each for each in self._parts if each[0] is not part]
        self.workers = [worker for worker in self.workers if worker is not part]

    def log_file(self, name: str) -> Path | None:
        """Return the file to which a part of this name writes; None when it writes where this process does."""
        return self.redis.data / f"{name.replace(' ', '-')}.log" if self._logs else None

    def settings(self) -> Settings:
        """Read the settings that the parts have.

        Raises:
            SettingsError: A setting in the environment is wrong.
        """
        return Settings.from_environment(self._child_environment())

    def check(self) -> None:
        """Check that all parts still run.

        Raises:
            ChildEnded: One of them has ended.
        """
        self.redis.child.check_alive()
        for part, _ in self._parts:
            part.check_alive()

    def keep(self) -> None:
        """Let all parts run on when this process ends."""
        self.redis.keep()
        for part, _ in self._parts:
            part.detach()
        self._is_kept = True

    def __enter__(self) -> Self:
        self.redis.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_kept:
            return
        try:
            for part, timeout_seconds in reversed(self._parts):
                part.stop(timeout_seconds)
        finally:
            self.redis.stop()

    def _child_environment(self) -> dict[str, str]:
        """This process's environment, but with the stack's Redis as store and as broker."""
        inherited = {name: value for name, value in os.environ.items() if name != "CELERY_AGENTS_BROKER_URL"}
        return {**inherited, "CELERY_AGENTS_REDIS_URL": self.redis.url, **self.environment}


def archive_environment(settings: Settings, data: Path) -> dict[str, str]:
    """The archive of a stack: that of its settings, else a file in its data folder, where the extra is installed.

    Raises:
        ConfigurationError: No URL can name the folder.
    """
    if settings.archive_url is not None or importlib.util.find_spec("sqlalchemy") is None:
        return {}
    try:
        path = quote(str((data / "history.db").resolve()))
    except UnicodeEncodeError:
        raise ConfigurationError(f"the name {str(data)!r} is no UTF-8; give another --data-dir") from None
    return {"CELERY_AGENTS_ARCHIVE_URL": f"sqlite:///{path}"}


def flower_is_installed() -> bool:
    """Whether the extra `flower` is installed."""
    return importlib.util.find_spec("flower") is not None


def http_is_installed() -> bool:
    """Whether the extra `http` is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("starlette", "sse_starlette", "uvicorn"))


def new_credentials() -> str:
    """Make `user:password` for one run; `FLOWER_BASIC_AUTH` takes precedence when it is set."""
    return os.environ.get("FLOWER_BASIC_AUTH") or f"agents:{secrets.token_urlsafe(9)}"
