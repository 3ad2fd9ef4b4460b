"""Metrics of model providers: what requests waited for, what was refused, limits, and what holds requests back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...worker.engine.flow_texts import HELD, bucket_limits, bucket_state
from ...worker.flow.values import BucketStatus

if TYPE_CHECKING:
    from ...worker.engine.provider_gate import ProviderGate

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
