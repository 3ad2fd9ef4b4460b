"""An engine that runs: its store, its workers and the client that submits and waits."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from .engine import Engine, NotMeasuredError
from .environments import BENCHMARKS, own_python, peer_python
from .load import Load
from .processes import Started
from .stores import Counters, FileStore, PostgresStore, RedisStore, RestateStore, Store

STORES: Mapping[str, Callable[[Path], Store]] = {
    "redis": RedisStore,
    "postgres": PostgresStore,
    "files": FileStore,
    "restate": RestateStore,
}


@dataclasses.dataclass(frozen=True)
class Sample:
    """One load of one engine. Sizes in bytes, times in seconds; None: this engine's store does not count it."""

    engine: str
    load: Load
    seconds: float
    cpu_workers: float
    cpu_store: float
    bytes_in: int | None
    bytes_out: int | None
    stored: int | None
    peak_memory: int
    commands: Mapping[str, int]

    @property
    def steps_per_second(self) -> float:
        return self.load.total_steps / self.seconds

    @property
    def ms_per_step(self) -> float:
        """Wall time of one session's step; only meaningful for sessions in turn or a single one."""
        return 1000 * self.seconds / self.load.total_steps

    @property
    def cpu_ms_per_step(self) -> float:
        return 1000 * (self.cpu_workers + self.cpu_store) / self.load.total_steps

    @property
    def store_ms_per_step(self) -> float:
        return 1000 * self.cpu_store / self.load.total_steps

    def per_step(self, count: int | None) -> float | None:
        return None if count is None else count / self.load.total_steps

    def commands_per_step(self) -> dict[str, float]:
        counts = {name: calls / self.load.total_steps for name, calls in self.commands.items()}
        return {name: round(count, 2) for name, count in sorted(counts.items(), key=lambda item: -item[1])}


class Running:
    """An engine's processes, from `with` to its end; everything is in a temporary folder that goes away."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._folder = Path(tempfile.mkdtemp(prefix=f"bench-{engine.name}-"))
        self._workers: list[Started] = []
        self._client: Started | None = None
        self._store: Store | None = None

    def __enter__(self) -> Running:
        try:
            self._start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    @property
    def workers(self) -> list[Started]:
        return self._workers

    def measure(self, load: Load) -> Sample:
        """Run a load to its end.

        Raises:
            NotMeasuredError: It did not end in time, or a process died.
        """
        working = self._workers or [self._started_client]
        before = self.store.counters()
        cpu_before = [process.cpu_seconds() for process in working]
        seconds = self._run(load)
        cpu = sum(process.cpu_seconds() for process in working) - sum(cpu_before)
        counted: Counters = self.store.since(before)
        return Sample(
            engine=self.engine.name,
            load=load,
            seconds=seconds,
            cpu_workers=cpu,
            cpu_store=counted.cpu_seconds,
            bytes_in=counted.bytes_in,
            bytes_out=counted.bytes_out,
            stored=counted.stored,
            peak_memory=sum(process.peak_bytes() for process in working),
            commands=counted.commands,
        )

    def end(self) -> None:
        for process in [self._client, *self._workers]:
            if process is not None:
                process.end()
        if self._store is not None:
            self._store.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _started_client(self) -> Started:
        assert self._client is not None
        return self._client

    def _start(self) -> None:
        engine = self.engine
        self._store = STORES[engine.store](self._folder)
        home = {"PYTHONPATH": str(BENCHMARKS), "BENCH_HOME": str(self._folder)}
        env = {**self._store.environment(), **home, **engine.env}
        kept_as = engine.module.rpartition(".")[2]
        python = peer_python(kept_as, engine.requirements) if engine.requirements else own_python()
        start = [python, "-P", "-m"]
        if engine.workers:
            for number in range(engine.processes):
                argv = [part.format(number=number) for part in engine.workers]
                self._workers.append(Started([*start, *argv], self._folder, f"worker-{number}", env))
        self._client = Started([*start, engine.module], self._folder, "client", env, pipes=True)
        self._client.ask(None, 60)
        self._run(engine.warm_up)

    def _run(self, load: Load) -> float:
        try:
            answer = json.loads(
                self._started_client.ask(json.dumps(load.__dict__), self.engine.patience, self._workers)
            )
        except NotMeasuredError as failed:
            logs = "\n".join(worker.tail() for worker in self._workers)
            raise NotMeasuredError(f"{self.engine.title}: {load.title}\n{failed}\n{logs}") from None
        return float(answer["seconds"])
