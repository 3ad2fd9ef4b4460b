"""A durable run against `agent.run`: its metadata, its hooks, its tools from step to step, and messages that go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import AgentRunResult, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import AgentRunError, IncompleteToolCall, ModelHTTPError, RunCancelled
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

from celery_agents import CeleryDurability
from celery_agents.tasks.client.pydantic_runs import failure_of_run
from celery_agents.worker.state import DEFAULT, AgentState, thaw

from support.engine import Bench
from support.pydantic_examples import answers, comparable
from support.pydantic_found import conversation_of, found, submitted

SENT: list[Any] = []


class Recovering(AbstractCapability[Any]):
    """Gives each run that fails a result of its own."""

    async def on_run_error(self, ctx: RunContext[Any], *, error: BaseException) -> AgentRunResult[Any]:
        return AgentRunResult(output=f"recovered from {type(error).__name__}")


def failing(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    raise RuntimeError("the model is broken")


def silent(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse([])


@pytest.mark.parametrize("answer", [failing, silent])
def test_a_hook_that_recovers_from_an_error_gives_the_output(answer: Callable[..., ModelResponse]) -> None:
    agent = PydanticAgent(
        FunctionModel(answer), name="soft", retries=0, capabilities=[Recovering(), CeleryDurability()]
    )
    expected = agent.run_sync("go")
    with submitted(agent) as (bench, session):
        bench.run(session)
        assert bench.record(session).final_response == expected.output
        bench.send(session, "and now?")
        bench.run(session)
        assert bench.record(session).final_response == expected.output
        history = conversation_of(bench, session).history
    said = [part.content for message in history for part in message.parts if part.part_kind == "user-prompt"]
    assert said == ["go", "and now?"]


def test_a_tool_that_raises_has_no_result_where_a_hook_would_end_the_run_with_one() -> None:
    agent = PydanticAgent(TestModel(), name="soft", capabilities=[Recovering(), CeleryDurability(effect="pure")])

    @agent.tool_plain
    def boom() -> str:
        raise RuntimeError("boom")

    with submitted(agent) as (bench, session):
        bench.run(session)
        record = bench.record(session)
    assert record.status == "failed"
    assert "RuntimeError: boom" in str(record.errors)


def follow_up(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the tool, and give outputs then."""
    SENT.append(comparable(messages))
    number = sum(message.kind == "response" for message in messages)
    name, args = ("look", {}) if number == 0 else (info.output_tools[0].name, {"response": number})
    return ModelResponse([ToolCallPart(name, args, f"call{number}")])


def test_an_output_that_a_queued_message_puts_off_reaches_the_model_once() -> None:
    agent = PydanticAgent(
        FunctionModel(follow_up), name="asked", output_type=int, capabilities=[CeleryDurability(effect="pure")]
    )

    @agent.tool
    def look(ctx: RunContext[None]) -> str:
        ctx.enqueue("and then?", priority="when_idle")
        return "seen"

    SENT.clear()
    expected = agent.run_sync("go")
    sent = list(SENT)
    SENT.clear()
    with submitted(agent) as (bench, session):
        bench.run(session)
        assert bench.record(session).output == expected.output
        assert comparable(conversation_of(bench, session).history) == comparable(expected.all_messages())
    assert sent == SENT


def test_functions_of_the_agent_find_the_metadata_of_the_session_beside_those_of_the_agent() -> None:
    seen: list[Any] = []
    agent = PydanticAgent(
        TestModel(), name="known", metadata={"team": "shop"}, capabilities=[CeleryDurability(effect="pure")]
    )

    @agent.instructions
    def instruct(ctx: RunContext[None]) -> str:
        seen.append({name: value for name, value in (ctx.metadata or {}).items() if name != "celery"})
        return "Be brief."

    @agent.tool
    def look(ctx: RunContext[None]) -> str:
        assert ctx.metadata is not None
        assert ctx.metadata["celery"]["idempotency_key"]
        seen.append({name: value for name, value in ctx.metadata.items() if name != "celery"})
        return "seen"

    ours = found(agent)
    bench = Bench(ours)
    try:
        session = bench.submit(agent=ours, state=AgentState.fresh(now=bench.clock.now, metadata={"customer": "Ada"}))
        bench.run(session)
        answer = bench.state(session).store.section(DEFAULT).messages[-1]
    finally:
        bench.close()
    expected = {"team": "shop", "customer": "Ada"}
    assert seen
    assert all(each == expected for each in seen)
    assert answer.provider is not None
    assert thaw(answer.provider["pydantic_ai_agent"])["metadata"] == expected


class Ending(AbstractCapability[Any]):
    """Does something behind the end of a run, as a guardrail does."""

    def __init__(self, end: Callable[[RunContext[Any], AgentRunResult[Any]], AgentRunResult[Any]]) -> None:
        self._end = end

    async def after_run(self, ctx: RunContext[Any], *, result: AgentRunResult[Any]) -> AgentRunResult[Any]:
        return self._end(ctx, result)


class Wrapping(Ending):
    """Does so around a run."""

    async def after_run(self, ctx: RunContext[Any], *, result: AgentRunResult[Any]) -> AgentRunResult[Any]:
        return result

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Any) -> AgentRunResult[Any]:
        return self._end(ctx, await handler())


def shout(ctx: RunContext[Any], result: AgentRunResult[Any]) -> AgentRunResult[Any]:
    return replace(result, output=f"{result.output}!")


def refuse(ctx: RunContext[Any], result: AgentRunResult[Any]) -> AgentRunResult[Any]:
    raise ValueError("not this output")


def cancel(ctx: RunContext[Any], result: AgentRunResult[Any]) -> AgentRunResult[Any]:
    ctx.cancel()
    return result


def ending(hook: type[Ending], end: Any) -> PydanticAgent[None, Any]:
    agent = PydanticAgent(
        answers([("look", {})], "done"), name="ended", capabilities=[hook(end), CeleryDurability(effect="pure")]
    )
    agent.tool_plain(look_around, name="look")
    return agent


def look_around() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize("hook", [Ending, Wrapping])
def test_a_hook_behind_the_end_of_a_run_changes_its_output(hook: type[Ending]) -> None:
    agent = ending(hook, shout)
    assert agent.run_sync("go").output == "done!"
    with submitted(agent) as (bench, session):
        bench.run(session)
        assert bench.record(session).final_response == "done!"


@pytest.mark.parametrize(("end", "kind"), [(refuse, ValueError), (cancel, RunCancelled)])
def test_what_a_hook_raises_behind_the_end_of_a_run_fails_the_execution(end: Any, kind: type[Exception]) -> None:
    agent = ending(Ending, end)
    with pytest.raises(kind):
        agent.run_sync("go")
    with submitted(agent) as (bench, session):
        bench.run(session)
        record = bench.record(session)
    assert record.status == "failed"
    assert kind.__name__ in str(record.errors) or "not this output" in str(record.errors)
    assert record.final_response != "done"


@pytest.mark.parametrize("place", ["hook", "validator"])
def test_no_answer_is_paid_for_ever_behind_which_another_model_is_away(place: str) -> None:
    asked: list[int] = []

    def say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(len(messages))
        return ModelResponse([TextPart("done")])

    def away(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise ModelHTTPError(503, "judge", "what it has said")

    async def judge(output: str) -> str:
        return (await PydanticAgent(FunctionModel(away), name="judge").run(output)).output

    class Judging(AbstractCapability[Any]):
        async def after_run(self, ctx: RunContext[Any], *, result: AgentRunResult[Any]) -> AgentRunResult[Any]:
            return replace(result, output=await judge(result.output))

    hooks = [Judging()] if place == "hook" else []
    agent = PydanticAgent(FunctionModel(say), name="judged", capabilities=[*hooks, CeleryDurability()])
    if place == "validator":
        agent.output_validator(judge)
    with submitted(agent) as (bench, session):
        bench.run(session)
        record, used = bench.record(session), bench.execution(session).usage
        assert (record.status, record.stop_reason) == ("failed", "retry_limit")
        assert len(asked) == used.requests == bench.settings.driver_attempts
        assert "what it has said" not in str(record.errors)


def test_an_agent_that_a_tool_runs_and_that_cancels_itself_is_a_failed_call() -> None:
    below = PydanticAgent(answers([("end", {})], "never"), name="below")
    agent = PydanticAgent(
        answers([("delegate", {})], "done"), name="above", capabilities=[CeleryDurability(effect="pure")]
    )

    @below.tool
    def end(ctx: RunContext[None]) -> str:
        ctx.cancel()
        return "never"

    @agent.tool
    async def delegate(ctx: RunContext[None]) -> str:
        return (await below.run("go", usage=ctx.usage)).output

    expected = agent.run_sync("go")
    with submitted(agent) as (bench, session):
        bench.run(session)
        assert bench.record(session).final_response == expected.output
        assert comparable(conversation_of(bench, session).history) == comparable(expected.all_messages())


def cut_off(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call a tool until there are no more tokens."""
    return ModelResponse([ToolCallPart("look", '{"what": "the se', "call")], finish_reason="length")


def stopping(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse([ToolCallPart("look", {"what": "stop"}, "call")])


@pytest.mark.parametrize(("answer", "kind"), [(cut_off, IncompleteToolCall), (stopping, RunCancelled)])
def test_a_call_that_ends_the_run_raises_what_agent_run_raises(answer: Any, kind: type[AgentRunError]) -> None:
    agent = PydanticAgent(
        FunctionModel(answer),
        name="cut",
        model_settings={"max_tokens": 50},
        capabilities=[CeleryDurability(effect="pure")],
    )

    @agent.tool
    def look(ctx: RunContext[None], what: str) -> str:
        ctx.cancel()
        return what

    with pytest.raises(kind) as expected:
        agent.run_sync("go")
    with submitted(agent) as (bench, session):
        bench.run(session)
        raised = failure_of_run("cut", bench.record(session), bench.execution(session).errors)
    assert (type(raised), str(raised)) == (kind, str(expected.value))


def test_tools_that_come_later_reach_the_model_as_they_do_in_one_run() -> None:
    sent: list[Any] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        params = info.model_request_parameters
        sent.append((comparable(messages), sorted(params.introduced_tool_names or ())))
        name = ("first", "second", "first", "")[sum(message.kind == "response" for message in messages)]
        return ModelResponse([ToolCallPart(name, {}, f"call{len(messages)}")] if name else [TextPart("done")])

    agent = PydanticAgent(FunctionModel(answer), name="growing", capabilities=[CeleryDurability(effect="pure")])

    @agent.toolset(per_run_step=True)
    def tools(ctx: RunContext[None]) -> FunctionToolset[None]:
        grown = FunctionToolset[None]()
        for name in ("first", "second", "third")[: ctx.run_step]:
            grown.add_function(look_around, name=name)
        return grown

    expected = agent.run_sync("go")
    own = list(sent)
    assert own[-1][1] == ["second", "third"]
    sent.clear()
    with submitted(agent) as (bench, session):
        bench.run(session)
        assert comparable(conversation_of(bench, session).history) == comparable(expected.all_messages())
    assert sent == own
