"""Agents of pydantic-ai whose provider gives huge answers, over the HTTP clients that a model may have."""

from __future__ import annotations

import os

import httpx2
from pydantic_ai import Agent
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.openai import OpenAIProvider

from celery_agents import CeleryDurability

from .huge_agents import PROVIDER_URL


def model(client: httpx2.AsyncClient | None = None) -> OpenAIChatModel:
    url = os.environ.get(PROVIDER_URL, "http://127.0.0.1:9/v1")
    provider = OpenAIProvider(base_url=url, api_key="not-a-real-key", http_client=client)
    return OpenAIChatModel("gpt-4o-mini", provider=provider)


plain = Agent(model(), name="plain", capabilities=[CeleryDurability()])
own_client = Agent(model(httpx2.AsyncClient(timeout=60)), name="own_client", capabilities=[CeleryDurability()])
wrapped = Agent(WrapperModel(model()), name="wrapped", capabilities=[CeleryDurability()])
falling_back = Agent(FallbackModel(model(), model()), name="falling_back", capabilities=[CeleryDurability()])
