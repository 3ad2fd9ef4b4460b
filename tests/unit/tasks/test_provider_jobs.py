"""Jobs at providers in numbers: what doctor and the metrics tell of those that wait and those that have answered."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from celery_agents.tasks.observability.doctor.findings import Finding, Level
from celery_agents.tasks.observability.doctor.providers import check_jobs
from celery_agents.tasks.observability.doctor.workers import check_delayed
from celery_agents.tasks.observability.metrics import Metrics
from celery_agents.tasks.observability.provider_jobs import measure_jobs, tally_jobs
from celery_agents.worker.agent import Agent
from celery_agents.worker.engine import Done
from celery_agents.worker.store.steps.provider_jobs import JobEntry

from support.engine import Bench
from support.later_driver import LaterDriver

NOW_MS = 1_795_000_000_000
HOUR_MS = 3_600_000


def entry(number: int, *, due_ms: int, window: str = "8h", model: str = "openai:gpt-5-mini") -> JobEntry:
    return JobEntry(
        id=f"resp_{number}", handle="{}", key=f"ca-{number}", session_id=f"session-{number}", execution_id="e", step=1,
        job=0, agent="report", model=model, window=window, since_ms=NOW_MS - number * HOUR_MS, due_ms=due_ms,
    )  # fmt: skip


def found(*entries: JobEntry) -> list[Finding]:
    housekeeping = SimpleNamespace(provider_jobs=lambda: iter(entries), now_ms=lambda: NOW_MS)
    made: Any = SimpleNamespace(store=SimpleNamespace(housekeeping=housekeeping))
    return list(check_jobs(made))


def test_doctor_says_nothing_without_jobs_and_counts_them_by_model_and_window() -> None:
    assert found() == []
    jobs = [entry(n, due_ms=NOW_MS + 1) for n in (1, 2)] + [entry(3, due_ms=NOW_MS + 1, window="24h")]
    (finding,) = found(*jobs, entry(0, due_ms=NOW_MS - 1, window="background"))
    assert finding.level is Level.OK
    assert finding.what.startswith(
        "2 of openai:gpt-5-mini, 8h, 1 of openai:gpt-5-mini, 24h, 1 of openai:gpt-5-mini, bac"
    )
    assert "; the oldest since 2026-11-18 08:06 UTC" in finding.what


def test_doctor_names_sessions_of_jobs_that_are_later_than_their_window() -> None:
    (finding,) = found(entry(9, due_ms=NOW_MS - HOUR_MS), entry(1, due_ms=NOW_MS))
    assert finding.level is Level.WARN
    assert finding.what.endswith("1 later than their window: session-9")
    (finding,) = found(*(entry(n, due_ms=1) for n in range(100)))
    assert "100 later than their window: " in finding.what
    assert finding.what.count("session-") == 8


def test_a_step_at_its_provider_is_no_delay_that_an_operator_has_to_look_at() -> None:
    bench = Bench(Agent("report", driver=LaterDriver(), completion_window="8h"), driver_attempts=3)
    bench.step(bench.submit())
    assert len(bench.store.housekeeping.list_delayed()) == 1
    made: Any = SimpleNamespace(store=bench.store)
    (finding,) = check_delayed(made)
    bench.close()
    assert (finding.level, finding.what) == (Level.OK, "none")


def test_many_models_are_few_series() -> None:
    entries = [entry(n, due_ms=1, model=f"openai:{n}") for n in range(1_000)]
    jobs, late = measure_jobs(tally_jobs(entries, NOW_MS))
    assert len(jobs.samples) == 200
    assert late.samples[0].value == 1_000


def test_an_answer_counts_with_its_time_and_with_what_its_window_saved() -> None:
    driver, metrics = LaterDriver(), Metrics()
    bench = Bench(Agent("report", driver=driver, completion_window="8h"), driver_attempts=3)
    bench.runner = bench.another_worker(*bench.agents, observer=metrics)
    session = bench.submit()
    bench.step(session)
    driver.finish("the report")
    bench.clock.go_on(1_800)
    assert isinstance(bench.step(session), Done)
    bench.close()
    registry: CollectorRegistry = metrics.registry
    (model,) = {
        each.labels["model"] for family in registry.collect() for each in family.samples if "window" in each.labels
    }
    labels = {"model": model, "window": "8h"}
    assert registry.get_sample_value("celery_agents_provider_job_seconds_count", labels) == 1
    seconds = registry.get_sample_value("celery_agents_provider_job_seconds_sum", labels)
    assert seconds is not None
    assert 1_800 <= seconds < 1_810
    saved = registry.get_sample_value("celery_agents_saved_dollars_total", labels)
    paid = registry.get_sample_value("celery_agents_cost_usd_total", {"agent": "report", "model": model})
    assert saved is not None
    assert paid is not None
    assert (math.isclose(paid, 0.06), math.isclose(saved, 0.04)) == (True, True), "of 0.10 $"
    assert (
        registry.get_sample_value("celery_agents_driver_seconds_count", {"agent": "report", "outcome": "answer"})
        is None
    )
