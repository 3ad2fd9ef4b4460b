"""A batch of which nobody knows whether it was created, looked for among those that are beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_agents.worker.drivers import InferenceRequest
from celery_agents.worker.drivers.protocol import CreatedJob, JobOrder
from celery_agents.worker.drivers.pydantic_ai import PydanticAIDriver
from celery_agents.worker.errors import NotYetKnown

from support.patient_provider import PatientProvider
from support.states import running

HOUR = timedelta(hours=1)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[PatientProvider]:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    with PatientProvider() as made:
        made.plan(held=True)
        yield made


def asking(text: str) -> InferenceRequest:
    return InferenceRequest(running(text), session_id="s", execution_id="e", step=1)


def ordered(key: str, ago: timedelta) -> JobOrder:
    """A job that was about to be created so long ago, which somebody may have done for a minute."""
    at = datetime.now(UTC) - ago
    return JobOrder(key, "chain", "24h", at, at + timedelta(minutes=1))


def ask(provider: PatientProvider, verb: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    async def play() -> Any:
        driver = PydanticAIDriver("anthropic:claude-haiku-4-5", base_url=provider.root)
        try:
            return await verb(driver)
        finally:
            await driver.aclose()

    return asyncio.run(play())


def create(provider: PatientProvider, key: str) -> CreatedJob:
    return ask(provider, lambda driver: driver.create_job(asking(key), ordered(key, timedelta())))


def find(provider: PatientProvider, key: str, ago: timedelta) -> CreatedJob | None:
    return ask(provider, lambda driver: driver.find_job(asking(key), ordered(key, ago)))


def test_it_may_be_each_that_has_not_ended(provider: PatientProvider) -> None:
    beside = create(provider, "beside")
    with pytest.raises(NotYetKnown, match=beside.id):
        find(provider, "lost", timedelta())
    provider.release()
    assert find(provider, "lost", timedelta()) is None


def test_it_is_found_by_its_result(provider: PatientProvider) -> None:
    lost, beside = create(provider, "lost"), create(provider, "beside")
    provider.release(lost.id)
    found = find(provider, "lost", timedelta())
    assert found is not None
    assert found.id == lost.id != beside.id


def test_it_is_none_that_was_created_later(provider: PatientProvider) -> None:
    """Else it were never known, where there is always one that has not ended."""
    create(provider, "of-another-hour")
    assert find(provider, "lost", HOUR) is None
