"""Settings that start background jobs at the provider are refused; a model without such jobs begins none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelRequest
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.test import TestModel

from celery_agents import Agent, CeleryDurability
from celery_agents.worker.drivers import InferenceRequest
from celery_agents.worker.drivers.protocol import CreatedJob
from celery_agents.worker.drivers.pydantic_ai import PydanticAIDriver
from celery_agents.worker.drivers.pydantic_ai.acceptable import AcceptableRequest
from celery_agents.worker.drivers.pydantic_ai.driver import Question
from celery_agents.worker.drivers.pydantic_ai.models import Target
from celery_agents.worker.errors import ConfigurationError, DriverError
from celery_agents.worker.pydantic_agents.begun import BegunCall
from celery_agents.worker.pydantic_agents.definition import definition_of
from celery_agents.worker.pydantic_agents.driver import PydanticAgentDriver
from celery_agents.worker.state import LLMConfig

from support.states import running

BACKGROUND: list[Any] = [{"openai_background": True}, {"extra_body": {"background": True}}]
NAMES = pytest.mark.parametrize("settings", BACKGROUND, ids=["setting", "extra_body"])


def ask(driver: Any, **more: Any) -> None:
    request = InferenceRequest(running("hello"), session_id="s", execution_id="e", step=1, **more)
    with pytest.raises(DriverError, match="background") as raised:
        asyncio.run(driver.infer(request))
    assert not raised.value.transient


@NAMES
def test_an_agent_is_refused(settings: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"model_settings\..*background"):
        Agent("a", model="openai:gpt-5-mini", model_settings=settings)


@NAMES
def test_a_session_is_refused_before_the_request(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    ask(PydanticAIDriver("openai:gpt-5-mini"), settings=LLMConfig(settings=settings))


@NAMES
@pytest.mark.parametrize("owner", ["agent", "model"])
def test_an_agent_of_pydantic_ai_is_refused(settings: Any, owner: str) -> None:
    model = TestModel(settings=settings if owner == "model" else None)
    given = settings if owner == "agent" else None
    agent = PydanticAgent(model, name="a", model_settings=given, capabilities=[CeleryDurability()])
    with pytest.raises(ConfigurationError, match="background"):
        definition_of(agent, "a")


@NAMES
def test_settings_that_are_known_in_a_run_are_refused_before_the_request(settings: Any) -> None:
    options = CeleryDurability()
    agent = PydanticAgent(TestModel(), name="a", model_settings=lambda ctx: settings, capabilities=[options])
    ask(PydanticAgentDriver(agent, options))


def test_a_setting_that_is_off_is_taken() -> None:
    PydanticAIDriver("openai:gpt-5-mini", settings={"openai_background": False, "extra_body": {"store": False}})


def test_a_model_of_the_session_that_nobody_can_attach_to_begins_nothing() -> None:
    def keep(created: CreatedJob) -> None:
        raise AssertionError("whoever attaches to this answer asks for an empty conversation")

    model = TestModel(custom_output_text="said")
    request = InferenceRequest(running("hello"), session_id="s", execution_id="e", step=1, keep=keep)
    sent = AcceptableRequest([ModelRequest.user_text_prompt("hello")], None, ModelRequestParameters())
    answer = asyncio.run(Question(model, sent, None).ask(request, Target("test"), None))
    assert answer.text == "said"
    call = BegunCall(None, request, pytest.fail)
    assert call.model_of(model) is model
    events: Any = object()
    assert call.keeping(events) is events


@pytest.mark.parametrize("how", [{"completion_window": "8h"}, {"background": True}])
def test_a_gateway_that_the_environment_names_sells_nothing(how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://gateway:4000/v1")  # asked by chat completions, which end at once
    with pytest.raises(ConfigurationError, match="OPENAI_BASE_URL"):
        Agent("report", model="openai:gpt-5-mini", **how)
    Agent("report", model="openai-responses:gpt-5-mini", **how)
    Agent("report", model="openai:gpt-5-mini", base_url="https://api.openai.com/v1", **how)
