"""What people read of buckets and limits, and the metrics made of them."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from celery_agents.flow import BucketStatus, LearnedLimit, ModelEndpoint, Pause, ProviderLimit
from celery_agents.tasks.client.json_values import bucket_value, pause_value
from celery_agents.tasks.client.provider_notes import find_unused
from celery_agents.tasks.observability.provider_metrics import count_waits, measure_buckets
from celery_agents.worker.engine.flow_texts import (
    HELD,
    bucket_state,
    describe_limit,
    describe_limits,
    describe_pause,
    describe_refusal,
)
from celery_agents.worker.store.flow.records import Refused

MINI = ModelEndpoint("openai:gpt-5-mini", "", "team-a")
AT_MS = 1_000_000_000_000  # 2001-09-09 01:46:40 UTC


def status(**more: Any) -> BucketStatus:
    return BucketStatus(MINI, more.pop("limit", None), **more)


def limit(**numbers: float) -> ProviderLimit:
    return ProviderLimit(MINI.model, **numbers).set_by("ann", AT_MS)


LEARNED = LearnedLimit("requests", 480.0, "header", AT_MS)


@pytest.mark.parametrize(
    ("given", "state", "sentence"),
    [
        (status(), "open", "takes requests"),
        (status(limit=limit(rpm=5)), "open", "takes requests"),
        (status(window=4), "slow", "4 at a time, after a refusal"),
        (
            status(away_since_ms=AT_MS, probe_ms=AT_MS + 5_000), "away",
            "away since 2001-09-09 01:46 UTC; next probe at 2001-09-09 01:46 UTC",
        ),
        (
            status(not_before_ms=AT_MS, probe_ms=AT_MS + 60_000, why="not_before"), "waiting",
            "its provider asked to wait until 2001-09-09 01:46 UTC; next probe at 2001-09-09 01:47 UTC",
        ),
        (
            status(not_before_ms=AT_MS, probe_ms=AT_MS, why="quota", away_since_ms=AT_MS), "quota",
            "its quota is used up until 2001-09-09 01:46 UTC; next probe at 2001-09-09 01:46 UTC",
        ),
        (status(limit=limit(rpm=5, tpm=0), window=1), "closed", "takes no request: a limit is 0"),
    ],
    ids=lambda each: each if isinstance(each, str) and len(each) < 8 else "",
)  # fmt: skip
def test_a_bucket_is_a_word_and_a_sentence_of_what_frees_it(given: BucketStatus, state: str, sentence: str) -> None:
    assert bucket_state(given) == (state, sentence)
    value = bucket_value(given)
    assert (value["state"], value["sentence"]) == (state, sentence)
    assert (state in HELD) == (state not in ("open", "slow"))


def test_limits_say_where_they_come_from() -> None:
    known = status(limit=limit(rpm=500, tpm=1_200_000), learned=(LEARNED,))
    assert describe_limits(known) == (
        "500 requests a minute (as it was set), 1 200 000 tokens a minute (as it was set), "
        "480 requests a minute (learned from its headers)"
    )
    assert describe_limit(7.26, "output_tokens", "refusals") == "7.3 output tokens a minute (learned from its refusals)"
    assert describe_limits(status()) == ""


def test_a_pause_is_a_sentence_and_json() -> None:
    stored = Pause("queue", "", reason="a move", by="ann").set_at(AT_MS)
    assert describe_pause(stored) == "queue default paused by ann since 2001-09-09 01:46: a move"
    assert pause_value(stored)["name"] == "default"
    assert pause_value(stored)["until"] is None


def test_older_workers_that_tell_no_models_are_no_reason_to_fail() -> None:
    workers = {"new": {"models": ["openai:a", 7, None], "groups": []}, "old": {"models": [], "groups": []}}
    assert find_unused(ProviderLimit("openai:a", rpm=1), workers) == ()
    many = {"w": {"models": [f"openai:{number}" for number in range(20)], "groups": ["one"]}}
    (note,) = find_unused(ProviderLimit("openai:x", rpm=1, group="one"), many)
    assert note.endswith("openai:15 and 12 more.")


def samples(families: Any) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("celery_agents_provider_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_buckets_become_gauges() -> None:
    key = (MINI.model, "", "team-a")
    found = samples(measure_buckets([status(limit=limit(rpm=500), learned=(LEARNED,), away_since_ms=AT_MS)]))
    assert found[("limit", *key, "requests", "set")] == 500
    assert found[("limit", *key, "requests", "header")] == 480
    assert {name[-1]: value for name, value in found.items() if name[0] == "held"} == {
        "closed": 0, "quota": 0, "waiting": 0, "away": 1
    }  # fmt: skip
    assert (
        len(samples(measure_buckets([BucketStatus(ModelEndpoint(f"m:{n}"), limit(rpm=1)) for n in range(900)])))
        <= 1_000
    )


def test_waits_and_refusals_of_many_models_are_few_series() -> None:
    waits = Counter({(f"session's own {number}", "rate"): 1 for number in range(900)} | {("a", "rate"): 7})
    gate: Any = SimpleNamespace(waits=waits, refused=Counter({"a": 5}))
    found = samples(count_waits(gate))
    assert (found[("waits_total", "a", "rate")], found[("refusals_total", "a")]) == (7, 5)
    assert len(found) <= 1_000


FREE = "free at 2001-09-09 01:48"


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        ({"why": "zero", "dimension": "tokens"}, "the limit of M is 0 tokens a minute, until it is raised or removed"),
        ({"why": "zero"}, "the limit of M is 0 requests a minute, until it is raised or removed"),
        ({"why": "not_before"}, f"M asked to wait until 2001-09-09 01:46; {FREE}"),
        (
            {"why": "quota"},
            f"M says that the quota of its key is used up, until 2001-09-09 01:46 or `celery-agents unpause`; {FREE}",
        ),
        ({"why": "breaker"}, f"M is away since 2001-09-09 01:46; asked again by one request at a time; {FREE}"),
        ({"why": "window"}, f"M has just refused requests and gets few at a time; {FREE}"),
        (
            {"why": "rate", "dimension": "input_tokens", "per_minute": 2_500.5, "source": "set"},
            f"M allows 2 500.5 input tokens a minute (as it was set); {FREE}",
        ),
        (
            {"why": "rate", "per_minute": 5.0, "source": "header"},
            f"M allows 5 requests a minute (learned from its headers); {FREE}",
        ),
    ],
    ids=lambda each: each["why"] if isinstance(each, dict) else "",
)
def test_a_refusal_says_why_and_when_there_is_room(refused: dict[str, Any], text: str) -> None:
    found = Refused(wait_ms=90_000, at_ms=AT_MS, since_ms=AT_MS, **refused)
    assert describe_refusal(MINI, found) == text.replace("M ", f"{MINI.model} ", 1)
