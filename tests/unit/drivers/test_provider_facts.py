"""The numbers in headers and texts of providers; the texts are as users have quoted them from the providers' answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError, ModelQuotaExceededError, ModelRateLimitError

from celery_agents.worker.drivers.pydantic_ai.failures import as_driver_error
from celery_agents.worker.drivers.pydantic_ai.provider_facts import facts_of_headers, facts_of_text, seconds_to_wait

OPENAI = {
    "x-ratelimit-limit-requests": "500",
    "x-ratelimit-remaining-requests": "499",
    "x-ratelimit-reset-requests": "120ms",
    "x-ratelimit-limit-tokens": "200000",
    "x-ratelimit-remaining-tokens": "150000",
    "x-ratelimit-reset-tokens": "15s",
}


def test_headers_of_openai() -> None:
    facts = facts_of_headers(200, OPENAI)
    assert facts.limits == {"requests": 500, "tokens": 200_000}
    assert facts.remaining == {"requests": 499, "tokens": 150_000}
    assert facts.reset_seconds == {"requests": 0.12, "tokens": 15}
    assert (facts.kind, facts.retry_after) == ("ok", None)


def test_headers_of_anthropic_tell_dates() -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=40)).isoformat(timespec="seconds")
    dimensions = {"requests": ("50", "49"), "input-tokens": ("20000", "1000"), "output-tokens": ("4000", "4000")}
    headers: dict[str, str] = {}
    for name, (limit, remaining) in dimensions.items():
        head = f"anthropic-ratelimit-{name}"
        headers |= {f"{head}-limit": limit, f"{head}-remaining": remaining, f"{head}-reset": soon}
    facts = facts_of_headers(200, headers)
    assert facts.limits == {"requests": 50, "input_tokens": 20_000, "output_tokens": 4_000}
    assert facts.remaining["input_tokens"] == 1_000
    assert 38 <= facts.reset_seconds["output_tokens"] <= 40


def test_headers_of_mistral_and_cerebras_name_the_minute() -> None:
    facts = facts_of_headers(
        200,
        {
            "x-ratelimit-limit-req-minute": "720",
            "x-ratelimit-remaining-req-minute": "717",
            "x-ratelimit-limit-tokens-minute": "5000000",
            "x-ratelimit-limit-requests-day": "100",
            "x-ratelimit-limit-tokens-5-minute": "3",
            "x-ratelimit-tokens-query-cost": "52",
        },
    )
    assert facts.limits == {"requests": 720, "tokens": 5_000_000}, "those of a day are no rate"
    assert facts.remaining == {"requests": 717}


def test_a_limit_of_a_day_is_told_as_one_of_a_minute() -> None:
    """Groq's `x-ratelimit-limit-requests` is of a day: 14 400 of them, and 30 are whole again after 180 s."""
    facts = facts_of_headers(
        200,
        {
            "x-ratelimit-limit-requests": "14400",
            "x-ratelimit-remaining-requests": "14370",
            "x-ratelimit-reset-requests": "2m59.56s",
        },
    )
    assert facts.limits["requests"] == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize(
    "value", ["", "a lot", "-1", "nan", "inf", "1e999", "100, 100;window=60", "2026-13-45T00:00:00Z", "١٢"]
)
def test_a_header_that_is_no_number_says_nothing(value: str) -> None:
    names = [f"x-ratelimit-{what}-requests" for what in ("limit", "remaining", "reset")]
    facts = facts_of_headers(200, dict.fromkeys(names, value))
    assert not facts.limits or facts.limits == {"requests": 12}


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2),
        ({"retry-after": "0.3"}, 0.3),
        ({"retry-after": "2", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"retry-after": "soon"}, None),
    ],
)
def test_the_wait_that_is_asked_for(headers: dict[str, str], seconds: float | None) -> None:
    assert seconds_to_wait(headers) == seconds


def test_a_wait_until_a_date() -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert seconds_to_wait({"retry-after": at}) == pytest.approx(90, abs=2)


@pytest.mark.parametrize("ahead_seconds", [-90, 0, 90])
def test_a_date_is_read_by_the_clock_of_the_provider(ahead_seconds: int) -> None:
    """The clock of this machine may be behind or ahead; so would be the wait of the whole fleet."""
    its_now = datetime.now(UTC) + timedelta(seconds=ahead_seconds)
    dates = {"date": its_now, "retry-after": its_now + timedelta(seconds=60)}
    headers = {name: format_datetime(at, usegmt=True) for name, at in dates.items()}
    assert seconds_to_wait(headers) == 60
    error = ModelHTTPError(429, "m", headers=headers)
    assert as_driver_error(error, "openai:m", asked=True).retry_after == 60
    soon = (its_now + timedelta(seconds=40)).isoformat(timespec="seconds")
    told = {**headers, "anthropic-ratelimit-requests-limit": "50", "anthropic-ratelimit-requests-reset": soon}
    assert facts_of_headers(429, told).reset_seconds == {"requests": 40}


HUGE = "9" * 400


@pytest.mark.parametrize("wait", ["1e308", f"{HUGE}h", f"{HUGE}.0s", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_wait_that_no_clock_can_count_is_a_very_long_one(wait: str) -> None:
    seconds = seconds_to_wait({"retry-after": wait})
    assert seconds is not None
    assert 1e11 < seconds <= 1e12


@pytest.mark.parametrize(
    "date",
    [
        "Fri, 31 Dec 9999 23:59:59 +99999999999999999999",
        f"Mon, 01 Jan {HUGE} 00:00:00 GMT",
        f"Mon, 01 Jan 2026 {HUGE}:00:00 GMT",
        "Mon, 32 Jan 2026 00:00:00 GMT",
    ],
)
def test_a_date_that_no_calendar_has_says_nothing(date: str) -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert seconds_to_wait({"retry-after": date}) is None
    assert seconds_to_wait({"retry-after": soon, "date": date}) == pytest.approx(90, abs=2)
    assert facts_of_headers(200, {"anthropic-ratelimit-requests-reset": date}).reset_seconds == {}


@pytest.mark.parametrize("count", [HUGE, "9" * 5_000])
def test_numbers_of_any_length_in_a_text_are_read(count: str) -> None:
    body = f"on tokens per min (TPM): Limit {count}, Used 1. Please try again in {count}s. 5 requests per {count} sec"
    facts = facts_of_text(body)
    assert facts.limits == {"tokens": 1e12}
    assert facts.retry_after == (1e12 if len(count) == len(HUGE) else None)


@pytest.mark.parametrize(
    ("status", "kind"), [(200, "ok"), (429, "rate_limit"), (529, "outage"), (503, "outage"), (400, "other")]
)
def test_the_kind_of_an_answer(status: int, kind: str) -> None:
    assert facts_of_headers(status, {}).kind == kind


def test_a_limit_of_nothing_is_a_quota() -> None:
    """Mistral answers so for a model that the plan does not have; waiting never helps."""
    assert facts_of_headers(429, {"x-ratelimit-limit-req-minute": "0"}).kind == "quota"


GOOGLE: dict[str, Any] = {
    "error": {
        "code": 429,
        "message": "You exceeded your current quota.\n* Quota exceeded for metric: … limit: 10\nPlease retry in 38.54s.",
        "details": [
            {
                "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                "violations": [
                    {
                        "quotaId": "GenerateRequestsPerMinutePerProjectPerModel-FreeTier",
                        "quotaDimensions": {"location": "global", "model": "gemini-2.5-flash"},
                        "quotaValue": "10",
                    },
                    {"quotaId": "GenerateContentInputTokensPerModelPerMinute-FreeTier", "quotaValue": "250000"},
                    {"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier", "quotaValue": "250"},
                ],
            }
        ],
    }
}
TEXTS: list[tuple[Any, dict[str, float], float | None]] = [
    (
        ("Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Used 29500, "
        "Requested 1200. Please try again in 1.4s. Visit …"),
        {"tokens": 30_000},
        1.4,
    ),
    (
        {"error": {"message": "Rate limit reached for gpt-3.5-turbo on requests per min (RPM): Limit 3, Used 3, "
                   "Requested 1. Please try again in 20s.", "code": "rate_limit_exceeded"}},
        {"requests": 3},
        20,
    ),
    (
        ("Rate limit reached for model `llama` in organization `org` service tier `on_demand` on tokens per minute "
        "(TPM): Limit 6000, Used 3513, Requested 3166. Please try again in 1m6.780999999s. Need more tokens?"),
        {"tokens": 6_000},
        66.780999999,
    ),
    ("… on requests per day (RPD): Limit 200, Used 200, Requested 1. Please try again in 7m12s.", {}, 432),
    ("… have exceeded token rate limit of your current OpenAI S0 pricing tier. Please retry after 6 seconds.", {}, 6),
    ("Rate limit is exceeded. Try again in 26 seconds.", {}, 26),
    ("Too many. Retry after 2 minutes", {}, 120),
    (
        "This request would exceed your organization's rate limit of 20,000 input tokens per minute. For details, …",
        {"input_tokens": 20_000},
        None,
    ),
    ("This request would exceed the rate limit for your organization (id) of 50 requests per minute.",
     {"requests": 50}, None),
    ("Maximum 5 requests within 1 minutes", {"requests": 5}, None),
    ("at most 10 requests per second", {"requests": 600}, None),
    (GOOGLE, {"requests": 10, "input_tokens": 250_000}, 38.54),
    ("Requests rate limit exceeded", {}, None),
    ("Service tier capacity exceeded for this model.", {}, None),
    (None, {}, None),
]  # fmt: skip


@pytest.mark.parametrize(("body", "limits", "wait"), TEXTS, ids=range(len(TEXTS)))
def test_numbers_in_the_text_of_a_refusal(body: Any, limits: dict[str, float], wait: float | None) -> None:
    said = facts_of_text(body)
    assert said.limits == limits
    assert said.retry_after == (None if wait is None else pytest.approx(wait))
    assert not said.is_too_large


def test_a_refusal_says_its_numbers_and_never_its_text() -> None:
    body = {"error": {"message": f"{TEXTS[0][0]} sk-secret"}}
    raised = ModelHTTPError.for_category(ModelRateLimitError, status_code=429, model_name="m", body=body)
    error: Any = as_driver_error(raised, "openai:m", asked=True)
    assert (error.kind, error.transient, error.retry_after, error.limits) == (
        "rate_limit",
        True,
        1.4,
        {"tokens": 30_000},
    )
    assert "secret" not in repr((str(error), vars(error)))


def test_the_header_of_a_refusal_comes_before_its_text() -> None:
    raised = ModelHTTPError(429, "m", {"message": "Please try again in 9s."}, headers={"retry-after": "0.5"})
    assert as_driver_error(raised, "openai:m", asked=True).retry_after == 0.5  # type: ignore[attr-defined]


def test_a_request_that_is_larger_than_its_limit_is_not_waited_for() -> None:
    said = "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 30601. The input must …"
    raised = ModelHTTPError.for_category(
        ModelRateLimitError, status_code=429, model_name="m", body={"error": {"message": said}}
    )
    error: Any = as_driver_error(raised, "openai:m", asked=True)
    assert (error.kind, error.transient) == ("request_too_large", False)


def test_a_quota_is_recognised() -> None:
    raised = ModelHTTPError.for_category(ModelQuotaExceededError, status_code=429, model_name="m", body={})
    error: Any = as_driver_error(raised, "openai:m", asked=True)
    assert (error.kind, error.transient) == ("quota", False)
