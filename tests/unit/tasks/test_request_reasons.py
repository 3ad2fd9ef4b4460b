"""The sentence about open requests: of whom, since when, and what happens if nobody answers."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.tasks.observability.request_reasons import describe_age, describe_requests, describe_time
from celery_agents.worker.state import ExpiryAction, RequestKind, RequestSummary

# 2026-09-21 14:13:20 UTC.
NOW = 1_790_000_000_000
MINUTE = 60_000
HOUR = 60 * MINUTE


def summary(kind: RequestKind = RequestKind.APPROVAL, **fields: Any) -> RequestSummary:
    known: dict[str, Any] = {
        "id": "r", "session_id": "s", "agent": "a", "execution_id": "e", "step": 1, "tool": "refund", "call": "refund(cents=400)", "to": None,
        "text": "", "asked_at_ms": NOW - 12 * MINUTE, "expires_at_ms": None, "on_expiry": ExpiryAction.DENY,
    }  # fmt: skip
    return RequestSummary(kind=kind, **{**known, **fields})


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ([summary(to="managers", expires_at_ms=NOW + 3 * HOUR)],
         "waits for an approval of refund(cents=400) by managers, asked 12 min ago, denied at 17:13 UTC"),
        ([summary()], "waits for an approval of refund(cents=400) by anybody, asked 12 min ago"),
        ([summary(RequestKind.QUESTION, text="Which currency?")],
         "waits for an answer to 'Which currency?' by anybody, asked 12 min ago"),
        ([summary(RequestKind.QUESTION)], "waits for an answer to 'refund(cents=400)' by anybody, asked 12 min ago"),
        ([summary(RequestKind.EXTERNAL)],
         "waits for the result of refund(cents=400) from a service, asked 12 min ago"),
        ([summary(RequestKind.CHILD)], "waits for the end of the child session of refund(cents=400), asked 12 min ago"),
    ],
)  # fmt: skip
def test_a_request_is_described_in_one_sentence(requests: list[RequestSummary], said: str) -> None:
    assert describe_requests(requests, NOW) == said


def test_the_one_that_expires_first_is_described_and_the_others_are_counted() -> None:
    requests = [
        summary(to="old", asked_at_ms=NOW - HOUR),
        summary(to="late", expires_at_ms=NOW + 2 * HOUR),
        summary(to="soon", expires_at_ms=NOW + HOUR, on_expiry=ExpiryAction.PASS_ON),
    ]
    said = describe_requests(requests, NOW)
    assert said.endswith("by soon, asked 12 min ago, passed on at 15:13 UTC, and for 2 more")
    assert "by old, asked 1 h ago" in describe_requests([requests[0], summary(to="new")], NOW)


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        (ExpiryAction.DENY, "denied"),
        (ExpiryAction.APPROVE, "approved"),
        (ExpiryAction.VALUE, "answered by a fixed value"),
        (ExpiryAction.FAIL, "failed"),
        (ExpiryAction.PASS_ON, "passed on"),
    ],
)
def test_each_rule_for_the_expiry_has_its_word(rule: ExpiryAction, word: str) -> None:
    said = describe_requests([summary(expires_at_ms=NOW + 10 * HOUR, on_expiry=rule)], NOW)
    assert said.endswith(f"{word} at 2026-09-22 00:13 UTC")


def test_every_rule_and_every_kind_has_a_word() -> None:
    for rule in ExpiryAction:
        for kind in RequestKind:
            assert describe_requests([summary(kind, expires_at_ms=NOW, on_expiry=rule)], NOW)


@pytest.mark.parametrize(
    ("passed_ms", "said"),
    [(-5, "0 s"), (59_999, "59 s"), (MINUTE, "1 min"), (HOUR - 1, "59 min"), (HOUR, "1 h"), (47 * HOUR, "1 d")],
)
def test_an_age_is_in_one_unit(passed_ms: int, said: str) -> None:
    assert describe_age(passed_ms) == said


def test_a_time_of_today_has_no_date() -> None:
    assert describe_time(NOW + MINUTE, NOW) == "14:14 UTC"
    assert describe_time(NOW + 24 * HOUR, NOW) == "2026-09-22 14:13 UTC"


def test_a_time_that_somebody_has_stored_behind_the_year_9999_hides_no_request() -> None:
    said = describe_requests([summary(expires_at_ms=2**62)], NOW)
    assert said.endswith("denied at 9999-12-31 23:59 UTC")
