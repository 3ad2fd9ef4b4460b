"""Run `celery-agents up`: Redis, a worker, the HTTP interface and Flower, kept running until Ctrl-C."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from ...worker.errors import CeleryAgentsError, ConfigurationError
from ...worker.store.store import Store, redis_store
from .child_processes import Child, ChildEnded
from .dev_stack import DevStack, new_credentials
from .supervisor import FileWatcher, LogFollower, SupervisedPart

_CHECK_SECONDS: Final = 0.25
_POLL_SECONDS: Final = 0.1
_PATIENCE_SECONDS: Final = 15.0
_SHOWN_LINES: Final = 20
_PREFIX: Final = "celery-agents: "
_WORKER: Final = "worker 1"


@dataclass(frozen=True)
class ReadyStack:
    """A stack that takes jobs, as it is told to people.

    Attributes:
        agents: Names of the agents.
        http_url: Of the HTTP interface; None without it.
        credentials: `user:password` of Flower; None without Flower.
        archive_url: Of the archive in the data folder; None where there is none, or the environment names another.
    """

    agents: tuple[str, ...]
    modules: str
    redis_url: str
    data: Path
    worker_pid: int
    slots: int
    http_url: str | None
    flower_url: str | None
    credentials: str | None
    archive_url: str | None = None

    def lines(self, *, elsewhere: bool, reload: bool) -> list[str]:
        """Write the block that says what runs and what to do next.

        Args:
            elsewhere: Whether another terminal has to be told where Redis is.
            reload: Whether the worker restarts when a file changes.
        """
        page = {} if self.http_url is None else {"Page": f"{self.http_url}/"}
        parts = {
            **page,
            "Agents": f"{', '.join(self.agents)}  (from {self.modules})",
            "Redis": f"{self.redis_url}  (data and logs: {self.data})",
            "Worker": f"process {self.worker_pid}, {self.slots} slots",
        }
        if self.http_url is not None:
            parts["HTTP"] = f"{self.http_url}  (described at {self.http_url}/openapi.json)"
        if self.flower_url is not None:
            parts["Flower"] = f"{self.flower_url}  (user and password: {self.credentials})"
        if reload:
            parts["Reload"] = "the worker restarts when a Python file below this folder changes"
        export = [f"export CELERY_AGENTS_REDIS_URL={self.redis_url}"] if elsewhere else []
        if self.archive_url is not None:
            parts["Archive"] = f"{self.archive_url}  (sessions move there a day after their end)"
            export.append(f"export CELERY_AGENTS_ARCHIVE_URL={self.archive_url}")
        commands = [*export, f'celery-agents submit {self.agents[0]} "your question" --wait', "celery-agents list"]
        return [
            "",
            "celery-agents is ready.",
            "",
            *(f"  {name:8}{text}" for name, text in parts.items()),
            "",
            "In another terminal:",
            *(f"  {command}" for command in commands),
            "",
            "Ctrl-C ends everything; the data stay.",
            "",
        ]


class Development:
    """The parts of one `celery-agents up`.

    Args:
        stack: Its Redis runs; its parts write their logs to files.
        modules: Modules of the agents, for messages.
        say: Takes a line for people.
        watcher: Tells when the worker has to restart because a file has changed; None: it never does.
    """

    def __init__(
        self, stack: DevStack, *, modules: str, say: Callable[[str], None], watcher: FileWatcher | None = None
    ) -> None:
        self._stack = stack
        self._modules = modules
        self._say = say
        self._watcher = watcher
        self._store: Store = redis_store(stack.settings(), name="celery-agents-up")
        log = stack.log_file(_WORKER)
        assert log is not None
        self._log = log
        self._follower = LogFollower(log, sys.stderr)
        self._redis = SupervisedPart(
            name="Redis", start=stack.redis.restart, discard=_leave, child=stack.redis.child, say=say
        )
        self._parts = [self._redis]

    def start(self, flower_port: int | None, http_port: int | None) -> ReadyStack:
        """Start the worker, the HTTP interface and Flower, and wait until the worker takes jobs.

        Args:
            flower_port: Preferred port of Flower; None: without Flower.
            http_port: Preferred port of the HTTP interface; None: without it.

        Raises:
            ConfigurationError: The worker cannot start; the message ends with the worker's own reason.
        """
        stack, credentials = self._stack, None
        self._log.unlink(missing_ok=True)
        worker, facts = self._start_worker()
        self._follower.skip()
        self._worker = self._supervise("the worker", self._restart_worker, worker)
        if http_port is not None:
            self._supervise_on_its_port("the HTTP interface", stack.start_http(http_port))
        if flower_port is not None:
            credentials = new_credentials()
            self._supervise_on_its_port("Flower", stack.start_flower(flower_port, credentials))
        return ReadyStack(
            agents=tuple(sorted(facts["agents"])),
            modules=self._modules,
            redis_url=stack.redis.url,
            data=stack.redis.data,
            worker_pid=worker.pid,
            slots=int(facts["slots"]),
            http_url=stack.http_url,
            flower_url=stack.flower_url,
            credentials=credentials,
            archive_url=stack.environment.get("CELERY_AGENTS_ARCHIVE_URL"),
        )

    def run(self) -> NoReturn:
        """Keep the parts running, and show the worker's log.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed, or SIGTERM came.
        """
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        while True:
            self._follower.copy()
            for part in self._parts:
                part.check()
            changed = self._watcher.find_changes() if self._watcher is not None else []
            if changed:
                self._reload(changed)
            time.sleep(_CHECK_SECONDS)

    def _supervise(self, name: str, start: Callable[[], Child], child: Child) -> SupervisedPart:
        part = SupervisedPart(name=name, start=start, discard=self._stack.stop, child=child, say=self._say)
        self._parts.append(part)
        return part

    def _supervise_on_its_port(self, name: str, child: Child) -> None:
        self._supervise(name, lambda: self._stack.start(child.name, child.command), child)

    def _restart_worker(self) -> Child:
        """Start the worker again, and wait until it takes jobs."""
        try:
            worker, _ = self._start_worker()
        except ConfigurationError as error:
            raise ChildEnded(f"cannot start: {error}") from error
        self._follower.skip()
        self._say(f"the worker is ready again (process {worker.pid})")
        return worker

    def _reload(self, changed: list[str]) -> None:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        self._say(f"{changed[0]}{more} changed; the worker restarts")
        try:
            self._worker.restart()
        except ChildEnded as error:
            self._say(f"the worker {error}; it starts again when a file changes")
            self._worker.stop_restarting()

    def _start_worker(self) -> tuple[Child, Mapping[str, Any]]:
        """Start a worker, wait until it is in the registry, and return it with what it says about itself."""
        before = self._read_registry().keys()
        worker = self._stack.start_worker(1)
        told_at = time.monotonic() + _PATIENCE_SECONDS
        while True:
            self._redis.check()
            if not worker.is_alive:
                self._raise_failure(worker)
            for name, facts in self._read_registry().items():
                if facts["pid"] == worker.pid and name not in before:  # in a container the same ids come back
                    return worker, facts
            if time.monotonic() >= told_at:
                self._say(f"the worker still starts; its log is {self._log}")
                told_at = float("inf")
            time.sleep(_POLL_SECONDS)

    def _read_registry(self) -> dict[str, dict[str, Any]]:
        try:
            return self._store.registry.workers()
        except CeleryAgentsError:  # Redis restarts
            return {}

    def _raise_failure(self, worker: Child) -> NoReturn:
        """Raise with the worker's own reason; a traceback is shown before it, so that the reason is the last line."""
        self._stack.stop(worker)
        lines = worker.read_log_tail(_SHOWN_LINES).splitlines()
        reason = lines[-1].strip() if lines else "its log is empty"
        if reason.startswith(_PREFIX):
            raise ConfigurationError(reason.removeprefix(_PREFIX))
        for line in lines:
            self._say(line)
        self._follower.skip()
        raise ConfigurationError(
            f"the worker {worker.describe_end()}: {reason}; correct the agents of {self._modules} "
            f"(the whole log is {self._log})"
        )


def _leave(child: Child) -> None:
    """Do nothing: Redis cleans up by itself when it is started again."""
    del child
