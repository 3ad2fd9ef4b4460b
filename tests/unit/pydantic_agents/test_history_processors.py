"""History processors: a run in steps leaves the messages that `agent.run` leaves, and the session loses none."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import RunContext
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from celery_agents import CeleryDurability
from celery_agents.worker.pydantic_agents.conversation import KeptMessages
from celery_agents.worker.state import DEFAULT, Role, freeze

from support.pydantic_examples import comparable
from support.pydantic_found import conversation_of, submitted

SEEN: list[Any] = []


def keep_recent(messages: list[ModelMessage]) -> list[ModelMessage]:
    return messages[-3:] if len(messages) > 3 else messages


def keep_one(messages: list[ModelMessage]) -> list[ModelMessage]:
    return messages[-1:]


def keep_requests(messages: list[ModelMessage]) -> list[ModelMessage]:
    return [message for message in messages if isinstance(message, ModelRequest)]


def redact(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Copies every message, and changes the first."""
    copies = copy.deepcopy(messages)
    for part in copies[0].parts:
        if isinstance(part, UserPromptPart):
            part.content = "(redacted)"
    return copies


async def summarize(ctx: RunContext[None], messages: list[ModelMessage]) -> list[ModelMessage]:
    """Puts a message of its own in the place of all but the last three."""
    if len(messages) <= 5:
        return messages
    summary = ModelRequest(parts=[UserPromptPart(f"a summary of {len(messages) - 3} messages")])
    return [summary, *messages[-3:]]


PROCESSORS = [keep_recent, keep_one, keep_requests, redact, summarize]


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the tool four times, with the number of messages that the model reads; afterwards, say how many those are."""
    SEEN.append(comparable(messages))
    if len(SEEN) % 5:
        return ModelResponse(parts=[ToolCallPart("note", {"x": len(messages)}, tool_call_id=f"call-{len(SEEN)}")])
    return ModelResponse(parts=[TextPart(f"done after {len(messages)}")])


def made(processor: Callable[..., Any]) -> PydanticAgent[None, str]:
    agent = PydanticAgent(
        FunctionModel(answer),
        name="processed",
        capabilities=[CeleryDurability(effect="pure"), ProcessHistory(processor)],
    )

    @agent.tool
    def note(ctx: RunContext[None], x: int) -> str:
        return f"{x} after {len(ctx.messages)} messages"

    return agent


def seen() -> list[Any]:
    found = list(SEEN)
    SEEN.clear()
    return found


@pytest.mark.parametrize("processor", PROCESSORS)
def test_the_model_reads_and_the_run_leaves_what_an_uninterrupted_run_does(processor: Callable[..., Any]) -> None:
    agent = made(processor)
    SEEN.clear()
    first = agent.run_sync("go")
    again = agent.run_sync("and again", message_history=first.all_messages())
    expected = seen()
    with submitted(agent) as (bench, session):
        bench.run(session)
        conversation = conversation_of(bench, session)
        assert comparable(conversation.history) == comparable(first.all_messages())
        assert dataclasses.asdict(conversation.usage) == dataclasses.asdict(first.usage)
        bench.send(session, "and again")
        bench.run(session)
        conversation = conversation_of(bench, session)
        assert comparable(conversation.history) == comparable(again.all_messages())
        assert dataclasses.asdict(conversation.usage) == dataclasses.asdict(again.usage)
        assert seen() == expected
        stored = bench.state(session).store.section(DEFAULT).messages
    assert [message.content for message in stored if message.role is Role.USER] == ["go", "and again"]
    assert sum(message.role is Role.TOOL for message in stored) == 8
    assert sum(message.role is Role.ASSISTANT for message in stored) == 10


def test_what_a_processor_leaves_is_kept_as_positions_and_not_again() -> None:
    given: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart(f"{n}")], run_id="old") for n in range(9)]
    own = ModelRequest(parts=[UserPromptPart("a summary")])
    mine = ModelRequest(parts=[UserPromptPart("new")], run_id="mine")
    kept = KeptMessages.of_run(given, [given[0], own, *copy.deepcopy(given[4:7]), given[8], mine], "mine")
    assert kept.earlier == [(0, 1), own, (4, 7), (8, 9)]
    assert kept.added == [mine]
    read = KeptMessages.read(freeze(kept.to_json(), "kept"))  # type: ignore[arg-type]
    assert read.extend(list(given)) == [given[0], own, *given[4:7], given[8], mine]


def test_a_run_without_a_processor_keeps_what_it_has_added_alone() -> None:
    given: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("a")])]
    added = ModelRequest(parts=[UserPromptPart("b")], run_id="mine")
    kept = KeptMessages.of_run(given, [*given, added], "mine")
    assert kept.earlier is None
    assert list(kept.to_json()) == ["messages"]


def test_results_of_an_execution_that_was_stopped_stay_in_the_conversation_of_the_next() -> None:
    agent = made(lambda messages: messages)
    SEEN.clear()
    with submitted(agent) as (bench, session):
        bench.step(session)
        bench.stop(session)
        bench.run(session)
        bench.send(session, "go on")
        bench.run(session)
        bench.send(session, "go on")
        bench.run(session)
        history = conversation_of(bench, session).history
    returned = [part.tool_call_id for message in history for part in message.parts if part.part_kind == "tool-return"]
    called = [part.tool_call_id for message in history for part in message.parts if part.part_kind == "tool-call"]
    assert returned == called
