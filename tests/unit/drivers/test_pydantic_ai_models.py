"""From a model's name to a client; what is missing is said with what to do."""

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest

from celery_agents.worker.drivers import PydanticAIDriver
from celery_agents.worker.drivers.pydantic_ai.models import ModelClients, Target, build
from celery_agents.worker.errors import ConfigurationError, MissingExtra
from celery_agents.worker.redaction import redact
from celery_agents.worker.state import LLMConfig

LOCAL = "http://localhost:9/v1"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.endswith(("_API_KEY", "_BASE_URL")):
            monkeypatch.delenv(name)


def refused(model: str, base_url: str | None = None, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        PydanticAIDriver(model, base_url=base_url, **options).check()
    assert caught.value.__cause__ is None
    return str(caught.value)


@pytest.mark.parametrize(
    ("model", "base_url", "said"),
    [
        ("openai:gpt-5-mini", None, "needs OPENAI_API_KEY; set it in the environment of the workers"),
        ("anthropic:claude-haiku-4-5", None, "needs ANTHROPIC_API_KEY"),
        ("opanai:gpt-5-mini", None, "there is no provider 'opanai'; did you mean 'openai'"),
        ("zzz:gpt-5-mini", None, "there is no provider 'zzz'; write provider:name"),
        ("gpt-5-mini", None, "write provider:name"),
        ("openai:", None, "write provider:name"),
        ("  ", None, "write provider:name"),
        ("deepseek:chat", LOCAL, "takes no base_url; for an OpenAI-compatible server write openai-chat:chat"),
        ("openai:gpt-5-mini", "localhost:8000", "base_url 'localhost:8000': write an address such as http://"),
        ("openai:gpt-5-mini", "http://[::1", "write an address"),
        ("openai:gpt-5-mini", "ftp://host/v1", "write an address"),
    ],
)
def test_what_is_missing_or_wrong_is_said_in_a_sentence(model: str, base_url: str | None, said: str):
    text = refused(model, base_url)
    assert said in text
    assert "\n" not in text
    assert redact(text) == text, "as the session shows it"


def test_a_provider_whose_package_is_missing_names_it():
    try:
        import groq  # noqa: F401
    except ImportError:
        assert "pip install 'pydantic-ai-slim[groq]'" in refused("groq:llama")
    else:
        pytest.skip("the groq package is installed")


def test_the_model_must_be_text():
    with pytest.raises(ConfigurationError, match="write provider:name"):
        PydanticAIDriver(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temprature": 1}, "model_settings.temprature: there is no such setting; did you mean temperature"),
        ({"timeout": 5}, "model_settings.timeout: set step_timeout"),
        ({"max_retries": 5}, "retries are the engine's"),
        ({"anthropic_thinking": {}}, "there is no such setting"),
    ],
)
def test_settings_that_nobody_reads_are_refused(settings: dict[str, Any], said: str):
    assert said in refused("openai:gpt-5-mini", LOCAL, settings=settings)


def test_settings_of_the_provider_are_accepted():
    settings = {"temperature": 0.5, "openai_reasoning_effort": "low"}
    PydanticAIDriver("openai:gpt-5-mini", base_url=LOCAL, settings=settings).check()


@pytest.mark.parametrize(
    ("model", "base_url", "made", "name"),
    [
        ("openai:gpt-5-mini", None, "OpenAIResponsesModel", "gpt-5-mini"),
        ("openai:gpt-5-mini", LOCAL, "OpenAIChatModel", "gpt-5-mini"),
        ("openai:gpt-5-mini", "https://api.openai.com/v1", "OpenAIResponsesModel", "gpt-5-mini"),
        ("openai-chat:gpt-5-mini", None, "OpenAIChatModel", "gpt-5-mini"),
        ("openai-responses:gpt-5-mini", LOCAL, "OpenAIResponsesModel", "gpt-5-mini"),
        ("anthropic:claude-haiku-4-5", LOCAL, "AnthropicModel", "claude-haiku-4-5"),
        ("qwen3", LOCAL, "OpenAIChatModel", "qwen3"),
        ("qwen3:8b", LOCAL, "OpenAIChatModel", "qwen3:8b"),
        ("vendor/model", LOCAL, "OpenAIChatModel", "vendor/model"),
    ],
)
def test_another_servers_openai_means_chat_completions(
    model: str, base_url: str | None, made: str, name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "x" * 20)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x" * 20)
    built = build(Target(model, base_url))
    assert type(built).__name__ == made
    assert built.model_name == name


def test_the_address_in_the_providers_own_variable_counts_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_BASE_URL", LOCAL)
    assert type(build(Target("openai:gpt-5-mini"))).__name__ == "OpenAIChatModel"


@pytest.mark.parametrize("model", ["openai:gpt-5-mini", "openai-responses:gpt-5-mini", "anthropic:claude-haiku-4-5"])
def test_the_clients_own_retries_are_off(model: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x" * 20)
    provider: Any = build(Target(model, LOCAL)).provider
    assert provider.client.max_retries == 0


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, Target("openai:a", LOCAL)),
        (LLMConfig(), Target("openai:a", LOCAL)),
        (LLMConfig(settings={"temperature": 1}), Target("openai:a", LOCAL)),
        (LLMConfig(model="openai:b"), Target("openai:b", LOCAL)),
        (LLMConfig(model="anthropic:c"), Target("anthropic:c", None)),
        (LLMConfig(base_url="http://other/v1"), Target("openai:a", "http://other/v1")),
        (LLMConfig(model="anthropic:c", base_url="http://other"), Target("anthropic:c", "http://other")),
    ],
)
def test_an_agents_own_model_keeps_the_address_only_with_the_same_provider(config: LLMConfig | None, expected: Target):
    assert Target("openai:a", LOCAL).overridden_by(config) == expected


def test_connections_belong_to_their_event_loop_and_are_closed_with_it():
    clients = ModelClients()
    target = Target("openai:a", LOCAL)

    async def use() -> Any:
        model = await clients.get(target)
        assert await clients.get(target) is model
        await clients.aclose()
        assert await clients.get(target) is not model
        await clients.aclose()
        return model

    first = asyncio.run(use())
    assert asyncio.run(use()) is not first
    assert first.provider.client.is_closed()


def test_models_of_many_agents_do_not_keep_connections_for_ever():
    async def use() -> None:
        clients = ModelClients()
        first = await clients.get(Target("openai:0", LOCAL))
        for number in range(1, 33):
            await clients.get(Target(f"openai:{number}", LOCAL))
        provider: Any = first.provider
        assert provider.client.is_closed()
        await clients.aclose()

    asyncio.run(use())


def test_importing_drivers_does_not_import_pydantic_ai():
    code = "import sys, celery_agents.worker.drivers; sys.exit('pydantic_ai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_the_extra_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pydantic_ai", None)
    with pytest.raises(MissingExtra, match=r"pip install 'celery-agents\[llm\]'"):
        PydanticAIDriver("openai:gpt-5-mini").check()
