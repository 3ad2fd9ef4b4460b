"""A step whose provider answers later: what is asked, waited for and paid, and what a crash at each place costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from celery_agents.worker import crash_points
from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import InferenceRequest
from celery_agents.worker.engine import Done, RetryLater
from celery_agents.worker.errors import JobEnded, UnusableAnswer
from celery_agents.worker.state import ExecutionBudget, ExecutionStatus, InferenceResponse, StopReason, ToolCall
from celery_agents.worker.store import Result
from celery_agents.worker.store.asked import Asked
from celery_agents.worker.store.journal import JournaledJob
from celery_agents.worker.store.records import Claim
from celery_agents.worker.tools import tool

from support.engine import Bench, WorkerDied
from support.later_driver import LOST_REPLY, LaterDriver, refused

HOUR = 3600.0


@pytest.fixture
def driver() -> LaterDriver:
    return LaterDriver()


@pytest.fixture
def bench(driver: LaterDriver) -> Iterator[Bench]:
    found = bench_of(driver)
    yield found
    found.close()


def bench_of(driver: LaterDriver, window: str | None = "8h", **fields: Any) -> Bench:
    return Bench(Agent("report", driver=driver, completion_window=window, **fields), driver_attempts=3)


def look(bench: Bench, session: str, seconds: float = 601.0) -> Any:
    """Let the time of the next look come, and what comes of it."""
    bench.clock.go_on(seconds)
    return bench.step(session)


def die_at(point: str) -> None:
    """Let the worker die once at a crash point."""

    def handler(passed: str) -> None:
        if passed == point:
            crash_points.install(None)
            raise WorkerDied

    crash_points.install(handler)


@pytest.fixture(autouse=True)
def disarm() -> Iterator[None]:
    yield
    crash_points.install(None)


def cost(result: Result) -> float:
    assert result.cost is not None
    return result.cost


# --- the usual way ----------------------------------------------------------------------------------------------


def test_a_step_waits_without_claim_or_lease_until_the_answer_is_there(bench: Bench, driver: LaterDriver) -> None:
    session = bench.submit()
    outcome = bench.step(session)
    assert isinstance(outcome, RetryLater)
    assert outcome.seconds == 30.0
    assert "at the provider of later since" in outcome.reason
    assert "40 % cheaper" in outcome.reason
    assert bench.keeper.running == 0
    assert not [key for key in bench.key_names() if ":lease:" in key]
    assert isinstance(look(bench, session), RetryLater)
    driver.finish("the report")
    assert isinstance(look(bench, session), Done)
    assert bench.record(session).final_response == "the report"
    assert math.isclose(cost(bench.record(session)), 0.06)
    assert len(driver.jobs) == 1
    assert driver.asked_at_once == 0


def test_it_looks_less_and_less_often(bench: Bench) -> None:
    session = bench.submit()
    pauses = [bench.step(session).seconds]  # type: ignore[union-attr]
    for _ in range(11):
        pauses.append(look(bench, session, pauses[-1] + 0.1).seconds)
    assert pauses[0] == 30.0
    assert pauses == sorted(pauses)
    assert pauses[-1] == 600.0


def test_the_time_at_the_provider_does_not_count(driver: LaterDriver) -> None:
    bench = bench_of(driver, budget=ExecutionBudget(max_seconds=10))
    session = bench.submit()
    bench.step(session)
    assert isinstance(look(bench, session, HOUR), RetryLater)
    driver.finish()
    assert isinstance(look(bench, session, HOUR), Done)
    assert bench.record(session).status is ExecutionStatus.COMPLETED
    assert bench.execution(session).elapsed_seconds() < 1.0
    bench.close()


def test_a_loop_with_tools_between_pays_each_answer_once_at_the_price_of_its_window(driver: LaterDriver) -> None:
    ran: list[int] = []

    @tool(effect="pure")
    def add(number: int) -> int:
        """Add."""
        ran.append(number)
        return number + 1

    bench = bench_of(driver, tools=[add])
    session = bench.submit()
    for number in range(10):
        bench.step(session)
        call = ToolCall(id=f"c{number}", name="add", args={"number": number})
        driver.finish(InferenceResponse(tool_calls=(call,), cost=0.06) if number < 9 else "sum")
        assert isinstance(look(bench, session), Done)
    assert bench.record(session).final_response == "sum"
    assert math.isclose(cost(bench.record(session)), 0.6)
    assert ran == list(range(9))
    assert [job.messages for job in driver.jobs] == list(range(1, 20, 2))
    assert len({job.order.key for job in driver.jobs}) == 10
    bench.close()


def test_a_rejected_answer_is_asked_again_as_another_job(driver: LaterDriver) -> None:
    bench = bench_of(driver)
    session = bench.submit()
    real = driver.parse

    def parse(raw: bytes) -> InferenceResponse:
        if b"wrong" in raw:
            raise UnusableAnswer("no shape", correction="say it right").paid(None, 0.06, "wrong")
        return real(raw)

    driver.parse = parse  # type: ignore[method-assign]
    bench.step(session)
    driver.finish("wrong")
    assert isinstance(look(bench, session), RetryLater)  # another job was created in the same leg
    driver.finish("right")
    assert isinstance(look(bench, session), Done)
    assert bench.record(session).final_response == "right"
    assert [job.messages for job in driver.jobs] == [1, 3]  # the answer and the correction behind the question
    assert math.isclose(cost(bench.record(session)), 0.12)
    bench.close()


# --- crashes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "jobs"), [("p0", 1), ("p1", 2), ("p2", 1)], ids=["intended", "created", "kept"]
)  # fmt: skip
def test_a_crash_around_the_creation_of_a_response(bench: Bench, driver: LaterDriver, point: str, jobs: int) -> None:
    """Background responses are in no list: behind a crash between creation and id, one may be paid that nobody reads."""
    session = bench.submit()
    die_at(point)
    bench.worker_died(session)
    look(bench, session)
    assert len(driver.jobs) == jobs
    driver.finish("done")
    assert isinstance(look(bench, session), Done)
    assert bench.record(session).final_response == "done"
    assert len(driver.jobs) == jobs


@pytest.mark.parametrize("point", ["p0", "p1", "p2"])
def test_a_batch_is_found_by_its_key(driver: LaterDriver, point: str) -> None:
    driver.is_listed = True
    bench = bench_of(driver, "24h")
    session = bench.submit()
    die_at(point)
    bench.worker_died(session)
    for _ in range(3):  # until whoever was about to create it cannot do so any more
        assert isinstance(look(bench, session), RetryLater)
    assert len(driver.jobs) == 1
    driver.finish()
    assert isinstance(look(bench, session), Done)
    assert len(driver.jobs) == 1
    bench.close()


def searching_in_vain(driver: LaterDriver) -> tuple[Bench, str]:
    """A session whose worker died before the id of its batch was kept, at a provider that cannot tell yet."""
    driver.is_listed, driver.is_searchable = True, False
    bench = bench_of(driver, "24h")
    session = bench.submit()
    die_at("p1")
    bench.worker_died(session)
    return bench, session


def test_a_search_that_cannot_tell_yet_is_waited_for(driver: LaterDriver) -> None:
    bench, session = searching_in_vain(driver)
    assert "the list is long" in look(bench, session).reason
    driver.is_searchable = True
    driver.finish()
    look(bench, session)
    assert isinstance(look(bench, session), Done)
    assert len(driver.jobs) == 1
    bench.close()


def test_a_search_that_can_never_tell_ends_behind_the_window(driver: LaterDriver) -> None:
    """No provider has a job for longer than its window: this one has answered, or never was."""
    bench, session = searching_in_vain(driver)
    assert isinstance(look(bench, session, 24 * HOUR), RetryLater)
    assert len(driver.jobs) == 1
    look(bench, session, HOUR + 700)
    assert len(driver.jobs) == 2
    driver.finish()
    assert isinstance(look(bench, session), Done)
    bench.close()


def test_a_batch_that_was_found_stays_although_its_creator_wakes_up_behind_that(driver: LaterDriver) -> None:
    """It knows other details of the same batch, which no other has a right to cancel for that."""
    driver.is_listed = True
    bench = bench_of(driver, "24h")
    session = bench.submit()
    ref = bench.due(session)
    assert ref is not None
    die_at("p1")
    bench.worker_died(session)
    look(bench, session)
    (entry,) = bench.store.housekeeping.provider_jobs()
    slept = Claim(id="slept", worker="another", ref=ref, attempt=1, now_ms=0)
    known = entry.model_copy(update={"handle": f"{entry.handle} "})
    bench.store.steps.keep_job(slept, known, Asked(b"", {}))
    assert not past_jobs(bench)
    bench.close()


def test_a_crash_with_the_answer_in_memory_collects_it_again(bench: Bench, driver: LaterDriver) -> None:
    session = bench.submit()
    bench.step(session)
    driver.finish("once")
    bench.clock.go_on(601)
    die_at("c2")
    bench.worker_died(session)
    assert isinstance(look(bench, session), Done)
    assert bench.record(session).final_response == "once"
    assert len(driver.jobs) == 1


def test_a_lost_reply_is_asked_again_within_the_step(bench: Bench, driver: LaterDriver) -> None:
    session, lost = bench.submit(), [LOST_REPLY]

    def lose() -> None:
        if lost:
            raise lost.pop()

    driver.created = lose
    bench.step(session)
    assert len(driver.jobs) == 2
    driver.finish("second")
    assert isinstance(look(bench, session), Done)
    assert bench.record(session).final_response == "second"


# --- jobs without an answer -------------------------------------------------------------------------------------


def fail_jobs(bench: Bench, driver: LaterDriver, session: str, times: int) -> Any:
    outcome = bench.step(session)
    for _ in range(times):
        driver.finish(JobEnded("expired", "the provider ended the batch"))
        outcome = look(bench, session)
    return outcome


def test_a_job_that_fails_is_asked_again_twice_and_then_the_execution_fails(bench: Bench, driver: LaterDriver) -> None:
    session = bench.submit()
    assert isinstance(fail_jobs(bench, driver, session, 3), Done)
    assert len(driver.jobs) == 3
    result = bench.record(session)
    assert result.status is ExecutionStatus.FAILED
    assert "the provider ended the batch" in str(result.errors)
    assert result.cost in (None, 0.0)


def test_or_the_model_is_asked_at_once(driver: LaterDriver) -> None:
    bench = bench_of(driver, window_failed="live")
    session = bench.submit()
    assert isinstance(fail_jobs(bench, driver, session, 3), Done)
    assert bench.record(session).final_response == "at once"
    assert math.isclose(cost(bench.record(session)), 0.1)
    assert bench.events(session).count("model_call_failed") == 3
    bench.close()


def test_a_window_that_was_given_up_stays_so_while_the_model_is_away(driver: LaterDriver) -> None:
    bench = bench_of(driver, window_failed="live")
    session = bench.submit()
    driver.answers = [*(refused(503, transient=True) for _ in range(3)), "at last"]
    assert isinstance(fail_jobs(bench, driver, session, 3), RetryLater)
    assert isinstance(look(bench, session), Done)
    assert bench.record(session).final_response == "at last"
    assert len(driver.jobs) == 3
    bench.close()


def test_a_retry_asks_once_more(bench: Bench, driver: LaterDriver) -> None:
    session = bench.submit()
    fail_jobs(bench, driver, session, 3)
    bench.retry(session)
    bench.step(session)
    driver.finish("now")
    assert isinstance(look(bench, session), Done)
    assert bench.record(session).final_response == "now"
    assert len(driver.jobs) == 4


@pytest.mark.parametrize("then", ["fail", "live"])
def test_a_window_that_its_provider_refuses(driver: LaterDriver, then: str) -> None:
    def refuse() -> None:
        raise refused()

    driver.creating = refuse
    bench = bench_of(driver, window_failed=then)
    session = bench.submit()
    assert isinstance(bench.step(session), Done)
    result = bench.record(session)
    assert driver.jobs == []
    if then == "live":
        assert result.final_response == "at once"
    else:
        assert "HTTP 400" in str(result.errors)
    bench.close()


def test_a_provider_that_is_away_is_asked_again_and_nothing_counts(bench: Bench, driver: LaterDriver) -> None:
    session, errors = bench.submit(), [refused(503, transient=True) for _ in range(3)]

    def refuse() -> None:
        if errors:
            raise errors.pop()

    driver.creating = refuse
    assert isinstance(bench.step(session), RetryLater)
    assert driver.jobs == []
    look(bench, session)
    driver.finish()
    assert isinstance(look(bench, session), Done)
    assert len(driver.jobs) == 1


def test_a_look_that_fails_is_made_again(bench: Bench, driver: LaterDriver) -> None:
    session = bench.submit()
    bench.step(session)

    def away() -> None:
        raise LOST_REPLY

    driver.looking = away
    assert "the connection broke" in look(bench, session).reason
    driver.looking = lambda: None
    driver.finish()
    assert isinstance(look(bench, session), Done)
    assert len(driver.jobs) == 1


def test_a_look_that_is_refused_for_good_fails_the_execution(bench: Bench, driver: LaterDriver) -> None:
    session = bench.submit()
    bench.step(session)

    def refuse() -> None:
        raise refused(401)

    driver.looking = refuse
    assert isinstance(look(bench, session), Done)
    result = bench.record(session)
    assert result.status is ExecutionStatus.FAILED
    assert "HTTP 401" in str(result.errors)


def test_a_job_that_its_provider_never_ends_is_given_up(bench: Bench, driver: LaterDriver) -> None:
    session = bench.submit()
    bench.step(session)
    assert isinstance(look(bench, session, 8 * HOUR), RetryLater)
    assert len(driver.jobs) == 1
    look(bench, session, HOUR + 60)
    assert len(driver.jobs) == 2


def test_an_answer_that_another_worker_has_journaled_meanwhile_is_not_asked_for_again(
    bench: Bench, driver: LaterDriver
) -> None:
    """Its claim is lost, and the provider's copy deleted by the time this worker looks."""
    session = bench.submit()
    bench.step(session)
    (entry,) = bench.store.housekeeping.provider_jobs()
    ref = bench.due(session)
    assert ref is not None
    slept = Claim(id="slept", worker="another", ref=ref, attempt=1, now_ms=0)
    raw = InferenceResponse(content="the report", cost=0.06).to_json()

    def journal() -> None:
        driver.looking = lambda: None
        job = JournaledJob(0, "8h", intended_ms=entry.since_ms, until_ms=0, id=entry.id, handle=entry.handle)
        bench.store.steps.record_job_answer(slept, job, entry, raw, bench.clock.now_ms())
        driver.jobs[0].is_deleted = True

    driver.looking = journal
    assert isinstance(look(bench, session), RetryLater)
    assert isinstance(bench.step(session), Done)
    assert bench.record(session).final_response == "the report"
    assert len(driver.jobs) == 1


# --- stops, messages and limits ---------------------------------------------------------------------------------


def test_a_stop_ends_the_execution_at_once_and_its_job_is_to_be_cancelled(bench: Bench, driver: LaterDriver) -> None:
    session = bench.submit()
    bench.step(session)
    assert not past_jobs(bench)
    bench.stop(session)
    bench.run(session)
    assert bench.record(session).status is ExecutionStatus.STOPPED
    (past,) = past_jobs(bench)
    assert past.is_open
    assert (past.entry.id, past.entry.session_id) == ("job-0", session)
    bench.store.housekeeping.forget_job(past.entry)
    assert not past_jobs(bench)
    del driver


def past_jobs(bench: Bench) -> list[Any]:
    return list(bench.store.housekeeping.past_jobs(bench.store.context.shards, {"report"}))


def test_a_deleted_session_leaves_its_job_to_be_cancelled(bench: Bench, driver: LaterDriver) -> None:
    session = bench.submit()
    bench.step(session)
    bench.stop(session)
    bench.run(session)
    bench.store.sessions.delete(session)
    assert [each.is_open for each in past_jobs(bench)] == [True]
    del driver


def test_an_answer_that_was_collected_leaves_a_copy_to_be_deleted(bench: Bench, driver: LaterDriver) -> None:
    session = bench.submit()
    bench.step(session)
    driver.finish()
    look(bench, session)
    assert [(each.entry.id, each.is_open) for each in past_jobs(bench)] == [("job-0", False)]
    assert not list(bench.store.housekeeping.provider_jobs())


def test_a_job_that_was_given_up_is_to_be_cancelled(bench: Bench, driver: LaterDriver) -> None:
    session = bench.submit()
    bench.step(session)
    driver.finish(JobEnded("failed", "no"))
    look(bench, session)
    assert [(each.entry.id, each.is_open) for each in past_jobs(bench)] == [("job-0", True)]
    assert len(list(bench.store.housekeeping.provider_jobs())) == 2


def test_a_message_waits_for_the_answer(bench: Bench, driver: LaterDriver) -> None:
    session = bench.submit()
    bench.step(session)
    assert bench.send(session, "and more").outcome == "queued"
    driver.finish("first")
    look(bench, session)
    bench.step(session)
    assert [job.messages for job in driver.jobs] == [1, 3]


def test_a_provider_wakes_the_step(bench: Bench, driver: LaterDriver) -> None:
    session = bench.submit()
    bench.step(session)
    driver.finish()
    found = bench.store.housekeeping.wake_job("job-0")
    assert found is not None
    entry, ref = found
    assert entry.session_id == session
    assert ref is not None
    assert isinstance(bench.runner.run_step(ref), Done)
    assert bench.store.housekeeping.wake_job("job-0") is None
    assert bench.store.housekeeping.wake_job("job-9") is None


def test_a_provider_that_tells_during_a_look_lets_the_step_look_once_more(bench: Bench, driver: LaterDriver) -> None:
    """The job ends when the provider has said that it has not, and before the step is put off."""
    session, collected = bench.submit(), driver.collect_job
    bench.step(session)

    def end_behind(request: InferenceRequest, handle: str) -> bytes | None:
        driver.collect_job = collected
        said = collected(request, handle)
        assert bench.store.housekeeping.wake_job("job-0") is not None
        return said

    driver.collect_job = end_behind
    assert isinstance(look(bench, session), RetryLater)
    assert bench.store.sessions.step_facts(session).put_off == ""
    assert isinstance(bench.step(session), RetryLater)
    assert bench.store.sessions.step_facts(session).put_off == "job", "it is told once"
    driver.finish()
    assert isinstance(look(bench, session), Done)


def test_a_deadline_before_the_end_of_the_window_is_refused(bench: Bench, driver: LaterDriver) -> None:
    deadline = bench.clock.now + timedelta(hours=2)
    session = bench.submit(budget=ExecutionBudget(deadline=deadline))
    bench.run(session)
    result = bench.record(session)
    assert result.status is ExecutionStatus.FAILED
    assert "the deadline" in str(result.errors)
    assert driver.jobs == []


def test_a_deadline_ends_it_at_its_time(bench: Bench, driver: LaterDriver) -> None:
    deadline = bench.clock.now + timedelta(hours=9)
    session = bench.submit(budget=ExecutionBudget(deadline=deadline))
    bench.step(session)
    bench.clock.go_on(8.99 * HOUR)
    bench.step(session)
    assert isinstance(look(bench, session, 40), Done)
    assert bench.record(session).stop_reason is StopReason.TIME_LIMIT_REACHED
    assert [each.is_open for each in past_jobs(bench)] == [True] * len(driver.jobs)


@pytest.mark.parametrize(("is_listed", "ended"), [(True, "completed"), (False, "failed")])
def test_a_job_whose_creation_takes_longer_than_its_step_is_found_or_not_paid_twice(
    driver: LaterDriver, is_listed: bool, ended: str
) -> None:
    bench = bench_of(driver, "24h")
    driver.is_listed = is_listed
    session = bench.submit()

    def hang() -> None:
        bench.clock.go_on(901)
        raise LOST_REPLY

    driver.created = hang
    bench.step(session)
    driver.finish("found")
    bench.run(session)
    bench.clock.go_on(601)
    bench.run(session)
    assert bench.record(session).status == ended
    assert len(driver.jobs) == 1
    bench.close()


# --- windows ----------------------------------------------------------------------------------------------------


def test_a_window_of_a_session_that_its_model_has_not_fails_the_execution() -> None:
    driver = LaterDriver(windows=("24h",))
    bench = bench_of(driver, "24h")
    state = bench.submit()
    session = bench.submit()
    bench.save_beside(session, lambda each: _with_window(each, "8h"))
    bench.run(session)
    assert "is not sold" in str(bench.record(session).errors)
    assert driver.jobs == []
    del state
    bench.close()


def _with_window(state: Any, window: str) -> Any:
    execution = state.execution
    return state.with_context_and_execution(state.context, execution._with(completion_window=window))
