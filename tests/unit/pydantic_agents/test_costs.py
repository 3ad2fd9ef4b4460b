"""The cost of answers of pydantic-ai agents: counted, limited, and refused where nobody knows the price."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import RunContext, UsageLimitExceeded, UsageLimits
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage, RunUsage

from celery_agents import CeleryDurability, ExecutionBudget
from celery_agents.worker.drivers import TokenPrice
from celery_agents.worker.pydantic_agents.conversation import read_conversation
from celery_agents.worker.pydantic_agents.usages import has_price, price_of
from celery_agents.worker.state import DEFAULT

from support.engine import Bench
from support.pydantic_examples import comparable
from support.pydantic_found import found

PRICE = TokenPrice(input=1_000_000, output=0)
"""One dollar for each token that is sent."""


def model(cost: Decimal | None) -> FunctionModel:
    """Calls a tool twice, at this cost each."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        usage = RequestUsage(input_tokens=2, output_tokens=1, cost=cost)
        number = len(messages) // 2
        if number < 2:
            return ModelResponse(parts=[ToolCallPart("look", {}, tool_call_id=f"c{number}")], usage=usage)
        return ModelResponse(parts=[TextPart("done")], usage=usage)

    return FunctionModel(answer)


def made(cost: Decimal | None, **options: Any) -> PydanticAgent[None, str]:
    agent = PydanticAgent(
        model(cost), name="costly", capabilities=[CeleryDurability(effect="pure", **options)], retries=0
    )

    @agent.tool
    def look(ctx: RunContext[None]) -> str:
        if cost is not None:
            ctx.usage.incr(RunUsage(requests=1, cost=Decimal("0.5"), details={"pages": 2}))
        return "looked"

    return agent


def run(agent: PydanticAgent[None, str], budget: ExecutionBudget | None = None) -> tuple[Bench, str]:
    ours = found(agent)
    bench = Bench(ours)
    session = bench.submit("go", agent=ours, budget=budget)
    bench.run(session)
    bench.close()
    return bench, session


def test_a_cost_that_pydantic_ai_knows_goes_through_the_steps_and_is_the_executions() -> None:
    agent = made(Decimal("0.0125"))
    expected = agent.run_sync("go")
    bench, session = run(agent)
    record = bench.record(session)
    assert (record.status, record.errors, record.cost) == ("completed", (), pytest.approx(0.0375))
    messages = bench.state(session).store.section(DEFAULT).messages
    conversation = read_conversation(messages, str(bench.execution(session).execution_id))
    assert comparable(conversation.history) == comparable(expected.all_messages())
    assert dataclasses.asdict(conversation.usage) == dataclasses.asdict(expected.usage)
    assert conversation.usage.cost == Decimal("1.0375")


def test_a_price_of_the_agents_own_is_kept_as_a_cost_limit() -> None:
    bench, session = run(made(None, price=PRICE), ExecutionBudget(max_cost=3.0))
    record = bench.record(session)
    assert record.status == "stopped"
    assert record.stop_reason == "cost_limit"
    assert (record.step_count, record.cost) == (2, 4.0)


def test_a_cost_within_the_limit_lets_the_run_end() -> None:
    bench, session = run(made(None, price=PRICE), ExecutionBudget(max_cost=7.0))
    assert (bench.record(session).status, bench.record(session).cost) == ("completed", 6.0)


def test_a_cost_limit_without_a_price_is_refused_before_the_model_is_asked() -> None:
    bench, session = run(made(None), ExecutionBudget(max_cost=1.0))
    record = bench.record(session)
    assert (record.status, record.step_count) == ("failed", 0)
    assert "has no known price" in record.errors[0]
    assert "CeleryDurability(price=TokenPrice(…))" in record.errors[0]


def test_an_unknown_price_without_a_cost_limit_is_no_error() -> None:
    bench, session = run(made(None))
    assert (bench.record(session).status, bench.record(session).cost) == ("completed", None)


def test_the_cost_limit_of_pydantic_ai_counts_over_the_steps() -> None:
    limits = UsageLimits(cost_limit=Decimal("0.6"))
    agent = made(Decimal("0.0125"), usage_limits=limits)
    with pytest.raises(UsageLimitExceeded) as own:
        agent.run_sync("go", usage_limits=limits)
    bench, session = run(agent)
    assert str(own.value) in str(bench.record(session).errors)


def is_rejected(response: ModelResponse) -> bool:
    """Whether a fallback asks its next model."""
    return response.text == "no"


def test_an_answer_that_a_fallback_has_rejected_was_paid_as_well() -> None:
    def says(text: str, tokens: int) -> FunctionModel:
        usage = RequestUsage(input_tokens=tokens, output_tokens=1)
        return FunctionModel(lambda messages, info: ModelResponse([TextPart(text)], usage=usage))

    several = FallbackModel(says("no", 2), says("yes", 3), fallback_on=[is_rejected])
    bench, session = run(PydanticAgent(several, name="costly", capabilities=[CeleryDurability(price=PRICE)]))
    record = bench.record(session)
    assert (record.status, record.final_response, record.cost) == ("completed", "yes", 5.0)
    assert (record.usage["input"], record.usage["output"], record.usage["requests"]) == (5, 2, 2)


KNOWN = OpenAIChatModel("gpt-4o-mini", provider=OpenAIProvider(api_key="not-a-real-key"))
UNKNOWN = OpenAIChatModel("my-own", provider=OpenAIProvider(api_key="not-a-real-key"))


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        ("openai:gpt-4o-mini", True),
        ("openai:no-such-model", False),
        ("no-colon", False),
        (KNOWN, True),
        (UNKNOWN, False),
        (WrapperModel(KNOWN), True),
        (FallbackModel(KNOWN, KNOWN), True),
        (FallbackModel(KNOWN, UNKNOWN), False),
        (TestModel(), False),
        (None, False),
    ],
)
def test_a_price_is_known_for_models_of_the_list(asked: Any, known: bool) -> None:
    assert has_price(asked) is known


def test_a_dated_name_in_the_answer_is_priced_by_the_one_that_was_asked_for() -> None:
    usage = RequestUsage(input_tokens=1_000_000)
    answer = ModelResponse(parts=[], usage=usage, model_name="gpt-4o-mini-of-tomorrow", provider_name="openai")
    assert price_of(answer, KNOWN, None) == price_of(answer, "openai:gpt-4o-mini", None) == pytest.approx(0.15)
    assert price_of(answer, UNKNOWN, None) is None
