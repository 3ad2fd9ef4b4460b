"""Answers that are begun in the background of their provider: who runs the step again attaches to the same one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.flow import SpendCap
from celery_agents.tasks.housekeeping.provider_jobs import JobCleaner
from celery_agents.worker.agent import Agent, AgentRegistry
from celery_agents.worker.engine import Done, RetryLater
from celery_agents.worker.engine.leases import CallInterrupted
from celery_agents.worker.engine.transitions import FirstExecution, first_state
from celery_agents.worker.errors import JobEnded
from celery_agents.worker.state import AgentState, ExecutionBudget, Message, StopReason
from celery_agents.worker.store.records import NextState

from support.engine import Bench, WorkerDied
from support.later_driver import LOST_REPLY, LaterDriver, refused
from support.states import NOON

HOUR = 3600.0
RESERVED = 0.3
COST = 0.1


@pytest.fixture
def driver() -> LaterDriver:
    return LaterDriver()


def background_bench(driver: LaterDriver) -> Bench:
    return Bench(Agent("report", driver=driver, background=True), driver_attempts=3)


def once(error: BaseException) -> Callable[[], None]:
    """What raises this the first time."""
    left = [error]

    def fail() -> None:
        if left:
            raise left.pop()

    return fail


def test_whoever_runs_the_step_again_attaches_to_the_same_answer(driver: LaterDriver) -> None:
    bench = background_bench(driver)
    session = bench.submit()
    driver.answers = ["once", "twice"]

    def die() -> None:
        raise WorkerDied

    driver.created = die
    bench.worker_died(session)
    driver.created = lambda: None
    assert isinstance(bench.step(session), Done)
    assert bench.record(session).final_response == "once"
    assert len(driver.jobs) == 1
    assert math.isclose(bench.record(session).cost or 0.0, 0.1)
    (left,) = bench.store.housekeeping.past_jobs(bench.store.context.shards, {"report"})
    assert not left.is_open
    bench.close()


def test_a_stream_that_breaks_is_attached_to_in_the_same_step(driver: LaterDriver) -> None:
    bench = background_bench(driver)
    session = bench.submit()
    driver.answers = ["whole"]
    driver.created = once(LOST_REPLY)
    assert isinstance(bench.step(session), Done)
    assert bench.record(session).final_response == "whole"
    assert (len(driver.jobs), driver.asked_at_once) == (1, 2)
    bench.close()


def test_an_answer_that_its_provider_has_forgotten_is_asked_for_again(driver: LaterDriver) -> None:
    bench = background_bench(driver)
    session = bench.submit()
    driver.answers = [JobEnded("forgotten", "the provider does not know the answer"), "second"]
    assert isinstance(bench.step(session), Done)
    assert bench.record(session).final_response == "second"
    assert len(driver.jobs) == 2
    bench.close()


def test_the_time_of_an_answer_in_the_background_counts(driver: LaterDriver) -> None:
    bench = background_bench(driver)
    session = bench.submit(budget=ExecutionBudget(max_seconds=30))
    driver.answers = ["late"]

    def die() -> None:
        raise WorkerDied

    driver.created = die
    bench.worker_died(session)
    bench.clock.go_on(31)
    bench.run(session)
    assert bench.record(session).stop_reason is StopReason.TIME_LIMIT_REACHED
    bench.close()


def outlasting(bench: Bench, driver: LaterDriver, seconds: float) -> None:
    """Let each request of the driver take so long, and end without an answer."""

    def hang() -> None:
        bench.clock.go_on(seconds)
        raise LOST_REPLY

    driver.created = driver.attached = hang


def test_an_answer_that_takes_longer_than_its_step_is_attached_to_by_the_next_one(driver: LaterDriver) -> None:
    bench = background_bench(driver)
    session = bench.submit()
    driver.answers = ["late"]
    outlasting(bench, driver, 901)
    for _ in range(10):  # more than a step has attempts
        outcome = bench.step(session)
        assert isinstance(outcome, RetryLater)
        assert outcome.reason == "the answer takes longer than the step may"
    driver.attached = lambda: None
    assert isinstance(bench.step(session), Done)
    assert bench.record(session).final_response == "late"
    assert len(driver.jobs) == 1
    assert math.isclose(bench.record(session).cost or 0.0, 0.1)
    bench.close()


def test_an_answer_in_the_background_that_never_comes_fails_in_the_end(driver: LaterDriver) -> None:
    bench = background_bench(driver)
    session = bench.submit()
    driver.answers = ["never"]
    outlasting(bench, driver, 8 * HOUR)
    assert [type(bench.step(session)) for _ in range(3)] == [RetryLater, RetryLater, Done]
    record = bench.record(session)
    assert (record.status, record.stop_reason) == ("failed", "time_limit")
    assert len(driver.jobs) == 1
    bench.close()


# --- under a spend cap --------------------------------------------------------------------------------------------


class Priced(LaterDriver):
    """A driver that says what a call may cost."""

    def estimate_cost(self, settings: object, sent: int, received: int) -> float:
        del settings, sent, received
        return RESERVED


def capped_bench(driver: LaterDriver, usd: float = 1.0) -> Bench:
    bench = background_bench(driver)
    bench.store.flow.set_value(SpendCap("c", usd=usd, per="day"))
    bench.gate.refresh()
    return bench


def spent(bench: Bench) -> float:
    (status,) = bench.store.flow.caps()
    return round(sum(each.usd for each in status.spent), 6)


def held(bench: Bench) -> int:
    """Reservations that are not settled."""
    keys = [key for key in bench.key_names() if key.startswith("ca:cap") and key.endswith(":held")]
    replies = bench.store.context.database.pipeline("test", [("HLEN", key) for key in keys])
    return sum(int(reply) for reply in replies)


def test_an_answer_that_is_attached_to_costs_what_it_has_cost(driver: LaterDriver) -> None:
    bench = capped_bench(driver := Priced(answers=["late"]), usd=1.2 * RESERVED)
    session = bench.submit()
    outlasting(bench, driver, 901)
    for _ in range(3):
        assert isinstance(bench.step(session), RetryLater)
        assert (spent(bench), held(bench)) == (RESERVED, 1)
    driver.attached = lambda: None
    assert isinstance(bench.step(session), Done)
    assert (len(driver.jobs), spent(bench), held(bench)) == (1, COST, 0)
    bench.close()


@pytest.mark.parametrize("dies", [True, False], ids=["killed", "cut off"])
def test_who_attaches_to_an_answer_reserves_nothing_more(driver: LaterDriver, dies: bool) -> None:
    bench = capped_bench(driver := Priced(answers=["whole"]), usd=1.2 * RESERVED)
    session = bench.submit()
    driver.created = once(WorkerDied() if dies else LOST_REPLY)
    if dies:
        bench.worker_died(session)
    assert isinstance(bench.step(session), Done)
    assert (len(driver.jobs), spent(bench), held(bench)) == (1, COST, 0)
    bench.close()


def test_a_call_of_which_no_answer_is_known_leaves_what_it_has_reserved(driver: LaterDriver) -> None:
    bench = capped_bench(driver := Priced(answers=["paid, perhaps", "second"]))
    session = bench.submit()
    driver.keeping = once(LOST_REPLY)
    assert isinstance(bench.step(session), Done)
    assert (len(driver.jobs), spent(bench), held(bench)) == (2, RESERVED + COST, 0)
    bench.close()


@pytest.mark.parametrize(
    ("error", "cost"),
    [
        (refused(429, transient=True), 0.0),
        (JobEnded("failed", "the provider says so"), 0.0),
        (JobEnded("forgotten", "the provider does not know the answer"), RESERVED),
    ],
    ids=["refused", "failed", "forgotten"],
)
def test_an_answer_that_never_was_costs_nothing(driver: LaterDriver, error: Exception, cost: float) -> None:
    bench = capped_bench(driver := Priced(answers=["never", "second"]))
    session = bench.submit()
    if isinstance(error, JobEnded):
        driver.created = once(error)
    else:
        driver.keeping = once(error)
    assert isinstance(bench.step(session), Done)
    assert (spent(bench), held(bench)) == (round(cost + COST, 6), 0)
    bench.close()


@pytest.mark.parametrize("agent_asks", [{"background": True}, {"completion_window": "8h"}], ids=lambda each: min(each))
@pytest.mark.parametrize("ends", ["answered", "failed"])
def test_what_has_ended_is_settled_although_its_worker_dies_before(agent_asks: Any, ends: str) -> None:
    driver = Priced(answers=["done", "done"])
    bench = Bench(Agent("report", driver=driver, **agent_asks), driver_attempts=3)
    bench.store.flow.set_value(SpendCap("c", usd=1.0, per="day"))
    bench.gate.refresh()
    session = bench.submit()
    failed = JobEnded("failed", "the provider says so")
    if "background" not in agent_asks:
        bench.step(session)
        driver.finish("done" if ends == "answered" else failed)
        bench.clock.go_on(601)
    elif ends == "failed":
        driver.created = once(failed)
    settle_job, vars(bench.spending)["settle_job"] = bench.spending.settle_job, lambda *_: once(WorkerDied())()
    bench.worker_died(session)
    assert (spent(bench), held(bench)) == (RESERVED, 1)
    vars(bench.spending)["settle_job"] = settle_job
    if ends == "failed" and "background" not in agent_asks:
        bench.step(session)
        driver.finish("done")
        bench.clock.go_on(601)
    bench.run(session)
    assert (bench.record(session).final_response, held(bench)) == ("done", 0)
    assert math.isclose(spent(bench), bench.record(session).cost or 0.0)
    bench.close()


@pytest.mark.parametrize("is_known", [True, False], ids=["kept", "lost"])
def test_a_retry_goes_on_with_the_job_of_an_execution_that_was_stopped(is_known: bool) -> None:
    driver = Priced(is_listed=True)
    bench = Bench(Agent("report", driver=driver, completion_window="24h"), driver_attempts=3)
    bench.store.flow.set_value(SpendCap("c", usd=1.0, per="day"))
    bench.gate.refresh()
    session = bench.submit()
    if is_known:
        bench.step(session)
    else:
        driver.created = once(WorkerDied())
        bench.worker_died(session)
    bench.stop(session)
    bench.run(session)
    bench.retry(session)
    for _ in range(3):
        bench.clock.go_on(601)
        driver.finish("done")
        bench.run(session)
    assert bench.record(session).final_response == "done"
    assert (len(driver.jobs), held(bench)) == (1, 0)
    assert math.isclose(spent(bench), bench.record(session).cost or 0.0)
    bench.close()


def test_the_same_execution_of_two_sessions_is_paid_by_both() -> None:
    """As a snapshot goes on in another session, beside its own."""
    driver = Priced()
    bench = Bench(Agent("report", driver=driver, completion_window="8h"), driver_attempts=3)
    bench.store.flow.set_value(SpendCap("c", usd=1.0, per="day"))
    bench.gate.refresh()
    sessions = ["here", "there"]
    for session in sessions:

        def begin(now_ms: int, session: str = session) -> NextState:
            del now_ms
            first = FirstExecution("execution", f"by {session}", None)
            return first_state(AgentState.fresh(now=NOON), Message.user("hello"), first, NOON)

        bench.store.sessions.submit(session, "report", "", begin)
        bench.step(session)
    bench.clock.go_on(601)
    for number, session in enumerate(sessions):
        driver.finish("done", number)
        bench.run(session)
    assert held(bench) == 0
    assert math.isclose(spent(bench), sum(bench.record(session).cost or 0.0 for session in sessions))
    bench.close()


def test_an_answer_counts_in_the_period_in_which_it_has_begun(driver: LaterDriver) -> None:
    bench = capped_bench(driver := Priced(answers=["late"]), usd=RESERVED)
    session = bench.submit()
    outlasting(bench, driver, 20 * HOUR)
    assert isinstance(bench.step(session), RetryLater)
    driver.attached = lambda: bench.clock.go_on(5 * HOUR)  # into the next day
    assert isinstance(bench.step(session), Done)
    assert (spent(bench), held(bench)) == (0.0, 0)
    bench.close()


def test_an_answer_that_nobody_waits_for_costs_what_it_had_answered(driver: LaterDriver) -> None:
    bench = capped_bench(driver := Priced(answers=["answered"]))
    session = bench.submit()
    outlasting(bench, driver, 901)
    assert isinstance(bench.step(session), RetryLater)
    bench.stop(session)
    bench.run(session)
    JobCleaner(bench.store, AgentRegistry(bench.agents), loop=bench.loop, spending=bench.spending).run()
    assert (spent(bench), held(bench)) == (COST, 0)
    bench.close()


@pytest.mark.parametrize("is_set_first", [True, False], ids=["cap first", "cap later"])
def test_a_batch_that_is_created_in_a_later_period_counts_where_it_was_intended(
    driver: LaterDriver, is_set_first: bool
) -> None:
    bench = Bench(Agent("report", driver=(driver := Priced(is_listed=True)), completion_window="24h"))
    session = bench.submit()

    def set_cap(usd: float) -> None:
        bench.store.flow.set_value(SpendCap("c", usd=usd, per="hour"))
        bench.gate.refresh()

    driver.creating = once(LOST_REPLY)
    if is_set_first:
        set_cap(1.0)
    assert isinstance(bench.step(session), RetryLater)
    if not is_set_first:
        set_cap(0.0)
    bench.clock.go_on(HOUR)
    assert isinstance(bench.step(session), RetryLater)
    assert len(driver.jobs) == 1, "no cap of a period that is over keeps it waiting"
    driver.finish()
    bench.clock.go_on(601)
    bench.run(session)
    assert (spent(bench), held(bench)) == (0.0, 0)
    bench.close()


def test_who_has_lost_the_step_before_its_job_leaves_the_money_to_who_has_created_it(driver: LaterDriver) -> None:
    """Both reserve under the key of the job; the first one waited for its provider's limit, and slept."""
    bench = Bench(agent := Agent("report", driver=(driver := Priced()), completion_window="24h"))
    bench.store.flow.set_value(SpendCap("c", usd=1.0, per="month"))
    bench.gate.refresh()
    session, gate = bench.submit(), bench.gate
    other = bench.another_worker(agent, name="other")
    bench.gate.refresh()

    def sleep(*_: Any) -> None:
        bench.clock.go_on(bench.settings.lease_seconds + bench.settings.lease_grace_seconds + 0.1)
        assert isinstance(bench.step(session, other), RetryLater)
        raise CallInterrupted

    gate.begin = sleep  # type: ignore[method-assign]
    bench.step(session)
    assert (len(driver.jobs), spent(bench), held(bench)) == (1, RESERVED, 1)
    driver.finish()
    bench.clock.go_on(601)
    assert isinstance(bench.step(session, other), Done)
    assert (spent(bench), held(bench)) == (COST / 2, 0)
    bench.close()


# --- of an agent that changes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, "8h"])
def test_an_agent_that_is_asked_otherwise_leaves_its_answer_in_the_background(
    driver: LaterDriver, window: str | None
) -> None:
    bench = background_bench(driver)
    session = bench.submit()
    driver.answers = ["in the background", "at once"]
    outlasting(bench, driver, 901)
    assert isinstance(bench.step(session), RetryLater)
    agent = Agent("report", driver=driver, completion_window=window)
    upgraded, driver.created = bench.another_worker(agent), lambda: None
    if window is not None:
        assert isinstance(bench.step(session, upgraded), RetryLater)
        driver.finish("later")
        bench.clock.go_on(601)
    assert isinstance(bench.step(session, upgraded), Done)
    assert bench.record(session).final_response == ("at once" if window is None else "later")
    JobCleaner(bench.store, AgentRegistry([agent]), loop=bench.loop, spending=bench.spending).run()
    cost = COST + COST * (1.0 if window is None else 0.6)
    assert math.isclose(bench.record(session).cost or 0.0, cost), "what it had answered is charged"
    bench.close()
