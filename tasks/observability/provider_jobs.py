"""The jobs at providers in numbers, for doctor and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ...worker.drivers.windows import WINDOWS
from ...worker.store.steps.provider_jobs import JobEntry

_MOST_SHOWN: Final = 8
_MOST_SERIES: Final = 200


@dataclass(slots=True)
class JobTally:
    """A count of the jobs whose answers are waited for.

    Attributes:
        counts: By model and window.
        oldest_ms: Since when the oldest is there (Redis ms); None where there is none.
        late: Those that have not ended within their window; an answer in the background has none.
        late_sessions: Sessions of some of these.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    oldest_ms: int | None = None
    late: int = 0
    late_sessions: list[str] = field(default_factory=list[str])


def tally_jobs(entries: Iterable[JobEntry], now_ms: int) -> JobTally:
    """Count jobs.

    Args:
        now_ms: Redis time.
    """
    tally = JobTally()
    for entry in entries:
        tally.counts[entry.model, entry.window] += 1
        tally.oldest_ms = entry.since_ms if tally.oldest_ms is None else min(tally.oldest_ms, entry.since_ms)
        if entry.window in WINDOWS and entry.due_ms < now_ms:
            tally.late += 1
            if len(tally.late_sessions) < _MOST_SHOWN:
                tally.late_sessions.append(entry.session_id)
    return tally


def measure_jobs(tally: JobTally) -> Iterator[Any]:
    """Measure jobs; all workers tell the same. Of many models, those with most."""
    from prometheus_client.core import GaugeMetricFamily

    jobs = GaugeMetricFamily(
        "celery_agents_provider_jobs", "Jobs at providers (of all workers)", labels=("model", "window")
    )
    for key, count in tally.counts.most_common(_MOST_SERIES):
        jobs.add_metric(key, count)
    what = "Of these, jobs that have not ended within their window"
    yield from (jobs, GaugeMetricFamily("celery_agents_provider_job_late", what, value=tally.late))
