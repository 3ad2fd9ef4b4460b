"""The engine on a store in memory, with a clock that stands still unless it is told to go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import count
from typing import Any

from celery_agents.config.settings import Settings
from celery_agents.worker.agent import Agent, AgentRegistry
from celery_agents.worker.concurrency.event_loop import EventLoopThread
from celery_agents.worker.concurrency.tool_threads import ToolThreads
from celery_agents.worker.engine import (
    Done,
    EngineServices,
    FirstExecution,
    LeaseKeeper,
    Outcome,
    StepRunner,
    first_state,
    operation_transition,
    retry_transition,
    stop_transition,
)
from celery_agents.worker.engine.services import StepObserver
from celery_agents.worker.flow.values import Pause
from celery_agents.worker.requests import check_answer
from celery_agents.worker.state import (
    AgentState,
    AnswerNote,
    ExecutionBudget,
    ExecutionState,
    ExecutionStatus,
    GivenAnswer,
    LLMConfig,
    Message,
    Remember,
    Request,
    Role,
    ToolExecution,
)
from celery_agents.worker.store import (
    ActionResult,
    AnswerAction,
    AnswerResult,
    InboxKind,
    NextState,
    Operation,
    RequestFilter,
    Result,
    StepRef,
    Store,
)
from celery_agents.worker.store.bookkeeping import BOOKKEEPING, Bookkeeping
from celery_agents.worker.store.clock import RedisClock
from celery_agents.worker.store.context import Publisher
from celery_agents.worker.store.control import ControlFields, control_command
from celery_agents.worker.store.memory.database import MemoryDatabase
from celery_agents.worker.store.sessions.saving import SessionSave
from celery_agents.worker.tools import tool

from support.lua_scripts import SCRIPTS

BEGINNING_MS = 1_790_000_000_000


class StillClock:
    """Redis's time and the machine's, together."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.slept: list[float] = []

    def now_ms(self) -> int:
        return BEGINNING_MS + round(self.passed * 1000)

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def monotonic(self) -> float:
        return self.passed

    def go_on(self, seconds: float) -> None:
        self.passed += seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.passed += seconds


class WorkerDied(BaseException):
    """Raised by a driver or a tool where the worker's process would have ended."""


def fragile_tool(times: int = 1) -> Any:
    """A keyed tool `fragile` whose worker dies in its first `times` runs; the next one returns "whole"."""
    deaths = [1] * times

    @tool(effect="keyed")
    def fragile() -> str:
        """Die at first."""
        if deaths:
            deaths.pop()
            raise WorkerDied
        return "whole"

    return fragile


def calling(*calls: Any, tools: Any, **fields: Any) -> Agent:
    """An agent that makes these calls in its first step and answers in its second."""

    def driver(state: AgentState) -> Any:
        return "done" if state.step_count else list(calls)

    return Agent("calling", driver=driver, tools=tools, **fields)


class Bench:
    """One worker's engine, and what a client would do with its store.

    Args:
        agents: What the worker offers.
        settings: Other constants than the defaults.

    Attributes:
        gate, spending: The gates to providers and to money of the worker that was made last.
    """

    def __init__(self, *agents: Agent, **settings: Any) -> None:
        self.settings = Settings.build(**{"retry_delay_seconds": 0.001, "retry_delay_max_seconds": 20.0, **settings})
        self.clock = StillClock()
        self.clock.go_on(3600.0)  # a store that has just started waits for the holders of leases
        self.store = Store(
            MemoryDatabase(self.clock.now_ms, SCRIPTS),
            self.settings,
            clock=RedisClock(lambda: self.clock.now_ms() / 1000),
            publisher=Publisher(),
        )
        self.agents = agents
        self.loop = EventLoopThread()
        self.keeper = LeaseKeeper(self.store, self.settings, monotonic=self.clock.monotonic)
        self.runner = self.another_worker(*agents)
        self._numbers = count(1)

    def another_worker(self, *agents: Agent, name: str = "worker", observer: StepObserver | None = None) -> StepRunner:
        """A further worker on the same store."""
        services = EngineServices(
            store=self.store, settings=self.settings, keeper=self.keeper, loop=self.loop,
            threads=ToolThreads(), monotonic=self.clock.monotonic, sleep=self.clock.sleep,
            observer=observer,
        )  # fmt: skip
        self.gate, self.spending = services.gate, services.spending
        return StepRunner(services, AgentRegistry(agents), worker=name)

    def close(self) -> None:
        self.keeper.close()
        self.loop.close()

    # --- what a client does -------------------------------------------------------------------------------------

    def submit(
        self,
        message: str = "hello",
        *,
        agent: Agent | None = None,
        budget: ExecutionBudget | None = None,
        state: AgentState | None = None,
        expires_at: datetime | None = None,
    ) -> str:
        """A session with its first execution; its id."""
        number = next(self._numbers)
        session_id = f"s{number}"
        first = state or AgentState.fresh(now=self.clock.now)

        def transition(now_ms: int) -> NextState:
            now = datetime.fromtimestamp(now_ms / 1000, UTC)
            execution = FirstExecution(f"e{number}", f"op{number}", budget, expires_at=expires_at)
            return first_state(first, Message.user(message), execution, now)

        self.store.sessions.submit(session_id, (agent or self.agents[0]).name, "", transition)
        return session_id

    def send(
        self, session_id: str, message: str = "more", budget: ExecutionBudget | None = None, *, when: str = ""
    ) -> ActionResult:
        payload: dict[str, Any] = {"message": Message.user(message).to_dict(), **({"when": when} if when else {})}
        if budget is not None:
            payload["budget"] = budget.to_dict()
        return self._act(session_id, InboxKind.MESSAGE, payload)

    def change_prompt(self, session_id: str, prompt: str) -> ActionResult:
        return self._act(session_id, InboxKind.SYSTEM_PROMPT, {"prompt": prompt})

    def change_model(self, session_id: str, model: LLMConfig) -> ActionResult:
        return self._act(session_id, InboxKind.MODEL, {"model": model.to_dict()})

    def write_metadata(self, session_id: str, key: str, value: Any) -> ActionResult:
        return self._act(session_id, InboxKind.METADATA, {"key": key, "value": value})

    def stop(self, session_id: str) -> ActionResult:
        return self.store.sessions.stop(session_id, None, stop_transition)

    def retry(self, session_id: str, budget: ExecutionBudget | None = None) -> ActionResult:
        return self.store.sessions.retry(session_id, retry_transition(budget))

    def change_budget(self, session_id: str, **limits: Any) -> ActionResult:
        return self.store.sessions.change_budget(session_id, ExecutionBudget(**limits), by="ann")

    def _act(self, session_id: str, kind: InboxKind, payload: Mapping[str, Any]) -> ActionResult:
        operation = Operation(f"act{next(self._numbers)}", kind, payload)
        return self.store.sessions.act(session_id, operation, operation_transition)

    # --- what people and services do ----------------------------------------------------------------------------

    def open_requests(self, session_id: str) -> tuple[Request, ...]:
        """What the session waits for, in the order of its calls."""
        page = self.store.requests.page(RequestFilter(session_id=session_id), limit=1000)
        found = [each.request for each in page.requests if each.request is not None]
        return tuple(sorted(found, key=lambda request: request.place))

    def open_request(self, session_id: str) -> Request:
        """The one thing the session waits for."""
        (request,) = self.open_requests(session_id)
        return request

    def answer(
        self,
        session_id: str,
        answers: GivenAnswer | Mapping[str, GivenAnswer],
        *,
        by: str = "reviewer",
        note: str = "",
        expect: Mapping[str, str] | None = None,
        remember: Remember = Remember.CALL,
    ) -> AnswerResult:
        """Answer the one open request, or several by their ids."""
        if not isinstance(answers, Mapping):
            answers = {self.open_request(session_id).id: answers}
        about = AnswerNote(operation_id=f"answer{next(self._numbers)}", by=by, note=note, remember=remember)
        action = AnswerAction(answers=answers, about=about, expect=expect or {}, check=check_answer)
        return self.store.requests.answer(session_id, action)

    def revoke_grant(self, session_id: str, grant_id: str) -> ActionResult:
        return self._act(session_id, InboxKind.REVOKE_GRANT, {"grant": grant_id})

    def pause(self, **what: Any) -> Pause:
        """Pause an agent, a model, a tool or a queue, by its name; more values of the pause behind it."""
        (kind, name), *more = what.items()
        made = Pause(kind, name, **{"reason": "the bank is down", "by": "ops", **dict(more)})  # pyright: ignore[reportArgumentType]
        self.store.flow.pause(made)
        self.gate.refresh()
        return made

    def unpause(self, made: Pause) -> None:
        """End a pause, and let what it has held go on."""
        self.store.flow.unpause(made.kind, made.name)
        self.gate.refresh()
        self.store.flow.bring_forward(made.field)

    # --- what a worker does -------------------------------------------------------------------------------------

    def due(self, session_id: str) -> StepRef | None:
        """The step that is due, a woken or expired one included."""
        state = self.state(session_id)
        if state.status is not ExecutionStatus.WAITING:
            return StepRef.due_in(session_id, state)
        context = self.store.context
        (reply,) = context.database.pipeline("test", [control_command(context.keys(session_id))])
        control = ControlFields.read(reply)
        is_due = control.phase == "run" or control.not_before_ms <= self.clock.now_ms()
        return control.ref(session_id) if is_due else None

    def step(self, session_id: str, runner: StepRunner | None = None) -> Outcome:
        """Run the step that is due."""
        ref = self.due(session_id)
        assert ref is not None, "no step is due"
        return (runner or self.runner).run_step(ref)

    def run(self, session_id: str, limit: int = 100) -> list[Outcome]:
        """Run steps until none is due, or one was not committed."""
        outcomes: list[Outcome] = []
        while self.due(session_id) is not None and len(outcomes) < limit:
            outcomes.append(self.step(session_id))
            if not isinstance(outcomes[-1], Done):
                break
        return outcomes

    def ran(self, *args: Any, **kwargs: Any) -> Result:
        """Submit, run to the end, and how it ended."""
        session_id = self.submit(*args, **kwargs)
        self.run(session_id)
        return self.record(session_id)

    def worker_died(self, session_id: str) -> None:
        """Run the step that is due in a worker that dies in it; afterwards its lease is over."""
        try:
            self.step(session_id)
        except WorkerDied:
            self.clock.go_on(self.settings.lease_seconds + self.settings.lease_grace_seconds + 0.1)
            return
        raise AssertionError("the worker did not die")

    # --- what there is ------------------------------------------------------------------------------------------

    def state(self, session_id: str) -> AgentState:
        return self.store.sessions.load(session_id).state

    def execution(self, session_id: str) -> ExecutionState:
        execution = self.state(session_id).execution
        assert execution is not None
        return execution

    def record(self, session_id: str) -> Result:
        """How its last execution ended."""
        record = self.store.sessions.record(session_id, self.execution(session_id).execution_id)
        assert record is not None, f"it has not ended: {self.execution(session_id).status}"
        return record

    def events(self, session_id: str) -> list[str]:
        return [event.type for event in self.store.sessions.events(session_id)]

    def save_beside(self, session_id: str, change: Callable[[AgentState], AgentState]) -> None:
        """Save a changed session while a step of it runs, as an action of another kind would."""
        stored = self.store.sessions.load(session_id)
        context = self.store.context
        keys = context.keys(session_id)
        replies = context.database.pipeline("test", [("HMGET", keys.session, *BOOKKEEPING)])
        save = SessionSave(
            scope=context.session(keys.session_id),
            before=stored.state,
            next_state=NextState(change(stored.state)),
            bookkeeping=Bookkeeping.read(*replies[0]),
            version=stored.version + 1,
            now_ms=self.clock.now_ms(),
            work_changed=False,
        ).prepare()
        context.database.transaction("test", save.commands)

    def key_names(self) -> list[str]:
        """Names of all keys of the store."""
        database = self.store.context.database
        assert isinstance(database, MemoryDatabase)
        return database.keys()


def shown(bench: Bench, session_id: str) -> list[str]:
    """What the model reads as results."""
    store = bench.state(session_id).store.section()
    return [message.content for message in store.messages if message.role is Role.TOOL]


def executions(bench: Bench, session_id: str) -> tuple[ToolExecution, ...]:
    return bench.state(session_id).steps[0].tool_executions


def calls_of(part: Any, verb: str) -> list[tuple[Any, ...]]:
    """The arguments of each call of a verb of the store from now on."""
    calls, real = list[tuple[Any, ...]](), getattr(part, verb)

    def note(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return real(*args, **kwargs)

    setattr(part, verb, note)
    return calls
