"""A provider that is away, and answers that cannot be used: watchers are told, everything paid for is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import InferenceRequest
from celery_agents.worker.engine import Done, RetryLater
from celery_agents.worker.errors import DriverError, UnusableAnswer
from celery_agents.worker.guards import PROCEED, Delay, GuardView, Verdict
from celery_agents.worker.state import AgentState, ExecutionBudget, InferenceResponse, InferenceUsage, Role

from support.engine import Bench, WorkerDied

NewBench = Callable[..., Bench]
USAGE = InferenceUsage(input=10, output=5, requests=1)


class Picky:
    """A driver whose answers are rejected by `parse` until the model is told what was wrong.

    Args:
        rejections: How many answers are rejected.
        dies_after: The worker ends when it parses its n-th answer for the second time.
    """

    name = "picky"
    is_async = False

    def __init__(self, rejections: int, dies_at: int | None = None) -> None:
        self.rejections = rejections
        self.dies_at = dies_at
        self.asked: list[list[tuple[Role, str]]] = []

    def infer(self, request: InferenceRequest) -> bytes:
        self.asked.append([(message.role, message.content) for message in request.messages])
        if self.dies_at == len(self.asked):
            self.dies_at = None
            raise WorkerDied
        good = len(self.asked) > self.rejections
        return InferenceResponse(content="good" if good else "bad", usage=USAGE, cost=0.25).to_json()

    def parse(self, raw: bytes) -> InferenceResponse:
        response = InferenceResponse.from_json(raw)
        if response.content == "bad":
            error = UnusableAnswer("it does not fit at $.total", correction="$.total is missing. Answer again.")
            raise error.paid(response.usage, response.cost, response.content)
        return response

    def check(self) -> None: ...

    def knows_price(self, settings: object = None) -> bool:
        return True

    async def aclose(self) -> None: ...


def test_a_rejected_answer_is_asked_again_with_what_was_wrong_and_counts(new_bench: NewBench) -> None:
    driver = Picky(rejections=2)
    bench = new_bench(Agent("picky", driver=driver))
    session_id = bench.submit("how much?")
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.final_response) == ("completed", "good")
    correction = [(Role.ASSISTANT, "bad"), (Role.USER, "$.total is missing. Answer again.")]
    question = [(Role.USER, "how much?")]
    assert driver.asked == [question, [*question, *correction], [*question, *correction, *correction]]
    assert (record.usage["input"], record.usage["requests"], record.cost) == (30, 3, 0.75)
    state = bench.state(session_id)
    assert [message.content for message in state.messages] == ["how much?", "good"], "the rejected ones are not kept"


def test_a_rejected_answer_counts_once_and_is_told_to_the_next_worker_when_this_one_dies(new_bench: NewBench) -> None:
    driver = Picky(rejections=1, dies_at=2)
    bench = new_bench(Agent("picky", driver=driver))
    session_id = bench.submit()
    bench.worker_died(session_id)
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.final_response, record.usage["input"], record.cost) == ("good", 20, 0.5)
    assert driver.asked[2][-1] == (Role.USER, "$.total is missing. Answer again.")


def test_rejected_answers_count_when_there_is_none_that_fits(new_bench: NewBench) -> None:
    bench = new_bench(Agent("picky", driver=Picky(rejections=99)), driver_attempts=3)
    record = bench.ran()
    assert (record.status, record.stop_reason) == ("failed", "retry_limit")
    assert (record.usage["input"], record.cost) == (30, 0.75)


def test_rejected_answers_use_up_the_budget(new_bench: NewBench) -> None:
    driver = Picky(rejections=99)
    bench = new_bench(Agent("picky", driver=driver, budget=ExecutionBudget(max_cost=0.5)))
    record = bench.ran()
    assert (record.status, record.stop_reason, record.cost) == ("stopped", "cost_limit", 0.5)
    assert len(driver.asked) == 2


def test_a_stop_between_a_rejected_answer_and_the_next_one_counts_what_was_paid(new_bench: NewBench) -> None:
    driver = Picky(rejections=1, dies_at=2)
    bench = new_bench(Agent("picky", driver=driver))
    session_id = bench.submit()
    bench.worker_died(session_id)
    bench.stop(session_id)
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.usage["input"], record.cost) == ("stopped", 10, 0.25)


# --- an outage ------------------------------------------------------------------------------------------------------


class Away:
    """A model that is away for a number of requests."""

    def __init__(self, requests: int, retry_after: float | None = None) -> None:
        self.left = requests
        self.retry_after = retry_after

    def __call__(self, state: AgentState) -> str:
        if self.left:
            self.left -= 1
            raise DriverError(
                "server_error", "the model failed (HTTP 500).", transient=True, status=500, code="oops",
                request_id="req_7", retry_after=self.retry_after,
            )  # fmt: skip
        return "back again"


def test_an_attempt_that_is_made_again_is_an_event_with_its_reason_and_the_next_try(new_bench: NewBench) -> None:
    bench = new_bench(Agent("away", driver=Away(2)))
    session_id = bench.submit()
    bench.run(session_id)
    assert bench.record(session_id).status == "completed"
    events = [event for event in bench.store.sessions.events(session_id) if event.type == "model_call_failed"]
    assert len(events) == 2
    data = dict(events[0].data)
    assert (data["kind"], data["status"], data["code"], data["request_id"]) == ("server_error", 500, "oops", "req_7")
    assert data["message"] == "the model failed (HTTP 500)."
    assert data["next_try_ms"] >= bench.clock.now_ms() - 1000


def test_a_delayed_step_is_an_event_with_its_reason_and_the_next_try(new_bench: NewBench) -> None:
    bench = new_bench(Agent("away", driver=Away(1, retry_after=60.0)))
    session_id = bench.submit()
    (outcome,) = bench.run(session_id)
    assert isinstance(outcome, RetryLater)
    event = bench.store.sessions.events(session_id)[-1]
    assert (event.type, event.step) == ("step_delayed", 1)
    next_try_ms = bench.clock.now_ms() + 60_000
    attempt = {"worker": event.data["worker"], "since_ms": bench.clock.now_ms(), "failed_model": "Away"}
    assert event.data == {"reason": outcome.reason, "next_try_ms": next_try_ms, "delays": 1, **attempt}
    (delayed,) = bench.store.housekeeping.list_delayed()
    assert (delayed.session_id, delayed.reason, delayed.next_try_ms) == (session_id, outcome.reason, next_try_ms)
    facts = bench.store.sessions.step_facts(session_id)
    assert (facts.reason, facts.not_before_ms, facts.delays, facts.claimed) == (outcome.reason, next_try_ms, 1, False)
    bench.clock.go_on(61)
    bench.run(session_id)
    assert bench.record(session_id).final_response == "back again"
    assert bench.events(session_id)[-3:] == ["step_resumed", "step_committed", "execution_completed"]
    assert bench.store.housekeeping.list_delayed() == []


@pytest.mark.parametrize(("seconds", "waits_in_its_slot"), [(0.02, True), (0.021, False)])
def test_a_step_keeps_its_slot_for_as_long_as_the_longest_delay(
    new_bench: NewBench, seconds: float, waits_in_its_slot: bool
) -> None:
    bench = new_bench(Agent("away", driver=Away(1, retry_after=seconds)), retry_delay_max_seconds=0.02)
    session_id = bench.submit()
    (outcome,) = bench.run(session_id)
    assert isinstance(outcome, Done if waits_in_its_slot else RetryLater)


def test_a_stopped_session_is_not_counted_as_delayed(new_bench: NewBench) -> None:
    bench = new_bench(Agent("away", driver=Away(9, retry_after=60.0)))
    session_id = bench.submit()
    bench.run(session_id)
    bench.stop(session_id)
    assert bench.record(session_id).status == "stopped"
    assert bench.store.housekeeping.list_delayed() == []
    bench.clock.go_on(61)
    bench.store.housekeeping.prune()
    delayed = bench.store.context.keys(session_id).shard.delayed
    assert bench.store.context.database.pipeline("test", [("ZCARD", delayed)]) == [0]


def test_a_guard_that_delays_says_why(new_bench: NewBench) -> None:
    class Slow:
        def check(self, view: GuardView) -> Verdict:
            return Delay(30, "office hours") if view.now.timestamp() < start + 30 else PROCEED

    bench = new_bench(Agent("slow", driver=lambda state: "ok", guards=[Slow()]))
    start = bench.clock.now.timestamp()
    session_id = bench.submit()
    bench.run(session_id)
    assert bench.store.sessions.events(session_id)[-1].data["reason"] == "office hours"


@pytest.mark.parametrize("status", [400, 401])
def test_a_refused_request_is_asked_once_and_fails_with_its_reason(new_bench: NewBench, status: int) -> None:
    asked: list[int] = []

    def refuse(state: AgentState) -> Any:
        asked.append(1)
        raise DriverError(
            "rejected", f"it refused (HTTP {status}, code bad, request r1).", transient=False, status=status
        )

    bench = new_bench(Agent("refused", driver=refuse))
    session_id = bench.submit()
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.errors) == ("failed", (f"it refused (HTTP {status}, code bad, request r1).",))
    assert asked == [1]
    assert "model_call_failed" not in bench.events(session_id)
