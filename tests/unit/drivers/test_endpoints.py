"""The names by which requests are counted: model, address without credentials, and a digest of the key."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models import infer_model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel

from celery_agents.worker.agent import Agent as OurAgent
from celery_agents.worker.drivers import PydanticAIDriver
from celery_agents.worker.flow.values import ModelEndpoint
from celery_agents.worker.pydantic_agents.definition import definition_of
from celery_agents.worker.pydantic_agents.durability import CeleryDurability
from celery_agents.worker.state import LLMConfig

KEY = "sk-endpoints-0123456789abcdef"
GROUP = "~" + hashlib.sha256(KEY.encode()).hexdigest()[:8]
OPENAI = "https://api.openai.com/v1"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.setenv(name, KEY)
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.mark.parametrize(
    ("model", "base_url", "expected"),
    [
        ("openai:gpt-5-mini", None, ModelEndpoint("openai:gpt-5-mini", OPENAI, GROUP)),
        ("anthropic:claude-haiku-4-5", None, ModelEndpoint("anthropic:claude-haiku-4-5", "https://api.anthropic.com", GROUP)),
        ("google:gemini-2.5-flash", None,
         ModelEndpoint("google:gemini-2.5-flash", "https://generativelanguage.googleapis.com", GROUP)),
        ("bedrock:amazon.nova", None,
         ModelEndpoint("bedrock:amazon.nova", "https://bedrock-runtime.us-east-1.amazonaws.com", "")),
        ("openai:gpt-5-mini", "http://user:s3cret@host:81/v1/?key=s3cret",
         ModelEndpoint("openai:gpt-5-mini", "http://host:81/v1", GROUP)),
        ("llama-3", "http://host/v1", ModelEndpoint("openai-chat:llama-3", "http://host/v1", GROUP)),
    ],
)  # fmt: skip
def test_a_driver_names_what_its_requests_are_counted_by(
    model: str, base_url: str | None, expected: ModelEndpoint
) -> None:
    assert PydanticAIDriver(model, base_url=base_url).endpoint() == expected


def test_two_keys_are_two_buckets_and_no_key_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    first = PydanticAIDriver("openai:gpt-5-mini").endpoint()
    monkeypatch.setenv("OPENAI_API_KEY", KEY + "2")
    second = PydanticAIDriver("openai:gpt-5-mini").endpoint()
    assert first is not None
    assert second is not None
    assert first.digest != second.digest
    assert KEY not in repr((first, second))


def test_a_model_that_cannot_be_made_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    assert PydanticAIDriver("openai:gpt-5-mini").endpoint() is None
    assert PydanticAIDriver("nowhere:model").endpoint() is None


def test_a_session_with_a_model_of_its_own_has_another() -> None:
    driver = PydanticAIDriver("openai:gpt-5-mini")
    own = driver.endpoint(LLMConfig(model="anthropic:claude-haiku-4-5"))
    assert own is not None
    assert own.model == "anthropic:claude-haiku-4-5"


def found(model: Any) -> Any:
    definition = definition_of(
        Agent(model, name="durable", capabilities=[CeleryDurability(provider_group="team")]), "here"
    )
    assert definition is not None
    return definition


def test_an_agent_of_pydantic_ai_has_one_too() -> None:
    for model in (
        "openai:gpt-5-mini",
        infer_model("openai:gpt-5-mini"),
        WrapperModel(infer_model("openai:gpt-5-mini")),
    ):
        driver = found(model).fields["driver"]
        assert driver.endpoint() == ModelEndpoint("openai:gpt-5-mini", OPENAI, GROUP), model
    agent = OurAgent(**found("openai:gpt-5-mini").fields)
    assert agent.provider_group == "team"


@pytest.mark.parametrize("model", [TestModel(), None], ids=["of no provider", "chosen in the run"])
def test_a_model_of_no_provider_has_none(model: Any) -> None:
    assert found(model).fields["driver"].endpoint() is None


def test_several_models_in_one_have_none() -> None:
    model = FallbackModel(infer_model("openai:gpt-5-mini"), infer_model("anthropic:claude-haiku-4-5"))
    assert found(model).fields["driver"].endpoint() is None
