"""Tools that are not loaded yet: the first call of each is refused without a cost, further ones count, as in a run."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import FunctionToolset, ModelRetry, UnexpectedModelBehavior
from pydantic_ai.capabilities import Capability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from celery_agents import CeleryDurability

from support.pydantic_examples import comparable
from support.pydantic_found import conversation_of, submitted


def agent_whose_model(answer: Any, retries: int = 1) -> Any:
    """An agent with a tool that fails once and belongs to a capability that the model has to load."""
    toolset = FunctionToolset[Any]()
    failures = [ModelRetry("try again")]

    def secret() -> str:
        if failures:
            raise failures.pop()
        return "told"

    toolset.add_function(secret, retries=retries)
    guarded = Capability[Any](id="guarded", description="Guarded.", toolsets=[toolset], defer_loading=True)
    return PydanticAgent(FunctionModel(answer), name="careful", capabilities=[guarded, CeleryDurability(effect="pure")])


def insist(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the tool, again and again."""
    return ModelResponse([ToolCallPart("secret", {}, f"call{len(messages)}")])


def test_a_model_that_never_loads_a_tool_ends_the_run_where_it_ends_in_pydantic_ai() -> None:
    with pytest.raises(UnexpectedModelBehavior) as expected:
        agent_whose_model(insist, retries=2).run_sync("go")
    with submitted(agent_whose_model(insist, retries=2)) as (bench, session):
        bench.run(session)
        record = bench.record(session)
    assert record.status == "failed"
    assert str(expected.value) in str(record.errors)
    assert record.step_count == 4  # the free refusal, and those that the budget of 2 allows


def load_after_a_refusal(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the tool too early, load it, and call it until it has succeeded."""
    number = sum(message.kind == "response" for message in messages)
    if number == 1:
        return ModelResponse([ToolCallPart("load_capability", {"id": "guarded"}, "load")])
    if number == 4:
        return ModelResponse([TextPart("done")])
    return ModelResponse([ToolCallPart("secret", {}, f"call{number}")])


def test_a_refusal_leaves_the_budget_of_the_tool_for_failures_of_its_own() -> None:
    expected = agent_whose_model(load_after_a_refusal).run_sync("go")
    with submitted(agent_whose_model(load_after_a_refusal)) as (bench, session):
        bench.run(session)
        assert bench.record(session).final_response == "done"
        assert comparable(conversation_of(bench, session).history) == comparable(expected.all_messages())
