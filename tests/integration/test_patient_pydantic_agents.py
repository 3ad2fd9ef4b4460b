"""Agents of pydantic-ai whose answers come later: their own runs ask, take the answers, and check them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider

from celery_agents import CeleryDurability
from celery_agents.worker.agent import as_agent
from celery_agents.worker.drivers import InferenceRequest, PydanticAIDriver
from celery_agents.worker.drivers.protocol import CreatedJob
from celery_agents.worker.engine import Done, RetryLater
from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.state import InferenceResponse

from support.engine import Bench
from support.patient_provider import PatientProvider
from support.states import running
from support.strict_provider import Body, Call, Reply


class Sum(BaseModel):
    """A sum."""

    total: int


class Answers:
    """What the model says, one after another."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)

    def __call__(self, body: Body) -> Reply:
        return self.replies.pop(0)


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def provider(answers: Answers) -> Iterator[PatientProvider]:
    with PatientProvider(answers) as made:
        yield made


def model_of(provider: PatientProvider, kind: str) -> Any:
    if kind == "anthropic":
        return AnthropicModel("claude-haiku-4-5", provider=AnthropicProvider(api_key="k", base_url=provider.root))
    if kind == "google":
        return GoogleModel("gemini-2.5-flash-lite", provider=GoogleProvider(api_key="k", base_url=provider.root))
    return OpenAIResponsesModel("gpt-5-mini", provider=OpenAIProvider(api_key="k", base_url=provider.url))


def bench_of(agent: Agent[Any, Any]) -> Bench:
    made = as_agent(agent, "test.agent")
    assert made is not None
    return Bench(made)


def run_through(bench: Bench, session: str) -> list[Any]:
    """Look again and again until it has ended; the outcomes."""
    outcomes: list[Any] = []
    while bench.due(session) is not None and len(outcomes) < 20:
        outcomes.append(bench.step(session))
        bench.clock.go_on(601)
    return outcomes


@pytest.mark.parametrize(
    ("kind", "window"), [("openai", "8h"), ("openai", "24h"), ("anthropic", "24h"), ("google", "24h")]
)
def test_a_run_asks_and_another_takes_the_answer(
    provider: PatientProvider, answers: Answers, kind: str, window: str
) -> None:
    ran: list[int] = []
    agent = Agent(
        model_of(provider, kind), name="adder", output_type=Sum,
        capabilities=[CeleryDurability(completion_window=window, effect="pure")],
    )  # fmt: skip

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Add."""
        ran.append(a + b)
        return a + b

    @agent.output_validator
    def check(output: Sum) -> Sum:
        if output.total != 3:
            raise ModelRetry("count again")
        return output

    answers.replies = [
        Reply(calls=(Call("c1", "add", '{"a": 1, "b": 2}'),)),
        Reply(calls=(Call("c2", "final_result", '{"total": 4}'),)),
        Reply(calls=(Call("c3", "final_result", '{"total": 3}'),)),
    ]
    bench = bench_of(agent)
    session = bench.submit("add 1 and 2")
    outcomes = run_through(bench, session)
    result = bench.record(session)
    assert result.output == {"total": 3}, result
    assert ran == [3]
    assert sum(isinstance(each, RetryLater) for each in outcomes) >= 3
    assert len(provider.book.created()) == len(provider.book.paid()) == 3
    assert {line["window"] for line in provider.book.created()} == {window}
    if kind != "anthropic":
        assert math.isclose(result.cost or 0.0, provider.book.dollars(), rel_tol=1e-6)
    bench.close()


def test_a_job_that_fails_is_asked_again(provider: PatientProvider, answers: Answers) -> None:
    agent = Agent(model_of(provider, "openai"), name="teller", capabilities=[CeleryDurability(completion_window="2h")])
    answers.replies = [Reply("said")] * 3
    bench = bench_of(agent)
    provider.plan(held=True)
    session = bench.submit("say it")
    assert isinstance(bench.step(session), RetryLater)
    provider.release(end="failed")
    bench.clock.go_on(601)
    assert isinstance(bench.step(session), RetryLater)
    assert len(provider.book.created()) == 2
    provider.release()
    bench.clock.go_on(601)
    assert isinstance(bench.step(session), Done)
    assert bench.record(session).final_response == "said"
    bench.close()


def test_a_model_that_is_not_sold_so_is_refused_where_the_agent_is_found(provider: PatientProvider) -> None:
    chat = OpenAIChatModel("gpt-5-mini", provider=OpenAIProvider(api_key="k", base_url=provider.url))
    agent = Agent(chat, name="chat", capabilities=[CeleryDurability(completion_window="8h")])
    with pytest.raises(ConfigurationError, match="is not sold with it"):
        as_agent(agent, "test.chat")


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("is_own", [False, True], ids=["of pydantic-ai", "of a name"])
def test_who_runs_it_again_attaches_to_an_answer_in_the_background(
    provider: PatientProvider, answers: Answers, monkeypatch: pytest.MonkeyPatch, streams: bool, is_own: bool
) -> None:
    """The first worker is gone behind the first event; the second one has the same answer, which is paid once."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    agent = Agent(model_of(provider, "openai"), name="teller", capabilities=[CeleryDurability(background=True)])
    answers.replies = [Reply("said in pieces, one behind another")] * 2
    made = as_agent(agent, "test.agent")
    assert made is not None
    named = PydanticAIDriver("openai-responses:gpt-5-mini", base_url=provider.url)
    driver: Any = named if is_own else made.answering
    told: list[str] = []
    kept: list[CreatedJob] = []
    request = InferenceRequest(
        running("say it"), session_id="s", execution_id="e", step=1, keep=kept.append,
        emit=(lambda delta: told.append(delta.text)) if streams else None,
    )  # fmt: skip
    provider.plan(held=True, held_after=6)

    async def play() -> InferenceResponse:
        first = asyncio.create_task(driver.infer(request))
        while not kept:
            await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        told.clear()  # a client that watches sees the text of an attempt from its beginning
        provider.release()
        return driver.parse(await driver.infer(replace(request, attach=kept[0].handle)))

    answer = asyncio.run(play())
    assert answer.content == "said in pieces, one behind another"
    assert ("".join(told) == answer.content) == streams
    assert len(provider.book.created()) == len(provider.book.paid()) == 1
    assert math.isclose(answer.cost or 0.0, provider.book.dollars(), rel_tol=1e-6)
    assert not provider.book.lines("cancel")


@pytest.mark.parametrize(("more", "window"), [({"completion_window": "8h"}, "8h"), ({"background": True}, "soonest")])
def test_an_agent_that_a_hook_asks_answers_at_once(
    provider: PatientProvider, answers: Answers, more: dict[str, Any], window: str
) -> None:
    helper = Agent(model_of(provider, "openai"), name="helper", capabilities=[CeleryDurability()])
    agent = Agent(model_of(provider, "openai"), name="teller", capabilities=[CeleryDurability(**more)])

    @agent.output_validator
    async def check(output: str) -> str:
        return f"{output}, {(await helper.run('right?')).output}"

    answers.replies = [Reply("said"), Reply("right")]
    bench = bench_of(agent)
    session = bench.submit("say it")
    run_through(bench, session)
    assert bench.record(session).final_response == "said, right"
    assert [line["window"] for line in provider.book.created()] == [window, None]
    bench.close()


def test_an_agent_whose_answers_nobody_attaches_to_is_refused(provider: PatientProvider) -> None:
    agent = Agent(model_of(provider, "anthropic"), name="claude", capabilities=[CeleryDurability(background=True)])
    with pytest.raises(ConfigurationError, match="is no model of OpenAI's responses"):
        as_agent(agent, "test.claude")
