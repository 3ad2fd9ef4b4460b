"""Limits, pauses and buckets as values: what is refused, and how they are named and stored."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from celery_agents.config.settings import Settings
from celery_agents.flow import ModelEndpoint, Pause, ProviderLimit
from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.flow.values import ProviderFacts, pause_field, provider_of
from celery_agents.worker.store import Claim, StepRef, memory_store
from celery_agents.worker.store.flow.records import CallCounts, Reservation, Settled, Settlement

LATER = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "ProviderLimit"),
        ({"rpm": -1}, "ProviderLimit.rpm"),
        ({"tpm": float("nan")}, "ProviderLimit.tpm"),
        ({"input_tpm": float("inf")}, "ProviderLimit.input_tpm"),
        ({"output_tpm": True}, "ProviderLimit.output_tpm"),
        ({"rpm": "5"}, "ProviderLimit.rpm"),
        ({"rpm": 1, "group": "a|b"}, "ProviderLimit.group"),
        ({"rpm": 1, "group": " a"}, "ProviderLimit.group"),
        ({"rpm": 1, "model": ""}, "ProviderLimit.model"),
        ({"rpm": 1, "model": None}, "ProviderLimit.model"),
        ({"rpm": 1, "model": "x" * 201}, "ProviderLimit.model"),
        ({"rpm": 1, "model": "a\nb"}, "ProviderLimit.model"),
    ],
)
def test_what_is_no_limit_is_refused_with_its_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        ProviderLimit(**{"model": "openai:m", **given})
    assert refused.value.field == field


def test_a_limit_names_what_it_counts_and_is_stored_without_loss() -> None:
    limit = ProviderLimit("openai:m", rpm=500, output_tpm=0, group="")
    assert limit.per_minute == {"requests": 500, "output_tokens": 0}
    assert (limit.field, ProviderLimit("openai:m", tpm=1).field) == ("limit:openai:m|", "limit:openai:m")
    stored = limit.set_by("ann", 5)
    assert ProviderLimit.from_json(stored.to_json()) == stored


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"kind": "tenant"}, "Pause.kind"),
        ({"name": ""}, "Pause.tool"),
        ({"name": "a|b"}, "Pause.tool"),
        ({"kind": "model", "name": 5}, "Pause.model"),
        ({"reason": ""}, "Pause.reason"),
        ({"reason": "  "}, "Pause.reason"),
        ({"reason": "x" * 501}, "Pause.reason"),
        ({"reason": None}, "Pause.reason"),
        ({"kind": "agent", "tell": True}, "Pause.tell"),
        ({"until": datetime(2030, 1, 1)}, "Pause.until"),  # noqa: DTZ001
    ],
)
def test_what_is_no_pause_is_refused_with_its_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Pause(**{"kind": "tool", "name": "refund", "reason": "r", **given})
    assert refused.value.field == field


def test_a_pause_names_what_it_holds_and_is_stored_without_loss() -> None:
    pause = Pause("tool", "refund", reason="the bank is down", until=LATER, tell=True)
    assert (pause.kind, pause.name, pause.field) == ("tool", "refund", "pause:tool:refund")
    assert pause.field == pause_field("tool", "refund")
    assert Pause("queue", "", reason="r").field == "pause:queue:", "the common queue"
    stored = pause.set_at(5)
    assert Pause.from_json(stored.to_json()) == stored
    end = round(LATER.timestamp() * 1000)
    assert (stored.until_ms, stored.holds(end - 1), stored.holds(end)) == (end, True, False)


def test_a_bucket_is_named_by_model_endpoint_and_group() -> None:
    digests = {
        ModelEndpoint(*names).digest for names in [("m", "e", "g"), ("m", "e", ""), ("m", "", "e"), ("m\ne", "", "g")]
    }
    assert len(digests) == 4
    assert ModelEndpoint("m", "\ud800").digest
    assert (provider_of("openai:m"), provider_of("local")) == ("openai", "local")


def test_a_database_in_memory_alone_counts_nothing() -> None:
    flow = memory_store(Settings.build()).flow
    claim = Claim("c", "w", StepRef("s", "e", 1), 1, 0)
    for call in "12":
        found = flow.reserve(claim, ModelEndpoint("m"), ProviderLimit("m", rpm=0), call=call, cost={}, lease_ms=1)
        assert isinstance(found, Reservation)
        assert flow.settle(Settlement(found, ProviderFacts(kind="outage"), CallCounts("w"))) == Settled()
