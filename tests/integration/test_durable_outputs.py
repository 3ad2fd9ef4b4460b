"""The output of `durable(agent).run` is of the class, and has the value, that `agent.run` gives."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent

from celery_agents import durable
from celery_agents.worker.pydantic_agents.conversation import read_conversation

from support import pydantic_outputs
from support.lab import Lab
from support.pydantic_examples import comparable
from support.pydantic_outputs import EXPECTED

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("outputs") / "lab", agents="support.pydantic_outputs") as started:
        started.worker()
        yield started


@pytest.mark.parametrize("name", EXPECTED)
def test_an_output_is_of_its_class_and_the_conversation_goes_on(lab: Lab, name: str) -> None:
    agent: PydanticAgent[None, Any] = getattr(pydantic_outputs, name)
    expected = agent.run_sync("go")
    assert expected.output == EXPECTED[name]
    result = asyncio.run(durable(agent, lab.client).run("go"))
    assert result.output == expected.output
    assert type(result.output) is type(expected.output)
    assert comparable(result.all_messages()) == comparable(expected.all_messages())
    assert dataclasses.asdict(result.usage) == dataclasses.asdict(expected.usage)
    state = lab.client.show(result.conversation_id or "").state
    assert comparable(read_conversation(state.messages, "").history) == comparable(expected.all_messages())
    assert state.has_final_response()


def test_an_output_of_none_is_no_text_for_a_client_either(lab: Lab) -> None:
    result = lab.client.submit("none_by_tool", "go").result(timeout=60)
    assert (result.status, result.output, result.final_response) == ("completed", None, "null")


def test_an_output_that_the_caller_cannot_read_is_a_clear_error(lab: Lab) -> None:
    other: PydanticAgent[None, Any] = PydanticAgent(
        "test", name="a_dataclass", output_type=pydantic_outputs.Cat, capabilities=pydantic_outputs.celery()
    )
    with pytest.raises(Exception, match=r"agent 'a_dataclass'.*cannot be read as Cat.*the workers"):
        durable(other, lab.client).run_sync("go")


def test_the_tool_that_took_the_output_can_be_given_another_result(lab: Lab) -> None:
    result = durable(pydantic_outputs.a_dataclass, lab.client).run_sync("go")
    messages = result.all_messages(output_tool_return_content="stored")
    assert messages[-1].parts[-1].content == "stored"
