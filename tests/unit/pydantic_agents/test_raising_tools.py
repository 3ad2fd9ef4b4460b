"""A tool that raises fails the execution; a retry after the repair makes the call again by its effect class."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import RunContext, UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from celery_agents import CeleryDurability
from celery_agents.worker.engine import Done
from celery_agents.worker.state import Approve, ToolOutcome
from celery_agents.worker.tools import OutcomeUnknown, StopExecution

from support.engine import Bench, WorkerDied
from support.pydantic_examples import comparable
from support.pydantic_found import conversation_of, submitted

SECRET = "sk-live-0123456789abcdef"


class Shop:
    """A shop whose till is broken, and what it was asked for."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.log: list[str] = []
        self.keys: list[str] = []

    def repair(self) -> None:
        self.error = None

    def agent(self, effect: str, calls: list[str], *, approve: bool = False, sequential: bool = False) -> Any:
        def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            self.log.append("model")
            if any(message.kind == "response" for message in messages):
                return ModelResponse(parts=[TextPart("paid")])
            parts = [ToolCallPart(name, {"cents": 5}, tool_call_id=f"c{place}") for place, name in enumerate(calls)]
            return ModelResponse(parts=parts)

        agent: PydanticAgent[None, Any] = PydanticAgent(
            FunctionModel(answer), name="shop", capabilities=[CeleryDurability()]
        )

        @agent.tool(metadata={"celery": {"effect": effect}}, requires_approval=approve, sequential=sequential)
        def pay(ctx: RunContext[None], cents: int) -> str:
            self.log.append(f"pay {cents}")
            self.keys.append((ctx.metadata or {}).get("celery", {}).get("idempotency_key", ""))
            if self.error is not None:
                raise self.error
            return f"paid {cents}"

        @agent.tool_plain(metadata={"celery": {"effect": "unsafe"}}, sequential=sequential)
        def pack(cents: int) -> str:
            self.log.append("pack")
            return "packed"

        return agent


def results(bench: Bench, session: str) -> dict[str, str]:
    """What the model reads of each call, by its tool."""
    history = conversation_of(bench, session).history
    return {part.tool_name: part.content for part in history[2].parts}


@pytest.mark.parametrize("effect", ["pure", "keyed", "unsafe"])
def test_a_tool_that_raises_fails_the_execution_with_its_text(effect: str) -> None:
    shop = Shop(ValueError(f"no connection to the till, key={SECRET}"))
    with submitted(shop.agent(effect, ["pay"])) as (bench, session):
        bench.run(session)
        record = bench.record(session)
        assert record.status == "failed"
        assert record.errors == ("ValueError: no connection to the till, key=[redacted]",)
        (made,) = bench.state(session).steps[0].tool_executions
        assert made.outcome is ToolOutcome.ERROR
        assert made.error is not None
        assert made.error.kind == "ValueError"
        assert SECRET not in bench.state(session).to_json().decode()
        assert shop.log == ["model", "pay 5"]


@pytest.mark.parametrize("effect", ["pure", "keyed"])
def test_a_retry_after_the_repair_makes_the_call_again_and_goes_on_as_if_it_had_not_failed(effect: str) -> None:
    shop = Shop(ValueError("broken"))
    agent = shop.agent(effect, ["pay", "pack"])
    with submitted(agent) as (bench, session):
        bench.run(session)
        bench.retry(session)
        bench.run(session)
        assert bench.record(session).status == "failed"
        shop.repair()
        bench.retry(session)
        bench.run(session)
        record = bench.record(session)
        assert (record.status, record.final_response) == ("completed", "paid")
        assert record.errors == ("ValueError: broken", "ValueError: broken"), "those it recovered from"
        assert shop.log.count("pay 5") == 3
        assert shop.log.count("pack") == 1, "a call that had its effect is not made again"
        assert shop.log.count("model") == 2, "the model is not asked for the same calls again"
        assert len(set(shop.keys)) == 1
        assert results(bench, session) == {"pay": "paid 5", "pack": "packed"}
        expected = agent.run_sync("go")
        conversation = conversation_of(bench, session)
        assert comparable(conversation.history) == comparable(expected.all_messages())
        assert dataclasses.asdict(conversation.usage) == dataclasses.asdict(expected.usage)
        assert record.usage["requests"] == 2


def test_the_model_reads_the_error_of_an_unsafe_call_after_a_retry() -> None:
    shop = Shop(ValueError("broken"))
    with submitted(shop.agent("unsafe", ["pay"])) as (bench, session):
        bench.run(session)
        shop.repair()
        bench.retry(session)
        bench.run(session)
        assert bench.record(session).status == "completed"
        assert shop.log == ["model", "pay 5", "model"]
        assert results(bench, session) == {"pay": "ValueError: broken"}


def test_a_message_instead_of_a_retry_goes_on_with_the_error() -> None:
    shop = Shop(ValueError("broken"))
    with submitted(shop.agent("keyed", ["pay", "pack"])) as (bench, session):
        bench.run(session)
        bench.send(session, "never mind")
        bench.run(session)
        assert bench.record(session).status == "completed"
        assert sorted(shop.log) == ["model", "model", "pack", "pay 5"]
        assert results(bench, session) == {"pay": "ValueError: broken", "pack": "packed"}


def test_calls_behind_the_one_that_raised_do_not_begin_and_are_made_by_the_retry() -> None:
    shop = Shop(ValueError("broken"))
    with submitted(shop.agent("keyed", ["pay", "pack"], sequential=True)) as (bench, session):
        bench.run(session)
        assert shop.log == ["model", "pay 5"]
        shop.repair()
        bench.retry(session)
        bench.run(session)
        assert shop.log == ["model", "pay 5", "pay 5", "pack", "model"]
        assert results(bench, session) == {"pay": "paid 5", "pack": "packed"}


def test_an_approval_counts_for_the_same_call_when_it_is_made_again() -> None:
    shop = Shop(ValueError("broken"))
    with submitted(shop.agent("keyed", ["pay"], approve=True)) as (bench, session):
        bench.run(session)
        bench.answer(session, Approve(args={"cents": 4}))
        bench.run(session)
        assert bench.record(session).status == "failed"
        shop.repair()
        bench.retry(session)
        bench.run(session)
        assert bench.record(session).status == "completed"
        assert shop.log == ["model", "pay 4", "pay 4", "model"]
        assert len(set(shop.keys)) == 1


def test_a_worker_that_dies_while_a_call_is_made_again_makes_it_once_more() -> None:
    shop = Shop(ValueError("broken"))
    with submitted(shop.agent("keyed", ["pay"])) as (bench, session):
        bench.run(session)
        shop.error = WorkerDied()
        bench.retry(session)
        bench.worker_died(session)
        shop.repair()
        assert isinstance(bench.step(session), Done)
        bench.run(session)
        assert bench.record(session).status == "completed"
        assert shop.log == ["model", "pay 5", "pay 5", "pay 5", "model"]
        assert len(set(shop.keys)) == 1


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (UsageLimitExceeded("enough"), "failed", "enough"),
        (UnexpectedModelBehavior("odd"), "failed", "odd"),
        (ExceptionGroup("several", [ValueError("one"), KeyError("two")]), "failed", "several"),
        (StopExecution("closed"), "stopped", "closed"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_exception_ends_the_execution_as_its_kind_says(error: Exception, status: str, says: str) -> None:
    with submitted(Shop(error).agent("pure", ["pay"])) as (bench, session):
        bench.run(session)
        record = bench.record(session)
        assert record.status == status
        assert says in record.stop_message
        assert bool(record.errors) is (status == "failed")


def test_a_tool_that_cannot_tell_whether_it_happened_says_so() -> None:
    with submitted(Shop(OutcomeUnknown("the line went dead")).agent("keyed", ["pay"])) as (bench, session):
        bench.run(session)
        assert bench.record(session).status == "completed"
        assert "the line went dead" in results(bench, session)["pay"]


def test_calls_that_pydantic_ai_itself_has_ended_are_not_made_again() -> None:
    """The same arguments would end in the same way, so the model reads why instead."""
    shop = Shop(UnexpectedModelBehavior("Tool 'pay' exceeded max retries count of 1"))
    with submitted(shop.agent("pure", ["pay"])) as (bench, session):
        bench.run(session)
        bench.retry(session)
        bench.run(session)
        assert bench.record(session).status == "completed"
        assert shop.log == ["model", "pay 5", "model"]
