"""Jobs that no step waits for: what they had answered is paid, and counts once in the session that has asked."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from celery_agents.flow import SpendCap
from celery_agents.tasks.housekeeping.provider_jobs import JobCleaner
from celery_agents.worker import crash_points
from celery_agents.worker.agent import Agent, AgentRegistry
from celery_agents.worker.errors import ClaimLost, DriverError, JobEnded
from celery_agents.worker.state import ExecutionStatus, InferenceResponse, ToolCall
from celery_agents.worker.store.journal import JournaledJob
from celery_agents.worker.store.records import Claim
from celery_agents.worker.store.sessions.past_reads import StepAddress
from celery_agents.worker.tools import tool

from support.engine import Bench, WorkerDied
from support.later_driver import USAGE, LaterDriver

ANSWER = 0.06
"""Dollars of an answer within eight hours."""


class World:
    """An agent whose provider answers later, and who cleans up behind it."""

    def __init__(self) -> None:
        @tool(effect="pure")
        def look() -> str:
            """Look."""
            return "seen"

        self.driver = LaterDriver()
        self.bench = Bench(Agent("report", driver=self.driver, completion_window="8h", tools=[look]), driver_attempts=3)
        self.bench.store.flow.set_value(SpendCap("c", usd=100.0, per="month"))
        self.bench.gate.refresh()

    def cleaner(self) -> JobCleaner:
        bench = self.bench
        return JobCleaner(bench.store, AgentRegistry(bench.agents), loop=bench.loop, spending=bench.spending)

    def asked(self) -> str:
        """A session whose step is at the provider."""
        session = self.bench.submit()
        self.bench.step(session)
        return session

    def look(self, session: str) -> None:
        self.bench.clock.go_on(601)
        self.bench.step(session)

    def stop(self, session: str) -> None:
        self.bench.stop(session)
        self.bench.run(session)
        assert self.bench.record(session).status is ExecutionStatus.STOPPED

    def spent(self) -> float:
        (status,) = self.bench.store.flow.caps()
        return sum(each.usd for each in status.spent)

    def costs(self, session: str) -> float:
        """What `client.costs` tells of a session."""
        sessions = self.bench.store.sessions
        found, unread = sessions.costs([sessions.header(session)])
        assert not unread
        return sum(each.cost for each in found)

    def told(self, session: str) -> list[float]:
        """What each way tells of a session's costs."""
        sessions = self.bench.store.sessions
        ways = (
            self.bench.execution(session).cost, self.bench.record(session).cost,
            sessions.summaries([session])[session].cost, self.costs(session),
        )  # fmt: skip
        return [round(each or 0.0, 6) for each in ways]


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    crash_points.install(None)
    found.bench.close()


def test_what_a_stopped_job_had_answered_is_charged_to_its_session(world: World) -> None:
    session = world.asked()
    world.stop(session)
    assert world.told(session) == [0, 0, 0, 0]
    world.driver.finish()
    world.cleaner().run()
    assert world.told(session) == [ANSWER] * 4
    assert world.bench.record(session).usage["output"] == 20
    assert math.isclose(world.spent(), ANSWER)
    world.cleaner().run()
    assert world.told(session) == [ANSWER] * 4
    assert world.driver.jobs[0].is_deleted
    assert not list(world.bench.store.housekeeping.past_jobs(world.bench.store.context.shards, {"report"}))


def test_an_execution_that_runs_goes_on_with_the_charge(world: World) -> None:
    session = world.asked()
    world.driver.finish(JobEnded("failed", "no"))
    world.look(session)  # the next job is asked for, and the first is to be cancelled
    world.driver.finish(number=0)
    world.driver.finish("the report")
    world.cleaner().run()
    assert math.isclose(world.bench.execution(session).cost or 0.0, ANSWER)
    world.look(session)
    assert world.bench.record(session).final_response == "the report"
    assert world.told(session) == [2 * ANSWER] * 4


def test_a_step_that_runs_meanwhile_is_committed_with_the_charge(world: World) -> None:
    """Its worker has read the session before it was charged."""
    session = world.asked()
    world.driver.finish(JobEnded("failed", "no"))
    world.look(session)
    world.driver.finish(number=0)
    world.driver.finish("the report")
    world.driver.looking = world.cleaner().run
    world.look(session)
    assert world.told(session) == [2 * ANSWER] * 4


def test_an_earlier_execution_of_a_session_that_runs_again_is_charged(world: World) -> None:
    session = world.asked()
    world.stop(session)
    stopped = world.bench.execution(session).execution_id
    world.driver.finish()
    world.bench.send(session, "and again")
    world.bench.step(session)
    world.cleaner().run()
    assert math.isclose(world.costs(session), ANSWER)
    record = world.bench.store.sessions.record(session, stopped)
    assert record is not None
    assert math.isclose(record.cost or 0.0, ANSWER)
    assert not world.bench.execution(session).cost
    world.driver.finish("again")
    world.look(session)
    assert world.bench.record(session).cost == ANSWER
    assert math.isclose(world.costs(session), 2 * ANSWER)


def test_the_states_of_earlier_steps_have_the_costs_that_they_had(world: World) -> None:
    session = world.asked()
    call = ToolCall(id="1", name="look")
    world.driver.finish(InferenceResponse(content="", tool_calls=(call,), usage=USAGE, cost=ANSWER, model="later"))
    world.look(session)
    world.bench.step(session)
    world.stop(session)
    world.driver.finish("too late")
    before = world.bench.store.sessions.state_at(session, StepAddress(1))
    world.cleaner().run()
    after = world.bench.store.sessions.state_at(session, StepAddress(1))
    assert after == before
    assert world.told(session) == [2 * ANSWER] * 4


def test_a_deleted_session_is_charged_to_caps_alone(world: World) -> None:
    session = world.asked()
    world.stop(session)
    world.driver.finish()
    world.bench.store.sessions.delete(session)
    world.cleaner().run()
    assert math.isclose(world.spent(), ANSWER)
    assert world.driver.jobs[0].is_deleted


@pytest.mark.parametrize("answers", [True, False], ids=["answered", "cancelled"])
@pytest.mark.parametrize("gone", ["session", "label", "agent"])
def test_what_it_reserved_is_settled_although_nothing_says_whose_it_was(world: World, answers: bool, gone: str) -> None:
    flow, sessions = world.bench.store.flow, world.bench.store.sessions

    def set_cap(**holds_for: str) -> None:
        flow.set_value(SpendCap("c", usd=100.0, per="month", **holds_for))
        world.bench.gate.refresh()

    set_cap(label="customer", agent="report")
    vars(world.driver)["estimate_cost"] = lambda *_: 0.5
    session = world.bench.submit()
    sessions.label(session, {"customer": "acme"})
    world.bench.step(session)
    assert world.spent() == 0.5
    world.stop(session)
    if answers:
        world.driver.finish()
    if gone == "session":
        sessions.delete(session)
    elif gone == "label":
        sessions.label(session, {"customer": None})
    else:
        set_cap(label="customer", agent="another")
    world.cleaner().run()
    assert math.isclose(world.spent(), ANSWER if answers else 0.0)


def test_a_parked_session_stays_parked(world: World) -> None:
    session = world.asked()
    world.driver.finish(JobEnded("failed", "no"))
    world.look(session)
    ref = world.bench.due(session)
    assert ref is not None
    world.bench.store.steps.park(ref, "no worker can read it")
    world.driver.finish(number=0)
    world.cleaner().run()
    assert world.bench.store.sessions.header(session).status == "parked"
    assert math.isclose(world.bench.execution(session).cost or 0.0, ANSWER)


def test_an_answer_that_was_charged_is_not_journaled_by_a_worker_that_slept_with_it(world: World) -> None:
    """A retry waits for the same job, and would pay for its answer once more."""
    session = world.asked()
    (entry,) = world.bench.store.housekeeping.provider_jobs()
    ref = world.bench.due(session)
    assert ref is not None
    world.stop(session)
    world.driver.finish()
    world.cleaner().run()
    world.bench.retry(session)
    slept = Claim(id="slept", worker="another", ref=ref, attempt=1, now_ms=0)
    job = JournaledJob(0, "8h", intended_ms=entry.since_ms, until_ms=0, id=entry.id, handle=entry.handle)
    raw = InferenceResponse(content="slept", cost=ANSWER).to_json()
    with pytest.raises(ClaimLost):
        world.bench.store.steps.record_job_answer(slept, job, entry, raw, world.bench.clock.now_ms())
    world.look(session)
    world.driver.finish("again")
    world.look(session)
    assert world.bench.record(session).final_response == "again"
    assert world.told(session) == [2 * ANSWER] * 4
    assert math.isclose(world.spent(), 2 * ANSWER)


def test_a_charge_leaves_no_journal_of_a_step_that_has_none_any_more(world: World) -> None:
    session = world.asked()
    world.stop(session)
    world.driver.finish()
    for key in [key for key in world.bench.key_names() if ":j:" in key or "journal" in key]:
        world.bench.store.context.database.pipeline("test", [("DEL", key)])
    before = set(world.bench.key_names())
    world.cleaner().run()
    assert set(world.bench.key_names()) <= before
    assert world.told(session) == [ANSWER] * 4


@pytest.mark.parametrize("died", ["cancelled", "charged"])
def test_it_is_charged_once_whoever_dies(world: World, died: str) -> None:
    session = world.asked()
    world.stop(session)
    world.driver.finish()
    cleaner, cleaned = world.cleaner(), world.driver.clean_job

    def die(point: str) -> None:
        crash_points.install(None)
        assert point == "p3"
        raise WorkerDied

    def die_deleting(handle: str, *, is_open: bool) -> object:
        if not is_open:
            raise WorkerDied
        return cleaned(handle, is_open=is_open)

    if died == "cancelled":
        crash_points.install(die)
    else:
        world.driver.clean_job = die_deleting
    with pytest.raises(WorkerDied):
        cleaner.run()
    assert world.told(session) == [0.0 if died == "cancelled" else ANSWER] * 4
    world.driver.clean_job = cleaned
    world.cleaner().run()
    assert world.told(session) == [ANSWER] * 4
    assert math.isclose(world.spent(), ANSWER)
    assert world.driver.jobs[0].is_deleted


def test_two_that_clean_up_at_once_charge_once(world: World) -> None:
    session = world.asked()
    world.stop(session)
    world.driver.finish()
    cleaned = world.driver.clean_job

    def clean_beside(handle: str, *, is_open: bool) -> object:
        world.driver.clean_job = cleaned
        answered = cleaned(handle, is_open=is_open)
        world.cleaner().run()
        return answered

    world.driver.clean_job = clean_beside
    world.cleaner().run()
    assert world.told(session) == [ANSWER] * 4
    assert math.isclose(world.spent(), ANSWER)


def test_a_provider_that_is_away_is_asked_again(world: World) -> None:
    session = world.asked()
    world.stop(session)
    world.driver.finish()
    cleaned = world.driver.clean_job

    def fail(handle: str, *, is_open: bool) -> object:
        raise DriverError("connection", "it is away", transient=True)

    world.driver.clean_job = fail
    world.cleaner().run()
    assert world.told(session) == [0] * 4
    world.driver.clean_job = cleaned
    world.cleaner().run()
    assert world.told(session) == [ANSWER] * 4


def test_a_job_of_which_nothing_is_known_leaves_the_session_and_the_reservation_as_they_are(world: World) -> None:
    session = world.asked()
    world.stop(session)
    reserved = world.spent()
    world.driver.jobs[0].is_deleted = True
    version = world.bench.store.sessions.header(session).version
    world.cleaner().run()
    assert world.bench.store.sessions.header(session).version == version
    assert world.spent() == reserved


def test_a_job_that_was_given_up_as_late_and_answers_all_the_same_is_paid(world: World) -> None:
    session = world.asked()
    world.bench.clock.go_on(9 * 3600 + 60)
    world.bench.step(session)  # it asks again
    assert len(world.driver.jobs) == 2
    world.driver.finish(number=0)
    world.driver.finish("the report")
    world.cleaner().run()
    world.look(session)
    assert world.told(session) == [2 * ANSWER] * 4
    assert math.isclose(world.spent(), 2 * ANSWER)
