"""How long a model is waited for before it is asked again, and which question the next one gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import InferenceRequest, ScriptedDriver
from celery_agents.worker.engine.asking import ask_models, check_prices
from celery_agents.worker.engine.leases import CallInterrupted
from celery_agents.worker.errors import ConfigurationError, DriverError, PutOff, UnusableAnswer
from celery_agents.worker.state import ExecutionBudget, LLMConfig

from support.asking_providers import ProviderDriver, agent_of, refused
from support.claimed_runs import claim_run
from support.engine import Bench

NewBench = Callable[..., Bench]
MODELS = ("openai:a", "anthropic:b", "groq:c")


class Asked:
    """A step whose attempts fail as the test says, until it says that one is answered.

    Attributes:
        requests: Those that were made.
        noted: The failures that were noted, with the pause after each.
    """

    def __init__(self, bench: Bench) -> None:
        self.services = bench.gate._services
        self.run, self.lease = claim_run(bench)
        self.requests: list[InferenceRequest] = []
        self.noted: list[tuple[DriverError, float | None]] = []

    def ask(self, *failures: DriverError, settings: LLMConfig | None = None) -> str:
        left = list(failures)

        def attempt(request: InferenceRequest) -> str:
            self.requests.append(request)
            if left:
                raise left.pop(0)
            return "answer"

        request = InferenceRequest(self.run.state, "s", "e", 1, timeout=900.0, settings=settings)
        return ask_models(
            self.run,
            self.services,
            request,
            attempt=attempt,
            note=lambda _, error, pause: self.noted.append((error, pause)),
        )


@pytest.fixture
def new_asked(new_bench: NewBench) -> Callable[..., Asked]:
    """`new_asked("openai:a", "anthropic:b", driver_attempts=2)`"""

    def make(*models: str, budget: ExecutionBudget | None = None, **settings: Any) -> Asked:
        return Asked(new_bench(agent_of(ProviderDriver(), *models, budget=budget), **settings))

    return make


def test_pauses_are_random_below_a_bound_that_doubles_up_to_the_longest(new_asked: Callable[..., Asked]) -> None:
    waited: list[list[float]] = [[] for _ in range(6)]
    for _ in range(60):
        asked = new_asked(retry_delay_seconds=1.0, retry_delay_max_seconds=10.0, driver_attempts=7)
        assert asked.ask(*[refused("overloaded")] * 6) == "answer"
        for place, seconds in enumerate(asked.lease.waited):
            waited[place].append(seconds)
        assert [pause for _, pause in asked.noted] == asked.lease.waited
    assert all(min(pauses) >= 0.0 for pauses in waited)
    for bound, pauses in zip((1.0, 2.0, 4.0, 8.0, 10.0, 10.0), waited, strict=True):
        assert 0.75 * bound < max(pauses) <= bound  # fails by chance once in a million runs


def test_a_pause_is_what_the_provider_asks_for_up_to_the_longest(new_asked: Callable[..., Asked]) -> None:
    asked = new_asked(retry_delay_seconds=0.001, retry_delay_max_seconds=10.0)
    asked.ask(refused("overloaded", retry_after=10.0))
    assert asked.lease.waited == [10.0]
    with pytest.raises(DriverError):
        asked.ask(refused("overloaded", retry_after=10.1))
    assert asked.lease.waited == [10.0]


def test_after_a_failure_that_tells_of_limits_the_next_attempt_is_made_at_once(new_asked: Callable[..., Asked]) -> None:
    """It waits until it is admitted, where the limits are known."""
    asked = new_asked(retry_delay_seconds=5.0, retry_delay_max_seconds=10.0)
    error = refused("quota", retry_after=3_600.0)
    error.is_limited = True
    assert asked.ask(error) == "answer"
    assert asked.lease.waited == [0.0]


def test_no_model_is_asked_more_often_than_the_setting_says(new_asked: Callable[..., Asked]) -> None:
    asked = new_asked(driver_attempts=3)
    error = refused("overloaded")
    error.is_limited = True
    with pytest.raises(DriverError):
        asked.ask(error, error, error, error)
    assert len(asked.requests) == 3
    assert asked.noted[-1] == (error, None), "there is no next attempt"


def test_a_request_has_the_time_that_is_left_of_its_step(new_asked: Callable[..., Asked]) -> None:
    asked = new_asked(step_timeout_seconds=100.0, retry_delay_max_seconds=60.0)
    asked.ask(refused("overloaded", retry_after=30.0), refused("overloaded", retry_after=60.0))
    assert [each.timeout for each in asked.requests] == [900.0, pytest.approx(70.0), pytest.approx(10.0)]


def test_a_pause_ends_with_the_time_of_its_step(new_asked: Callable[..., Asked]) -> None:
    asked = new_asked(step_timeout_seconds=100.0, retry_delay_max_seconds=60.0)
    asked.ask(*[refused("overloaded", retry_after=60.0)] * 2)
    assert asked.lease.waited == [60.0, pytest.approx(40.0)]
    assert 0.0 < asked.requests[-1].timeout < 0.01, "a driver takes 0 for no limit"


def test_an_interrupted_pause_asks_no_further_model(new_asked: Callable[..., Asked]) -> None:
    asked = new_asked(*MODELS)
    asked.lease.interrupts_waits = True
    with pytest.raises(CallInterrupted):
        asked.ask(refused("overloaded"))
    assert len(asked.requests) == 1


def test_each_further_model_gets_the_same_question_once_it_is_its_turn(new_asked: Callable[..., Asked]) -> None:
    asked = new_asked(*MODELS, driver_attempts=1)
    asked.ask(refused("overloaded"), refused("overloaded"), settings=LLMConfig(settings={"temperature": 0.5}))
    assert [each.settings and each.settings.model for each in asked.requests] == [None, "anthropic:b", "groq:c"]
    assert [pause for _, pause in asked.noted] == [0.0, 0.0]
    assert len({each.state for each in asked.requests}) == 1


def test_of_what_only_has_to_wait_that_decides_which_waits_least(new_asked: Callable[..., Asked]) -> None:
    asked = new_asked(*MODELS)
    longest, shortest = PutOff("paused", 900.0, "x"), PutOff("the rate", 5.0, "y")
    with pytest.raises(PutOff, match="the rate"):
        asked.ask(longest, refused("quota"), shortest)
    assert [str(error) for error, _ in asked.noted] == ["quota of the provider"], "what was not asked has not failed"


def test_an_unusable_answer_of_a_later_model_asks_no_other(new_asked: Callable[..., Asked]) -> None:
    asked = new_asked(*MODELS, driver_attempts=1)
    with pytest.raises(DriverError, match="quota of the provider"):
        asked.ask(
            refused("quota"),
            UnusableAnswer(
                "no JSON",
            ),
        )
    assert len(asked.requests) == 2


# --- prices ----------------------------------------------------------------------------------------------------------


def refusal(new_bench: NewBench, agent: Agent, own: LLMConfig | None = None) -> str:
    """What is said of an execution with a limit of its cost; "" where its prices are known."""
    bench = new_bench(agent)
    session = bench.submit(budget=ExecutionBudget(max_cost=2.5))
    if own is not None:
        bench.change_model(session, own)
    try:
        check_prices(claim_run(bench, session)[0])
    except ConfigurationError as error:
        return str(error)
    return ""


def unpriced(*models: str) -> ProviderDriver:
    return ProviderDriver(unpriced=frozenset(models))


def test_a_first_model_without_a_price_is_refused_with_where_to_give_it(new_bench: NewBench) -> None:
    said = refusal(new_bench, agent_of(unpriced("openai:a"), *MODELS))
    assert said == (
        "agent 'asking' has max_cost=2.5, and 'openai:a' has no known price. "
        "Give it one, Agent(price=TokenPrice(…)), or limit tokens instead of cost."
    )


@pytest.mark.parametrize("model", MODELS[1:])
def test_a_fallback_without_a_price_is_refused_by_its_name(new_bench: NewBench, model: str) -> None:
    said = refusal(new_bench, agent_of(unpriced(model), *MODELS))
    assert f"{model!r} has no known price. Take another fallback, or limit tokens" in said


def test_a_session_with_a_model_of_its_own_needs_the_price_of_that_one_alone(new_bench: NewBench) -> None:
    agent = agent_of(unpriced("openai:a", "groq:c"), *MODELS)
    assert refusal(new_bench, agent, LLMConfig(model="openai:own")) == ""
    assert "'openai:own' has no known price. Give it one" in refusal(
        new_bench, agent_of(unpriced("openai:own"), *MODELS), LLMConfig(model="openai:own")
    )
    assert "'groq:c' has no known price" in refusal(
        new_bench,
        agent_of(unpriced("groq:c"), *MODELS),
        LLMConfig(settings={"temperature": 0.5}),  # type: ignore[arg-type]
    ), "settings alone are no model"


def test_a_driver_of_the_users_is_told_where_its_price_belongs(new_bench: NewBench) -> None:
    class Unpriced(ScriptedDriver):
        price_option = "Mine(price=…)"

        def knows_price(self, settings: object = None) -> bool:
            return False

    assert "Give it one, Mine(price=…), or limit" in refusal(new_bench, Agent("own", driver=Unpriced(["x"])))
