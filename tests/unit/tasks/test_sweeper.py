from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from celery_agents.config.settings import Settings
from celery_agents.tasks.app import create_app
from celery_agents.tasks.housekeeping.callbacks import CallbackCaller
from celery_agents.tasks.housekeeping.sweeper import Sweeper
from celery_agents.tasks.publishing import StepPublisher
from celery_agents.worker.store import memory_store
from celery_agents.worker.store.clock import RedisClock
from celery_agents.worker.store.context import Publisher
from celery_agents.worker.store.database import Command, Reply
from celery_agents.worker.store.keys import ShardKeys
from celery_agents.worker.store.memory.database import MemoryDatabase
from celery_agents.worker.store.store import Store

from support.wait import wait_until

SETTINGS = Settings.build(sweep_seconds=0.01, broker_url="memory://")


class FailsAtFirst:
    """A runtime that cannot even say what it is, three times."""

    settings = SETTINGS
    name = "w"
    agents = SimpleNamespace(hashes={"agent": "hash"})

    def __init__(self) -> None:
        self.store = memory_store(SETTINGS)
        app = create_app(SETTINGS)
        self.publisher = StepPublisher(app, SETTINGS)
        self.callbacks = CallbackCaller(app, self.store, SETTINGS)
        self.failures = 0

    @property
    def facts(self) -> dict[str, Any]:
        self.failures += 1
        if self.failures <= 3:
            raise KeyError("nobody has thought of this")
        return {"slots": 1, "running": 0, "draining": False}


def test_the_sweep_outlives_whatever_fails() -> None:
    runtime: Any = FailsAtFirst()
    sweeper = Sweeper(lambda: runtime, lambda: 0)
    sweeper.start()
    try:
        wait_until(lambda: "w" in runtime.store.registry.workers(), "the worker is registered", timeout=10)
    finally:
        sweeper.close()


class RecordingJob:
    """A job that records its runs, and fails when it is told to."""

    runs_at_start = True

    def __init__(
        self,
        name: str,
        runs: list[str],
        *,
        interval_seconds: float = 0.0,
        fails: bool = False,
        is_of_server: bool = False,
    ) -> None:
        self.name = name
        self.is_of_server = is_of_server
        self.interval_seconds = interval_seconds
        self.shards: list[ShardKeys] = []
        self._runs = runs
        self._fails = fails

    def run(self, shards: Sequence[ShardKeys]) -> None:
        self._runs.append(self.name)
        self.shards = list(shards)
        if self._fails:
            raise RuntimeError("this job always fails")


def test_an_error_of_one_job_keeps_no_other_from_running() -> None:
    runtime: Any = FailsAtFirst()
    runs: list[str] = []
    jobs = [RecordingJob("first", runs, fails=True), RecordingJob("second", runs)]
    sweeper = Sweeper(lambda: runtime, lambda: 0, jobs=jobs)
    sweeper.run_pass()
    sweeper.run_pass()
    assert runs == ["first", "second", "first", "second"]


def test_a_job_runs_again_after_its_interval_and_at_once_after_an_error() -> None:
    runtime: Any = FailsAtFirst()
    runs: list[str] = []
    rare = RecordingJob("rare", runs, interval_seconds=3600)
    failing = RecordingJob("failing", runs, interval_seconds=3600, fails=True)
    sweeper = Sweeper(lambda: runtime, lambda: 0, jobs=[rare, failing])
    sweeper.run_pass()
    sweeper.run_pass()
    assert runs == ["rare", "failing", "failing"]


def test_jobs_run_for_the_shards_that_this_worker_has_locked() -> None:
    runtime: Any = FailsAtFirst()
    runtime.settings = Settings.build(sweep_seconds=60, broker_url="memory://")  # the lock outlives the test
    job = RecordingJob("job", [])
    sweeper = Sweeper(lambda: runtime, lambda: 0, jobs=[job])
    sweeper.run_pass()
    assert job.shards == list(runtime.store.context.shards)
    other: Any = FailsAtFirst()
    other.name, other.store, other.settings = "another worker", runtime.store, runtime.settings
    Sweeper(lambda: other, lambda: 0, jobs=[job]).run_pass()
    assert job.shards == []


class TwoServers(MemoryDatabase):
    """Even shards are on one server, odd ones on another, which can be held up."""

    def __init__(self) -> None:
        super().__init__()
        self.odd_answers = threading.Event()

    def place(self, key: str) -> str:
        shard = re.search(r"\{(\d+)\}", key)
        return "odd" if shard is not None and int(shard[1]) % 2 else "even"

    def pipeline(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        if point == "sweep.lock" and self.place(str(commands[0][1])) == "odd":
            self.odd_answers.wait(10)
        return super().pipeline(point, commands)


def test_jobs_run_for_each_server_and_one_that_does_not_answer_holds_up_no_other() -> None:
    runtime: Any = FailsAtFirst()
    servers = TwoServers()
    runtime.store = Store(servers, SETTINGS, clock=RedisClock(), publisher=Publisher())
    runs: list[str] = []
    jobs = [RecordingJob("once", runs), RecordingJob("each", runs, is_of_server=True)]
    sweeper = Sweeper(lambda: runtime, lambda: 0, jobs=jobs)
    try:
        sweeper.run_pass()
        wait_until(lambda: sorted(runs) == ["each", "once"], "the server that answers is swept", 5)
        assert {shard.shard % 2 for shard in jobs[1].shards} == {0}
        assert jobs[0].shards == []
    finally:
        servers.odd_answers.set()
    wait_until(lambda: runs.count("each") == 2, "the other one is swept too", 5)
    assert {shard.shard % 2 for shard in jobs[1].shards} == {1}
