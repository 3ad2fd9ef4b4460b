"""Examples of pydantic-ai's documentation as durable agents: messages, usage and output are those of `agent.run`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import Tool, UnexpectedModelBehavior
from pydantic_ai.capabilities import AbstractCapability, PrefixTools, SelectModel
from pydantic_ai.durable_exec import JSON_CODEC, BaseDurabilityCapability, DurabilityEngineSpec
from pydantic_ai.models.test import TestModel
from pydantic_core import to_jsonable_python

from celery_agents import Subagents
from celery_agents.worker.agent import Agent, AgentRegistry
from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.pydantic_agents import definition_of, internals
from celery_agents.worker.pydantic_agents.conversation import read_conversation
from celery_agents.worker.pydantic_agents.driver import deps_of
from celery_agents.worker.pydantic_agents.durability import CeleryDurability
from celery_agents.worker.state import DEFAULT, AgentState, Approve, thaw

from support import pydantic_examples
from support.engine import Bench
from support.pydantic_examples import EXAMPLES, comparable
from support.pydantic_found import found

AGENTS = list(AgentRegistry.from_modules(["support.pydantic_examples"]))


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(*AGENTS)
    yield made
    made.close()


def original(name: str) -> Any:
    return getattr(pydantic_examples, name)


def durable(name: str) -> Agent:
    return next(agent for agent in AGENTS if agent.name == name)


def submit(bench: Bench, name: str) -> str:
    prompt, metadata = EXAMPLES[name]
    state = AgentState.fresh(now=bench.clock.now, metadata=metadata)
    return bench.submit(prompt, agent=durable(name), state=state)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_the_messages_usage_and_output_of_an_uninterrupted_run(bench: Bench, name: str) -> None:
    prompt, metadata = EXAMPLES[name]
    options = next(c for c in original(name).root_capability.capabilities if type(c).__name__ == "CeleryDurability")
    expected = original(name).run_sync(prompt, deps=deps_of(original(name), options, metadata))
    session = submit(bench, name)
    bench.run(session)
    state = bench.state(session)
    assert bench.execution(session).status == "completed", bench.execution(session)
    messages = state.store.section(DEFAULT).messages
    execution = str(bench.execution(session).execution_id)
    conversation = read_conversation(messages, execution)
    assert comparable(conversation.history) == comparable(expected.all_messages())
    assert dataclasses.asdict(conversation.usage) == dataclasses.asdict(expected.usage)
    given = bench.record(session)
    assert thaw(given.output) == to_jsonable_python(expected.output) or given.final_response == expected.output


def test_a_second_message_goes_on_with_the_conversation_as_message_history_does(bench: Bench) -> None:
    first = pydantic_examples.box.run_sync("The box is 10x20x30")
    expected = pydantic_examples.box.run_sync("10x20x30 cm", message_history=first.all_messages())
    session = submit(bench, "box")
    bench.run(session)
    bench.send(session, "10x20x30 cm")
    bench.run(session)
    messages = bench.state(session).store.section(DEFAULT).messages
    conversation = read_conversation(messages, str(bench.execution(session).execution_id))
    assert comparable(conversation.history) == comparable(expected.all_messages())
    assert thaw(bench.record(session).output) == {"width": 10, "height": 20, "depth": 30, "units": "cm"}
    assert conversation.usage.requests == expected.usage.requests == 1


def test_a_tool_past_its_retries_ends_the_execution_with_the_words_of_pydantic_ai(bench: Bench) -> None:
    with pytest.raises(UnexpectedModelBehavior) as raised:
        pydantic_examples.hopeless.run_sync("go")
    session = bench.submit("go", agent=durable("hopeless"))
    bench.run(session)
    record = bench.record(session)
    assert record.status != "completed"
    assert str(raised.value) in record.stop_message + str(record.errors)


def test_a_tool_that_needs_an_approval_asks_a_person_and_runs_when_it_is_given(bench: Bench) -> None:
    session = bench.submit("empty it", agent=durable("files"))
    bench.run(session)
    request = bench.open_request(session)
    assert request.tool == "update_file"
    bench.answer(session, Approve())
    bench.run(session)
    assert bench.execution(session).status == "completed"
    texts = [message.content for message in bench.state(session).store.section(DEFAULT).messages]
    assert "File '.env' updated: ''" in texts


class Counting(AbstractCapability[Any]):
    """A capability with state for a run."""

    async def for_run(self, ctx: Any) -> Counting:
        return Counting()


class OtherEngine(BaseDurabilityCapability):
    """Another engine; it is refused before anything of it is asked."""

    engine_spec = DurabilityEngineSpec(
        engine_name="Other", durable_unit_noun="operation", durable_container_noun="run", codec=JSON_CODEC,
        unsupported_runtime_toolset_kinds=frozenset(), toolset_lifecycles=dict.fromkeys(("function", "mcp", "dynamic"), "enter-always"),
    )  # fmt: skip
    in_durable_context = False

    def get_durable_operation_backend(self) -> Any:
        return MagicMock()


def with_options(**options: Any) -> Any:
    return PydanticAgent(TestModel(), name="odd", capabilities=[CeleryDurability(**options)])


def test_two_agents_of_one_name_and_a_tool_without_a_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="two agents are named 'twice'"):
        AgentRegistry([found(with_name("twice")), found(with_name("twice"))])
    nameless = PydanticAgent(TestModel(), name="odd", tools=[lambda x: 1], capabilities=[CeleryDurability()])
    with pytest.raises(ConfigurationError, match="tool name '<lambda>': write"):
        found(nameless)
    with pytest.raises(ConfigurationError, match="agent name 'my agent': write"):
        found(with_name("my agent"))


def with_name(name: str) -> Any:
    return PydanticAgent(TestModel(), name=name, capabilities=[CeleryDurability()])


def test_an_agent_of_pydantic_ai_is_no_subagent_but_a_tool() -> None:
    with pytest.raises(ConfigurationError, match=r"'?paw'? is a pydantic_ai\.Agent; .*AgentTool\('paw'\)"):
        Subagents([with_name("paw")])


def test_a_model_may_come_from_a_capability_and_is_missed_otherwise() -> None:
    chosen = PydanticAgent(name="chosen", capabilities=[CeleryDurability(), SelectModel(lambda ctx: TestModel())])
    found(chosen).answering.check()
    with pytest.raises(ConfigurationError, match="agent 'none': it has no model"):
        found(PydanticAgent(name="none", capabilities=[CeleryDurability()])).answering.check()


def test_a_capability_with_state_for_a_run_may_be_allowed() -> None:
    agent = PydanticAgent(
        TestModel(), name="counting", capabilities=[CeleryDurability(recreated=[Counting]), Counting()]
    )
    assert definition_of(agent, "module.agent") is not None


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (lambda: PydanticAgent(TestModel(), capabilities=[CeleryDurability()]), "it has no name"),
        (
            lambda: PydanticAgent(TestModel(), name="two", capabilities=[CeleryDurability(), CeleryDurability()]),
            "CeleryDurability 2 times",
        ),
        (
            lambda: PydanticAgent(
                TestModel(),
                name="odd",
                tools=[Tool(original, name="up", metadata={"celery": {"effect": "sometimes"}})],
                capabilities=[CeleryDurability()],
            ),
            "tool up: effect 'sometimes'",
        ),
        (
            lambda: PydanticAgent(TestModel(), name="counting", capabilities=[CeleryDurability(), Counting()]),
            r"Counting keeps state for a run .*recreated=\[Counting\]",
        ),
        (
            lambda: PydanticAgent(TestModel(), name="both", capabilities=[CeleryDurability(), OtherEngine()]),
            "it has OtherEngine beside CeleryDurability",
        ),
        (lambda: with_options(deps=5), r"CeleryDurability: deps=5 must be a function of the session's metadata"),
        (lambda: with_options(usage_limits=7), "usage_limits=7 must be a UsageLimits"),
        (lambda: with_options(price=0.5), "price=0.5 must be a TokenPrice"),
        (lambda: with_options(recreated=Counting), "recreated=.* must be a list of classes of capabilities"),
        (lambda: with_options(recreated=[5]), "recreated=.* must be a list of classes of capabilities"),
        (lambda: with_options(effect="lookup"), "effect 'lookup' must be 'pure', 'keyed' or 'unsafe'"),
        (
            lambda: PydanticAgent(
                TestModel(),
                name="wrapping",
                capabilities=[CeleryDurability(), PrefixTools(wrapped=Counting(), prefix="p")],
            ),
            "Counting keeps state for a run",
        ),
        (
            lambda: PydanticAgent(
                TestModel(),
                name="odd",
                tools=[Tool(original, name="up", metadata={"celery": "keyed"})],
                capabilities=[CeleryDurability()],
            ),
            r"tool up: metadata celery='keyed' must be like \{'effect': 'keyed'\}",
        ),
        (
            lambda: PydanticAgent(
                TestModel(),
                name="odd",
                tools=[Tool(original, name="up", metadata={"celery": {"efect": "keyed"}})],
                capabilities=[CeleryDurability()],
            ),
            "tool up: metadata celery=.*'efect'",
        ),
    ],
)
def test_an_agent_that_cannot_be_durable_is_refused_with_a_sentence(agent: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        definition_of(agent(), "module.agent")


def test_an_agent_without_the_capability_is_left_alone() -> None:
    assert "joke_generation" not in {agent.name for agent in AGENTS}


def test_a_pydantic_ai_without_a_needed_attribute_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("pydantic_ai.tool_manager.ToolManager.handle_call")
    with pytest.raises(ConfigurationError, match=r"ToolManager\.handle_call"):
        internals.check_installed()
