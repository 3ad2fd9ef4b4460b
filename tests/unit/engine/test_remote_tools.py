"""Tools of MCP servers in steps: when a server is asked for its list, and what a step has when it is away."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest

from celery_agents.worker.agent import Agent, AgentRegistry
from celery_agents.worker.concurrency.tool_threads import ToolThreads
from celery_agents.worker.drivers import ScriptedDriver
from celery_agents.worker.engine import Done, EngineServices, Outcome, RetryLater, StepRunner
from celery_agents.worker.errors import StoreFull
from celery_agents.worker.guards import Delay, StopWith, Verdict
from celery_agents.worker.mcp import MCPServer, RemoteTool, ToolList
from celery_agents.worker.mcp.lists import ToolNotes
from celery_agents.worker.mcp.outages import ServerAway
from celery_agents.worker.state import StopReason, StopSignal
from celery_agents.worker.store import Store
from celery_agents.worker.store.clock import RedisClock
from celery_agents.worker.store.context import Publisher

from support.engine import Bench, WorkerDied, calls_of
from support.smart import Asked

NewBench = Callable[..., Bench]


def listed(*names: str) -> ToolList:
    return ToolList.of(RemoteTool(name=name, description="It does.", schema={"type": "object"}) for name in names)


class Connections:
    """Servers by their names, in place of real connections.

    Attributes:
        lists: What each server offers; one without an entry is away.
        list_ms: For how long a server says that its list holds; 0: it does not say.
        asked: The servers that were asked, in order, with "again" where the connection was open.
        pause_seconds: How long the process stands still while it connects.
    """

    def __init__(self, **lists: ToolList) -> None:
        self.lists: dict[str, ToolList] = dict(lists)
        self.list_ms = 0
        self.asked: list[str] = []
        self.changed: set[str] = set()
        self.notes = ToolNotes()
        self.opened: set[str] = set()
        self.pause_seconds = 0.0

    def to(self, server: MCPServer, _credentials: Any) -> Connection:
        return Connection(self, server.name)


class Connection:
    """A connection to one of them."""

    def __init__(self, servers: Connections, name: str) -> None:
        self._servers, self._name = servers, name

    @property
    def is_open(self) -> bool:
        return self._name in self._servers.opened

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncGenerator[Connection]:
        if self._servers.pause_seconds:
            time.sleep(self._servers.pause_seconds)
            await asyncio.sleep(0)
        if self._name not in self._servers.lists:
            raise ServerAway(self._name, "it is switched off")
        if not self.is_open:
            self._servers.asked.append(self._name)
            self._servers.opened.add(self._name)
        yield self

    @property
    def tools(self) -> ToolList:
        return self._servers.lists[self._name]

    async def refresh_tools(self) -> ToolList:
        self._servers.asked.append(f"{self._name} again")
        return self.tools

    @property
    def list_ms(self) -> int:
        return self._servers.list_ms


class Full:
    """The database of a bench that has no room for these round trips."""

    def __init__(self, database: Any, *points: str) -> None:
        self._database = database
        self.points = points

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def pipeline(self, point: str, commands: Any) -> Any:
        return self._run("pipeline", point, commands)

    def transaction(self, point: str, commands: Any) -> Any:
        return self._run("transaction", point, commands)

    def _run(self, verb: str, point: str, commands: Any) -> Any:
        if point in self.points:
            raise StoreFull("Redis is at its memory limit")
        return getattr(self._database, verb)(point, commands)


class Lab:
    """A worker whose agent has servers, and what the model is offered in each step."""

    def __init__(self, new_bench: NewBench, servers: Connections, *mcp: MCPServer, guard: Any = None) -> None:
        self.driver = Asked(["done"], repeat_last=True)
        mcp = mcp or (MCPServer("https://crm.example/mcp", name="crm"),)
        self.agent = Agent("a", driver=self.driver, mcp=mcp, guards=[guard] if guard else [])
        self.bench = new_bench(self.agent)
        self.servers = servers
        self.runner = self.another_worker(servers)

    def another_worker(self, servers: Any) -> StepRunner:
        bench = self.bench
        services = EngineServices(
            store=bench.store, settings=bench.settings, keeper=bench.keeper, loop=bench.loop,
            threads=ToolThreads(), monotonic=bench.clock.monotonic, sleep=bench.clock.sleep,
            connections=servers,
        )  # fmt: skip
        return StepRunner(services, AgentRegistry([self.agent]), worker="worker")

    def step(self, session_id: str | None = None, runner: StepRunner | None = None) -> Outcome:
        return self.bench.step(session_id or self.bench.submit(), runner or self.runner)

    @property
    def offered(self) -> list[list[str]]:
        return [sorted(each.name for each in request.tools) for request in self.driver.requests]


def test_a_server_is_asked_once_as_long_as_its_list_holds(new_bench: NewBench) -> None:
    lab = Lab(new_bench, Connections(crm=listed("create", "find")))
    for seconds, asked in ((0, 1), (299.9, 1), (0.1, 2), (0, 2)):
        lab.bench.clock.go_on(seconds)
        lab.step()
        assert lab.servers.asked == ["crm", "crm again"][:asked]
    assert lab.offered == [["crm_create", "crm_find"]] * 4


@pytest.mark.parametrize(("list_ms", "holds"), [(60_000, 60), (1, 5), (10**12, 86_400)])
def test_a_server_says_for_how_long_its_list_holds(new_bench: NewBench, list_ms: int, holds: float) -> None:
    lab = Lab(new_bench, Connections(crm=listed("create")))
    lab.servers.list_ms = list_ms
    for seconds, asked in ((0, 1), (holds - 0.01, 1), (0.02, 2)):
        lab.bench.clock.go_on(seconds)
        lab.step()
        assert lab.servers.asked == ["crm", "crm again"][:asked]


def test_a_pause_of_the_worker_while_it_connects_fails_no_execution(new_bench: NewBench) -> None:
    soon = MCPServer("https://crm.example/mcp", name="crm", connect_timeout=timedelta(seconds=0.05))
    lab = Lab(new_bench, Connections(crm=listed("create")), soon)
    lab.servers.pause_seconds = 2.2
    session = lab.bench.submit()
    outcome = lab.step(session)
    assert isinstance(outcome, RetryLater), lab.bench.record(session).errors
    assert "the MCP server 'crm' is away: no answer in time" in outcome.reason
    lab.servers.pause_seconds = 0.0
    lab.bench.clock.go_on(outcome.seconds)
    assert isinstance(lab.step(session), Done)
    assert lab.offered == [["crm_create"]]


def test_a_list_that_has_changed_is_asked_for_at_once(new_bench: NewBench) -> None:
    lab = Lab(new_bench, Connections(crm=listed("create")))
    lab.step()
    lab.servers.lists["crm"] = listed("create", "find")
    lab.step()
    lab.servers.changed.add(lab.agent.mcp[0].fixed_credentials.key)
    lab.step()
    lab.step()
    assert lab.offered == [["crm_create"]] * 2 + [["crm_create", "crm_find"]] * 2
    assert (lab.servers.asked, lab.servers.changed) == (["crm", "crm again"], set())


def test_workers_share_the_lists(new_bench: NewBench) -> None:
    lab = Lab(new_bench, Connections(crm=listed("create")))
    lab.step()
    others = Connections(crm=listed("other"))
    another = lab.another_worker(others)
    lab.step(runner=another)
    lab.bench.clock.go_on(300)
    del others.lists["crm"]
    lab.step(runner=another)  # its server is away: the earlier list is better than none
    assert (lab.offered, others.asked) == ([["crm_create"]] * 3, [])


def test_several_servers_are_asked_and_each_has_its_own_list(new_bench: NewBench) -> None:
    mcp = [MCPServer(f"https://{name}.example/mcp", name=name) for name in ("crm", "erp")]
    lab = Lab(new_bench, Connections(crm=listed("create"), erp=listed("book")), *mcp)
    lab.step()
    assert sorted(lab.servers.asked) == ["crm", "erp"]
    assert lab.offered == [["crm_create", "erp_book"]]


def test_a_step_waits_for_a_server_that_is_away_and_does_without_after_its_patience(new_bench: NewBench) -> None:
    server = MCPServer("https://crm.example/mcp", name="crm", patience=timedelta(seconds=60))
    lab = Lab(new_bench, Connections(), server)
    session_id = lab.bench.submit()
    waited = 0.0
    while isinstance(outcome := lab.step(session_id), RetryLater):
        assert "it is switched off" in outcome.reason
        lab.bench.clock.go_on(max(outcome.seconds, 1.0))
        waited += max(outcome.seconds, 1.0)
    assert isinstance(outcome, Done)
    assert 60 <= waited < 120
    assert isinstance(lab.step(), Done)  # the next steps do without at once
    assert lab.offered == [[], []]
    notice = "The MCP servers crm cannot be reached: their tools are missing now."
    assert [request.state.context.system_prompt for request in lab.driver.requests] == [notice] * 2
    lab.servers.lists["crm"] = listed("create")
    lab.step()
    assert lab.offered[2:] == [["crm_create"]]
    assert not lab.driver.requests[2].state.context.system_prompt


def test_a_step_keeps_its_list_when_another_worker_takes_it_over(new_bench: NewBench) -> None:
    lab = Lab(new_bench, Connections(crm=listed("create")))
    deaths = [1]
    infer = lab.driver.infer

    def die_once(request: Any) -> bytes:
        if deaths:
            deaths.pop()
            raise WorkerDied
        return infer(request)

    vars(lab.driver)["infer"] = die_once
    session_id = lab.bench.submit()
    with pytest.raises(WorkerDied):
        lab.step(session_id)
    lab.bench.clock.go_on(1_000)
    lab.step(session_id, lab.another_worker(Connections(crm=listed("other"))))
    assert lab.offered == [["crm_create"]]


@pytest.mark.parametrize("knows", [True, False])
def test_credentials_come_from_a_function_of_the_state(new_bench: NewBench, knows: bool) -> None:
    def token(state: Any) -> Mapping[str, str]:
        if not knows:
            raise ValueError("there is no token for you")
        return {"X-Agent": str(state.agent_id)}

    server = MCPServer("https://crm.example/mcp", name="crm", headers=token)
    lab = Lab(new_bench, Connections(crm=listed("create")), server)
    outcome = lab.step()
    assert isinstance(outcome, Done if knows else RetryLater)
    assert lab.offered == ([["crm_create"]] if knows else [])


# --- what is not asked, and what is not read again -------------------------------------------------------------------


class Giving:
    """A guard that gives one verdict."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict

    def check(self, _view: Any) -> Verdict:
        return self.verdict


@pytest.mark.parametrize(
    "verdict", [Delay(5.0), StopWith((StopSignal(reason=StopReason.STOP_REQUESTED, message="no"),))]
)
def test_a_step_that_asks_no_model_asks_no_server(new_bench: NewBench, verdict: Verdict) -> None:
    lab = Lab(new_bench, Connections(crm=listed("create")), guard=Giving(verdict))
    assert isinstance(lab.step(), RetryLater if isinstance(verdict, Delay) else Done)
    assert (lab.servers.asked, lab.offered) == ([], [])


def test_an_agent_without_servers_pins_no_lists(new_bench: NewBench) -> None:
    bench = new_bench(Agent("a", driver=ScriptedDriver(["done"])))
    pinned = calls_of(bench.store.steps, "record_tools")
    assert (bench.ran().final_response, pinned) == ("done", [])


def test_a_list_that_this_worker_knows_is_read_from_redis_when_its_time_is_over(new_bench: NewBench) -> None:
    lab = Lab(new_bench, Connections(crm=listed("create")))
    reads = calls_of(lab.bench.store.tool_lists, "newest")
    for seconds, count in ((0, 1), (299.9, 1), (0.1, 2)):
        lab.bench.clock.go_on(seconds)
        lab.step()
        assert len(reads) == count


def test_the_life_of_a_list_is_renewed_once_a_day(new_bench: NewBench) -> None:
    lab = Lab(new_bench, Connections(crm=listed("create")))
    kept = calls_of(lab.bench.store.tool_lists, "keep")
    for seconds, count in ((0, 1), (1, 1), (86_398.9, 1), (0.1, 2), (10, 2)):
        lab.bench.clock.go_on(seconds)
        lab.step()
        assert kept == [(listed("create").digest,)] * count


def test_steps_with_the_same_lists_share_their_tools(new_bench: NewBench) -> None:
    lab = Lab(new_bench, Connections(crm=listed("create")))
    lab.step()
    lab.step()
    first, second = (request.tools for request in lab.driver.requests)
    assert first[0] is second[0]


@pytest.mark.parametrize(("waited", "outcome"), [(59.95, RetryLater), (60.0, Done)])
def test_a_step_does_without_a_server_as_soon_as_its_patience_is_over(
    new_bench: NewBench, waited: float, outcome: type[Outcome]
) -> None:
    lab = Lab(new_bench, Connections(), MCPServer("https://crm.example", name="crm", patience=timedelta(seconds=60)))
    session_id = lab.bench.submit()
    assert isinstance(lab.step(session_id), RetryLater)
    lab.bench.clock.go_on(waited)
    assert isinstance(lab.step(session_id), outcome)


def test_the_other_servers_are_there_when_one_has_no_credentials_for_a_session(new_bench: NewBench) -> None:
    def fail(state: Any) -> Mapping[str, str]:
        raise ValueError("there is no token for you")

    short = timedelta(seconds=1.5)
    mcp = [
        MCPServer("https://crm.example", name="crm", headers=fail, patience=short, connect_timeout=short),
        MCPServer("https://erp.example", name="erp", headers=lambda _: {}, connect_timeout=short),
    ]
    lab = Lab(new_bench, Connections(crm=listed("create"), erp=listed("book")), *mcp)
    session_id = lab.bench.submit()
    assert isinstance(lab.step(session_id), RetryLater)
    lab.bench.clock.go_on(30)
    assert isinstance(lab.step(session_id), Done)
    assert lab.offered == [["erp_book"]]


def on_a_full_redis(lab: Lab, *points: str) -> tuple[Full, StepRunner]:
    """A worker of the lab whose Redis has no room for these round trips."""
    bench = lab.bench
    full = Full(bench.store.context.database, *points)
    clock = RedisClock(lambda: bench.clock.now_ms() / 1000)
    bench.store = Store(full, bench.settings, clock=clock, publisher=Publisher())  # type: ignore[arg-type]
    return full, lab.another_worker(lab.servers)


def test_a_change_of_a_list_is_remembered_until_redis_knows_it(new_bench: NewBench) -> None:
    lab = Lab(new_bench, Connections(crm=listed("search")))
    full, runner = on_a_full_redis(lab, "tools.stale")
    lab.step(runner=runner)
    lab.servers.lists["crm"] = listed("search", "find")
    lab.servers.changed.add(lab.agent.mcp[0].fixed_credentials.key)
    with pytest.raises(StoreFull):
        lab.step(runner=runner)
    full.points = ()
    lab.step(runner=runner)
    assert lab.offered[-1] == ["crm_find", "crm_search"]


@pytest.mark.parametrize("point", ["tools.save", "journal.tools"])
def test_a_full_redis_fails_no_execution(new_bench: NewBench, point: str) -> None:
    lab = Lab(new_bench, Connections(crm=listed("search")))
    full, runner = on_a_full_redis(lab, point)
    bench, session = lab.bench, lab.bench.submit()
    with pytest.raises(StoreFull):
        lab.step(session, runner)
    full.points = ()
    bench.clock.go_on(bench.settings.lease_seconds + 1)
    assert isinstance(lab.step(session, runner), Done)
    assert bench.state(session).status == "completed"
