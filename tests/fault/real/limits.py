"""Two workers and a provider that limits or is away: the provider's own ledger says what it was asked."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from celery_agents.worker.flow.values import ProviderLimit

from support.http_service import ServiceProcess
from support.lab import Lab
from support.limited_agents import GROUP, MODELS
from support.model_agents import KEY_NAME, PROVIDER_URL
from support.provider import Provider
from support.verdict import Verdict
from support.wait import wait_until

SLOTS: Final = 16
WORKERS: Final = 2
PER_SECOND: Final = 5
CLOCK_SECONDS: Final = 10.0
LATENCY: Final = 0.2
"""Seconds that an answer takes."""
LONGEST_SHARE: Final = 1.15
"""All jobs have to be done in so many times the time that the limit itself takes."""
BACK_SECONDS: Final = 10.0
"""All jobs have to be done so soon after an outage."""
BUSY_SECONDS: Final = 5.0
_PATIENCE: Final = 120.0


@dataclass
class Played:
    """What came of the jobs.

    Attributes:
        seconds: From the first submit to the last end.
        ideal: Seconds that the limit itself takes, or the outage.
        statuses: How the jobs have ended.
        entries: The requests that the provider got, in order.
        delays: Delays that were counted, of all steps.
        lost: Most requests that a worker which was killed had in flight.
    """

    seconds: float
    ideal: float
    statuses: Sequence[str]
    entries: Sequence[Mapping[str, Any]]
    delays: int
    lost: int = 0
    refusals: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.refusals = [entry["at"] for entry in self.entries if not entry["billed"]]

    @property
    def breaches(self) -> list[int]:
        """Refusals by breach: those that follow each other in less than a second."""
        found: list[int] = [1] if self.refusals else []
        for before, at in pairwise(self.refusals):
            if at - before < 1.0:
                found[-1] += 1
            else:
                found.append(1)
        return found

    @property
    def share(self) -> float:
        return self.seconds / self.ideal

    def figures(self, name: str) -> dict[str, float]:
        """For the benchmarks."""
        return {
            f"{name}_seconds": round(self.seconds, 1),
            f"{name}_share": round(self.share, 2),
            f"{name}_refused": len(self.refusals),
            f"{name}_most_refused": max(self.breaches, default=0),
        }

    def judge(self, name: str) -> Verdict:
        """All are complete, each was answered once, and a breach cost no more than what was in flight."""
        verdict = Verdict()
        completed, answered = self.statuses.count("completed"), len(self.entries) - len(self.refusals)
        verdict.counts.update(
            {"jobs_completed": completed, "requests": len(self.entries), "refused": len(self.refusals)}
        )
        verdict.counts["breaches"] += len(self.breaches)
        verdict.expect(completed == len(self.statuses), name, f"{completed} of {len(self.statuses)} jobs completed")
        verdict.expect(answered <= completed + self.lost, name, f"{completed} jobs were answered {answered} times")
        verdict.expect(self.delays == 0, name, f"{self.delays} delays were counted")
        most = max(self.breaches, default=0)
        verdict.expect(most <= WORKERS * SLOTS, name, f"{most} requests were refused at once")
        return verdict


class Stage:
    """A lab with a provider."""

    def __init__(self, lab: Lab, provider: Provider) -> None:
        self.lab = lab
        self.provider = provider
        self.began = 0.0

    def plan(self, per_second: float = PER_SECOND, **more: Any) -> None:
        """Let the provider allow so many requests a second and model."""
        self.provider.plan("done", latency=LATENCY, **{"limits": {"requests": per_second}, **more})

    def set_limit(self, model: str, per_second: float) -> None:
        flow = self.lab.client.store.flow
        limit = ProviderLimit(model, rpm=60 * per_second, group=GROUP)
        flow.set_value(limit)
        flow.bring_forward(limit.field)

    def submit(self, jobs: int, *agents: str) -> None:
        self.began = time.monotonic()
        for number in range(jobs):
            self.lab.say((agents or ("first",))[number % (len(agents) or 1)], f"job {number}.", ())

    def wait_for_answers(self, count: int) -> None:
        """Wait until so many jobs were answered."""
        wait_until(lambda: len(self.provider.paid()) >= count, "jobs are answered", _PATIENCE, interval=0.05)

    def wait(self, ideal: float, *, lost: int = 0) -> Played:
        """Wait until all jobs have ended, or three times as long as they should take."""
        with contextlib.suppress(AssertionError):
            self.lab.wait_for_jobs(3 * ideal + 20 - (time.monotonic() - self.began))
        seconds, client = time.monotonic() - self.began, self.lab.client
        statuses = [str(client.header(job.session_id).status) for job in self.lab.jobs]
        events = [event for job in self.lab.jobs for event in client.store.sessions.events(job.session_id)]
        delays = sum(event.data["delays"] for event in events if event.type == "step_delayed")
        return Played(seconds, ideal, statuses, self.provider.ledger(), delays, lost)


@contextlib.contextmanager
def stage(directory: Path, *, workers: int = WORKERS, quick: bool = False, **settings: str) -> Iterator[Stage]:
    """A Redis, a provider and workers."""
    service = ServiceProcess("support.provider", directory.parent / f"{directory.name}-provider")
    with service:
        provider = Provider(service, "limited")
        env = {PROVIDER_URL: provider.base_url, KEY_NAME: "sk-not-a-key", "CELERY_AGENTS_CONCURRENCY": str(SLOTS)}
        with Lab(directory, agents="support.limited_agents", env={**env, **settings}, quick=quick) as lab:
            for _ in range(workers):
                lab.worker()
            if workers:
                lab.client.wait_for_agent("second")
            yield Stage(lab, provider)


# --- limits -----------------------------------------------------------------------------------------------------------


def unknown(directory: Path, jobs: int) -> Played:
    """Nothing is known of the limit but what the refusals say."""
    with stage(directory) as played:
        played.plan()
        played.submit(jobs)
        return played.wait(jobs / PER_SECOND)


def by_the_clock(directory: Path, jobs: int) -> Played:
    """Nothing is known, and the provider counts by the clock and does not say until when it refuses."""
    with stage(directory) as played:
        requests = round(PER_SECOND * CLOCK_SECONDS)
        played.plan(limits={"requests": requests, "seconds": CLOCK_SECONDS, "by_clock": True, "retry_after": None})
        played.submit(jobs)
        return played.wait(jobs / PER_SECOND)


def configured(directory: Path, jobs: int) -> Played:
    """The limit is set before."""
    with stage(directory) as played:
        played.plan()
        played.set_limit(MODELS[0], PER_SECOND)
        played.submit(jobs)
        return played.wait(jobs / PER_SECOND)


def killed_and_changed(directory: Path, jobs: int) -> Played:
    """Half of the jobs under one limit, half under one of twice as much; a worker is killed in each half."""
    with stage(directory, quick=True) as played:
        played.plan()
        played.set_limit(MODELS[0], PER_SECOND)
        played.submit(jobs)
        for change, per_second in ((jobs // 4, 0), (jobs // 2, 2 * PER_SECOND), (3 * jobs // 4, 0)):
            played.wait_for_answers(change)
            if per_second:
                played.plan(per_second)
                played.set_limit(MODELS[0], per_second)
            else:
                played.lab.workers[-1].kill()
                played.lab.worker(wait=False)
        return played.wait(jobs / 2 / PER_SECOND + jobs / 4 / PER_SECOND, lost=2 * SLOTS)


def two_models(directory: Path, jobs: int) -> Played:
    """Two models of one group have a limit each, and use both."""
    with stage(directory) as played:
        played.plan()
        for model in MODELS:
            played.set_limit(model, PER_SECOND)
        played.submit(jobs, "first", "second")
        return played.wait(jobs / 2 / PER_SECOND)


def judge_limits(name: str, played: Played, *, is_busy: bool = False) -> Verdict:
    """They were done in time.

    Args:
        is_busy: Other tests run on the machine: a few seconds are theirs, and a request may be late for its turn.
    """
    verdict = played.judge(name)
    in_time = played.seconds <= LONGEST_SHARE * played.ideal + (BUSY_SECONDS if is_busy else 0)
    verdict.expect(in_time, name, f"{played.seconds:.1f} s are {played.share:.2f} times the ideal time")
    if name in ("configured", "two_models"):
        most = 2 if is_busy else 0
        count = len(played.refusals)
        verdict.expect(count <= most, name, f"{count} requests were refused under a known limit")
    return verdict


# --- outages ----------------------------------------------------------------------------------------------------------


def outage(directory: Path, jobs: int, seconds: float) -> Played:
    """The provider is away from the first moment on."""
    with stage(directory) as played:
        played.plan(limits=None, outage={"seconds": seconds})
        played.submit(jobs)
        return played.wait(seconds)


def judge_outage(played: Played) -> Verdict:
    """One probe at a time, nothing counted, and all are done soon after its end."""
    verdict = played.judge("outage")
    late = played.seconds - played.ideal
    verdict.expect(late <= BACK_SECONDS, "outage", f"all were done {late:.1f} s after its end")
    verdict.expect(all(each == 1 for each in played.breaches[1:]), "outage", f"probes came {played.breaches}")
    verdict.counts["probes"] += len(played.breaches) - 1
    return verdict


def everything(directory: Path, jobs: int, outage_seconds: float) -> Verdict:
    """All of these, one after another."""
    verdict = Verdict()
    for name, play in (
        ("unknown", unknown),
        ("by_the_clock", by_the_clock),
        ("configured", configured),
        ("killed_and_changed", killed_and_changed),
        ("two_models", two_models),
    ):
        verdict.add(judge_limits(name, play(directory / name, jobs)))
        verdict.counts[name] += 1
    verdict.add(judge_outage(outage(directory / "outage", jobs, outage_seconds)))
    return verdict
