"""The context of each function of an agent has the prompt that it has in `agent.run`, in every step."""

from __future__ import annotations

from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import ModelRetry, RunContext, ToolReturn
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from celery_agents import CeleryDurability

from support.pydantic_found import submitted

SEEN: list[tuple[str, object]] = []


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call a tool, give an output that is rejected, and one that is not."""
    step = sum(isinstance(message, ModelResponse) for message in messages) % 3
    name, args = ("look", {}) if step == 0 else ("final_result", {"response": step})
    return ModelResponse([ToolCallPart(name, args, f"call{len(messages)}")])


def process(ctx: RunContext[None], messages: list[ModelMessage]) -> list[ModelMessage]:
    SEEN.append(("processor", ctx.prompt))
    return messages


agent = PydanticAgent(
    FunctionModel(answer),
    name="asked",
    output_type=int,
    retries=2,
    capabilities=[ProcessHistory(process), CeleryDurability(effect="pure")],
)


@agent.instructions
def instruct(ctx: RunContext[None]) -> str:
    SEEN.append(("instructions", ctx.prompt))
    return f"The user asks: {ctx.prompt}"


@agent.tool
def look(ctx: RunContext[None]) -> ToolReturn:
    SEEN.append(("tool", ctx.prompt))
    return ToolReturn(return_value="seen", content="what was seen")


@agent.output_validator
def check(ctx: RunContext[None], output: int) -> int:
    SEEN.append(("validator", ctx.prompt))
    if output < 2:
        raise ModelRetry("more")
    return output


def test_the_prompt_of_the_context_is_what_the_user_has_asked_this_execution_for() -> None:
    SEEN.clear()
    first = agent.run_sync("the first")
    agent.run_sync("the second", message_history=first.all_messages())
    expected = list(SEEN)
    SEEN.clear()
    with submitted(agent, "the first") as (bench, session):
        bench.run(session)
        bench.send(session, "the second")
        bench.run(session)
        assert bench.record(session).output == 2
    assert expected == SEEN
    assert {prompt for _, prompt in SEEN} == {"the first", "the second"}
