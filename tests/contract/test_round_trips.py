"""The round trips of a step: how many, which, and how large, so that its price cannot creep up unseen.

All other tests assert what was stored and answered. This file alone asserts by which way that happened.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from celery_agents import Agent, tool
from celery_agents.config.settings import Settings
from celery_agents.testing import CallTool, script
from celery_agents.worker.agent import AgentRegistry
from celery_agents.worker.capabilities import Approvals, Rule
from celery_agents.worker.concurrency.event_loop import EventLoopThread
from celery_agents.worker.concurrency.tool_threads import ToolThreads
from celery_agents.worker.engine import (
    Done,
    EngineServices,
    FirstExecution,
    LeaseKeeper,
    StepRunner,
    Waiting,
    first_state,
)
from celery_agents.worker.errors import StateTooNew, StoreUnavailable
from celery_agents.worker.flow.values import Pause, ProviderLimit
from celery_agents.worker.requests import check_answer
from celery_agents.worker.state import AgentState, AnswerNote, Approve, InferenceResponse, Message, ToolCall
from celery_agents.worker.store import AnswerAction, Claimed, NextState, RequestFilter, Store
from celery_agents.worker.store.clock import RedisClock
from celery_agents.worker.store.context import Publisher
from celery_agents.worker.store.database import Database
from celery_agents.worker.store.records import StepRef

from support.asking_providers import CountedDriver, agent_of
from support.interference import ELSEWHERE, HERE, behind
from support.points import Points
from support.store import Bench, SpyDatabase, step_transition, urls_of

pytestmark = pytest.mark.leaves_keys("executions are left in their middle")

# A claim of a step that this worker does not hold the session of.
_READ_BEHIND = [Points.CLAIM_FIRST, Points.CLAIM_LOAD]


def trips(bench: Bench, call: Any) -> list[str]:
    """The round trips of a call."""
    bench.spy.sent.clear()
    with contextlib.suppress(Exception):  # what it answers is told by other tests
        call()
    return bench.spy.points


# --- submit -----------------------------------------------------------------------------------------------------------


def test_a_submit_takes_one(database: Database) -> None:
    bench = Bench(database)
    assert trips(bench, bench.submit) == [Points.SUBMIT_ATTEMPT]


def test_a_submit_that_does_not_know_the_time_takes_two(database: Database) -> None:
    bench = Bench(database, cache_bytes=0)
    assert trips(bench, bench.submit) == [Points.SUBMIT_READ, Points.SUBMIT_EXEC]


def test_a_submit_whose_reply_is_lost_looks_once_whether_it_was_made(database: Database) -> None:
    bench = Bench(database)
    bench.spy.lose(Points.SUBMIT_ATTEMPT)
    assert trips(bench, bench.submit) == [Points.SUBMIT_ATTEMPT, Points.SUBMIT_READ]


def test_a_submit_that_was_not_sent_goes_the_long_way(database: Database) -> None:
    bench = Bench(database)

    def fail() -> None:
        raise StoreUnavailable("the connection was refused")

    bench.spy.before(Points.SUBMIT_ATTEMPT, fail)
    assert trips(bench, bench.submit) == [Points.SUBMIT_ATTEMPT, Points.SUBMIT_READ, Points.SUBMIT_EXEC]


# --- claim ------------------------------------------------------------------------------------------------------------


def test_the_first_claim_of_a_new_session_takes_one_and_so_does_its_commit(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    claimed: list[Claimed] = []
    assert trips(bench, lambda: claimed.append(bench.claim())) == [Points.CLAIM_NEW]
    assert trips(bench, lambda: bench.commit(claimed[0], final=True)) == [Points.COMMIT_ATTEMPT], "it holds the session"


@pytest.mark.parametrize(
    ("missed", "way"),
    [
        (0, [Points.CLAIM_ATTEMPT]),
        (1, [Points.CLAIM_BEHIND]),
        (4, [Points.CLAIM_BEHIND]),
        (31, _READ_BEHIND),
        (40, _READ_BEHIND),
        (None, _READ_BEHIND),
    ],
    ids=lambda value: "unseen" if value is None else str(value),
)
def test_a_claim_takes_one_where_little_was_missed(database: Database, missed: int | None, way: list[str]) -> None:
    bench = Bench(database)
    step = behind(bench, missed).step
    claimed: list[Claimed] = []
    assert trips(bench, lambda: claimed.append(bench.claim(step))) == way
    bench.commit(claimed[0])
    assert trips(bench, lambda: bench.claim(step + 1)) == [Points.CLAIM_ATTEMPT], "from now on it holds the session"


@pytest.mark.parametrize("missed", [4, 31])
def test_a_worker_that_missed_steps_reads_those_alone(database: Database, missed: int) -> None:
    bench = Bench(database)
    ref = behind(bench, missed)
    bench.spy.sent.clear()
    bench.claim(ref.step)
    steps = bench.store.context.keys(bench.session).steps(bench.execution)
    (read,) = (command for command in bench.spy.sent[-1][1] if command[:2] == ("LRANGE", steps))
    assert read[2:] == (1, -1)


def test_a_session_with_a_history_is_read_behind_its_claim(database: Database) -> None:
    bench = Bench(database)
    ref = bench.follow_up()
    claimed: list[Any] = []
    first = trips(bench, lambda: claimed.append(bench.another().steps.claim(ref, "mine", "worker", alone=True)))
    assert first == [Points.CLAIM_NEW, Points.CLAIM_LOAD]
    (mine,) = claimed

    def commit() -> None:
        transition = step_transition(mine, final=False)
        bench.store.steps.commit(mine.claim, mine.loaded, transition, results={}, keep_claim=False)

    assert trips(bench, commit) == [Points.COMMIT_ATTEMPT], "what a step holds of its session is enough"


@pytest.mark.parametrize("missed", [0, 1, 6, None], ids=lambda missed: "unseen" if missed is None else str(missed))
@pytest.mark.parametrize("happened", HERE)
def test_a_claim_that_expects_something_else_than_there_is_looks_again(
    database: Database, happened: str, missed: int | None
) -> None:
    bench = Bench(database)
    ref = behind(bench, missed)
    HERE[happened](bench, ref)
    sent = trips(bench, lambda: bench.answer(ref.step, "mine"))
    reads_a_message_anyway = happened == "message" and sent in ([Points.CLAIM_BEHIND], _READ_BEHIND)
    assert Points.CLAIM_READ in sent or reads_a_message_anyway


@pytest.mark.parametrize("happened", ELSEWHERE)
def test_a_first_claim_tries_one_round_trip_where_the_time_is_known(database: Database, happened: str) -> None:
    quick, blind = Bench(database), Bench(database, cache_bytes=0)
    for bench in (quick, blind):
        bench.submit()
        ELSEWHERE[happened](bench, bench.ref())
    assert trips(quick, lambda: quick.answer(1, "mine"))[0] == Points.CLAIM_NEW
    assert Points.CLAIM_NEW not in trips(blind, lambda: blind.answer(1, "mine"))


def test_a_worker_too_old_for_a_session_looks_before_it_claims_from_then_on(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    bench.commit(bench.claim())
    bench.step_elsewhere(2)
    bench.become_newer()
    bench.spy.sent.clear()
    for number in range(3):
        with pytest.raises(StateTooNew):
            bench.answer(3, f"mine-{number}")
    assert bench.spy.points.count(Points.CLAIM_BEHIND) == 1
    assert Points.CLAIM_FIRST not in bench.spy.points


@pytest.mark.parametrize("step", [1, 2])
def test_a_worker_too_old_for_one_session_looks_before_it_claims_any_other(database: Database, step: int) -> None:
    bench = Bench(database)
    old = bench.another()
    for number in range(3):
        bench.session = f"{bench.session}-{number}"
        bench.submit()
        if step == 2:
            bench.commit(bench.claim())
        bench.become_newer()
        sent = trips(bench, lambda: old.steps.claim(bench.ref(step), uuid.uuid4().hex, "old", alone=True))
        assert number == 0 or set(sent) == {Points.CLAIM_READ, Points.LOAD_CHECK}


# --- commit -----------------------------------------------------------------------------------------------------------


def test_a_commit_takes_few(bench: Bench) -> None:
    claimed = bench.claim()
    expected = [Points.COMMIT_ATTEMPT] if bench.is_quick else [Points.COMMIT_READ, Points.COMMIT_EXEC]
    assert trips(bench, lambda: bench.commit(claimed)) == expected


def test_the_bytes_of_a_commit_do_not_grow_with_the_session(bench: Bench) -> None:
    written: list[int] = []
    read: list[int] = []
    for step in range(1, 81):
        bench.commit(bench.claim(step), text="x" * 200)
        written.append(bench.spy.size(bench.commits_at))
        if bench.is_quick:
            read.append(bench.spy.size(bench.claims_at if step == 1 else Points.CLAIM_ATTEMPT))
    # Numbers get longer; nothing else does, once there are as many saves as a lineage has marks.
    assert max(written[32:]) - min(written[32:]) < 40
    assert not read or max(read[32:]) - min(read[32:]) < 10


# --- whole steps ------------------------------------------------------------------------------------------------------


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
asked = Agent(
    "asked",
    driver=script(CallTool("pay"), CallTool("pay"), "done"),
    tools=[pay],
    capabilities=[Approvals([Rule("pay", when=lambda ctx, args: ctx.step > 1)])],
)
keyed = Agent("keyed", driver=script(CallTool("pay"), CallTool("pay"), CallTool("pay"), "done"), tools=[pay])


class Steps:
    """Runs the steps of one execution, in this process and by hand."""

    def __init__(self, database: Database, agent: Agent, **settings: Any) -> None:
        chosen = Settings.build(**settings, **urls_of(database))
        self.database = SpyDatabase(database)
        self.loop = EventLoopThread()

        def store() -> Store:
            found = Store(self.database, chosen, clock=RedisClock(), publisher=Publisher())
            found.context.check_shards()  # as every process begins
            return found

        def worker(name: str) -> StepRunner:
            of_worker = store()
            keeper = LeaseKeeper(of_worker, chosen)
            threads = ToolThreads()
            services = EngineServices(store=of_worker, settings=chosen, keeper=keeper, loop=self.loop, threads=threads)
            self.gate = services.gate
            return StepRunner(services, AgentRegistry([agent]), worker=name)

        self.store = store()
        self.other, self.runner = worker("w2"), worker("w1")
        self._agent = agent.name
        self.submit_another()

    def submit_another(self) -> None:
        """A new session, whose steps are run from now on."""
        self.session, self.execution = uuid.uuid4().hex, uuid.uuid4().hex
        self.store.sessions.submit(self.session, self._agent, "", self._first)
        time.sleep(0.001)

    def _first(self, now_ms: int) -> NextState:
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        return first_state(AgentState.fresh(now=now), Message.user("go"), FirstExecution(self.execution, "op"), now)

    def run(self, step: int, runner: StepRunner | None = None) -> list[str]:
        """The round trips of a delivery of this step."""
        self.database.sent.clear()
        outcome = (runner or self.runner).run_step(StepRef(self.session, self.execution, step))
        assert isinstance(outcome, Done), outcome
        return self.database.points


@pytest.fixture
def steps(request: pytest.FixtureRequest, database: Database) -> Iterator[Steps]:
    agent, settings = request.param
    found = Steps(database, agent, **settings)
    yield found
    found.loop.close()


PURE = [Points.CLAIM_ATTEMPT, Points.JOURNAL_ANSWER, Points.COMMIT_ATTEMPT]
KEYED = [Points.CLAIM_ATTEMPT, Points.JOURNAL_ANSWER, Points.JOURNAL_BEGIN, Points.COMMIT_ATTEMPT]


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


@pytest.fixture
def asking(database: Database) -> Iterator[Steps]:
    """Steps that ask a provider."""
    call = InferenceResponse(tool_calls=(ToolCall(id="1", name="look"),))
    found = Steps(database, agent_of(CountedDriver(answers={"openai:a": [call, call, "done"]}), tools=[look]))
    found.run(1)
    yield found
    found.loop.close()


def test_a_step_that_asks_a_provider_takes_none_more_where_nothing_is_set_or_learned(asking: Steps) -> None:
    asking.gate.refresh()
    assert asking.run(2) == PURE
    found = asking.database.pipeline("test", [("HLEN", asking.store.context.fleet.flow)])
    assert found == [0]


@pytest.mark.one_server("a bucket is on another node")
def test_under_a_limit_it_takes_one_more_and_its_answer_settles(asking: Steps) -> None:
    asking.store.flow.set_value(ProviderLimit("openai:a", rpm=6000))
    asking.gate.refresh()
    assert asking.run(2) == [Points.CLAIM_ATTEMPT, Points.FLOW_RESERVE, *PURE[1:]]


def test_a_pause_of_something_else_takes_none_more(asking: Steps) -> None:
    asking.store.flow.pause(Pause("agent", "other", reason="it is another one"))
    asking.gate.refresh()
    assert asking.run(2) == PURE


@pytest.mark.parametrize("steps", [(asked, {})], indirect=True)
def test_a_step_that_asks_takes_six_and_its_woken_leg_four(steps: Steps) -> None:
    steps.run(1)
    asking = [Points.REQUEST_LOOK, Points.REQUEST_OPEN]
    steps.database.sent.clear()
    assert isinstance(steps.runner.run_step(StepRef(steps.session, steps.execution, 2)), Waiting)
    assert steps.database.points == [*KEYED[:2], *asking, Points.WAIT_READ, Points.WAIT_EXEC]
    (request,) = steps.store.requests.page(RequestFilter(session_id=steps.session)).requests
    steps.store.requests.answer(
        steps.session,
        AnswerAction(answers={request.summary.id: Approve()}, about=AnswerNote(operation_id="a"), check=check_answer),
    )
    woken = steps.run(2)
    assert woken[:2] == [Points.CLAIM_READ, Points.CLAIM_EXEC]
    assert woken[2:] == [Points.JOURNAL_BEGIN, Points.COMMIT_ATTEMPT]


@pytest.mark.parametrize("steps", [(keyed, {"steps_per_task": 4})], indirect=True)
def test_in_burst_mode_the_commit_is_the_next_claim(steps: Steps) -> None:
    later = [*KEYED[1:], *KEYED[1:], *KEYED[1:], *PURE[1:]]
    assert steps.run(1) == [Points.CLAIM_READ, Points.CLAIM_EXEC, *later]


@pytest.mark.parametrize("steps", [(keyed, {"cache_bytes": 0})], indirect=True)
def test_a_worker_that_knows_nothing_of_the_session_takes_one_more(steps: Steps) -> None:
    steps.run(1)
    assert steps.run(2) == [*_READ_BEHIND, *KEYED[1:]]


@pytest.mark.one_server("another session may be on another node, whose time is not known yet")
@pytest.mark.parametrize("steps", [(keyed, {})], indirect=True)
def test_the_first_step_takes_no_more_for_a_worker_that_knows_what_time_it_is(steps: Steps) -> None:
    steps.run(1)
    steps.submit_another()
    assert steps.run(1) == [Points.CLAIM_NEW, *KEYED[1:]]


@pytest.mark.parametrize("steps", [(keyed, {})], indirect=True)
def test_a_worker_that_has_missed_a_step_takes_no_more(steps: Steps) -> None:
    steps.run(1)
    steps.run(2, steps.other)
    assert steps.run(3) == [Points.CLAIM_BEHIND, *KEYED[1:]]
