"""Spend caps as a worker keeps them: what would go beyond one does not begin, and what was spent counts once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.flow import SpendCap
from celery_agents.worker.agent import Agent
from celery_agents.worker.engine import Done, RetryLater
from celery_agents.worker.errors import DriverError, StoreUnavailable
from celery_agents.worker.flow.caps import cap_field
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import InferenceResponse, InferenceUsage, LLMConfig, ToolCall
from celery_agents.worker.tools import tool

from support.asking_providers import CountedDriver, ProviderDriver, agent_of
from support.engine import Bench, WorkerDied

NewBench = Callable[..., Bench]


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


class Priced(ProviderDriver):
    """A driver that says what a call may cost: 0.3 $."""

    def estimate_cost(self, settings: LLMConfig | None, sent: int, received: int) -> float | None:
        del settings, sent, received
        return 0.3


def set_cap(bench: Bench, usd: float | None = 1.0, name: str = "c", **changes: Any) -> None:
    bench.store.flow.set_value(SpendCap(name, usd=usd, per="day", **changes))
    bench.gate.refresh()


def spent(bench: Bench, name: str = "c") -> dict[str, float]:
    (status,) = (each for each in bench.store.flow.caps() if each.cap.name == name)
    return {each.value: round(each.usd, 6) for each in status.spent}


def put_off(outcome: object) -> RetryLater:
    assert isinstance(outcome, RetryLater), outcome
    return outcome


def test_without_a_cap_nothing_is_written(new_bench: NewBench) -> None:
    bench = new_bench(agent_of(Priced(), "openai:a"))
    bench.ran()
    assert not [key for key in bench.key_names() if key.startswith("ca:cap")]


@pytest.mark.parametrize("driver", [ProviderDriver, CountedDriver], ids=lambda each: each.__name__)
def test_what_a_call_costs_is_counted_and_a_call_beyond_the_cap_waits_for_the_next_period(
    new_bench: NewBench, driver: type[ProviderDriver]
) -> None:
    asked = driver()
    bench = new_bench(agent_of(asked, "openai:a"))
    set_cap(bench, 0.2)
    assert bench.ran().status == "completed"
    assert spent(bench) == {"": 0.1}
    bench.ran()
    assert spent(bench) == {"": 0.2}
    session = bench.submit()
    told = put_off(bench.step(session))
    assert "the spend cap c allows 0.2 $ a day, and 0.2 $ are spent; until " in told.reason
    facts = bench.store.sessions.step_facts(session)
    assert (len(asked.asked), facts.delays, facts.put_off.partition("|")[0]) == (2, 0, "cap:c")
    bench.clock.go_on(24 * 3600)
    assert isinstance(bench.step(session), Done)
    assert spent(bench) == {"": 0.1}


def test_a_call_that_is_refused_as_the_period_ends_counts_in_the_next_one(new_bench: NewBench) -> None:
    bench = new_bench(agent_of(Priced(), "openai:a"))
    set_cap(bench, 0.1)
    bench.ran()
    flow = bench.store.flow
    reserve_spending = flow.reserve_spending

    def reserve_late(*given: Any) -> Any:
        refused = reserve_spending(*given)
        bench.clock.go_on(24 * 3600 if refused else 0)
        return refused

    flow.reserve_spending = reserve_late  # type: ignore[method-assign]
    bench.ran()
    assert spent(bench) == {"": 0.1}


def test_a_call_that_may_cost_more_than_is_left_does_not_begin(new_bench: NewBench) -> None:
    asked = Priced()
    bench = new_bench(agent_of(asked, "openai:a"))
    set_cap(bench, 0.35)
    bench.ran()
    put_off(bench.step(bench.submit()))
    assert (len(asked.asked), spent(bench)) == (1, {"": 0.1})
    set_cap(bench, 0.4)
    bench.ran()
    assert spent(bench) == {"": 0.2}


def test_a_call_reserves_for_the_tokens_of_the_cache_and_of_reasoning_too(new_bench: NewBench) -> None:
    reserved = list[tuple[int, int]]()

    class Noting(Priced):
        def estimate_cost(self, settings: LLMConfig | None, sent: int, received: int) -> float | None:
            reserved.append((sent, received))
            return 0.0

    usage = InferenceUsage(input=10, output=5, cache_read=2_000, cache_write=300, reasoning=400)
    looking = InferenceResponse(tool_calls=(ToolCall(id="c", name="look"),), usage=usage)
    bench = new_bench(agent_of(Noting(answers={"openai:a": [looking, "done"]}), "openai:a", tools=[look]))
    set_cap(bench)
    bench.ran()
    assert reserved[1:] == [(2_310, 405)]


def test_without_a_price_list_a_session_begins_with_what_the_last_call_of_its_agent_has_cost(
    new_bench: NewBench,
) -> None:
    asked = ProviderDriver(answers={"openai:a": ["done", "done", lambda: (_ for _ in ()).throw(WorkerDied())]})
    bench = new_bench(agent_of(asked, "openai:a"))
    set_cap(bench)
    bench.ran()
    session = bench.submit()
    bench.run(session)
    bench.worker_died(bench.submit())
    assert spent(bench) == {"": 0.3}, "the call of the dead worker counts as the last one"


def test_a_cap_can_stop_executions(new_bench: NewBench) -> None:
    bench = new_bench(agent_of(Priced(), "openai:a"))
    set_cap(bench, 0.0, then="stop")
    record = bench.ran()
    assert (record.status, record.stop_reason) == ("stopped", "cost_limit")


def test_a_higher_cap_of_which_the_worker_has_not_heard_holds_at_once(new_bench: NewBench) -> None:
    bench = new_bench(agent_of(Priced(), "openai:a"))
    set_cap(bench, 0.0)
    bench.clock.go_on(1)
    bench.store.flow.set_value(SpendCap("c", usd=1, per="day"))
    assert bench.ran().status == "completed"
    bench.store.flow.set_value(SpendCap("c", usd=0, per="day"))
    bench.gate.refresh()
    bench.store.flow.remove_value(cap_field("c"))
    assert bench.ran().status == "completed"


def test_a_cap_holds_for_its_agent_and_for_each_value_of_a_label(new_bench: NewBench) -> None:
    bench = new_bench(agent_of(Priced(), "openai:a"))
    set_cap(bench, 0.0, "other", agent="another")
    set_cap(bench, 0.5, "customers", label="customer", values={"trial": 0.0})
    assert bench.ran().status == "completed"
    assert spent(bench, "customers") == {}
    session = bench.submit()
    bench.store.sessions.label(session, {"customer": "acme"})
    bench.run(session)
    assert spent(bench, "customers") == {"acme": 0.1}
    session = bench.submit()
    bench.store.sessions.label(session, {"customer": "trial"})
    assert "the spend cap customers for customer=trial is 0 $" in put_off(bench.step(session)).reason


def test_a_model_without_a_price_waits_and_says_what_to_do(new_bench: NewBench) -> None:
    asked = ProviderDriver(unpriced=frozenset({"openai:a"}))
    bench = new_bench(agent_of(asked, "openai:a"))
    set_cap(bench)
    told = put_off(bench.step(bench.submit())).reason
    assert "has no known price: give it one, Agent(price=TokenPrice(…))" in told
    assert asked.asked == []


@pytest.mark.parametrize(
    ("answer", "cost"),
    [
        (DriverError("bad_request", "refused", transient=False, status=400), 0.0),
        (DriverError("rate_limit", "too many", transient=False, status=429), 0.0),
        (DriverError("timeout", "no answer", transient=False), 0.3),
        (ValueError("a bug"), 0.3),
        (InferenceResponse(content="free", cost=0.0), 0.0),
        (InferenceResponse(content="of an unknown price"), 0.3),
    ],
    ids=str,
)
def test_a_call_without_an_answer_counts_where_its_provider_may_have_charged(
    new_bench: NewBench, answer: Any, cost: float
) -> None:
    bench = new_bench(agent_of(Priced(answers={"openai:a": [answer]}), "openai:a"), driver_attempts=1)
    set_cap(bench)
    bench.ran()
    assert spent(bench).get("", 0.0) == cost


def test_a_worker_that_dies_in_a_call_has_spent_what_it_reserved(new_bench: NewBench) -> None:
    deaths = [1]

    def die() -> object:
        if deaths:
            deaths.pop()
            raise WorkerDied
        return "done"

    bench = new_bench(agent_of(Priced(answers={"openai:a": [die]}), "openai:a"))
    set_cap(bench)
    session = bench.submit()
    bench.worker_died(session)
    assert spent(bench) == {"": 0.3}
    bench.run(session)
    assert spent(bench) == {"": 0.4}


def test_a_settlement_that_is_lost_leaves_what_was_reserved(new_bench: NewBench, caplog: Any) -> None:
    bench = new_bench(agent_of(Priced(), "openai:a"))
    set_cap(bench)

    def lost(*_: Any) -> Any:
        raise StoreUnavailable("Redis is away")

    bench.store.flow.settle_spending = lost  # type: ignore[method-assign]
    assert bench.ran().status == "completed"
    assert spent(bench) == {"": 0.3}
    assert "a model call was not settled under c" in caplog.text


def test_auxiliary_calls_are_counted_and_kept_away_too(new_bench: NewBench) -> None:
    def judge(context: HookContext) -> None:
        context.ask("judge", "Is it fine?")

    asked = Priced()
    bench = new_bench(agent_of(asked, "openai:a", hooks=[Hook(HookPoint.BEFORE_STEP, judge)]))
    set_cap(bench, 0.5)
    bench.ran()
    assert (len(asked.asked), spent(bench)) == (2, {"": 0.2})
    set_cap(bench, 0.0)
    put_off(bench.step(bench.submit()))
    assert len(asked.asked) == 2


def test_the_log_tells_when_most_of_a_cap_is_spent(new_bench: NewBench, caplog: Any) -> None:
    bench = new_bench(agent_of(ProviderDriver(), "openai:a"))
    set_cap(bench, 0.3)
    for _ in range(3):
        bench.ran()
    told = [each.message for each in caplog.records if each.message.startswith("spend cap")]
    assert told == ["spend cap c: 0.3 $ of 0.3 $ a day"]
    set_cap(bench, 1.0, "d")
    caplog.clear()
    bench.store.flow.remove_value(cap_field("c"))
    bench.gate.refresh()
    for _ in range(10):
        bench.ran()
    told = [each.message for each in caplog.records if each.message.startswith("spend cap")]
    assert told == ["spend cap d: 0.8 $ of 1 $ a day", "spend cap d: 1 $ of 1 $ a day"]


def test_a_fallback_reserves_for_itself(new_bench: NewBench) -> None:
    answers = {"openai:a": [DriverError("overloaded", "busy", transient=True, status=529)]}
    bench = new_bench(agent_of(Priced(answers=answers), "openai:a", "openai:b"), driver_attempts=1)
    set_cap(bench)
    assert bench.ran().status == "completed"
    assert spent(bench) == {"": 0.1}


def test_an_agent_of_functions_costs_what_its_answers_say(new_bench: NewBench) -> None:
    bench = new_bench(Agent("plain", driver=lambda state: InferenceResponse(content="done", cost=0.25)))
    set_cap(bench, 0.5)
    bench.ran()
    bench.ran()
    put_off(bench.step(bench.submit()))
    assert spent(bench) == {"": 0.5}
