"""Answers whose calls have equal or empty ids: each call that the model made runs as the model made it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from celery_agents import CeleryDurability
from celery_agents.worker.drivers import InferenceRequest
from celery_agents.worker.pydantic_agents.conversation import read_conversation
from celery_agents.worker.pydantic_agents.driver import PydanticAgentDriver
from celery_agents.worker.state import Approve, Deny, GivenAnswer, Message, thaw

from support.engine import Bench
from support.pydantic_found import conversation_of, found, submitted

LOOK, DELETE = ("look", {"text": "A"}), ("delete", {"text": "B"})
Calls = list[tuple[str, dict[str, str]]]


def agent_with(calls: Calls, ran: list[str], *, call_id: str = "x", approve: bool = False, **options: Any) -> Any:
    """An agent whose model makes these calls under one id, and answers when it has their results."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if any(part.part_kind == "tool-return" for message in messages for part in message.parts):
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart(name, args, tool_call_id=call_id) for name, args in calls])

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
        for part in answer(messages, info).parts:
            if isinstance(part, TextPart):
                yield part.content
        for place, part in enumerate(answer(messages, info).parts):
            if isinstance(part, ToolCallPart):
                arguments = part.args_as_json_str()
                yield {place: DeltaToolCall(part.tool_name, arguments, tool_call_id=part.tool_call_id)}

    agent: PydanticAgent[None, Any] = PydanticAgent(
        FunctionModel(answer, stream_function=stream),
        name="twins",
        capabilities=[CeleryDurability(effect="keyed")],
        **options,
    )

    @agent.tool_plain
    def look(text: str) -> str:
        ran.append(f"look {text}")
        return f"looked {text}"

    @agent.tool_plain(requires_approval=approve)
    def delete(text: str) -> str:
        ran.append(f"delete {text}")
        return f"deleted {text}"

    return agent


def results_of(bench: Bench, session: str) -> dict[str, Any]:
    """What each call of the first answer has brought, by the name of the tool that the model called."""
    history = conversation_of(bench, session).history
    calls = {part.tool_call_id: part.tool_name for part in history[1].parts}
    returned = {part.tool_call_id: part for part in history[2].parts}
    assert len(calls) == len(history[1].parts), "an id stands for two calls"
    assert calls.keys() == returned.keys()
    assert all(part.tool_name == calls[call_id] for call_id, part in returned.items())
    return {calls[call_id]: part.content for call_id, part in returned.items()}


@pytest.mark.parametrize("call_id", ["x", ""])
@pytest.mark.parametrize("calls", [[LOOK, DELETE], [DELETE, LOOK]], ids=["look first", "delete first"])
def test_calls_with_one_id_run_as_the_model_made_them(calls: Calls, call_id: str) -> None:
    ran: list[str] = []
    with submitted(agent_with(calls, ran, call_id=call_id)) as (bench, session):
        bench.run(session)
        assert sorted(ran) == ["delete B", "look A"]
        assert results_of(bench, session) == {"look": "looked A", "delete": "deleted B"}
        bench.send(session, "and then?")
        bench.run(session)
        assert bench.execution(session).status == "completed"


def test_an_answer_that_arrives_in_pieces_gets_the_same_ids() -> None:
    ran: list[str] = []
    agent = agent_with([LOOK, DELETE], ran)
    driver: Any = found(agent).driver
    with submitted(agent) as (bench, session):
        request = InferenceRequest(state=bench.state(session), session_id="s", execution_id="e", step=1)
        whole = driver.parse(asyncio.run(driver.infer(request)))
        pieces = driver.parse(asyncio.run(driver.infer(replace(request, emit=lambda piece: None))))
    assert [call.id for call in whole.tool_calls] == [call.id for call in pieces.tool_calls] == ["x", "x_1"]


@pytest.mark.parametrize(
    "given", [Approve(), Approve(args={"text": "C"}), Deny("no")], ids=["as asked", "edited", "no"]
)
def test_what_a_person_decides_about_a_call_decides_about_no_other(given: GivenAnswer) -> None:
    ran: list[str] = []
    with submitted(agent_with([DELETE, LOOK], ran, approve=True)) as (bench, session):
        bench.run(session)
        request = bench.open_request(session)
        assert (request.tool, thaw(request.args)) == DELETE
        bench.answer(session, given)
        bench.run(session)
        deleted = {Approve: ["delete B"], Deny: []}[type(given)]
        deleted = ["delete C"] if given == Approve(args={"text": "C"}) else deleted
        assert sorted(ran) == [*deleted, "look A"]
        assert results_of(bench, session)["look"] == "looked A"


class EarlierBuild(PydanticAgentDriver):
    """Journals answers as builds did that took equal ids as the model wrote them."""

    async def infer(self, request: InferenceRequest) -> bytes:
        return (await super().infer(request)).replace(b'"x_1"', b'"x"')


@pytest.mark.parametrize("approve", [False, True])
@pytest.mark.parametrize("calls", [[LOOK, DELETE], [DELETE, LOOK]], ids=["look first", "delete first"])
def test_an_answer_that_an_earlier_build_journaled_runs_as_the_model_made_it(calls: Calls, approve: bool) -> None:
    ran: list[str] = []
    agent = agent_with(calls, ran, approve=approve)
    ours = found(agent)
    earlier = replace(ours, driver=EarlierBuild(agent, CeleryDurability(effect="keyed")))
    object.__setattr__(earlier, "toolset", ours.toolset)
    bench = Bench(earlier)
    try:
        session = bench.submit()
        bench.run(session)
        if approve:
            assert thaw(bench.open_request(session).args) == {"text": "B"}
            bench.answer(session, Approve())
            bench.run(session)
        assert sorted(ran) == ["delete B", "look A"]
        assert results_of(bench, session) == {"look": "looked A", "delete": "deleted B"}
    finally:
        bench.close()


def test_a_session_that_an_earlier_build_stored_with_equal_ids_goes_on() -> None:
    ran: list[str] = []
    with submitted(agent_with([DELETE, LOOK], ran)) as (bench, session):
        bench.run(session)
        messages = [as_stored_before(message) for message in bench.state(session).store.section().messages]
        assert Counter(message.tool_call_id for message in messages)["x"] == 2
        execution = str(bench.execution(session).execution_id)
        assert read_conversation(messages, execution).history == conversation_of(bench, session).history
        again = [as_stored_before(message) for message in messages]
        for count in range(1, len(again) + 1):  # each reading goes on from the one before
            history = read_conversation(again[:count], execution).history
        assert history == conversation_of(bench, session).history


def as_stored_before(message: Message) -> Message:
    """The message as earlier builds stored it, with the id that the model wrote."""
    return Message.from_json(message.to_json().replace(b'"x_1"', b'"x"'))
