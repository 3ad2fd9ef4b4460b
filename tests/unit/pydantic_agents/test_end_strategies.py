"""Answers with outputs beside other calls: `end_strategy` decides, as in `agent.run`, and each call is made once."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import ModelRetry, NativeOutput, RunContext, ToolFailed, ToolOutput, ToolReturn, UsageLimits
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from celery_agents import CeleryDurability

from support.engine import Bench, WorkerDied
from support.pydantic_examples import comparable
from support.pydantic_found import conversation_of, submitted

STRATEGIES: tuple[Literal["early", "graceful", "exhaustive"], ...] = ("early", "graceful", "exhaustive")
LOG: list[str] = []


class City(BaseModel):
    city: str


Turn = list[tuple[str, dict[str, Any]]] | str

GOOD, BAD = ("output", {"city": "Bern"}), ("output", {"town": "Bern"})
NOTE, PICKY, FAILING, RICH, UNKNOWN = (
    (name, {"x": number}) for number, name in enumerate(("note", "picky", "failing", "rich", "no_such_tool"))
)
ANSWERS: dict[str, list[Turn]] = {
    "call_then_output": [[NOTE, GOOD]],
    "output_then_call": [[GOOD, NOTE]],
    "between_calls": [[NOTE, GOOD, RICH]],
    "two_outputs": [[GOOD, NOTE, ("output", {"city": "Zug"})]],
    "rejected_then_good": [[BAD, NOTE, GOOD]],
    "rejected": [[NOTE, BAD], [GOOD]],
    "retry_wins": [[PICKY, GOOD], [GOOD]],
    "retried_again": [[PICKY, GOOD], [PICKY, NOTE, GOOD], [PICKY], [GOOD]],
    "failed_call": [[FAILING, GOOD]],
    "unknown_call": [[UNKNOWN, GOOD]],
    "wrong_arguments": [[("note", {"y": 1}), GOOD], [GOOD]],
    "refused_by_validator": [[NOTE, ("output", {"city": "nowhere"})], [NOTE, GOOD]],
    "everything": [[RICH, BAD, PICKY, GOOD, NOTE, UNKNOWN], [NOTE, GOOD]],
}


def model(turns: list[Turn]) -> FunctionModel:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        number = sum(message.kind == "response" for message in messages)
        LOG.append(f"model {number}")
        turn = turns[number]
        if isinstance(turn, str):
            return ModelResponse(parts=[TextPart(turn)])
        calls = [(info.output_tools[0].name if name == "output" else name, args) for name, args in turn]
        return ModelResponse(
            parts=[ToolCallPart(name, args, tool_call_id=f"c{number}-{i}") for i, (name, args) in enumerate(calls)]
        )

    return FunctionModel(answer)


def made(turns: list[Turn], strategy: Any, output_type: Any = ToolOutput(City, name="final")) -> Any:  # noqa: B008
    agent: PydanticAgent[None, Any] = PydanticAgent(
        model(turns), name="ends", output_type=output_type, end_strategy=strategy, retries=3,
        capabilities=[CeleryDurability(effect="pure")],
    )  # fmt: skip

    @agent.tool_plain
    def note(x: int) -> str:
        LOG.append("note")
        return f"noted {x}"

    @agent.tool
    def picky(ctx: RunContext[None], x: int) -> str:
        LOG.append("picky")
        raise ModelRetry(f"not {x}, retry {ctx.retry}")

    @agent.tool_plain
    def failing(x: int) -> str:
        LOG.append("failing")
        raise ToolFailed("no luck")

    @agent.tool_plain
    def rich(x: int) -> ToolReturn:
        LOG.append("rich")
        return ToolReturn(return_value={"x": x}, content=["look:", "a picture"], metadata={"seen": True})

    @agent.output_validator
    def exists(ctx: RunContext[None], output: Any) -> Any:
        LOG.append(f"validator {ctx.run_step}")
        if isinstance(output, City) and output.city == "nowhere":
            raise ModelRetry(f"there is no such city, retry {ctx.retry}")
        return output

    @agent.instructions
    def instruct(ctx: RunContext[None]) -> str:
        LOG.append(f"instructions {ctx.run_step}")
        return "Find a city."

    return agent


def logged() -> list[str]:
    seen = sorted(LOG)
    LOG.clear()
    return seen


def check(bench: Bench, session: str, expected: Any) -> None:
    assert bench.execution(session).status == "completed", bench.record(session)
    conversation = conversation_of(bench, session)
    assert comparable(conversation.history) == comparable(expected.all_messages())
    assert dataclasses.asdict(conversation.usage) == dataclasses.asdict(expected.usage)
    output = expected.output
    assert bench.record(session).output == (output.model_dump() if isinstance(output, BaseModel) else None)


@pytest.mark.parametrize(("strategy", "name"), list(product(STRATEGIES, ANSWERS)))
def test_an_output_beside_calls_ends_the_run_as_the_strategy_says(strategy: str, name: str) -> None:
    agent = made(ANSWERS[name], strategy)
    LOG.clear()
    expected = agent.run_sync("go")
    own = logged()
    with submitted(agent) as (bench, session):
        bench.run(session)
        check(bench, session, expected)
    assert logged() == own


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rejected", [BAD, ("output", {"city": "nowhere"})], ids=["wrong type", "by validator"])
def test_outputs_that_are_rejected_beside_calls_use_up_the_retries(strategy: Any, rejected: Any) -> None:
    agent = made([[rejected, NOTE]] * 6 + [[GOOD]], strategy)
    with pytest.raises(UnexpectedModelBehavior, match="Exceeded maximum output retries"):
        agent.run_sync("go")
    asked = [each for each in logged() if each.startswith("model")]
    with submitted(agent) as (bench, session):
        bench.run(session)
        assert bench.record(session).errors == ("Exceeded maximum output retries (3)",)
    assert [each for each in logged() if each.startswith("model")] == asked


@pytest.mark.parametrize("text", ['{"city": "Bern"}', "let me see"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_text_beside_calls_is_the_output_where_it_fits_and_the_strategy_is_early(strategy: Any, text: str) -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        number = sum(message.kind == "response" for message in messages)
        said = [TextPart(text), ToolCallPart("note", {"x": 1}, tool_call_id="c")] if not number else []
        return ModelResponse(parts=said or [TextPart('{"city": "Zug"}')])

    agent = made([], strategy, NativeOutput(City))
    agent.model = FunctionModel(answer)
    LOG.clear()
    expected, own = agent.run_sync("go"), logged()
    with submitted(agent) as (bench, session):
        bench.run(session)
        check(bench, session, expected)
    assert logged() == own


def test_a_limit_of_calls_counts_each_call_once() -> None:
    agent = made([[NOTE, RICH, GOOD]], "graceful")
    options = next(each for each in agent.root_capability.capabilities if isinstance(each, CeleryDurability))
    options.usage_limits = UsageLimits(tool_calls_limit=2)
    expected = agent.run_sync("go", usage_limits=options.usage_limits)
    with submitted(agent) as (bench, session):
        bench.run(session)
        check(bench, session, expected)


def test_what_the_user_says_before_the_output_is_taken_is_answered() -> None:
    with submitted(made([[NOTE, GOOD], [("output", {"city": "Zug"})]], "graceful")) as (bench, session):
        bench.step(session)
        bench.send(session, "rather Zug")
        bench.run(session)
        assert bench.record(session).output == {"city": "Zug"}
        prompts = [
            part.content
            for message in conversation_of(bench, session).history
            for part in message.parts
            if part.part_kind == "user-prompt"
        ]
        assert prompts == ["go", "rather Zug"]


def test_a_stop_before_the_output_is_taken_leaves_a_conversation_that_goes_on() -> None:
    with submitted(made([[NOTE, GOOD], [("output", {"city": "Zug"})]], "graceful")) as (bench, session):
        bench.step(session)
        bench.stop(session)
        bench.run(session)
        bench.send(session, "go on")
        bench.run(session)
        assert bench.record(session).output == {"city": "Zug"}
        returned = [
            (part.tool_call_id, part.content)
            for message in conversation_of(bench, session).history
            for part in message.parts
            if part.part_kind == "tool-return"
        ]
        assert ("c0-1", "Output tool not used - the run ended before.") in returned
        assert sorted(call for call, _ in returned) == ["c0-0", "c0-1", "c1-0"]


def test_calls_are_made_once_although_the_worker_dies_while_the_output_is_taken() -> None:
    turns: list[Turn] = [[NOTE, ("output", {"city": "Bern"})]]
    saved: list[str] = []
    dying = [True]

    def save(city: str) -> str:
        """Save it."""
        saved.append(city)
        if dying.pop() if dying else False:
            raise WorkerDied
        return city

    LOG.clear()
    with submitted(made(turns, "graceful", save)) as (bench, session):
        with pytest.raises(WorkerDied):
            bench.run(session)
        bench.clock.go_on(3600)
        bench.run(session)
        assert bench.record(session).final_response == "Bern"
    assert (LOG.count("note"), LOG.count("model 0")) == (1, 1)
    assert saved == ["Bern", "Bern"]
