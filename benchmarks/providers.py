"""Figures of a provider that limits, and of one that is away: 200 jobs of one request, two workers.

    python benchmarks/providers.py --jobs 200

The provider is a process of its own, whose ledger counts every request. It allows five a second, as a token bucket of
five, and answers after 0.2 s; a refusal names the time to wait in whole seconds (`Retry-After`). The ideal time is that
of the limit itself. `--write` puts the figures into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from engines.product import product
from plans import FEW
from yardstick.environments import BENCHMARKS
from yardstick.running import Running
from yardstick.sections import Row, Section

sys.path.insert(0, str(BENCHMARKS.parent / "tests"))

from fault.real import limits

MODEL: Final = "bench:model"
OUTAGE_SECONDS: Final = 60.0

SECTION = Section(
    title="Providers that limit",
    text="""200 jobs of one model call each, two workers with 16 slots, and a stand-in for a provider that allows five
    requests a second and counts them. The ideal time is what the limit itself takes: 40 s. While each session learned
    of its own refusals alone, the same load took 57 s and 968 requests were refused. "Killed and changed" kills a
    worker twice and doubles the limit in the middle; its ideal time is 30 s. In the outage, the provider is away for a
    minute from the first request on. `make bench-providers` measures this.""",
    rows=(
        Row(title="nothing known: seconds", key="unknown_seconds"),
        Row(title="… over the ideal time", key="unknown_share", at_most=1.15),
        Row(title="… requests refused", key="unknown_refused"),
        Row(title="… most at once, of 32 slots", key="unknown_most_refused", at_most=32),
        Row(title="limit set: over the ideal time", key="configured_share", at_most=1.15),
        Row(title="… requests refused", key="configured_refused", at_most=0),
        Row(title="killed and changed: over the ideal time", key="killed_and_changed_share", at_most=1.15),
        Row(title="… requests refused", key="killed_and_changed_refused", at_most=0),
        Row(title="two models of one group: over the ideal time", key="two_models_share", at_most=1.15),
        Row(title="… requests refused", key="two_models_refused", at_most=0),
        Row(title="outage: all complete so many seconds after its end", key="outage_late", at_most=10),
        Row(title="… requests until the breaker was open", key="outage_opening", at_most=32),
        Row(title="… probes, one at a time", key="outage_probes"),
        Row(title="… delays or attempts counted", key="outage_counted", at_most=0),
        Row(
            title="steps/s under a limit that is never reached, over those without one",
            key="limited_share",
            at_least=0.85,
        ),
    ),
)


def provider_figures(jobs: int, seconds: float) -> dict[str, object]:
    """All figures, each load with workers and a Redis of its own."""
    found: dict[str, object] = {"jobs": jobs}
    with tempfile.TemporaryDirectory(prefix="bench-providers-") as name:
        folder = Path(name)
        for play in (limits.unknown, limits.configured, limits.killed_and_changed, limits.two_models):
            played = play(folder / play.__name__, jobs)
            assert not played.judge(play.__name__).violations, played.judge(play.__name__)
            found |= played.figures(play.__name__)
        away = limits.outage(folder / "outage", jobs, seconds)
    assert away.statuses.count("completed") == jobs, away.statuses
    assert all(each == 1 for each in away.breaches[1:]), away.breaches
    found |= {
        "outage_late": round(away.seconds - away.ideal, 1),
        "outage_opening": away.breaches[0],
        "outage_probes": len(away.breaches) - 1,
        "outage_counted": away.delays,
    }
    return found


def limited_share(rounds: int) -> float:
    """Steps a second of a worker under a limit that is never reached, over those without one, in turns."""
    from celery_agents import AgentClient
    from celery_agents.flow import ProviderLimit

    engine = product("keyed")
    found: dict[bool, list[float]] = {False: [], True: []}
    with Running(replace(engine, env={**engine.env, "CELERY_AGENTS_AGENTS": "engines.limited_agents"})) as running:
        running.measure(FEW)
        with AgentClient(redis_url=running.store.environment()["BENCH_REDIS"]) as client:
            for turn in range(2 * rounds):
                is_limited = turn % 4 in (1, 2)  # neither is always the first
                if is_limited:
                    client.limits.set(ProviderLimit(MODEL, rpm=10_000_000))
                else:
                    client.limits.remove(MODEL)
                found[is_limited].append(running.measure(FEW).steps_per_second)
    return round(statistics.median(found[True]) / statistics.median(found[False]), 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--outage", type=float, default=OUTAGE_SECONDS, help="seconds")
    parser.add_argument("--rounds", type=int, default=4, help="with and without a limit")
    SECTION.run(
        parser,
        "PROVIDERS",
        lambda asked: {
            "limited_share": limited_share(asked.rounds),
            **provider_figures(asked.jobs, asked.outage),
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
