"""An agent of several models: the next one answers in the same step when the one before cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.tasks.observability.tracing import Tracing
from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import PydanticAIDriver, TokenPrice
from celery_agents.worker.engine import Done, RetryLater
from celery_agents.worker.errors import ConfigurationError, UnusableAnswer
from celery_agents.worker.hooks import Hook, HookPoint
from celery_agents.worker.state import ExecutionBudget, LLMConfig

from support.asking_providers import ProviderDriver, agent_of, refused
from support.engine import Bench

NewBench = Callable[..., Bench]
MODELS = ("openai:a", "anthropic:b", "groq:c")


def test_the_next_model_answers_in_the_same_step(new_bench: NewBench) -> None:
    driver = ProviderDriver(answers={"openai:a": [refused("overloaded")]})
    bench = new_bench(agent_of(driver, *MODELS))
    session = bench.submit()
    assert isinstance(bench.step(session), Done)
    assert bench.record(session).final_response == "anthropic:b: done"
    assert driver.models == ["openai:a"] * bench.settings.driver_attempts + ["anthropic:b"]
    last = bench.execution(session).last_step
    assert last is not None
    assert last.inference_response.model == "anthropic:b"
    told = [e.data["message"] for e in bench.store.sessions.events(session) if e.type == "model_call_failed"]
    assert told == ["overloaded of the provider"] * bench.settings.driver_attempts, "also where the next one is asked"


def test_a_used_up_quota_is_a_reason_to_ask_the_next(new_bench: NewBench) -> None:
    driver = ProviderDriver(answers={"openai:a": [refused("quota")]})
    bench = new_bench(agent_of(driver, *MODELS))
    assert bench.ran().final_response == "anthropic:b: done"
    assert driver.models == ["openai:a", "anthropic:b"], "a quota is not asked for again"


def test_a_model_that_cannot_take_the_history_is_passed_over(new_bench: NewBench) -> None:
    driver = ProviderDriver(answers={"openai:a": [refused("quota")], "anthropic:b": [refused("rejected")]})
    bench = new_bench(agent_of(driver, *MODELS))
    session = bench.submit()
    bench.run(session)
    assert bench.record(session).final_response == "groq:c: done"
    told = [e.data["message"] for e in bench.store.sessions.events(session) if e.type == "model_call_failed"]
    assert "rejected of the provider" in told


def test_a_first_model_that_refuses_for_good_is_an_error_of_the_agent(new_bench: NewBench) -> None:
    driver = ProviderDriver(answers={"openai:a": [refused("authentication")]})
    bench = new_bench(agent_of(driver, *MODELS))
    assert bench.ran().errors == ("authentication of the provider",)
    assert driver.models == ["openai:a"]


def test_an_answer_that_cannot_be_used_was_paid_for_and_asks_no_other_model(new_bench: NewBench) -> None:
    driver = ProviderDriver(answers={"openai:a": [UnusableAnswer()]})
    bench = new_bench(agent_of(driver, *MODELS))
    bench.ran()
    assert set(driver.models) == {"openai:a"}


def test_the_first_failure_decides_when_all_have_failed(new_bench: NewBench) -> None:
    said = {"openai:a": [refused("overloaded")], "anthropic:b": [refused("rejected")], "groq:c": [refused("rejected")]}
    bench = new_bench(agent_of(ProviderDriver(answers=said), *MODELS))
    outcome = bench.step(bench.submit())
    assert isinstance(outcome, RetryLater)
    assert "overloaded of the provider" in outcome.reason


def test_a_session_with_a_model_of_its_own_has_no_other(new_bench: NewBench) -> None:
    driver = ProviderDriver(answers={"openai:own": [refused("overloaded")]})
    bench = new_bench(agent_of(driver, *MODELS))
    session = bench.submit()
    bench.change_model(session, LLMConfig(model="openai:own"))
    assert isinstance(bench.step(session), RetryLater)
    assert set(driver.models) == {"openai:own"}


def test_settings_of_the_session_go_along(new_bench: NewBench) -> None:
    driver = ProviderDriver(answers={"openai:a": [refused("quota")]})
    bench = new_bench(agent_of(driver, *MODELS))
    session = bench.submit()
    bench.change_model(session, LLMConfig(settings={"temperature": 0.5}))  # type: ignore[arg-type]
    bench.step(session)
    asked = driver.asked[-1].settings
    assert asked is not None
    assert (asked.model, dict(asked.settings)) == ("anthropic:b", {"temperature": 0.5})


def test_auxiliary_calls_have_the_same_models(new_bench: NewBench) -> None:
    def judge(context: Any) -> Any:
        assert context.ask_model("judge", "Is this right?").content == "anthropic:b: done"
        return context

    driver = ProviderDriver(answers={"openai:a": [refused("quota")]})
    agent = agent_of(driver, *MODELS, hooks=[Hook(HookPoint.BEFORE_STEP, judge)])
    assert new_bench(agent).ran().status == "completed"
    assert [(request.purpose, model) for request, model in zip(driver.asked, driver.models, strict=True)] == [
        ("judge", "openai:a"), ("judge", "anthropic:b"), ("", "openai:a"), ("", "anthropic:b")
    ]  # fmt: skip


def test_a_span_names_the_model_that_was_asked(new_bench: NewBench) -> None:
    sdk, export = pytest.importorskip("opentelemetry.sdk.trace"), "opentelemetry.sdk.trace.export"
    spans, provider = (
        pytest.importorskip(f"{export}.in_memory_span_exporter").InMemorySpanExporter(),
        sdk.TracerProvider(),
    )
    provider.add_span_processor(pytest.importorskip(export).SimpleSpanProcessor(spans))
    agent = agent_of(ProviderDriver(answers={"openai:a": [refused("quota")]}), *MODELS)
    bench = new_bench(agent)
    bench.step(bench.submit(), bench.another_worker(agent, observer=Tracing(provider)))
    calls = [(each.name, each.attributes) for each in spans.get_finished_spans() if each.name.startswith("chat")]
    assert [(name, facts["gen_ai.provider.name"], facts.get("error.type")) for name, facts in calls] == [
        ("chat a", "openai", "quota"), ("chat b", "anthropic", None)
    ]  # fmt: skip


def test_a_cost_limit_needs_the_price_of_every_model(new_bench: NewBench) -> None:
    driver = ProviderDriver(unpriced=frozenset({"groq:c"}))
    bench = new_bench(agent_of(driver, *MODELS))
    result = bench.ran(budget=ExecutionBudget(max_cost=1))
    assert "'groq:c' has no known price" in result.errors[0]
    assert not driver.asked
    assert bench.ran().status == "completed", "without a cost limit it needs none"


def test_a_price_is_that_of_the_first_model() -> None:
    driver = PydanticAIDriver("openai:no-such-model", price=TokenPrice(1, 1))
    assert driver.knows_price()
    assert not driver.knows_price(LLMConfig(model="openai:no-such-other"))
    assert driver.knows_price(LLMConfig(model="openai:gpt-4o-mini"))


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ([], "found []"),
        (["openai:a", "openai:a"], "'openai:a' is there twice"),
        (["openai:a", "gpt-5"], "found 'gpt-5'"),
        (["openai:a", ":b"], "found ':b'"),
        (["openai:a", None], "found"),
        (["openai:a", ""], "found ''"),
        (7, "found 7"),
    ],
)
def test_a_list_that_cannot_be_asked_is_refused(model: Any, found: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        Agent("asking", model=model)
    assert found in str(refusal.value)
    assert "list of different ones, each as provider:name" in str(refusal.value)


@pytest.mark.parametrize("group", ["", "a b", "x|y", 7])
def test_a_group_that_is_no_name_is_refused(group: Any) -> None:
    with pytest.raises(ConfigurationError, match="provider_group"):
        Agent("asking", model="openai:a", provider_group=group)


def test_the_definition_names_all_models() -> None:
    one, same, two = Agent("a", model="openai:a"), Agent("a", model=["openai:a"]), Agent("a", model=list(MODELS))
    assert one.definition == same.definition
    assert "fallback" not in one.definition
    assert (two.definition["model"], two.definition["fallback"]) == ("openai:a", ["anthropic:b", "groq:c"])
    assert one.definition_hash != two.definition_hash
