"""An agent of a model: the provider of `support.provider`, found by `TEST_PROVIDER_URL` in the environment."""

from __future__ import annotations

import os

from celery_agents.worker.agent import Agent

from .agents import keyed, unsafe

buyer = Agent(
    "buyer",
    model="openai:test-model",
    base_url=os.environ["TEST_PROVIDER_URL"],
    step_timeout=15,  # a provider that hangs costs no more
    tools=(keyed, unsafe),
)
