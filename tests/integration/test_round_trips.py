"""What a step asks of Redis, so that its price cannot creep up unseen."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from celery_agents import Agent, tool
from celery_agents.config.settings import Settings
from celery_agents.testing import CallTool, script
from celery_agents.worker.agent import AgentRegistry
from celery_agents.worker.engine import Done, EventLoopThread, LeaseKeeper, StepRunner, first_state
from celery_agents.worker.state import AgentState, Message
from celery_agents.worker.store import NextState, redis_store
from celery_agents.worker.store.database import Command
from celery_agents.worker.store.redis.database import RedisDatabase, connect

from support.plain_socket import plain_socket

pytestmark = pytest.mark.leaves_keys("executions are left in their middle")


@tool(effect="pure")
def look() -> str:
    """Look something up."""
    return "seen"


@tool(effect="keyed")
def pay() -> str:
    """Pay."""
    return "paid"


# A process's first step does not know Redis's time, so it takes a round trip more; the later ones are what counts.
pure = Agent("pure", driver=script(CallTool("look"), CallTool("look"), CallTool("look"), "done"), tools=[look])
keyed = Agent("keyed", driver=script(CallTool("pay"), CallTool("pay"), CallTool("pay"), "done"), tools=[pay])


class CountingTables(RedisDatabase):
    """Notes the name of each round trip."""

    points: list[str]

    def _round_trip(self, point: str, connection: Any, commands: Sequence[Command]) -> list[Any]:
        self.points.append(point)
        return super()._round_trip(point, connection, commands)


class Steps:
    """Runs the steps of one execution, in this process and by hand."""

    def __init__(self, url: str, agent: Agent, **settings: Any) -> None:
        chosen = Settings.build(redis_url=url, **settings)
        opened = connect(url, timeout_seconds=5, connections=4, name="round-trips", plain_socket=plain_socket)
        opened.__class__ = CountingTables  # pyright: ignore[reportAttributeAccessIssue]
        self.database: Any = opened
        self.database.points = []
        self.loop = EventLoopThread()

        def worker(name: str) -> StepRunner:
            store = redis_store(chosen, name=name, database=opened)
            keeper = LeaseKeeper(store, chosen)
            return StepRunner(store, AgentRegistry([agent]), chosen, worker=name, loop=self.loop, keeper=keeper)

        self.store = redis_store(chosen, name="client", database=opened)
        self.runner, self.other = worker("w1"), worker("w2")
        self._agent = agent.name
        self.submit_another()

    def submit_another(self) -> None:
        """A new session, whose steps are run from now on."""
        self.session, self.execution = uuid.uuid4().hex, uuid.uuid4().hex
        self.store.sessions.submit(self.session, self._agent, "", self._first)
        time.sleep(0.001)

    def _first(self, now_ms: int) -> NextState:
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        return first_state(AgentState.fresh(now=now), Message.user("go"), self.execution, "op", None, now)

    def run(self, step: int, runner: StepRunner | None = None) -> list[str]:
        """The round trips of a delivery of this step."""
        self.database.points.clear()
        outcome = (runner or self.runner).run_step(self.session, self.execution, step)
        assert isinstance(outcome, Done), outcome
        return list(self.database.points)

    def close(self) -> None:
        self.loop.close()
        self.database.close()


@pytest.fixture
def steps(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Steps]:
    agent, settings = request.param
    made = Steps(redis_url, agent, **settings)
    yield made
    made.close()


PURE = ["claim.attempt", "journal.answer", "commit.attempt"]
KEYED = ["claim.attempt", "journal.answer", "journal.begin", "commit.attempt"]


@pytest.mark.parametrize("steps", [(pure, {})], indirect=True)
def test_a_step_with_a_pure_tool_takes_three(steps: Steps) -> None:
    steps.run(1)
    assert steps.run(2) == PURE


@pytest.mark.parametrize("steps", [(keyed, {})], indirect=True)
def test_a_step_with_an_effect_takes_four(steps: Steps) -> None:
    steps.run(1)
    assert steps.run(2) == KEYED


@pytest.mark.parametrize("steps", [(pure, {})], indirect=True)
def test_a_step_without_tools_takes_three(steps: Steps) -> None:
    for step in (1, 2, 3):
        steps.run(step)
    assert steps.run(4) == PURE


@pytest.mark.parametrize("steps", [(keyed, {"steps_per_task": 4})], indirect=True)
def test_in_burst_mode_the_commit_is_the_next_claim(steps: Steps) -> None:
    points = [point for point in steps.run(1) if point != "script.load"]
    assert points == ["claim.read", "claim.exec", *KEYED[1:], *KEYED[1:], *KEYED[1:], *PURE[1:]]


@pytest.mark.parametrize("steps", [(keyed, {"cache_bytes": 0})], indirect=True)
def test_a_worker_that_knows_nothing_of_the_session_takes_one_more(steps: Steps) -> None:
    steps.run(1)
    assert steps.run(2) == ["claim.first", "claim.load", *KEYED[1:]]


@pytest.mark.parametrize("steps", [(keyed, {})], indirect=True)
def test_the_first_step_takes_no_more_for_a_worker_that_knows_what_time_it_is(steps: Steps) -> None:
    steps.run(1)
    steps.submit_another()
    assert steps.run(1) == ["claim.new", *KEYED[1:]]


@pytest.mark.parametrize("steps", [(keyed, {})], indirect=True)
def test_a_worker_that_has_missed_a_step_takes_no_more(steps: Steps) -> None:
    steps.run(1)
    steps.run(2, steps.other)
    assert steps.run(3) == ["claim.behind", *KEYED[1:]]
