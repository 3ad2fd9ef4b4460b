"""A job that its provider says is gone, in either of HTTP's words for it: another one is asked for, at every provider."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from celery_agents.worker.drivers import InferenceRequest
from celery_agents.worker.drivers.protocol import JobOrder
from celery_agents.worker.drivers.pydantic_ai import PydanticAIDriver
from celery_agents.worker.errors import JobEnded

from support.patient_provider import PatientProvider
from support.states import running

OPENAI, CLAUDE, GEMINI = "openai-responses:gpt-5-mini", "anthropic:claude-haiku-4-5", "google:gemini-2.5-flash"
PLACES = [
    (OPENAI, "8h", "response.retrieve"),
    (OPENAI, "24h", "batch.retrieve"),
    (OPENAI, "24h", "file.content"),
    (CLAUDE, "24h", "messages_batch.retrieve"),
    (CLAUDE, "24h", "messages_batch.results"),
    (GEMINI, "24h", "google_batch.retrieve"),
    (GEMINI, "24h", "google_file.content"),
]


@pytest.mark.parametrize("status", [404, 410])
@pytest.mark.parametrize(("model", "window", "place"), PLACES)
def test_it_has_ended_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, model: str, window: str, place: str, status: int
) -> None:
    for name in ("OPENAI", "ANTHROPIC", "GOOGLE"):
        monkeypatch.setenv(f"{name}_API_KEY", "k")
    request = InferenceRequest(running("hello"), session_id="s", execution_id="e", step=1)
    at = datetime.now(UTC)
    order = JobOrder("key", "chain", window, at, at + timedelta(minutes=1))

    async def play(provider: PatientProvider) -> None:
        base_url = provider.url if model == OPENAI else provider.root
        driver = PydanticAIDriver(model, base_url=base_url)
        try:
            job = await driver.create_job(request, order)
            provider.release()
            provider.fault(place, "status", code=status)
            with pytest.raises(JobEnded) as ended:
                await driver.collect_job(request, job.handle)
            assert ended.value.kind == "forgotten"
        finally:
            await driver.aclose()

    with PatientProvider() as provider:
        provider.plan(held=True)
        asyncio.run(play(provider))
