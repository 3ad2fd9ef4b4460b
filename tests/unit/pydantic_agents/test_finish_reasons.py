"""Why a model ended its answer, and what that answer cost, is what its provider says."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import ModelRetry, UsageLimits
from pydantic_ai.messages import FinishReason, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from celery_agents import CeleryDurability, FinishReasonGuard
from celery_agents.worker.drivers import TokenPrice

from support.pydantic_found import submitted

USAGE = RequestUsage(input_tokens=10, output_tokens=5)
PRICE = TokenPrice(input=1_000_000, output=1_000_000)


class City(BaseModel):
    name: str


def agent_with(*answers: ModelResponse, **options: Any) -> Any:
    turns = iter(answers)

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return next(turns)

    durability = CeleryDurability(effect="pure", price=PRICE, **options.pop("durability", {}))
    agent: PydanticAgent[None, Any] = PydanticAgent(
        FunctionModel(answer), name="ends", capabilities=[durability], **options
    )

    @agent.tool_plain
    def look() -> str:
        return "looked"

    return agent


def said(*parts: Any, finish: FinishReason | None = "stop", details: dict[str, Any] | None = None) -> ModelResponse:
    given = [TextPart(part) if isinstance(part, str) else part for part in parts]
    return ModelResponse(parts=given, usage=USAGE, finish_reason=finish, provider_details=details)


@pytest.mark.parametrize(
    ("finish", "details", "told"),
    [
        ("stop", None, "stop"),
        ("length", None, "length"),
        ("content_filter", None, "content_filter"),
        ("error", None, "error"),
        (None, {"finish_reason": "model_context_window_exceeded"}, "length"),
        (None, {"finish_reason": "brand_new"}, "other"),
    ],
)
def test_the_reason_of_a_text_is_the_providers(
    finish: FinishReason | None, details: dict[str, Any] | None, told: str
) -> None:
    with submitted(agent_with(said("Half of", finish=finish, details=details))) as (bench, session):
        bench.run(session)
        assert (bench.record(session).finish_reason, bench.record(session).final_response) == (told, "Half of")


def test_an_answer_with_calls_says_so_unless_it_was_cut_off() -> None:
    calls = [said(ToolCallPart("look"), finish=reason) for reason in ("tool_call", "stop", "length")]
    with submitted(agent_with(*calls, said("done"))) as (bench, session):
        bench.run(session)
        reasons = [step.inference_response.finish_reason.value for step in bench.state(session).steps]
        assert reasons == ["tool_calls", "tool_calls", "length", "stop"]


def test_an_output_that_an_output_tool_took_is_a_whole_answer() -> None:
    call = ToolCallPart("final_result", {"name": "Bern"})
    with submitted(agent_with(said(call, finish="tool_call"), output_type=City)) as (bench, session):
        bench.run(session)
        assert bench.record(session).finish_reason == "stop"


def test_a_guard_stops_an_agent_whose_answer_was_cut_off() -> None:
    guarded = {"guards": [FinishReasonGuard(["length"])]}
    with submitted(agent_with(said("Half of", finish="length"), durability=guarded)) as (bench, session):
        bench.run(session)
        record = bench.record(session)
        assert (record.status, record.finish_reason, record.final_response) == ("stopped", "length", "Half of")


def refusing(output: str) -> str:
    raise ModelRetry("no")


@pytest.mark.parametrize(
    ("answers", "options", "kind"),
    [
        ([said(finish="content_filter")], {}, "ContentFilterError"),
        ([said("no"), said("no")], {"output_type": refusing, "retries": 0}, "UnexpectedModelBehavior"),
        (
            [said("long")],
            {"durability": {"usage_limits": UsageLimits(output_tokens_limit=1)}},
            "UsageLimitExceeded",
        ),
    ],
    ids=["filter", "rejected", "limit"],
)
def test_an_answer_that_ends_the_run_is_asked_once_and_counted(answers: Any, options: Any, kind: str) -> None:
    with submitted(agent_with(*answers, **options)) as (bench, session):
        bench.run(session)
        record = bench.record(session)
        assert record.status == "failed"
        assert [error.kind for error in bench.execution(session).errors] == [kind]
        assert '"parts"' not in str(record.errors), "not the whole answer"
        assert (record.usage["input"], record.usage["output"], record.usage["requests"]) == (10, 5, 1)
        assert record.cost == 15


def test_a_retry_after_such_an_answer_asks_again() -> None:
    with submitted(agent_with(said(finish="content_filter"), said("done"))) as (bench, session):
        bench.run(session)
        bench.retry(session)
        bench.run(session)
        record = bench.record(session)
        assert (record.status, record.final_response, record.usage["requests"]) == ("completed", "done", 2)
