"""`DevStack`: an embedded Redis, workers and Flower as child processes on this machine."""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, NoReturn, Self

from ...config.settings import Settings
from .child_processes import Child
from .embedded_redis import LOOPBACK, EmbeddedRedis, free_port

_CHECK_SECONDS: Final = 0.25
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
        self.environment = dict(environment)
        self._drain_seconds = drain_seconds
        self._logs = logs
        self._parts: list[Child] = []
        self._exit_stack = ExitStack()

    def start_worker(self) -> Child:
        """Start a worker process, without waiting until it takes work."""
        number = len(self.workers) + 1
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

    def start(self, name: str, command: Sequence[str], timeout_seconds: float = _STOP_SECONDS) -> Child:
        """Start a further part, with the stack's environment. It gets SIGTERM before the parts that started earlier."""
        log = self.redis.data / f"{name.replace(' ', '-')}.log" if self._logs else None
        part = Child(name=name, command=command, log=log, environment=self._child_environment())
        self._parts.append(part)
        self._exit_stack.callback(part.stop, timeout_seconds)
        return part

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
        self.redis.check_alive()
        for part in self._parts:
            part.check_alive()

    def wait(self) -> NoReturn:
        """Wait for Ctrl-C or SIGTERM.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed, or SIGTERM came.
            ChildEnded: A part has ended by itself.
        """
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        while True:
            self.check()
            time.sleep(_CHECK_SECONDS)

    def keep(self) -> None:
        """Let all parts run on when this process ends."""
        self._exit_stack.pop_all()
        self.redis.keep()
        for part in self._parts:
            part.detach()

    def __enter__(self) -> Self:
        self._exit_stack.enter_context(self.redis)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit_stack.close()

    def _child_environment(self) -> dict[str, str]:
        """This process's environment, but with the stack's Redis as store and as broker."""
        inherited = {name: value for name, value in os.environ.items() if name != "CELERY_AGENTS_BROKER_URL"}
        return {**inherited, "CELERY_AGENTS_REDIS_URL": self.redis.url, **self.environment}


def flower_is_installed() -> bool:
    """Whether the extra `flower` is installed."""
    return importlib.util.find_spec("flower") is not None


def new_credentials() -> str:
    """Make `user:password` for one run; `FLOWER_BASIC_AUTH` takes precedence when it is set."""
    return os.environ.get("FLOWER_BASIC_AUTH") or f"agents:{secrets.token_urlsafe(9)}"
