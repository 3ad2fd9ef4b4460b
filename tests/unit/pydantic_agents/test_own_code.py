"""An exception in the code of an agent ends the execution with its text; one of the model's client does not show its text."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.capabilities import PrepareTools, ProcessHistory
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, ModelRateLimitError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.usage import RequestUsage

from celery_agents import CeleryDurability, StopExecution
from celery_agents.worker.drivers import InferenceRequest
from celery_agents.worker.engine.outcome import Done, RetryLater
from celery_agents.worker.errors import DriverError
from celery_agents.worker.pydantic_agents.driver import PydanticAgentDriver

from support.pydantic_found import submitted
from support.states import running


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def with_instructions(error: Exception) -> PydanticAgent[Any, Any]:
    agent = PydanticAgent(TestModel(), name="agent", capabilities=[CeleryDurability()])
    agent.instructions(failing(error))
    return agent


def with_validator(error: Exception) -> PydanticAgent[Any, Any]:
    agent = PydanticAgent(TestModel(), name="agent", output_type=int, capabilities=[CeleryDurability()])
    agent.output_validator(failing(error))
    return agent


def with_processor(error: Exception) -> PydanticAgent[Any, Any]:
    return PydanticAgent(TestModel(), name="agent", capabilities=[ProcessHistory(failing(error)), CeleryDurability()])


def with_prepare(error: Exception) -> PydanticAgent[Any, Any]:
    async def prepare(*_: Any) -> Any:
        raise error

    return PydanticAgent(TestModel(), name="agent", capabilities=[PrepareTools(prepare), CeleryDurability()])


@pytest.mark.parametrize("error", [KeyError("customer"), FileNotFoundError(2, "No such file", "prompt.md")], ids=str)
@pytest.mark.parametrize("made", [with_instructions, with_validator, with_processor, with_prepare])
def test_the_text_of_an_exception_in_the_agents_code_is_told_and_the_log_has_its_place(
    made: Callable[[Exception], PydanticAgent[Any, Any]], error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    said = f"{type(error).__name__}: {error}"
    with submitted(made(error)) as (bench, session), caplog.at_level(logging.INFO):
        assert isinstance(bench.step(session), Done)
        record = bench.record(session)
        assert (record.status, record.stop_message) == ("failed", said)
    [line] = [each for each in caplog.text.splitlines() if f"raised {said}" in each]
    assert "test_own_code.py:" in line


def test_an_answer_is_counted_whose_output_the_agents_code_fails_at() -> None:
    agent = with_validator(RuntimeError("no such account"))
    with submitted(agent) as (bench, session):
        bench.run(session)
        usage = bench.record(session).usage
        assert usage["input"] > 0
        assert usage["output"] > 0
        assert bench.record(session).stop_message == "RuntimeError: no such account"


@pytest.mark.parametrize("fails", [1, 1_000])
def test_each_answer_is_counted_behind_which_a_connection_of_the_agents_code_breaks(fails: int) -> None:
    answers = list[int]()

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        answers.append(1)
        return ModelResponse([TextPart("done")], usage=RequestUsage(input_tokens=10, output_tokens=1))

    agent = PydanticAgent(FunctionModel(answer), name="agent", capabilities=[CeleryDurability()])

    @agent.output_validator
    def check(output: str) -> str:
        if len(answers) <= fails:
            raise ConnectionRefusedError(111, "the shop is closed")
        return output

    with submitted(agent) as (bench, session):
        bench.run(session)
        record = bench.record(session)
        asked = min(fails + 1, bench.settings.driver_attempts)
        assert (len(answers), record.usage["input"]) == (asked, 10 * asked)
        assert record.status == ("completed" if fails == 1 else "failed")
        assert ("the shop is closed" in record.stop_message) is (fails > 1)


def test_an_agents_code_may_stop_the_execution() -> None:
    with submitted(with_instructions(StopExecution("the shop is closed"))) as (bench, session):
        bench.run(session)
        record = bench.record(session)
        assert (record.status, record.stop_message) == ("stopped", "the shop is closed")


def test_a_connection_of_the_agents_code_that_breaks_is_tried_again_with_its_text() -> None:
    with submitted(with_instructions(ConnectionRefusedError(111, "the shop is closed"))) as (bench, session):
        outcome = bench.step(session)
        assert isinstance(outcome, RetryLater)
        assert "the shop is closed" in outcome.reason


def test_the_text_of_an_exception_in_a_model_is_not_told() -> None:
    model = WrapperModel(FunctionModel(failing(RuntimeError("the key sk-17 is wrong"))))
    with submitted(PydanticAgent(model, name="agent", capabilities=[CeleryDurability()])) as (bench, session):
        bench.step(session)
        assert bench.record(session).stop_message == "function:fail: could not be asked (RuntimeError)."


def test_an_agent_whose_models_all_slow_down_is_tried_again() -> None:
    def busy() -> FunctionModel:
        return FunctionModel(failing(ModelRateLimitError("m", "slow down")))

    with submitted(PydanticAgent(FallbackModel(busy(), busy()), name="agent", capabilities=[CeleryDurability()])) as (
        bench,
        session,
    ):
        outcome = bench.step(session)
        assert isinstance(outcome, RetryLater)
        assert "asks to slow down" in outcome.reason


def test_what_a_provider_has_said_to_a_model_of_a_fallback_is_not_kept() -> None:
    refused = ModelHTTPError(401, "m", body={"error": {"message": "Incorrect API key provided: sk-17"}})
    lost = ModelAPIError("m", "the stream of sk-17 has ended")
    models = [FunctionModel(failing(refused)), FunctionModel(failing(lost)), TestModel(custom_output_text="done")]
    with submitted(PydanticAgent(FallbackModel(*models), name="agent", capabilities=[CeleryDurability()])) as (
        bench,
        session,
    ):
        bench.run(session)
        assert bench.record(session).final_response == "done"
        kept = str(bench.state(session).to_json())
        assert "ModelHTTPError: status_code: 401" in kept
        assert "ModelAPIError" in kept
        assert "sk-17" not in kept


async def break_off(messages: Any, info: Any) -> AsyncIterator[str]:
    yield "one "
    raise RuntimeError("the key sk-17 is wrong")


def test_nor_is_that_of_an_exception_in_the_middle_of_a_models_stream() -> None:
    agent = PydanticAgent(FunctionModel(stream_function=break_off), name="agent")
    request = InferenceRequest(running("go"), session_id="s", execution_id="e", step=1, emit=[].append)
    with pytest.raises(DriverError) as caught:
        asyncio.run(PydanticAgentDriver(agent, CeleryDurability()).infer(request))
    assert str(caught.value) == "function::break_off could not be asked (RuntimeError)."
