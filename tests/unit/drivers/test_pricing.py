"""What an answer costs."""

import pytest
from genai_prices import Usage

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import PydanticAIDriver, TokenPrice
from celery_agents.worker.drivers.pricing import cost_of, is_priced, price_list_id
from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.state import ExecutionBudget, LLMConfig

from support.engine import Bench

USAGE = Usage(input_tokens=1_000_000, output_tokens=1_000_000)


def test_a_known_model_has_a_price_under_every_spelling_of_its_provider():
    price = cost_of(USAGE, "openai", "gpt-4o-mini")
    assert price is not None
    assert price > 0
    for provider in ("openai-chat", "openai-responses", "gateway/openai"):
        assert cost_of(USAGE, provider, "gpt-4o-mini") == price
    assert price_list_id("google-cloud") == "google"


def test_the_name_that_was_asked_for_comes_before_the_name_in_the_answer():
    known = cost_of(USAGE, "openai", "gpt-4o-mini")
    assert cost_of(USAGE, "openai", "gpt-4o-mini", "gpt-4o-mini-of-the-year-3000") == known
    assert cost_of(USAGE, "openai", "my-alias", "gpt-4o-mini") == known
    assert cost_of(USAGE, "openai", None, "gpt-4o-mini") == known


def test_tokens_read_from_the_cache_are_cheaper():
    cached = Usage(input_tokens=1_000_000, cache_read_tokens=1_000_000, output_tokens=0)
    plain = Usage(input_tokens=1_000_000, output_tokens=0)
    cheap, full = cost_of(cached, "openai", "gpt-4o-mini"), cost_of(plain, "openai", "gpt-4o-mini")
    assert cheap is not None
    assert full is not None
    assert cheap < full


def test_an_unknown_model_or_provider_has_none():
    assert cost_of(USAGE, "openai", "no-such-model") is None
    assert cost_of(USAGE, "no-such-provider", "gpt-4o-mini") is None
    assert not is_priced("openai", "no-such-model")


def test_a_usage_that_contradicts_itself_has_none():
    assert cost_of(Usage(input_tokens=1, cache_read_tokens=5), "openai", "gpt-4o-mini") is None


def test_a_price_of_ones_own():
    assert TokenPrice(input=2, output=10).cost(Usage(input_tokens=500_000, output_tokens=100_000)) == 2.0
    assert TokenPrice(0, 0).cost(USAGE) == 0.0


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), True, "5", None])
def test_a_price_that_is_none_is_refused(value: float):
    with pytest.raises(ConfigurationError, match=r"TokenPrice\.output"):
        TokenPrice(1.0, value)


def test_a_driver_says_before_the_first_call_whether_it_will_know_costs():
    assert PydanticAIDriver("openai:gpt-4o-mini").knows_price()
    assert not PydanticAIDriver("openai:no-such-model").knows_price()
    assert not PydanticAIDriver("qwen3:8b", base_url="http://localhost:1/v1").knows_price()
    assert PydanticAIDriver("openai:no-such-model", price=TokenPrice(1, 1)).knows_price()
    assert not PydanticAIDriver("openai:gpt-4o-mini").knows_price(LLMConfig(model="openai:no-such-model"))
    assert PydanticAIDriver("openai:no-such-model").knows_price(LLMConfig(model="anthropic:claude-haiku-4-5"))


def test_an_agent_gives_its_model_a_price() -> None:
    agent = Agent("a", model="openai:no-such-model", price=TokenPrice(1, 2))
    assert agent.answering.knows_price()
    with pytest.raises(ConfigurationError, match="price=3 must be a TokenPrice"):
        Agent("a", model="openai:no-such-model", price=3)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigurationError, match=r"price belongs to model=.* return InferenceResponse\(output=…, cost=…\)"
    ):
        Agent("a", driver=lambda _: "x", price=TokenPrice(1, 2))


def test_a_cost_limit_without_a_price_names_the_argument_that_gives_one() -> None:
    bench = Bench(Agent("a", model="openai:no-such-model"))
    session_id = bench.submit(budget=ExecutionBudget(max_cost=1))
    bench.run(session_id)
    assert "no known price. Give it one, Agent(price=TokenPrice(…))" in bench.state(session_id).errors[0].message
    bench.close()
