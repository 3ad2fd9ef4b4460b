"""A conversation that is read step by step, as a worker that keeps a session does, is that of one reading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from celery_agents.worker.agent import AgentRegistry
from celery_agents.worker.pydantic_agents.conversation import Conversation, read_conversation
from celery_agents.worker.state import DEFAULT, AgentState, Message, Role
from celery_agents.worker.state.values.frozen import FrozenDict

from support.engine import Bench
from support.pydantic_examples import EXAMPLES, comparable

AGENTS = list(AgentRegistry.from_modules(["support.pydantic_examples"]))


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(*AGENTS)
    yield made
    made.close()


def facts(conversation: Conversation) -> tuple[Any, ...]:
    """What of a conversation does not depend on the moment of its reading."""
    prompt = None if conversation.prompt is None else str(conversation.prompt)
    return comparable(conversation.history), prompt, conversation.counters, conversation.usage, conversation.known


def copies(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages as another worker loads them."""
    return tuple(Message.from_json(message.to_json()) for message in messages)


def expect_equal_readings(messages: Sequence[Message], execution: str) -> None:
    assert facts(read_conversation(messages, execution)) == facts(read_conversation(copies(messages), execution))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_reading_that_goes_on_from_an_earlier_one_gives_the_same(bench: Bench, name: str) -> None:
    prompt, metadata = EXAMPLES[name]
    state = AgentState.fresh(now=bench.clock.now, metadata=metadata)
    session = bench.submit(prompt, agent=next(agent for agent in AGENTS if agent.name == name), state=state)
    bench.run(session)
    first = str(bench.execution(session).execution_id)
    bench.send(session, prompt)
    bench.run(session)
    second = str(bench.execution(session).execution_id)
    messages = bench.state(session).store.section(DEFAULT).messages
    for execution in (first, second, "another"):
        for count in range(1, len(messages) + 1):
            expect_equal_readings(messages[:count], execution)


def test_a_reading_after_earlier_messages_were_replaced_begins_anew(bench: Bench) -> None:
    session = bench.submit("10x20x30 cm", agent=next(agent for agent in AGENTS if agent.name == "box"))
    for _ in range(3):
        bench.run(session)
        bench.send(session, "10x20x30 cm")
    bench.run(session)
    execution = str(bench.execution(session).execution_id)
    messages = bench.state(session).store.section(DEFAULT).messages
    expect_equal_readings(messages, execution)
    half = len(messages) // 2
    expect_equal_readings(messages[half:], execution)
    expect_equal_readings((*copies(messages[:half]), *messages[half:]), execution)
    expect_equal_readings((messages[0].model_copy(update={"content": "another"}), *messages[1:]), execution)


def test_an_answer_that_was_left_off_changes_nothing_of_what_the_next_request_says(bench: Bench) -> None:
    session = bench.submit("10x20x30 cm", agent=next(agent for agent in AGENTS if agent.name == "box"))
    bench.run(session)
    bench.send(session, "10x20x30 cm")
    bench.run(session)
    execution = str(bench.execution(session).execution_id)
    messages = list(bench.state(session).store.section(DEFAULT).messages)
    left_off = Message(role=Role.ASSISTANT, content="Once upon", metadata=FrozenDict({"execution_id": execution}))
    answers = [place for place, each in enumerate(messages) if each.role is Role.ASSISTANT]
    for place in (answers[-1], len(messages)):
        said = Message.user("no, wait")
        with_it = [*messages[:place], left_off, said, *messages[place:]]
        without = [*messages[:place], said, *messages[place:]]
        for reader in (execution, "another"):
            if reader == execution or place != len(messages):
                assert facts(read_conversation(with_it, reader)) == facts(read_conversation(without, reader))
            expect_equal_readings(with_it, reader)
    ended = read_conversation([*messages, left_off], "another")
    assert "Once upon" in str(ended.history[-1]), "the last answer of an execution that went no further"
