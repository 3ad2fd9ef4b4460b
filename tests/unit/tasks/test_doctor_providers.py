"""Doctor tells of providers that are away, of quotas and of pauses, each with what to do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from celery_agents.flow import (
    BucketStatus,
    ConcurrencyLimit,
    ConcurrencyStatus,
    ModelEndpoint,
    PartStatus,
    Pause,
    ProviderLimit,
)
from celery_agents.tasks.observability.doctor.findings import Finding, Level
from celery_agents.tasks.observability.doctor.providers import check_concurrency, check_pauses, check_providers

BUCKET = ModelEndpoint("openai:gpt-5-mini", "", "~1f0c9a2b")
AT_MS = 1_000_000_000_000


def found(
    check: Any, *, buckets: Any = (), pauses: Any = (), workers: Any = None, limits: Sequence[ConcurrencyStatus] = ()
) -> list[Finding]:
    known = {each.limit.name: each.limit for each in limits}
    view = SimpleNamespace(pauses={each.field: each for each in pauses}, concurrency=known)
    flow = SimpleNamespace(view=lambda: view, buckets=lambda: list(buckets), concurrency=lambda: list(limits))
    return list(check(SimpleNamespace(store=SimpleNamespace(flow=flow), workers=workers or {})))


@pytest.mark.parametrize(
    ("state", "level", "what", "advice"),
    [
        ({"away_since_ms": AT_MS, "probe_ms": AT_MS}, Level.WARN, "away since", "continue by themselves"),
        (
            {"not_before_ms": AT_MS, "why": "quota"},
            Level.WARN,
            "quota is used up",
            "celery-agents unpause model openai:gpt-5-mini",
        ),
        ({"not_before_ms": AT_MS, "why": "not_before"}, Level.OK, "asked to wait until", ""),
        ({"window": 2}, Level.OK, "2 at a time, after a refusal", ""),
        ({}, Level.OK, "takes requests; no limit is known", ""),
    ],
    ids=("away", "quota", "waiting", "slow", "open"),
)
def test_a_bucket_is_a_finding(state: dict[str, Any], level: Level, what: str, advice: str) -> None:
    (finding,) = found(check_providers, buckets=[BucketStatus(BUCKET, None, **state)])
    assert finding.level is level
    assert finding.what.startswith("openai:gpt-5-mini, group ~1f0c9a2b: ")
    assert what in finding.what
    assert advice in finding.advice
    assert bool(finding.advice) == bool(advice)


def test_a_limit_that_nothing_uses_is_said_once_and_one_that_an_agent_has_is_not() -> None:
    workers = {"w": {"models": [BUCKET.model], "groups": ["batch"]}}
    used = ProviderLimit(BUCKET.model, rpm=5, group="batch")
    unused = ProviderLimit("openai:gone", rpm=5)
    endpoints = (
        ModelEndpoint(BUCKET.model, "", "batch"),
        ModelEndpoint(unused.model, "a", ""),
        ModelEndpoint(unused.model),
    )
    statuses = [BucketStatus(each, limit) for each, limit in zip(endpoints, (used, unused, unused), strict=True)]
    *known, finding = found(check_providers, buckets=statuses, workers=workers)
    assert [each.level for each in known] == [Level.OK] * 3
    assert finding.level is Level.WARN
    assert "no live worker has openai:gone" in finding.what
    assert "celery-agents limits remove" in finding.advice


def test_a_pause_without_an_end_is_a_warning_and_one_with_an_end_is_not() -> None:
    forever = Pause("tool", "refund", reason="the bank is down", by="ops").set_at(AT_MS)
    until = Pause("agent", "a", reason="x", until=datetime(2100, 1, 1, tzinfo=UTC)).set_at(AT_MS)
    first, second = found(check_pauses, pauses=[forever, until])
    assert (first.level, second.level) == (Level.WARN, Level.OK)
    assert first.what == "tool refund paused by ops since 2001-09-09 01:46: the bank is down"
    assert "celery-agents unpause" in first.advice
    assert second.what.endswith("; until 2100-01-01 00:00")
    assert (found(check_pauses), found(check_providers), found(check_concurrency)) == ([], [], [])


def test_limits_of_zero_and_names_without_a_limit_are_told_each_with_what_to_do() -> None:
    closed = ConcurrencyStatus(ConcurrencyLimit("crm", total=0), (PartStatus("", 0, 3),))
    used = ConcurrencyStatus(ConcurrencyLimit("bank", total=2), (PartStatus("", 2, 1),))
    workers = {"w1": {"concurrency": ["bank", "crm", "mail"]}}
    first, second, third = found(check_concurrency, limits=[closed, used], workers=workers)
    assert (first.level, second.level, third.level) == (Level.WARN, Level.OK, Level.WARN)
    assert "0 lets nothing begin under crm" in first.what
    assert second.what == "bank: all: 2 run, 1 wait"
    assert "nobody has defined the concurrency limit mail: celery-agents concurrency set mail" in third.what
    assert third.advice == "set it; what names it waits until then"
