"""Metrics of model providers: what requests waited for, what was refused, limits, and what holds requests back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...worker.engine.flow_texts import HELD, bucket_limits, bucket_state
from ...worker.flow.caps import CapStatus
from ...worker.flow.concurrency import ConcurrencyStatus
from ...worker.flow.values import BucketStatus

if TYPE_CHECKING:
    from ...worker.engine.concurrency_gate import ConcurrencyGate
    from ...worker.engine.provider_gate import ProviderGate
    from ...worker.engine.spending_gate import SpendingGate

_MOST_BUCKETS: Final = 200
_MOST_COUNTS: Final = 500
_BUCKET: Final = ("model", "endpoint", "group")


def count_waits(gate: ProviderGate) -> Iterator[Any]:
    """Count this worker's waits and refusals; of many models, those with most."""
    from prometheus_client.core import CounterMetricFamily

    waits = CounterMetricFamily(
        "celery_agents_provider_waits", "Waits before requests, by reason", labels=("model", "reason")
    )
    for key, count in gate.waits.copy().most_common(_MOST_COUNTS):  # a copy, since steps count meanwhile
        waits.add_metric(key, count)
    refusals = CounterMetricFamily(
        "celery_agents_provider_refusals", "Requests that a provider refused or failed", labels=("model",)
    )
    for model, count in gate.refused.copy().most_common(_MOST_COUNTS):
        refusals.add_metric((model,), count)
    yield from (waits, refusals)


def measure_concurrency(gate: ConcurrencyGate, limits: Sequence[ConcurrencyStatus]) -> Iterator[Any]:
    """Count this worker's steps that were put off, and measure what runs and waits in the fleet."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    waits = CounterMetricFamily("celery_agents_concurrency_waits", "Steps put off, by limit", labels=("limit",))
    for name, count in gate.waits.copy().most_common(_MOST_COUNTS):
        waits.add_metric((name,), count)
    held = GaugeMetricFamily("celery_agents_concurrency_held", "Steps and calls that run", labels=("limit", "part"))
    waiting = GaugeMetricFamily("celery_agents_concurrency_waiting", "Sessions that wait", labels=("limit", "part"))
    for status in limits[:_MOST_BUCKETS]:
        for part in status.parts:
            held.add_metric((status.limit.name, part.name), part.held)
            waiting.add_metric((status.limit.name, part.name), part.waiting)
    yield from (waits, held, waiting)


def measure_caps(gate: SpendingGate, caps: Sequence[CapStatus]) -> Iterator[Any]:
    """Count this worker's calls that were refused, and measure what those have spent that have spent most."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    waits = CounterMetricFamily("celery_agents_cap_waits", "Model calls that a spend cap kept away", labels=("cap",))
    for name, count in gate.waits.copy().most_common(_MOST_COUNTS):
        waits.add_metric((name,), count)
    share = GaugeMetricFamily(
        "celery_agents_cap_spent_share", "The largest share of a spend cap that is spent, by cap", labels=("cap",)
    )
    for status in caps[:_MOST_BUCKETS]:
        share.add_metric((status.cap.name,), max((each.share for each in status.spent), default=0.0))
    yield from (waits, share)


def measure_buckets(buckets: Sequence[BucketStatus]) -> Iterator[Any]:
    """Measure the buckets of the fleet; all workers tell the same."""
    from prometheus_client.core import GaugeMetricFamily

    limits = GaugeMetricFamily(
        "celery_agents_provider_limit", "Limits of a minute (of all workers)", labels=(*_BUCKET, "counts", "source")
    )
    held = GaugeMetricFamily(
        "celery_agents_provider_held", "Whether no request goes, and why (of all workers)", labels=(*_BUCKET, "why")
    )
    for each in buckets[:_MOST_BUCKETS]:
        key = (each.bucket.model, each.bucket.endpoint, each.bucket.group)
        for counts, limit, source in bucket_limits(each):
            limits.add_metric((*key, counts, source), limit)
        state, _ = bucket_state(each)
        for why in HELD:
            held.add_metric((*key, why), state == why)
    yield from (limits, held)
