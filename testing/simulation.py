"""`Simulation`: one run of a job, with simulated workers, lost and repeated messages, and the sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from ..config.settings import Settings
from ..worker import crash_points
from ..worker.agent import Agent, AgentRegistry
from ..worker.concurrency.event_loop import EventLoopThread
from ..worker.drivers.protocol import Driver, InferenceRequest
from ..worker.engine.outcome import Outcome
from ..worker.engine.transitions import FirstExecution, first_state
from ..worker.errors import StoreFull, StoreUnavailable
from ..worker.moments import moment
from ..worker.requests.answers import check_answer
from ..worker.state.agent_state import AgentState
from ..worker.state.conversation.messages import Message
from ..worker.state.execution.answers import AnswerNote, GivenAnswer
from ..worker.state.execution.execution import ExecutionState
from ..worker.state.execution.requests import Request, RequestKind
from ..worker.state.execution.tool_calls import ToolOutcome
from ..worker.store.clock import RedisClock
from ..worker.store.context import Publisher
from ..worker.store.database import Database
from ..worker.store.housekeeping.sweeps import QueueSnapshot
from ..worker.store.memory.database import MemoryDatabase
from ..worker.store.records import NextState, StepRef
from ..worker.store.requests.records import AnswerAction, RequestFilter
from ..worker.store.store import Store
from .databases import FaultyDatabase, RedisOnVirtualTime
from .drivers import CountingDriver
from .faults import MESSAGE, Fault, FaultKind
from .ledger import CountedToolSet, EffectLedger
from .workers import SimulatedWorker
from .world import WorkerKilled, World

# The same in every run, so that idempotency keys and results can be compared.
_SESSION: Final = "survival"
_EXECUTION: Final = "execution"
_IDLE_SECONDS: Final = 0.5
_IDLE_MOST_SECONDS: Final = 3_600.0
_LONGEST_SECONDS: Final = 2 * 86_400.0
_MOST_TURNS: Final = 10_000
_MOST_REQUESTS: Final = 1_000


@dataclass(frozen=True)
class Ending:
    """How a run ended.

    Attributes:
        status: Status of the execution; other than completed, stopped and failed, it has not ended.
        response: The final response, "" when there is none.
        errors: Why it failed.
        has_unknown: The outcome of a tool call was recorded as unknown.
        problems: Violated promises, in sentences.
        passed: Points passed up to the end, in order.
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
    """The run does not end."""


class _WorldClock(RedisClock):
    """A Redis clock on virtual time; waiting for Redis takes virtual time too."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda: world.now_ms() / 1000)
        self._world = world

    def pause(self, seconds: float) -> None:
        """Let virtual time pass."""
        self._world.advance(seconds)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job that is run.

    Attributes:
        others: Agents that it starts as children or hands over to.
        metadata: Metadata of its session.
        answer: Answers what it asks, as people and services would; None leaves a request open.
    """

    agent: Agent
    message: str
    others: Sequence[Agent] = ()
    metadata: Mapping[str, Any] | None = None
    answer: Callable[[Request], GivenAnswer | None] | None = None


@dataclass(frozen=True, kw_only=True)
class SimulationSetup:
    """Setup that all runs of a job share.

    Attributes:
        redis: A real Redis; None: a store in memory.
        start_ms: Unix time in milliseconds at which every run starts.
    """

    job: Job
    ledger: EffectLedger
    settings: Settings
    loop: EventLoopThread
    redis: RedisOnVirtualTime | None
    start_ms: int


class Simulation:
    """One run of a job under faults."""

    def __init__(self, setup: SimulationSetup, faults: Sequence[Fault]) -> None:
        self._world = World(setup.start_ms, faults)
        self._world.while_paused = self._work
        self._job = setup.job
        self._settings = setup.settings
        self._loop = setup.loop
        self._database: Database = setup.redis or MemoryDatabase(self._world.now_ms)
        if setup.redis is not None:
            setup.redis.enter(self._world)
        self._client = self._store(self._database)
        agents = (setup.job.agent, *setup.job.others)
        self._drivers = [CountingDriver(each.answering, self._is_journaled) for each in agents]
        self._agents = AgentRegistry(
            _instrument(each, driver, setup.ledger) for each, driver in zip(agents, self._drivers, strict=True)
        )
        self._workers: list[SimulatedWorker] = []
        self._started = 0
        self._queue: list[StepRef] = []
        self._delivered: dict[StepRef, None] = {}
        self._turns = 0
        self._answered = 0

    def run(self) -> Ending:
        """Run the job from submit until nothing is due, then deliver every message once more."""
        problems: list[str] = []
        with _crash_points(self._world.at):
            self._submit()
            try:
                self._work(None)
            except Endless as endless:
                problems.append(str(endless))
            passed = tuple(self._world.passed)
            if not problems:
                self._world.record("nothing is due; every message is delivered once more")
                self._queue += self._delivered
                self._work(None)
        return self._read_ending(problems, passed)

    def _submit(self) -> None:
        limits = {each.name: each.effective_budget.to_dict() for each in self._agents if each.has_budget}
        self._client.registry.register("testing", {"agent_budgets": limits}, self._agents.hashes)
        self._client.registry.unregister("testing")

        def transition(now_ms: int) -> NextState:
            now = moment(now_ms)
            state = AgentState.fresh(now=now, metadata=dict(self._job.metadata or {}))
            message = Message.user(self._job.message)
            return first_state(state, message, FirstExecution(_EXECUTION, "submit"), now)

        self._client.sessions.submit(_SESSION, self._job.agent.name, "", transition)
        self._world.record("submitted")
        self._queue.append(StepRef(_SESSION, _EXECUTION, 1))

    def _work(self, until: float | None) -> None:
        """Deliver messages and sweep until nothing is due, or until a time."""
        idle = _IDLE_SECONDS
        while until is None or self._world.seconds < until:
            self._turns += 1
            is_late = self._world.seconds > _LONGEST_SECONDS
            if self._turns > _MOST_TURNS or (is_late and not self._waits()):
                raise Endless(f"it did not end within {self._turns} turns and {self._world.seconds:.0f} virtual s")
            if self._queue:
                self._deliver(self._queue.pop(0))
                idle = _IDLE_SECONDS
            elif self._answer_requests():
                idle = _IDLE_SECONDS
            elif not is_late and self._client.housekeeping.backlog()[0]:
                self._world.advance(idle if until is None else min(idle, until - self._world.seconds))
                idle = min(2 * idle, _IDLE_MOST_SECONDS)
                self._sweep()
            else:
                return

    def _waits(self) -> bool:
        """Whether the job waits for an answer."""
        (header,) = self._client.sessions.headers_of([_SESSION])
        return header.status == "waiting"

    def _answer_requests(self) -> bool:
        """Answer what the job and its children ask, as the test says; False where nothing was answered."""
        if self._job.answer is None:
            return False
        return any(self._answer_session(each) for each in (_SESSION, *self._client.trees.members(_SESSION)))

    def _answer_session(self, session_id: str) -> bool:
        assert self._job.answer is not None
        page = self._client.requests.page(RequestFilter(session_id=session_id), limit=_MOST_REQUESTS)
        found = [each.request for each in page.requests if each.request is not None]
        asked = [request for request in found if request.kind is not RequestKind.CHILD]
        given = {request.id: self._job.answer(request) for request in asked}
        answers = {request_id: answer for request_id, answer in given.items() if answer is not None}
        if not answers:
            return False
        self._answered += 1
        note = AnswerNote(operation_id=f"answer-{self._answered}", by="test")
        result = self._client.requests.answer(session_id, AnswerAction(answers=answers, about=note, check=check_answer))
        tools = ", ".join(request.tool for request in asked if request.id in answers)
        self._world.record(f"the test answers {tools}")
        if result.publish is not None:
            self._queue.append(result.publish)
        return True

    def _sweep(self) -> None:
        for ref in self._client.housekeeping.sweep(QueueSnapshot()).lost:
            self._world.record(f"the sweep publishes step {ref.step} again")
            self._queue.append(StepRef(ref.session_id, ref.execution_id, ref.step))

    def _deliver(self, ref: StepRef) -> None:
        fault = self._world.pass_point(MESSAGE)
        if fault is not None and fault.kind is FaultKind.LOSE_MESSAGE:
            return
        if fault is not None and fault.kind is FaultKind.DOUBLE_MESSAGE:
            self._queue.append(ref)
        self._delivered[ref] = None
        (header,) = self._client.sessions.headers_of([ref.session_id])
        if header.agent not in self._agents:
            raise Endless(f"it starts an agent {header.agent}, which is not given: add others=[{header.agent}]")
        self._run_step(self._idle_worker(), ref)

    def _run_step(self, worker: SimulatedWorker, ref: StepRef) -> None:
        world, before = self._world, self._world.current
        world.record(f"{worker.name} takes step {ref.step}")
        worker.is_busy, world.current = True, worker
        try:
            outcome = worker.runner.run_step(ref)
            world.record(f"{worker.name}: {_describe(outcome)}")
            publish = getattr(outcome, "publish", None)
            if publish:  # a step, or those of children
                self._queue += (publish,) if isinstance(publish, StepRef) else publish
                world.at("c9")
        except WorkerKilled:
            world.record(f"{worker.name} is dead")
        except (StoreUnavailable, StoreFull) as error:
            world.record(f"{worker.name} gives up: {error}")
        finally:
            worker.is_busy, world.current = False, before

    def _idle_worker(self) -> SimulatedWorker:
        """Take the worker that has been idle longest; there are at least two, so that steps change workers."""
        self._workers = [worker for worker in self._workers if worker.is_alive]
        idle = [worker for worker in self._workers if not worker.is_busy]
        while len(self._workers) < 2 or not idle:
            self._started += 1
            store = self._store(FaultyDatabase(self._database, self._world))
            worker = SimulatedWorker(
                f"w{self._started}",
                world=self._world,
                store=store,
                agents=self._agents,
                settings=self._settings,
                loop=self._loop,
            )
            self._workers.append(worker)
            idle.append(worker)
        self._workers.remove(idle[0])
        self._workers.append(idle[0])
        return idle[0]

    def _store(self, database: Database) -> Store:
        return Store(database, self._settings, clock=_WorldClock(self._world), publisher=Publisher())

    def _is_journaled(self, request: InferenceRequest) -> bool:
        key = self._client.context.keys(request.session_id).journal(request.execution_id, request.step)
        (answer,) = self._database.pipeline("look", [("HGET", key, "llm")])
        return answer is not None

    def _read_ending(self, problems: list[str], passed: tuple[str, ...]) -> Ending:
        execution = self._client.sessions.load(_SESSION).state.execution
        assert execution is not None
        record = self._client.sessions.record(_SESSION, _EXECUTION)
        problems += [each for driver in self._drivers for each in driver.needless]
        problems += self._find_wrong_commits(execution)
        problems += [f"it was parked: {entry}" for entry in self._client.housekeeping.list_dead()]
        executed = [call for each in execution.step_executions for call in each.step.tool_executions]
        return Ending(
            status=execution.status.value,
            response=record.final_response if record is not None else "",
            errors=record.errors if record is not None else (),
            step_count=execution.step_count,
            has_unknown=any(call.outcome is ToolOutcome.UNKNOWN for call in executed),
            driver_calls=sum(driver.calls for driver in self._drivers),
            problems=tuple(problems),
            passed=passed,
            fired=tuple(self._world.fired),
            trace=tuple(self._world.trace),
        )

    def _find_wrong_commits(self, execution: ExecutionState) -> list[str]:
        events = self._client.sessions.events(_SESSION, limit=self._settings.events_kept)
        commits = Counter(event.step for event in events if event.type == "step_committed")
        steps = range(1, execution.step_count + 1)
        found = [f"step {step} was committed {commits[step]} times" for step in steps if commits[step] != 1]
        found += [f"step {step} was committed, and is not in the history" for step in commits if step not in steps]
        return found


def with_driver(agent: Agent, driver: Driver | Callable[..., Any], **changes: Any) -> Agent:
    """The agent with this driver in the place of its model, and without what belongs to a model alone."""
    return replace(
        agent, driver=driver, model=None, base_url=None, model_settings=None, output_type=None, price=None,
        completion_window=None, background=False, **changes,
    )  # fmt: skip


def _instrument(agent: Agent, driver: CountingDriver, ledger: EffectLedger) -> Agent:
    """Count the agent's calls, and remove its time limits, since virtual time advances in jumps."""
    budget = agent.budget.model_copy(update={"max_seconds": None, "deadline": None}) if agent.budget else None
    watched = with_driver(agent, driver, budget=budget, step_timeout=None)
    # Those of its capabilities too, which are not among its own.
    object.__setattr__(watched, "toolset", CountedToolSet(agent.toolset, ledger))
    return watched


@contextmanager
def _crash_points(handler: Callable[[str], None]) -> Generator[None]:
    crash_points.install(handler)
    try:
        yield
    finally:
        crash_points.install(None)


def _describe(outcome: Outcome) -> str:
    about = getattr(outcome, "summary", "") or getattr(outcome, "reason", "")
    return f"{type(outcome).__name__} {about}".strip()
