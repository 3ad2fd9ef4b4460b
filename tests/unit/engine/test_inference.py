"""Asking the driver: what is tried again and when, answers that cannot be read, and what the model is asked with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool, FunctionDriver, InferenceRequest
from celery_agents.worker.engine import Done, Interruption, RetryLater
from celery_agents.worker.errors import ConfigurationError, DriverError, PutOff, UnusableAnswer
from celery_agents.worker.state import AgentState, ExecutionBudget, InferenceResponse, LLMConfig
from celery_agents.worker.tools import tool

from support.engine import Bench, WorkerDied, fragile_tool
from support.wait import wait_until

NewBench = Callable[..., Bench]


class Plan(FunctionDriver):
    """Raises or answers by a list, one a request; the last goes on. Remembers the requests."""

    def __init__(self, *answers: Any, unreadable: int = 0) -> None:
        super().__init__(self._next)
        self._answers = list(answers)
        self.requests: list[InferenceRequest] = []
        self.unreadable = unreadable

    def infer(self, request: InferenceRequest) -> Any:
        self.requests.append(request)
        return super().infer(request)

    def _next(self, state: AgentState) -> Any:
        answer = self._answers[min(len(self.requests), len(self._answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def parse(self, raw: bytes) -> InferenceResponse:
        if self.unreadable > 0:
            self.unreadable -= 1
            raise UnusableAnswer("no JSON")
        return super().parse(raw)


def _overloaded(**facts: Any) -> DriverError:
    return DriverError("overloaded", "the provider is overloaded", transient=True, status=529, **facts)


def test_a_transient_error_is_tried_again_within_the_step_and_each_attempt_is_recorded(new_bench: NewBench) -> None:
    driver = Plan(_overloaded(request_id="r1"), _overloaded(), "done")
    bench = new_bench(Agent("a", driver=driver))
    session_id = bench.submit()
    bench.run(session_id)
    assert (bench.record(session_id).status, len(driver.requests)) == ("completed", 3)
    journal = next(key for key in bench.key_names() if ":j:" in key)
    fields = bench.store.context.database.pipeline("test", [("HGETALL", journal)])[0]
    failures = [value for name, value in zip(fields[::2], fields[1::2], strict=True) if name.startswith(b"err:")]
    assert len(failures) == 2
    assert any(b'"status": 529' in failure and b'"r1"' in failure for failure in failures)


def test_an_outage_is_retried_later_with_growing_delays_and_no_attempt_counted(new_bench: NewBench) -> None:
    driver = Plan(_overloaded())
    bench = new_bench(Agent("a", driver=driver), driver_attempts=2)
    session_id = bench.submit()
    delays: list[float] = []
    for _ in range(8):
        outcome = bench.step(session_id)
        assert isinstance(outcome, RetryLater)
        delays.append(outcome.seconds)
        bench.clock.go_on(outcome.seconds + 0.1)
    assert delays == [5, 10, 20, 40, 80, 160, 320, 600]
    assert len(driver.requests) == 16


def test_an_outage_of_a_day_fails_with_the_retry_limit(new_bench: NewBench) -> None:
    bench = new_bench(Agent("a", driver=Plan(_overloaded())), driver_attempts=1)
    session_id = bench.submit()
    while isinstance(outcome := bench.step(session_id), RetryLater):
        bench.clock.go_on(outcome.seconds + 0.1)
    record = bench.record(session_id)
    assert (record.status, record.stop_reason, record.errors) == (
        "failed", "retry_limit", ("the provider is overloaded",),
    )  # fmt: skip


def test_a_short_pause_the_provider_asks_for_is_made_in_the_step_a_long_one_gives_the_slot_back(
    new_bench: NewBench,
) -> None:
    driver = Plan(_overloaded(retry_after=0.01), "done")
    assert new_bench(Agent("a", driver=driver)).ran().status == "completed"
    long = Plan(_overloaded(retry_after=90.0), "done")
    bench = new_bench(Agent("a", driver=long))
    session_id = bench.submit()
    (outcome,) = bench.run(session_id)
    assert isinstance(outcome, RetryLater)
    assert (outcome.seconds, len(long.requests)) == (90.0, 1)
    bench.clock.go_on(90.1)
    bench.run(session_id)
    assert bench.record(session_id).status == "completed"


def test_a_step_that_nobody_ran_for_a_day_behind_an_outage_is_tried_again(new_bench: NewBench) -> None:
    bench = new_bench(Agent("a", driver=Plan(_overloaded(), _overloaded(), "done")), driver_attempts=1)
    session_id = bench.submit()
    for seconds in (90_000, 10):  # no worker is at work for 25 hours
        assert isinstance(bench.step(session_id), RetryLater)
        bench.clock.go_on(seconds)
    assert isinstance(bench.step(session_id), Done)


def test_a_pause_of_years_is_cut(new_bench: NewBench) -> None:
    bench = new_bench(Agent("a", driver=Plan(_overloaded(retry_after=1e15))))
    outcome = bench.step(bench.submit())
    assert isinstance(outcome, RetryLater)
    assert outcome.seconds == bench.settings.retry_later_limit_seconds


@pytest.mark.parametrize(
    "error",
    [
        DriverError("authentication", "the key was refused", transient=False, status=401, code="invalid_api_key"),
        ValueError("a bug in the driver with token=abcdefgh12345678"),
        ConfigurationError("OPENAI_API_KEY is not set"),
    ],
)
def test_a_permanent_error_fails_at_once(new_bench: NewBench, error: Exception) -> None:
    driver = Plan(error)
    bench = new_bench(Agent("a", driver=driver))
    session_id = bench.submit()
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.stop_reason, record.step_count, len(driver.requests)) == ("failed", "error", 0, 1)
    assert "abcdefgh12345678" not in str(bench.state(session_id).to_json())
    (stored,) = bench.execution(session_id).errors
    if isinstance(error, DriverError):
        assert (stored.details["status"], stored.details["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("transient", [True, False])
def test_a_secret_in_the_text_of_a_drivers_own_error_is_stored_and_told_nowhere(
    new_bench: NewBench, transient: bool, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "sk-abcdefgh12345678"
    driver = Plan(DriverError("rejected", f"bad key {secret}", transient=transient, code=f"api_key={secret}"))
    bench = new_bench(Agent("a", driver=driver), compression=False)
    session_id = bench.submit()
    outcomes = bench.run(session_id)
    database = bench.store.context.database
    stored = [
        str(database.pipeline("test", [(_READERS[_kind(name)], name, *_RANGES[_kind(name)])]))
        for name in bench.key_names()
        if _kind(name)
    ]
    assert len(stored) > 3
    for text in (*stored, *map(str, outcomes), caplog.text):
        assert secret not in text


_READERS = {"hash": "HGETALL", "list": "LRANGE", "stream": "XRANGE"}
_RANGES: dict[str, tuple[Any, ...]] = {"hash": (), "list": (0, -1), "stream": ("-", "+")}


def _kind(name: str) -> str:
    """The type of a session's key, by its name."""
    if name.endswith(":events"):
        return "stream"
    if ":m:" in name or ":x:" in name or name.endswith(":inbox"):
        return "list"
    return "hash" if ":s:" in name else ""


@pytest.mark.parametrize("answer", [None, 5, object(), [], ["text", 5]])
def test_a_driver_that_answers_something_odd_fails_with_a_sentence(new_bench: NewBench, answer: Any) -> None:
    record = new_bench(Agent("a", driver=lambda state: answer)).ran()
    assert record.status == "failed"
    assert "return text" in record.errors[0]


def test_a_driver_of_ones_own_that_gives_no_bytes_fails_with_a_sentence(new_bench: NewBench) -> None:
    class Wrong(Plan):
        def infer(self, request: InferenceRequest) -> Any:
            return "text"

    record = new_bench(Agent("a", driver=Wrong("x"))).ran()
    assert (record.status, record.errors) == ("failed", ("a driver gives bytes, not a str",))


# --- answers that cannot be read ----------------------------------------------------------------------------------


def test_an_answer_that_cannot_be_read_is_dropped_and_asked_for_again(new_bench: NewBench) -> None:
    driver = Plan("done", unreadable=2)
    record = new_bench(Agent("a", driver=driver)).ran()
    assert (record.status, record.final_response, len(driver.requests)) == ("completed", "done", 3)


def test_answers_that_can_never_be_read_fail_the_execution_before_they_cost_more(new_bench: NewBench) -> None:
    driver = Plan("done", unreadable=1000)
    bench = new_bench(Agent("a", driver=driver), driver_attempts=3)
    session_id = bench.submit()
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.stop_reason, len(driver.requests)) == ("failed", "retry_limit", 3)
    driver.unreadable = 0
    bench.retry(session_id)
    bench.run(session_id)
    assert bench.record(session_id).final_response == "done"


@pytest.mark.parametrize("answer", ["done", UnusableAnswer("no answer of this provider")], ids=["parsed", "asked"])
def test_nor_do_they_where_a_limit_puts_the_step_off_between_them(new_bench: NewBench, answer: Any) -> None:
    limit = PutOff("the provider's limit", 90.0, "provider")
    driver = Plan(*[answer, limit] * 20, unreadable=1000)
    bench = new_bench(Agent("a", driver=driver), driver_attempts=3)
    session = bench.submit()
    while isinstance(outcome := bench.step(session), RetryLater) and len(driver.requests) < 40:
        bench.clock.go_on(outcome.seconds + 0.1)
    record = bench.record(session)
    assert (record.status, record.stop_reason, len(driver.requests)) == ("failed", "retry_limit", 5)


def test_a_parser_that_raises_anything_counts_as_an_unreadable_answer(new_bench: NewBench) -> None:
    class Broken(Plan):
        def parse(self, raw: bytes) -> InferenceResponse:
            if len(self.requests) == 1:
                raise KeyError("choices")
            return super().parse(raw)

    driver = Broken("done")
    assert new_bench(Agent("a", driver=driver)).ran().status == "completed"
    assert len(driver.requests) == 2


def test_an_unreadable_answer_of_a_worker_that_died_is_dropped_by_the_next(new_bench: NewBench) -> None:
    class Dying(Plan):
        def parse(self, raw: bytes) -> InferenceResponse:
            if self.unreadable == 2:
                self.unreadable = 1
                raise WorkerDied
            return super().parse(raw)

    driver = Dying("done", unreadable=2)
    bench = new_bench(Agent("a", driver=driver))
    session_id = bench.submit()
    bench.worker_died(session_id)
    bench.run(session_id)
    assert (bench.record(session_id).status, len(driver.requests)) == ("completed", 2)


def test_an_unreadable_answer_whose_tools_have_begun_is_not_replaced(new_bench: NewBench) -> None:
    """All effects of a step come from one answer."""
    driver = Plan(CallTool("fragile"))
    bench = new_bench(Agent("a", driver=driver, tools=[fragile_tool()]))
    session_id = bench.submit()
    bench.worker_died(session_id)
    driver.unreadable = 1
    bench.run(session_id)
    assert (bench.record(session_id).status, len(driver.requests)) == ("failed", 1)
    bench.retry(session_id)
    bench.step(session_id)
    assert len(driver.requests) == 1


# --- crashes ------------------------------------------------------------------------------------------------------


def test_a_journaled_answer_is_never_asked_for_again(new_bench: NewBench) -> None:
    driver = Plan(CallTool("fragile"), "done")
    bench = new_bench(Agent("a", driver=driver, tools=[fragile_tool(3)]))
    session_id = bench.submit()
    for _ in range(3):
        bench.worker_died(session_id)
    bench.run(session_id)
    assert (bench.record(session_id).final_response, len(driver.requests)) == ("done", 2)


def test_a_step_that_always_kills_its_worker_is_failed_with_the_retry_limit(new_bench: NewBench) -> None:
    driver = Plan(WorkerDied())
    bench = new_bench(Agent("a", driver=driver))
    session_id = bench.submit()
    for _ in range(5):
        bench.worker_died(session_id)
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.stop_reason, len(driver.requests)) == ("failed", "retry_limit", 5)
    assert bench.store.housekeeping.list_dead()[0]["session"] == session_id
    driver._answers = ["done"]
    bench.retry(session_id)
    bench.run(session_id)
    assert bench.record(session_id).status == "completed"


# --- what it is asked with ----------------------------------------------------------------------------------------


def test_the_prompt_of_the_agent_is_shown_and_not_stored_and_a_session_may_have_its_own(new_bench: NewBench) -> None:
    driver = Plan("done")
    bench = new_bench(Agent("a", driver=driver, system_prompt="the agent's"))
    session_id = bench.submit()
    bench.run(session_id)
    assert bench.state(session_id).system_prompt == ""
    for prompt in ("the session's", ""):
        bench.change_prompt(session_id, prompt)
        bench.send(session_id)
        bench.run(session_id)
    prompts = [request.state.system_prompt for request in driver.requests]
    assert prompts == ["the agent's", "the session's", "the agent's"]


def test_a_session_may_have_a_model_of_its_own_from_its_next_step_on(new_bench: NewBench) -> None:
    driver = Plan(CallTool("nothing"), "done")
    bench = new_bench(Agent("a", driver=driver))
    session_id = bench.submit()
    bench.step(session_id)
    config = LLMConfig(model="openai:other", settings={"temperature": 0.5})
    bench.change_model(session_id, config)
    bench.run(session_id)
    assert [request.settings for request in driver.requests] == [None, config]


def test_the_request_names_session_execution_step_tools_and_compiler(new_bench: NewBench) -> None:
    class LastOnly:
        def compile(self, state: AgentState) -> Any:
            return state.store.section().messages[-1:]

    @tool(effect="pure")
    def look() -> str:
        """Look around."""
        return "seen"

    driver = Plan("done")
    bench = new_bench(Agent("a", driver=driver, tools=[look], compiler=LastOnly()))
    session_id = bench.submit()
    bench.run(session_id)
    bench.send(session_id, "the last")
    bench.run(session_id)
    request = driver.requests[-1]
    assert (request.session_id, request.step) == (session_id, 1)
    assert request.execution_id == bench.execution(session_id).execution_id
    assert [(spec.name, spec.description) for spec in request.tools] == [("look", "Look around.")]
    assert [message.content for message in request.messages] == ["the last"]


class City(BaseModel):
    name: str
    people: int


def test_an_output_type_without_a_model_is_refused_where_it_is_written() -> None:
    with pytest.raises(ConfigurationError, match="output_type"):
        Agent("a", driver=lambda state: "done", output_type=City)
    with pytest.raises(ConfigurationError, match="base_url"):
        Agent("a", driver=lambda state: "done", base_url="http://localhost/v1")
    with pytest.raises(ConfigurationError, match="model_settings"):
        Agent("a", driver=lambda state: "done", model_settings={"temperature": 0})


# --- interruptions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_a_stop_ends_a_hanging_driver_within_a_second(new_bench: NewBench, is_async: bool) -> None:
    release, asked = threading.Event(), threading.Event()

    def hang(state: AgentState) -> str:
        asked.set()
        assert release.wait(20)
        return "late"

    async def hang_async(state: AgentState) -> str:
        asked.set()
        await asyncio.sleep(20)
        return "late"

    bench = new_bench(Agent("a", driver=hang_async if is_async else hang))
    session_id = bench.submit()
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(bench.step(session_id)))
    thread.start()
    assert asked.wait(10)
    assert bench.stop(session_id).outcome == "queued"
    (lease,) = bench.keeper._leases.values()
    bench.keeper.wake(lease.claim.id)
    if not is_async:  # its thread is given up, and whoever claims the step next ends it
        bench.clock.go_on(0.6)
        bench.keeper.tick()
        bench.step(session_id)
    wait_until(lambda: bench.store.sessions.record(session_id, "e1") is not None, "it has ended")
    record = bench.record(session_id)
    assert (record.status, record.stop_reason, record.step_count) == ("stopped", "user_requested", 0)
    release.set()
    thread.join(10)
    assert bench.record(session_id) == record


def hanging_once(times: list[int]) -> Callable[[AgentState], Awaitable[str]]:
    """A driver whose first call hangs; each call leaves a mark in `times`."""

    async def hang_once(state: AgentState) -> str:
        times.append(1)
        if len(times) == 1:
            await asyncio.sleep(20)
        return "done"

    return hang_once


def test_a_step_that_reaches_its_deadline_in_the_driver_fails_and_can_be_retried(new_bench: NewBench) -> None:
    times: list[int] = []
    bench = new_bench(Agent("a", driver=hanging_once(times), step_timeout=0.1))
    session_id = bench.submit()
    thread = threading.Thread(target=lambda: bench.step(session_id))
    thread.start()
    wait_until(lambda: bench.keeper.running == 1 and times, "it hangs")
    bench.clock.go_on(0.2)
    bench.keeper.tick()
    thread.join(10)
    record = bench.record(session_id)
    assert (record.status, record.stop_reason) == ("failed", "time_limit")
    bench.retry(session_id)
    bench.run(session_id)
    assert bench.record(session_id).status == "completed"


def test_a_budget_whose_time_is_over_cancels_the_driver_and_stops(new_bench: NewBench) -> None:
    asked = threading.Event()

    async def hang(state: AgentState) -> str:
        asked.set()
        await asyncio.sleep(20)
        return "late"

    bench = new_bench(Agent("a", driver=hang))
    session_id = bench.submit(budget=ExecutionBudget(max_seconds=5))
    thread = threading.Thread(target=lambda: bench.step(session_id))
    thread.start()
    assert asked.wait(10)
    bench.clock.go_on(5.1)
    bench.keeper.tick()
    thread.join(10)
    record = bench.record(session_id)
    assert (record.status, record.stop_reason, record.step_count) == ("stopped", "time_limit", 0)


def test_a_draining_worker_gives_a_hanging_step_back_and_another_carries_it_on(new_bench: NewBench) -> None:
    times: list[int] = []
    bench = new_bench(Agent("a", driver=hanging_once(times)))
    session_id = bench.submit()
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(bench.step(session_id)))
    thread.start()
    wait_until(lambda: times and bench.keeper.running == 1, "it hangs")
    bench.keeper.interrupt_all(Interruption.DRAIN)
    thread.join(10)
    assert isinstance(outcomes[0], RetryLater)
    assert isinstance(bench.step(session_id, bench.another_worker(*bench.agents, name="other")), Done)
    assert bench.record(session_id).status == "completed"
