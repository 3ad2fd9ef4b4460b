"""Limits, pauses and buckets in words: why a step is put off, what frees it, and when."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, assert_never

from ...config.settings import DEFAULT_QUEUE
from ..drivers.windows import WINDOWS
from ..flow.caps import NANOS, CapPart, SpendCap
from ..flow.concurrency import ConcurrencyStatus
from ..flow.shares import FairShares, ShareStatus
from ..flow.values import BucketStatus, Dimension, ModelEndpoint, Pause
from ..moments import moment
from ..store.flow.caps import Overspent
from ..store.flow.holders import NoneFree
from ..store.flow.records import Refused

_UNITS: Final = {
    "requests": "requests",
    "tokens": "tokens",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
}
_SOURCES: Final = {
    "set": "as it was set",
    "header": "learned from its headers",
    "text": "learned from a refusal's text",
    "refusals": "learned from its refusals",
}
HELD: Final = ("closed", "quota", "waiting", "away")
"""The states in which no request goes, but for a probe."""


def describe_pause(pause: Pause) -> str:
    """Say who has paused what, since when, why, and until when."""
    by = f" by {pause.by}" if pause.by else ""
    until = "" if pause.until is None else f"; until {describe_moment(pause.until)}"
    name = pause.name or DEFAULT_QUEUE  # the common queue has no other
    return f"{pause.kind} {name} paused{by} since {describe_moment(moment(pause.since_ms))}: {pause.reason}{until}"


def describe_limit(per_minute: float, dimension: Dimension, source: str) -> str:
    """Write a limit with its source: "500 requests a minute (learned from its headers)"."""
    number = f"{per_minute:,.1f}".removesuffix(".0").replace(",", " ")
    return f"{number} {_UNITS[dimension]} a minute ({_SOURCES.get(source, source)})"


def describe_refusal(bucket: ModelEndpoint, refused: Refused) -> str:
    """Say why a bucket admits no request now, and when it will."""
    model, since = bucket.model, describe_moment(moment(refused.since_ms))
    free = f"free at {describe_moment(moment(refused.at_ms + refused.wait_ms))}"
    match refused.why:
        case "zero":
            unit = _UNITS[refused.dimension or "requests"]
            return f"the limit of {model} is 0 {unit} a minute, until it is raised or removed"
        case "not_before":
            return f"{model} asked to wait until {since}; {free}"
        case "quota":
            return (
                f"{model} says that the quota of its key is used up, until {since} or `celery-agents unpause`; {free}"
            )
        case "breaker":
            return f"{model} is away since {since}; asked again by one request at a time; {free}"
        case "window":
            return f"{model} has just refused requests and gets few at a time; {free}"
        case "rate":
            limit = describe_limit(refused.per_minute, refused.dimension or "requests", refused.source)
            return f"{model} allows {limit}; {free}"
        case _ as never:
            assert_never(never)


def describe_none_free(found: NoneFree) -> str:
    """Say which concurrency limit is full."""
    part = found.part.words
    if found.most == 0:
        return f"the concurrency limit {part} is 0, until it is raised or removed"
    return f"the concurrency limit {part} allows {found.most} at a time, and {found.held} run"


def describe_parts(status: ConcurrencyStatus) -> list[str]:
    """Write what runs and waits of each part: "all: 2 run, 1 wait"."""
    return [f"{part.name or 'all'}: {part.held} run, {part.waiting} wait" for part in status.parts]


def describe_undefined(name: str) -> str:
    """Say that nobody has defined a concurrency limit, and what to do."""
    return (
        f"nobody has defined the concurrency limit {name}: celery-agents concurrency set {name} --total N, or "
        "client.concurrency.set(ConcurrencyLimit(…))"
    )


def describe_overspent(found: Overspent) -> str:
    """Say which spend cap is used up, and until when."""
    part, cap = found.part, found.part.cap
    most = cap.amount_for(part.value)
    if not most:
        return f"the spend cap {part.words} is 0 $, until it is raised or removed"
    ends = f"until {describe_moment(moment(part.ends_ms))} UTC or until it is raised"
    return (
        f"the spend cap {part.words} allows {most:g} $ a {cap.per}, and {found.spent / NANOS:.4g} $ are spent; {ends}"
    )


def describe_cap(cap: SpendCap) -> str:
    """Write what a cap allows: "20 $ a day for each customer (acme 100 $), then wait"."""
    amount = "" if cap.usd is None else f"{cap.usd:g} $ a {cap.per}"
    own = ", ".join(f"{value} {usd:g} $" for value, usd in cap.values.items())
    each = f"for each {cap.label}" if cap.label else ""
    agent = f"of agent {cap.agent}" if cap.agent else ""
    words = (amount or f"a {cap.per}", agent, each, f"({own})" if own else "")
    return f"{' '.join(word for word in words if word)}, then {cap.then}"


def describe_shares(shares: FairShares | None) -> str:
    """Write how slots are shared: "slots are shared by customer (acme 2), as ann has set it"."""
    if shares is None:
        return "no fair shares are set"
    weights = ", ".join(f"{value or 'without it'} {weight:g}" for value, weight in shares.weights.items())
    by = f", as {shares.by} has set it" if shares.by else ""
    return f"slots are shared by {shares.label}{f' ({weights})' if weights else ''}{by}"


def describe_waiting(status: ShareStatus) -> str:
    """Write how many steps of a share wait: "2 interactive, 290 normal"."""
    return ", ".join(f"{count} {priority}" for priority, count in status.waiting.items())


def describe_no_price(part: CapPart, model: str) -> str:
    """Say that a spend cap cannot be kept for a model, and what to do."""
    advice = "give it one, Agent(price=TokenPrice(…)), or take another model"
    return f"the spend cap {part.words} holds for {model!r}, which has no known price: {advice}"


def describe_share(part: CapPart, spent: int) -> str:
    """Write how much of a cap is spent: "customers for customer=acme: 16.1 $ of 20 $ a day"."""
    return f"{part.words}: {spent / NANOS:.4g} $ of {part.most / NANOS:g} $ a {part.cap.per}"


def describe_job(model: str, window: str, since: datetime) -> str:
    """Say since when an answer is waited for: "at the provider of openai:x since 14:02, 40 % cheaper, …"."""
    found = WINDOWS[window]
    until = describe_moment(found.until(since))
    return (
        f"at the provider of {model} since {describe_moment(since)}, {found.discount * 100:.0f} % cheaper, "
        f"at the latest {until} UTC"
    )


def describe_moment(at: datetime) -> str:
    """A time in UTC, with its date unless that is today's."""
    return f"{at:%H:%M:%S}" if at.date() == datetime.now(UTC).date() else f"{at:%Y-%m-%d %H:%M}"


def bucket_limits(status: BucketStatus) -> Iterator[tuple[Dimension, float, str]]:
    """Give what is limited, to how much a minute, and by what: "set" by people, or how it was learned."""
    for dimension, limit in (status.limit.per_minute if status.limit else {}).items():
        yield dimension, limit, "set"
    for learned in status.learned:
        yield learned.dimension, learned.per_minute, learned.source


def describe_limits(status: BucketStatus) -> str:
    """Write all limits: "500 requests a minute (as it was set), …"."""
    return ", ".join(describe_limit(limit, dimension, source) for dimension, limit, source in bucket_limits(status))


def bucket_state(status: BucketStatus) -> tuple[str, str]:
    """Name what a bucket does with requests, and write it with what frees it: ("away", "away since 10:42:13, …").

    It is "closed" (a limit is 0), "quota" (used up), "waiting" (as its provider asked), "away" (the breaker is open),
    "slow" (few at a time after a refusal) or "open".
    """
    away, until, probe = (
        f"{describe_moment(moment(at_ms))} UTC"
        for at_ms in (status.away_since_ms, status.not_before_ms, status.probe_ms)
    )
    if status.limit is not None and 0 in status.limit.per_minute.values():
        return "closed", "takes no request: a limit is 0"
    if status.not_before_ms:
        is_quota = status.why == "quota"
        what = "its quota is used up" if is_quota else "its provider asked to wait"
        return "quota" if is_quota else "waiting", f"{what} until {until}; next probe at {probe}"
    if status.away_since_ms:
        return "away", f"away since {away}; next probe at {probe}"
    return (
        ("open", "takes requests") if status.window is None else ("slow", f"{status.window} at a time, after a refusal")
    )
