"""A Redis, the ledger, supervised workers and a client: what a scenario with real processes plays with."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from celery_agents import AgentClient
from celery_agents.config.settings import Settings
from celery_agents.worker.store.keys import SessionKeys

from .agents import call, plan
from .http_service import ServiceProcess
from .ledger import Ledger
from .redis_keys import due_sessions
from .redis_server import RedisServer
from .verdict import Submitted, Verdict, judge
from .wait import wait_until
from .worker_process import WorkerProcess

EFFECT_TOOLS = ("pure", "keyed", "keyed_async", "looked_up", "unsafe")

# Shorter than the defaults, for scenarios in which the time of a recovery is not what is looked at.
QUICK: Mapping[str, str] = {
    "CELERY_AGENTS_LEASE_SECONDS": "2",
    "CELERY_AGENTS_LEASE_RENEW_SECONDS": "0.5",
    "CELERY_AGENTS_LEASE_GRACE_SECONDS": "0.2",
    "CELERY_AGENTS_SWEEP_SECONDS": "0.25",
    "CELERY_AGENTS_DUE_SECONDS": "2",
    "CELERY_AGENTS_DUE_MAX_SECONDS": "4",
}


@dataclass(frozen=True)
class Death:
    """A worker that ended.

    Attributes:
        crash: The crash plan it had; "" when it had none.
        at_ms: Redis time when it was noticed.
        held: (session, execution, step) it had claimed.
        lost: Of those that no live worker had claimed, the ones whose message was not queued.
    """

    pid: int
    crash: str
    code: int
    at_ms: int
    held: tuple[tuple[str, str, int], ...]
    lost: tuple[tuple[str, str, int], ...]


class Lab:
    """Everything of one scenario, in a directory of its own.

    Args:
        directory: For logs and data; removed and made anew.
        separate: Broker in another database than the store, so that messages are published after the commit.
        quick: Short leases.
        redis_options: Of `RedisServer`.
        env: More environment for every worker.
    """

    def __init__(
        self,
        directory: Path,
        *,
        separate: bool = False,
        quick: bool = True,
        redis_options: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        agents: str = "support.agents",
    ) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self.directory = directory
        self.server = RedisServer(directory / "redis", **(redis_options or {}))
        self.service = ServiceProcess("support.ledger", directory / "ledger")
        self.separate = separate
        self.agents = agents
        self.workers: list[WorkerProcess] = []
        self.jobs: list[Submitted] = []
        self.settings_env = {"CELERY_AGENTS_DRAIN_SECONDS": "5", **(QUICK if quick else {}), **(env or {})}
        self._numbers = itertools.count(1)
        self._closing: list[Callable[[], object]] = []

    def __enter__(self) -> Lab:
        try:
            self.redis = self._start_redis()
            self._closing.append(self.redis.close)
            self._closing.append(self.service.end)
            self.service.start()
        except BaseException:
            self.__exit__()
            raise
        self.ledger = Ledger(self.service, "lab")
        self.client = self.new_client()
        return self

    def _start_redis(self) -> redis.Redis:
        """Start what holds the store, and give a client of it."""
        self._closing.append(self.server.end)
        self.server.start()
        return self.server.client()

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.end(patience=0.0)
        for close in reversed(self._closing):
            close()

    # --- parts --------------------------------------------------------------------------------------------------

    @property
    def store_url(self) -> str:
        """The store's database."""
        return self.server.url()

    @property
    def broker_url(self) -> str | None:
        """The broker's, where it is another."""
        return self.server.url(1) if self.separate else None

    def new_client(self, port: int | None = None) -> AgentClient:
        """A client with this lab's settings; through a proxy where a port is given."""
        return self._client(self.server.url(port=port))

    def _client(self, url: str) -> AgentClient:
        names = {name.removeprefix("CELERY_AGENTS_").lower(): value for name, value in self.settings_env.items()}
        names = {name: value for name, value in names.items() if name in Settings.model_fields}
        return AgentClient(settings=Settings.build(**names, redis_url=url, broker_url=self.broker_url))

    def worker(
        self, *, wait: bool = True, crash: str = "", url: str | None = None, prefix: Sequence[str] = (), **env: str
    ) -> WorkerProcess:
        """Start a worker.

        Args:
            crash: A crash plan, `point:probability:seed[:stop=seconds]`.
            url: Another way to the store, for example through a proxy.
            prefix: As of `Process`.
        """
        name = f"worker-{next(self._numbers)}"
        worker = WorkerProcess(
            self.directory / name, url or self.store_url, self.agents, env=self.worker_env(crash, **env), name=name,
            arguments=self.worker_arguments(name),
        )  # fmt: skip
        worker.prefix = prefix
        self.workers.append(worker)
        worker.start(wait=wait, timeout=60)
        return worker

    def worker_arguments(self, name: str) -> Sequence[str]:
        """Further words of a worker's command."""
        del name
        return ()

    def worker_env(self, crash: str = "", **env: str) -> dict[str, str | None]:
        """The environment of a worker."""
        return {
            **self.settings_env,
            **self.ledger.env,
            "CELERY_AGENTS_BROKER_URL": self.broker_url,
            "CELERY_AGENTS_CRASH": crash or None,
            "CELERY_AGENTS_TASK_EVENTS": "false",
            **env,
        }

    # --- jobs ---------------------------------------------------------------------------------------------------

    def submit(
        self,
        *steps: Sequence[str | dict[str, Any]],
        client: AgentClient | None = None,
        agent: str = "planned",
        **driver: Any,
    ) -> Submitted:
        """Submit a job: for each step the tools it calls, by name or as `call(...)`; `driver` as in `plan`."""
        number = len(self.jobs)
        calls = [
            [call(t, work=f"{number}.{s}.{i}") if isinstance(t, str) else t for i, t in enumerate(tools)]
            for s, tools in enumerate(steps, 1)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some scenarios submit before there is a worker
            job = (client or self.client).submit(agent, plan(*calls, **driver), labels=self.labels(number))
        submitted = Submitted(job.session_id, job.execution_id, tuple(tuple(c["tool"] for c in step) for step in calls))
        self.jobs.append(submitted)
        return submitted

    def labels(self, number: int) -> dict[str, str]:
        """The labels of the job of a number."""
        del number
        return {}

    def say(self, agent: str, text: str, *steps: Sequence[str]) -> Submitted:
        """Submit a message to an agent whose answers come from elsewhere; the tools it will call in each step."""
        job = self.client.submit(agent, text)
        submitted = Submitted(job.session_id, job.execution_id, tuple(tuple(step) for step in steps))
        self.jobs.append(submitted)
        return submitted

    def _keys(self, session_id: str) -> SessionKeys:
        return self.client.store.context.keys(session_id)

    def has_moved(self, job: Submitted) -> bool:
        """Whether a job's session has moved to the queue of a worker group."""
        return bool(self.redis.hget(self._keys(job.session_id).ctl, "queue"))

    def ended(self, job: Submitted) -> bool:
        """Whether a job has ended."""
        return self.redis.hexists(self._keys(job.session_id).session, f"e:{job.execution_id}")

    def wait_for_jobs(self, timeout: float = 90.0, jobs: Sequence[Submitted] | None = None) -> None:
        """Wait until all jobs have ended."""
        waiting = list(self.jobs if jobs is None else jobs)

        def all_ended() -> bool:
            waiting[:] = [job for job in waiting if not self.ended(job)]
            return not waiting

        wait_until(
            all_ended, "all jobs have ended", timeout, interval=0.05, ignoring=(redis.RedisError, OSError),
            details=lambda: self._about(waiting),
        )  # fmt: skip

    def _about(self, waiting: Sequence[Submitted]) -> str:
        lines = [f"{len(waiting)} jobs have not ended; queue {self.queue_length()}"]
        for job in waiting[:3]:
            lines.append(f"{job.session_id}: {self.redis.hgetall(self._keys(job.session_id).ctl)}")
            lines += [
                f"  {e.at_ms} {e.type} {e.step} {dict(e.data)}"
                for e in self.client.store.sessions.events(job.session_id)
            ]
        lines.append(f"dead: {self.client.store.housekeeping.list_dead(3)}")
        return "\n".join([*lines, *(worker.tail(15) for worker in self.workers[-3:])])

    def verdict(
        self, statuses: Sequence[str] = ("completed",), jobs: Sequence[Submitted] | None = None, *, planned: bool = True
    ) -> Verdict:
        """Judge all jobs, when they have ended; `planned` as in `judge`."""
        chosen = self.jobs if jobs is None else jobs
        return judge(self.client, self.redis, self.ledger.entries(), chosen, statuses=statuses, planned=planned)

    # --- Redis --------------------------------------------------------------------------------------------------

    def broker(self) -> redis.Redis:
        """A client of the broker's database, undecoded."""
        return redis.Redis(port=self.server.port, db=1 if self.separate else 0, socket_timeout=10)

    def queue_length(self) -> int:
        """Step messages that wait."""
        with self.broker() as broker:
            return int(broker.llen("celery_agents.steps"))  # type: ignore[arg-type]

    def now_ms(self) -> int:
        """Redis's time."""
        seconds, micros = self.redis.time()  # type: ignore[misc]
        return seconds * 1000 + micros // 1000

    def death(self, worker: WorkerProcess, crash: str = "") -> Death:
        """What a worker that has just ended leaves behind."""
        at_ms = self.now_ms()
        with self.broker() as broker:
            queued = b" ".join(broker.lrange("celery_agents.steps", 0, -1)).replace(b'": "', b'":"')  # type: ignore[arg-type]
        held: list[tuple[str, str, int]] = []
        lost: list[tuple[str, str, int]] = []
        sessions = due_sessions(self.redis)
        with self.redis.pipeline(transaction=False) as pipe:
            for session in sessions:
                pipe.hmget(self._keys(session).ctl, "execution", "step", "claim", "worker", "not_before")
            found = pipe.execute()
            for session, (_, _, claim, _, _) in zip(sessions, found, strict=True):
                pipe.exists(self._keys(session).shard.lease(claim or "-"))
            alive = pipe.execute()
        for session, lives, (execution, step, claim, name, not_before) in zip(sessions, alive, found, strict=True):
            if execution is None or int(not_before or 0) > at_ms:
                continue
            place = (session, execution, int(step))
            if claim and f"-{worker.pid}-" in (name or ""):
                held.append(place)
            elif not lives and _task_id(execution, int(step)) not in queued:
                lost.append(place)
        return Death(worker.pid, crash, worker.exit_code or 0, at_ms, tuple(held), tuple(lost))

    def recoveries(self, deaths: Sequence[Death]) -> dict[int, list[float]]:
        """Seconds until somebody else went on with each step that a dead worker held, by Redis's clock, per death.

        Where it held none, the longest wait of a session whose message it had taken. A wait during which another
        worker died with the same step in its hands counts from that death.
        """
        found: dict[int, list[float]] = {}
        for number, death in enumerate(deaths):
            later = {
                place: other.at_ms for other in reversed(deaths[number + 1 :]) for place in (*other.held, *other.lost)
            }
            waits = {place: self._wait(place, death.at_ms) for place in (*death.held, *death.lost)}
            once = {
                place: wait
                for place, wait in waits.items()
                if wait is not None and death.at_ms + wait * 1000 < later.get(place, float("inf"))
            }
            held = [once[place] for place in death.held if place in once]
            lost = [once[place] for place in death.lost if place in once]
            found[number] = held if death.held else [max(lost)] if lost else []
        return found

    def _wait(self, place: tuple[str, str, int], since_ms: int) -> float | None:
        session, execution, step = place
        for event in self.client.store.sessions.events(session):
            mine = event.execution_id == execution and event.step >= step
            if mine and event.at_ms > since_ms and event.type != "message_received":
                return (event.at_ms - since_ms) / 1000
        return None


def _task_id(execution: str, step: int) -> bytes:
    return f'"id":"{execution}.{step}"'.encode()


@dataclass
class Supervisor:
    """Keeps workers alive: one that ends is noted and started again with the next crash plan.

    Attributes:
        plans: Crash plans still to be given out; then workers are started without one.
        environment: More environment for each.
    """

    lab: Lab
    plans: list[str]
    count: int
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    deaths: list[Death] = field(default_factory=list[Death])

    def __enter__(self) -> Supervisor:
        self._ended = threading.Event()
        self._current: dict[int, tuple[WorkerProcess, str]] = {}
        self.problems: list[str] = []
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        for slot in range(self.count):
            self._start(slot)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Start nobody any more; those that run go on."""
        self._ended.set()
        self._thread.join(30)

    @property
    def active(self) -> list[str]:
        """Crash plans that workers run with now."""
        return [crash for _, crash in list(self._current.values()) if crash]

    @property
    def unarmed(self) -> list[WorkerProcess]:
        """Workers that run without a crash plan."""
        return [worker for worker, crash in list(self._current.values()) if not crash]

    @property
    def done(self) -> bool:
        """Whether every plan has been used, and every worker that had one is dead."""
        return not self.plans and not self.active

    def _start(self, slot: int) -> None:
        crash = self.plans.pop(0) if self.plans else ""
        self._current[slot] = (self.lab.worker(wait=False, crash=crash, **self.environment), crash)

    def _run(self) -> None:
        while not self._ended.wait(0.01):
            for slot, (worker, crash) in list(self._current.items()):
                if worker.alive:
                    continue
                try:
                    self.deaths.append(self.lab.death(worker, crash))
                except (redis.RedisError, OSError) as error:
                    self.problems.append(f"the death of {worker.name} was not looked at: {error}")
                worker.end(patience=0.0)
                self._start(slot)


def wait_while_feeding(
    until: Callable[[], bool],
    feed: Callable[[], object],
    *,
    in_flight: Callable[[], int],
    most: int,
    timeout: float,
    why: str,
) -> None:
    """Keep `most` jobs going until something has happened.

    Args:
        feed: Submits one job.
        in_flight: Jobs that have not ended.
    """
    deadline = time.monotonic() + timeout
    while not until():
        assert time.monotonic() < deadline, f"{why}: not within {timeout:g} s"
        for _ in range(most - in_flight()):
            feed()
        time.sleep(0.05)


def seeded(seed: int) -> random.Random:
    """The one source of chance of a scenario."""
    return random.Random(seed)
