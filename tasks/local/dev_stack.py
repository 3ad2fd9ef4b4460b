"""Everything on this machine: an embedded Redis, workers and Flower as children of this process."""

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

_LOOK_SECONDS: Final = 0.25
_STOP_SECONDS: Final = 3.0
_COMMAND: Final = (sys.executable, "-P", "-m", "celery_agents")
_DRAIN_MARGIN_SECONDS: Final = 5.0


class DevStack:
    """Parts that share one embedded Redis and end together, the workers first.

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
        self._ending = ExitStack()

    def start_worker(self) -> Child:
        """Start a worker process; at once, without waiting until it takes work."""
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

    def start(self, name: str, command: Sequence[str], patience_seconds: float = _STOP_SECONDS) -> Child:
        """Start a further part, with the machine's environment. It gets SIGTERM before the parts that began earlier."""
        log = self.redis.data / f"{name.replace(' ', '-')}.log" if self._logs else None
        part = Child(name, command, log, self._whole_environment())
        self._parts.append(part)
        self._ending.callback(part.stop, patience_seconds)
        return part

    def settings(self) -> Settings:
        """The settings that the parts have.

        Raises:
            SettingsError: The environment holds one that is wrong.
        """
        return Settings.from_environment(self._whole_environment())

    def check(self) -> None:
        """Do nothing while all parts run.

        Raises:
            ChildEnded: One has ended.
        """
        self.redis.must_live()
        for part in self._parts:
            part.must_live()

    def wait(self) -> NoReturn:
        """Wait for Ctrl-C or SIGTERM.

        Raises:
            KeyboardInterrupt: Somebody wants it to end.
            ChildEnded: A part has ended by itself.
        """
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        while True:
            self.check()
            time.sleep(_LOOK_SECONDS)

    def keep(self) -> None:
        """Let all parts live on when this process ends."""
        self._ending.pop_all()
        self.redis.keep()
        for part in self._parts:
            part.leave()

    def __enter__(self) -> Self:
        self._ending.enter_context(self.redis)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.close()

    def _whole_environment(self) -> dict[str, str]:
        """This process's environment, but with the machine's Redis as store and as broker."""
        inherited = {name: value for name, value in os.environ.items() if name != "CELERY_AGENTS_BROKER_URL"}
        return {**inherited, "CELERY_AGENTS_REDIS_URL": self.redis.url, **self.environment}


def flower_is_installed() -> bool:
    """Whether the extra `flower` is there."""
    return importlib.util.find_spec("flower") is not None


def new_credentials() -> str:
    """`user:password` for one run; the ones of `FLOWER_BASIC_AUTH` when somebody has chosen some."""
    return os.environ.get("FLOWER_BASIC_AUTH") or f"agents:{secrets.token_urlsafe(9)}"
