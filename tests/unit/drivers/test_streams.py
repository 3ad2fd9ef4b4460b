"""A stream is read as a whole answer is; one that broke off is asked again, as a whole where it never says its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from celery_agents import CeleryDurability
from celery_agents.worker.drivers import Delta, InferenceRequest
from celery_agents.worker.drivers.pydantic_ai import PydanticAIDriver
from celery_agents.worker.drivers.pydantic_ai.received import interrupted_stream
from celery_agents.worker.drivers.pydantic_ai.streaming import StreamEnds
from celery_agents.worker.errors import DriverError
from celery_agents.worker.pydantic_agents.driver import PydanticAgentDriver
from celery_agents.worker.state import InferenceResponse

from support.states import running
from support.strict_provider import Body, Call, Reply, StrictProvider

KINDS = pytest.mark.parametrize("kind", ["own_openai", "own_anthropic", "pai_openai", "pai_anthropic"])
CALLS = (Call("c1", "note", '{"text": "a"}'), Call("c2", "note", '{"text": "b"}'))


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")


def driver_of(kind: str, url: str) -> Any:
    if kind == "own_openai":
        return PydanticAIDriver("openai:gpt-5-mini", base_url=f"{url}/v1")
    if kind == "own_anthropic":
        return PydanticAIDriver("anthropic:claude-haiku-4-5", base_url=url)
    options = CeleryDurability()
    openai = OpenAIProvider(openai_client=AsyncOpenAI(base_url=f"{url}/v1", max_retries=0))
    anthropic = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=url, max_retries=0))
    model: Any = OpenAIChatModel("gpt-5-mini", provider=openai)
    if kind == "pai_anthropic":
        model = AnthropicModel("claude-haiku-4-5", provider=anthropic)
    agent = PydanticAgent(model, name="a", capabilities=[options])

    @agent.tool_plain
    def note(text: str) -> str:
        """Write a note."""
        return text

    return PydanticAgentDriver(agent, options)


def ask(driver: Any, emitted: list[Delta] | None = None, run: Callable[..., Any] = asyncio.run) -> InferenceResponse:
    emit = None if emitted is None else emitted.append
    request = InferenceRequest(running("hello"), session_id="s", execution_id="e", step=1, emit=emit)
    return driver.parse(run(driver.infer(request)))


def attempt(call: Callable[[], InferenceResponse]) -> InferenceResponse | None:
    """The answer; None where it has to be asked for again."""
    try:
        return call()
    except DriverError as error:
        if error.transient:
            return None
        raise


@KINDS
@pytest.mark.parametrize("calls", [(), CALLS], ids=["text", "calls"])
def test_a_stream_that_is_cut_at_any_byte_is_whole_or_no_answer(kind: str, calls: tuple[Call, ...]) -> None:
    anthropic = "anthropic" in kind
    finish = ("tool_use" if anthropic else "tool_calls") if calls else ("end_turn" if anthropic else "stop")
    whole = Reply("The answer is 42.", calls, finish)
    body: Body = {"model": "claude" if anthropic else "gpt", "stream": True}
    length = len(whole.written(body))
    reply = whole
    with StrictProvider(lambda _: reply) as provider, asyncio.Runner() as runner:
        driver = driver_of(kind, provider.url)
        expected = ask(driver, [], runner.run)
        for cut in range(length - 600, length, 7):
            reply = replace(whole, cut=cut, is_clean_cut=cut % 2 == 0)
            answer = attempt(lambda: ask(driver, [], runner.run))
            assert answer is None or (answer.content, answer.tool_calls) == (expected.content, expected.tool_calls), cut


@KINDS
def test_watching_changes_no_answer(kind: str) -> None:
    finish = "max_tokens" if "anthropic" in kind else "length"
    reply = Reply("Half of \ud83d\ude00 \ud83d", CALLS, finish)
    with StrictProvider(lambda _: reply) as provider, asyncio.Runner() as runner:
        driver = driver_of(kind, provider.url)
        emitted: list[Delta] = []
        streamed, whole = ask(driver, emitted, runner.run), ask(driver, None, runner.run)
    assert [each.content for each in (streamed, whole)] == ["Half of 😀 �"] * 2
    assert (streamed.tool_calls, streamed.finish_reason, streamed.usage) == (
        whole.tool_calls, whole.finish_reason, whole.usage,
    )  # fmt: skip
    assert "".join(each.text for each in emitted).startswith("Half of 😀 ")


def test_a_server_that_never_gives_a_reason_is_asked_for_whole_answers() -> None:
    asked: list[bool] = []

    def answer(body: Body) -> Reply:
        asked.append(bool(body.get("stream")))
        return Reply("all of it", finish=None)

    with StrictProvider(answer) as provider:
        driver = driver_of("own_openai", provider.url)
        for _ in range(2):
            with pytest.raises(DriverError, match="finish reason"):
                ask(driver, [])
        assert ask(driver, []).content == "all of it"
    assert asked == [True, True, False]


class NeverStreamed(Reply):
    """A reply of a server that takes no notice of `stream`."""

    def written(self, body: Body) -> bytes:
        return super().written({**body, "stream": False})


@pytest.mark.parametrize("kind", ["own_openai", "pai_openai"])
@pytest.mark.parametrize("reply", [NeverStreamed("all of it"), Reply("all of it", cut=0, is_clean_cut=True)])
def test_a_server_that_never_begins_a_stream_is_asked_for_whole_answers(kind: str, reply: Reply) -> None:
    def answer(body: Body) -> Reply:
        return reply if body.get("stream") else Reply("all of it")

    with StrictProvider(answer) as provider, asyncio.Runner() as runner:
        driver = driver_of(kind, provider.url)
        for _ in range(2):
            with pytest.raises(DriverError, match="finish reason") as raised:
                ask(driver, [], runner.run)
            assert raised.value.kind == "interrupted"
        assert ask(driver, [], runner.run).content == "all of it"


def test_a_model_that_has_given_a_reason_is_streamed_on() -> None:
    ends = StreamEnds()
    ends.count("m")
    for _ in range(9):
        ends.count("m", interrupted_stream("m"))
    assert ends.may_stream("m")


def test_other_failures_do_not_end_streaming() -> None:
    ends = StreamEnds()
    for _ in range(9):
        ends.count("m", DriverError("connection", transient=True))
    assert ends.may_stream("m")


@pytest.mark.parametrize("kind", ["own_anthropic", "pai_anthropic"])
def test_an_answer_that_pydantic_ai_streams_by_itself_is_checked_too(kind: str) -> None:
    cut = Reply("The answer is", CALLS, "tool_use", cut=1400, is_clean_cut=True)
    with StrictProvider(lambda body: cut) as provider, pytest.raises(DriverError) as raised:
        ask(driver_of(kind, provider.url))
    assert raised.value.transient
