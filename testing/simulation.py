"""One run: a job from submit to rest, with simulated workers, lost and doubled messages, and the sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from ..config.settings import Settings
from ..worker import crash_points
from ..worker.agent import Agent, AgentRegistry
from ..worker.drivers import InferenceRequest
from ..worker.engine import EventLoopThread, Outcome, first_state
from ..worker.errors import StoreFull, StoreUnavailable
from ..worker.state import AgentState, ExecutionState, Message, ToolOutcome
from ..worker.store import NextState, QueueSnapshot, StepRef, Store
from ..worker.store.clock import RedisClock
from ..worker.store.context import NoPublisher
from ..worker.store.database import Database
from ..worker.store.memory.database import MemoryDatabase
from ..worker.tools import ToolSet
from .databases import DatabaseUnderFire, RedisOnVirtualTime
from .drivers import WatchedDriver
from .faults import MESSAGE, Fault, FaultKind
from .ledger import EffectLedger
from .workers import SimulatedWorker
from .world import WorkerKilled, World

# The same in every run, so that idempotency keys are the same and results can be compared.
_SESSION: Final = "survival"
_EXECUTION: Final = "execution"
_IDLE_SECONDS: Final = 0.5
_IDLE_MOST_SECONDS: Final = 60.0
_LONGEST_SECONDS: Final = 2 * 86_400.0
_MOST_TURNS: Final = 10_000


@dataclass(frozen=True)
class Ending:
    """What became of a run.

    Attributes:
        status: Of the execution: completed, stopped, failed; anything else has not ended.
        response: The final response, "" when there is none.
        errors: Why it failed.
        has_unknown: A tool call was recorded as of unknown outcome.
        problems: What must not happen and did, in words.
        passed: Places passed up to the end, in order.
    """

    status: str
    response: str
    errors: tuple[str, ...]
    step_count: int
    has_unknown: bool
    driver_calls: int
    problems: tuple[str, ...]
    passed: tuple[str, ...]
    fired: tuple[Fault, ...]
    trace: tuple[str, ...]


class Endless(Exception):
    """It does not come to rest."""


class _WorldClock(RedisClock):
    """Redis's own time, which is the world's; waiting for Redis takes virtual time too."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda: world.now_ms() / 1000)
        self._world = world

    def pause(self, seconds: float) -> None:
        self._world.go_on(seconds)


class Simulation:
    """One run."""

    def __init__(
        self, agent: Agent, message: str, faults: Sequence[Fault], ledger: EffectLedger, settings: Settings,
        loop: EventLoopThread, redis: RedisOnVirtualTime | None, start_ms: int,
    ) -> None:  # fmt: skip
        self._world = World(start_ms, faults)
        self._world.while_paused = self._work
        self._message = message
        self._settings = settings
        self._loop = loop
        self._database: Database = redis or MemoryDatabase(self._world.now_ms)
        if redis is not None:
            redis.enter(self._world)
        self._client = self._store(self._database)
        self._driver = WatchedDriver(agent.answering, self._is_journaled)
        self._agent = _under_watch(agent, self._driver, ledger)
        self._workers: list[SimulatedWorker] = []
        self._born = 0
        self._queue: list[StepRef] = []
        self._delivered: dict[StepRef, None] = {}
        self._turns = 0

    def run(self) -> Ending:
        """From submit to rest, and every message once more."""
        problems: list[str] = []
        with _crash_points(self._world.at):
            self._submit()
            try:
                self._work(None)
            except Endless as endless:
                problems.append(str(endless))
            passed = tuple(self._world.passed)
            if not problems:
                self._world.say("it is at rest; every message comes once more")
                self._queue += self._delivered
                self._work(None)
        return self._ending(problems, passed)

    # --- what happens ---------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        def transition(now_ms: int) -> NextState:
            now = datetime.fromtimestamp(now_ms / 1000, UTC)
            message = Message.user(self._message)
            return first_state(AgentState.fresh(now=now), message, _EXECUTION, "submit", None, now)

        self._client.sessions.submit(_SESSION, self._agent.name, "", transition)
        self._world.say("submitted")
        self._queue.append(StepRef(_SESSION, _EXECUTION, 1))

    def _work(self, until: float | None) -> None:
        """Deliver and sweep until nothing is due, or until a time."""
        idle = _IDLE_SECONDS
        while until is None or self._world.seconds < until:
            self._turns += 1
            if self._turns > _MOST_TURNS or self._world.seconds > _LONGEST_SECONDS:
                raise Endless(f"it did not end within {self._turns} turns and {self._world.seconds:.0f} virtual s")
            if self._queue:
                self._deliver(self._queue.pop(0))
                idle = _IDLE_SECONDS
            elif self._client.housekeeping.backlog()[0]:
                self._world.go_on(idle if until is None else min(idle, until - self._world.seconds))
                idle = min(2 * idle, _IDLE_MOST_SECONDS)
                self._sweep()
            else:
                return

    def _sweep(self) -> None:
        for shard in range(self._settings.shards):
            for ref in self._client.housekeeping.sweep(shard, QueueSnapshot()).lost:
                self._world.say(f"the sweep finds step {ref.step} and sends it again")
                self._queue.append(StepRef(ref.session_id, ref.execution_id, ref.step))

    def _deliver(self, ref: StepRef) -> None:
        fault = self._world.passing(MESSAGE)
        if fault is not None and fault.kind is FaultKind.LOSE_MESSAGE:
            return
        if fault is not None and fault.kind is FaultKind.DOUBLE_MESSAGE:
            self._queue.append(ref)
        self._delivered[ref] = None
        self._carry_out(self._idle_worker(), ref)

    def _carry_out(self, worker: SimulatedWorker, ref: StepRef) -> None:
        world, before = self._world, self._world.current
        world.say(f"{worker.name} takes step {ref.step}")
        worker.is_busy, world.current = True, worker
        try:
            outcome = worker.runner.run_step(ref.session_id, ref.execution_id, ref.step)
            world.say(f"{worker.name}: {_in_words(outcome)}")
            publish = getattr(outcome, "publish", None)
            if publish is not None:
                self._queue.append(publish)
                world.at("c9")
        except WorkerKilled:
            world.say(f"{worker.name} is dead")
        except (StoreUnavailable, StoreFull) as error:
            world.say(f"{worker.name} gives up: {error}")
        finally:
            worker.is_busy, world.current = False, before

    def _idle_worker(self) -> SimulatedWorker:
        """The one that has waited longest; two at least, so that a step moves from one to another."""
        self._workers = [worker for worker in self._workers if worker.is_alive]
        idle = [worker for worker in self._workers if not worker.is_busy]
        while len(self._workers) < 2 or not idle:
            self._born += 1
            store = self._store(DatabaseUnderFire(self._database, self._world))
            registry = AgentRegistry([self._agent])
            born = SimulatedWorker(f"w{self._born}", self._world, store, registry, self._settings, self._loop)
            self._workers.append(born)
            idle.append(born)
        self._workers.remove(idle[0])
        self._workers.append(idle[0])
        return idle[0]

    def _store(self, database: Database) -> Store:
        return Store(database, self._settings, clock=_WorldClock(self._world), publisher=NoPublisher())

    def _is_journaled(self, request: InferenceRequest) -> bool:
        key = self._client.context.keys(request.session_id).journal(request.execution_id, request.step)
        (answer,) = self._database.pipeline("look", [("HGET", key, "llm")])
        return answer is not None

    # --- the verdict ----------------------------------------------------------------------------------------------

    def _ending(self, problems: list[str], passed: tuple[str, ...]) -> Ending:
        execution = self._client.sessions.load(_SESSION).state.execution
        assert execution is not None
        record = self._client.sessions.record(_SESSION, _EXECUTION)
        problems += self._driver.needless + self._wrong_commits(execution)
        problems += [f"it was parked: {entry}" for entry in self._client.housekeeping.dead()]
        executed = [call for each in execution.step_executions for call in each.step.tool_executions]
        return Ending(
            status=execution.status.value,
            response=record.final_response if record is not None else "",
            errors=record.errors if record is not None else (),
            step_count=execution.step_count,
            has_unknown=any(call.outcome is ToolOutcome.UNKNOWN for call in executed),
            driver_calls=self._driver.calls,
            problems=tuple(problems),
            passed=passed,
            fired=tuple(self._world.fired),
            trace=tuple(self._world.trace),
        )

    def _wrong_commits(self, execution: ExecutionState) -> list[str]:
        events = self._client.sessions.events(_SESSION, limit=self._settings.events_kept)
        commits = Counter(event.step for event in events if event.type == "step_committed")
        steps = range(1, execution.step_count + 1)
        found = [f"step {step} was committed {commits[step]} times" for step in steps if commits[step] != 1]
        found += [f"step {step} was committed, and is not in the history" for step in commits if step not in steps]
        return found


def _under_watch(agent: Agent, driver: WatchedDriver, ledger: EffectLedger) -> Agent:
    """The agent, counted; without limits of time, since time here is virtual and passes in leaps."""
    budget = agent.budget.model_copy(update={"max_seconds": None, "deadline": None}) if agent.budget else None
    watched = replace(agent, model=None, base_url=None, driver=driver, budget=budget, step_timeout=None)
    # Those of its capabilities too, which are not among its own.
    object.__setattr__(watched, "toolset", ToolSet(ledger.wrap(tool) for tool in agent.toolset))
    return watched


@contextmanager
def _crash_points(handler: Callable[[str], None]) -> Generator[None]:
    crash_points.install(handler)
    try:
        yield
    finally:
        crash_points.install(None)


def _in_words(outcome: Outcome) -> str:
    about = getattr(outcome, "summary", "") or getattr(outcome, "reason", "")
    return f"{type(outcome).__name__} {about}".strip()
