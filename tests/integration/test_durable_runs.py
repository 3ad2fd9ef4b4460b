"""`durable(agent).run` in place of `agent.run`: a real worker runs it, and the result is the one of an own run."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import ImageUrl
from pydantic_ai.exceptions import AgentRunError, OutputTokenLimitExceeded, UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import UsageLimits

from celery_agents import CeleryDurability, ExecutionBudget, durable
from celery_agents.tasks.client.pydantic_runs import DurableRunOptions
from celery_agents.worker.errors import ConfigurationError, InvalidInput
from celery_agents.worker.pydantic_agents.driver import limits_of
from celery_agents.worker.state import thaw

from support import pydantic_examples as examples
from support.lab import Lab
from support.pydantic_examples import comparable

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("durable") / "lab", agents="support.pydantic_examples") as started:
        started.worker()
        yield started


@pytest.mark.parametrize(
    ("name", "prompt", "deps"),
    [
        ("support", "What is my balance?", examples.Customer(customer_id=1, name="John", balance=123.45)),
        ("box", "The box is 10x20x30", None),
        ("city", "Where?", None),
        ("functions", "run something", None),
        ("users", "Send a message", None),
        ("queues", "do it all", None),
        ("recent", "look around", None),
    ],
)
def test_a_result_is_that_of_the_agents_own_run(lab: Lab, name: str, prompt: str, deps: Any) -> None:
    agent: PydanticAgent[Any, Any] = getattr(examples, name)
    expected = agent.run_sync(prompt, deps=deps)
    result = asyncio.run(durable(agent, lab.client).run(prompt, deps=deps))
    assert result.output == expected.output
    assert type(result.output) is type(expected.output)
    assert comparable(result.all_messages()) == comparable(expected.all_messages())
    assert comparable(result.new_messages()) == comparable(expected.new_messages())
    assert dataclasses.asdict(result.usage) == dataclasses.asdict(expected.usage)


def test_a_history_and_a_session_both_go_on_with_what_was_said(lab: Lab) -> None:
    box = durable(examples.box, lab.client)
    first = box.run_sync("The box is 10x20x30")
    assert first.output == "Please provide the units."
    by_history = box.run_sync("cm", message_history=first.all_messages())
    by_session = box.run_sync("cm", conversation_id=first.conversation_id)
    expected = examples.box.run_sync("cm", message_history=first.all_messages())
    for result in (by_history, by_session):
        assert result.output == examples.Box(width=10, height=20, depth=30, units="cm") == expected.output
        assert comparable(result.all_messages()) == comparable(expected.all_messages())
        assert comparable(result.new_messages()) == comparable(expected.new_messages())
    assert by_session.conversation_id == first.conversation_id != by_history.conversation_id


def test_several_texts_are_one_prompt(lab: Lab) -> None:
    result = durable(examples.city, lab.client).run_sync(["Where were the olympics", "held in 2012?"])
    expected = examples.city.run_sync(["Where were the olympics", "held in 2012?"])
    assert comparable(result.all_messages()) == comparable(expected.all_messages())


def test_media_are_refused_in_a_prompt_and_travel_in_the_history(lab: Lab) -> None:
    agent, look = durable(examples.city, lab.client), [ImageUrl("https://example.com/a.png"), "Where?"]
    with pytest.raises(
        InvalidInput, match="user_prompt: give a text, or a list of texts; media go into message_history"
    ):
        agent.run_sync(look)
    history = [ModelRequest([UserPromptPart(look[:1])])]
    result = agent.run_sync("Where?", message_history=history)
    assert comparable(result.all_messages()) == comparable(
        examples.city.run_sync("Where?", message_history=history).all_messages()
    )


def test_the_same_run_id_is_one_run(lab: Lab) -> None:
    agent = durable(examples.city, lab.client)
    first, second = (agent.run_sync("Where?", run_id="once") for _ in range(2))
    assert first.conversation_id == second.conversation_id
    assert comparable(first.all_messages()) == comparable(second.all_messages())


def test_limits_of_pydantic_ai_end_the_run_with_its_exception(lab: Lab) -> None:
    for limits in (UsageLimits(request_limit=1), UsageLimits(tool_calls_limit=0)):
        with pytest.raises(UsageLimitExceeded) as own:
            examples.users.run_sync("go", usage_limits=limits)
        with pytest.raises(UsageLimitExceeded) as ours:
            durable(examples.users, lab.client).run_sync("go", usage_limits=limits)
        assert str(own.value) == str(ours.value)


def test_an_answer_without_a_word_that_reached_its_limit_ends_the_run_with_the_exception_of_its_own(lab: Lab) -> None:
    with pytest.raises(OutputTokenLimitExceeded) as own:
        examples.cut_off.run_sync("go")
    with pytest.raises(OutputTokenLimitExceeded) as ours:
        durable(examples.cut_off, lab.client).run_sync("go")
    assert str(own.value) == str(ours.value)


def test_a_limit_that_is_lifted_is_no_limit(lab: Lab) -> None:
    limits = UsageLimits(request_limit=None, tool_calls_limit=9)
    result = durable(examples.city, lab.client).run_sync("Where?", usage_limits=limits)
    metadata = lab.client.show(result.conversation_id or "").state.context.metadata
    assert limits_of(CeleryDurability(), metadata) == limits


def test_a_run_that_fails_in_pydantic_ai_fails_here_with_its_words(lab: Lab) -> None:
    with pytest.raises(UnexpectedModelBehavior) as own:
        examples.hopeless.run_sync("go")
    with pytest.raises(AgentRunError) as ours:
        durable(examples.hopeless, lab.client).run_sync("go")
    assert str(own.value) in str(ours.value)


def test_a_timeout_stops_the_run(lab: Lab) -> None:
    with pytest.raises(TimeoutError):
        durable(examples.users, lab.client).run_sync("go", timeout=0.000001)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"toolsets": []}, "toolsets: .*give them to the agent"),
        ({"cancellation_token": object()}, r"cancellation_token: .*client\.stop"),
        ({"deferred_tool_results": object()}, r"client\.answer"),
        ({"model": "test"}, "cannot travel to a worker"),
        ({"deps": object()}, "deps: a worker cannot make Customer"),
        ({"conversation_id": "s", "message_history": []}, "a new session takes it"),
        ({"conversation_id": "s", "deps": 1}, "a new session takes it"),
    ],
)
def test_what_cannot_travel_is_refused_by_name(lab: Lab, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        durable(examples.support, lab.client).run_sync("go", **options)


def test_dependencies_that_the_agent_makes_itself_are_refused_and_not_ignored(lab: Lab) -> None:
    with pytest.raises(InvalidInput, match=r"^deps: CeleryDurability\(deps=…\) of this agent makes .*; give metadata="):
        durable(examples.dice, lab.client).run_sync("go", deps="Bob", metadata={"player": "Anne"})


REFUSED = inspect.signature(PydanticAgent.run).parameters.keys() - {"self", "user_prompt"}
REFUSED -= DurableRunOptions.__annotations__.keys()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_each_other_option_of_a_run_is_refused_by_name_with_what_to_do_instead(lab: Lab, name: str) -> None:
    options: dict[str, Any] = {name: object()}
    with pytest.raises(
        InvalidInput, match=rf"{name}: it cannot travel to a worker; .*(give|answer|stop|follow|limit|write)"
    ):
        durable(examples.city, lab.client).run_sync("go", **options)


def test_the_options_are_those_of_a_run_or_of_ours() -> None:
    own = inspect.signature(PydanticAgent.run).parameters.keys()
    assert DurableRunOptions.__annotations__.keys() - own == {"budget"}
    assert {
        "cancellation_token", "capabilities", "conversation", "deferred_tool_results", "event_stream_handler",
        "instructions", "model", "model_settings", "output_type", "retries", "spec", "toolsets", "usage", "workspace",
    } == REFUSED  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"message_history": 5}, r"message_history: give messages of pydantic-ai.* Got a int"),
        ({"message_history": ["hello"]}, "message_history: give messages"),
        ({"usage_limits": {"request_limit": 1}}, r"usage_limits: give UsageLimits\(…\)"),
        ({"metadata": lambda ctx: {}}, "metadata: .*a function cannot travel"),
        ({"metadata": {"a": object()}}, "metadata"),
        ({"budget": 5}, "budget: give ExecutionBudget"),
        ({"timeout": "5"}, "timeout: give seconds"),
        ({"timeout": -1}, "max_seconds"),
        ({"conversation_id": 5}, "conversation_id: "),
        ({"run_id": 5}, "run_id: give a text"),
        ({"conversation_id": ""}, "session_id: "),
        ({"run_id": ""}, "idempotency_key: "),
    ],
)
def test_a_wrong_value_of_an_option_is_refused_and_nothing_is_submitted(
    lab: Lab, options: dict[str, Any], said: str
) -> None:
    before = lab.client.list(limit=1)
    with pytest.raises(InvalidInput, match=said):
        durable(examples.city, lab.client).run_sync("go", **options)
    assert lab.client.list(limit=1) == before


def test_metadata_and_a_budget_reach_the_session(lab: Lab) -> None:
    result = durable(examples.city, lab.client).run_sync("go", metadata={"a": 1}, budget=ExecutionBudget(max_steps=9))
    state = lab.client.show(result.conversation_id or "").state
    assert thaw(state.context.metadata) == {"a": 1}
    assert result.metadata == examples.city.run_sync("go", metadata={"a": 1}).metadata == {"a": 1}
    assert durable(examples.city, lab.client).run_sync("go").metadata is examples.city.run_sync("go").metadata is None
    assert state.execution is not None
    assert state.execution.budget.max_steps == 9


def test_a_prompt_that_is_no_text_and_an_unknown_option_are_refused(lab: Lab) -> None:
    agent = durable(examples.city, lab.client)
    with pytest.raises(InvalidInput, match="user_prompt"):
        agent.run_sync()
    with pytest.raises(TypeError, match="colour"):
        agent.run_sync("go", colour="red")  # type: ignore[call-arg]


def test_an_agent_without_the_capability_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"capabilities=\[CeleryDurability\(\)\]"):
        durable(PydanticAgent(TestModel(), name="plain"))
    with pytest.raises(ConfigurationError, match="it has no name"):
        durable(PydanticAgent(TestModel(), capabilities=[CeleryDurability()]))
