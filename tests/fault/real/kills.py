"""kill -9 of real workers at every crash point and for every effect class, with many jobs in flight."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from celery_agents.flow import FairShares

from support.lab import EFFECT_TOOLS, Lab, Supervisor, wait_while_feeding
from support.verdict import Verdict, summary

# Where a step of each kind of tool passes. Calls of pure tools leave no record: nothing begins (c4) or is noted (c6).
_FUSED = ("c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")
_WITHOUT_RECORDS = ("c4", "c6")
_IN_FLIGHT = 12
# A step goes on elsewhere within ten seconds, and one in a hundred within the longest time. A few kills have no 99th
# percentile: one of theirs may take longer.
_RECOVERED_SECONDS = 10
_LONGEST_SECONDS = 13


def combinations(*, separate: bool, points: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """Crash points and tools that meet."""
    chosen = points or ((*_FUSED, "c9") if separate else _FUSED)
    return [(p, tool) for tool in EFFECT_TOOLS for p in chosen if not (tool == "pure" and p in _WITHOUT_RECORDS)]


class SharedLab(Lab):
    """A lab whose jobs are of five customers, which share the slots."""

    def __enter__(self) -> Self:
        super().__enter__()
        self.client.shares.set(FairShares("customer", weights={"c0": 2}))
        return self

    def labels(self, number: int) -> dict[str, str]:
        return {"customer": f"c{number % 5}"}


def kill_everywhere(
    directory: Path,
    rounds: int,
    seed: int,
    *,
    separate: bool,
    timeout: float,
    points: Sequence[str] | None = None,
    make: Callable[..., Lab] = Lab,
) -> Verdict:
    """Each crash point × effect class so many times; with a broker of its own also between commit and publish.

    One worker is never killed, two carry crash plans and are started again with the next one when they die.

    Args:
        points: Only these. None: all that there are.
        make: Makes the lab.
    """
    chance = random.Random(seed)
    meetings = combinations(separate=separate, points=points) * rounds
    plans = [f"{point}:0.2:{chance.randrange(10**9)}" for point, _ in meetings]
    wanted = dict(zip(plans, [tool for _, tool in meetings], strict=True))
    with make(directory, separate=separate, quick=False) as lab:
        steady = lab.worker()
        lab.client.wait_for_agent("planned")
        with Supervisor(lab, list(plans), 2) as supervisor:
            numbers = itertools.count()

            def feed() -> None:
                tools = [wanted[crash] for crash in supervisor.active] or list(EFFECT_TOOLS)
                tool = tools[next(numbers) % len(tools)]
                lab.submit([tool, tool], [tool], before=0.05)

            recent: list[object] = []

            def in_flight() -> int:
                recent[:] = [job for job in lab.jobs[-200:] if not lab.ended(job)]
                return len(recent)

            wait_while_feeding(
                lambda: supervisor.done, feed, in_flight=in_flight, most=_IN_FLIGHT, timeout=timeout,
                why="every crash plan has killed its worker",
            )  # fmt: skip
            lab.wait_for_jobs(60)
        verdict = lab.verdict()
        verdict.expect(steady.alive, "workers", "the worker that nobody killed has ended")
        for problem in supervisor.problems:
            verdict.expect(False, "lab", problem)
        waits = lab.recoveries(supervisor.deaths)
        for number, death in enumerate(supervisor.deaths):
            if death.crash:
                point = death.crash.split(":", 1)[0]
                verdict.counts["kills"] += 1
                verdict.counts[f"killed_{point}_{wanted[death.crash]}"] += 1
                verdict.expect(death.code == -9, "workers", f"ended with {death.code} at {death.crash}")
                verdict.recoveries += waits[number]
                for wait, place in zip(waits[number], death.held or death.lost, strict=False):
                    verdict.expect(wait <= _LONGEST_SECONDS, "I2", f"{death.crash} cost {place} {wait:.1f} s")
        late = [wait for wait in verdict.recoveries if wait > _RECOVERED_SECONDS]
        most = max(1, len(verdict.recoveries) // 100)
        verdict.expect(bool(verdict.recoveries), "lab", "no step of a dead worker was seen to go on")
        verdict.expect(len(late) <= most, "I2", f"recoveries took {summary(verdict.recoveries)}")
        verdict.counts["jobs"] = len(lab.jobs)
    return verdict


def prefork(directory: Path, jobs: int) -> Verdict:
    """Children of a prefork worker die in the middle of tool calls; the worker starts others and goes on."""
    with Lab(directory, env={"CELERY_AGENTS_CONCURRENCY": "3"}) as lab:
        worker = lab.worker(crash="c5:0.2:3", CELERY_AGENTS_POOL="prefork")
        for _ in range(jobs):
            lab.submit(["keyed"], ["unsafe"])
        steady = lab.worker()
        lab.wait_for_jobs(120)
        verdict = lab.verdict()
        verdict.expect(worker.alive and steady.alive, "workers", "a worker has ended")
        verdict.counts["children_lost"] = worker.text().count("exited prematurely")
    return verdict
