"""What a late step costs beside an early one, with every capability of a run, of a long task, and without any.

    python benchmarks/flat_cost.py

The figures are ratios within one session: CPU of the worker and bytes to and from Redis for each step, around step
1 000, divided by those around step 10; medians over the rounds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from engines.product import product
from yardstick.running import Running
from yardstick.sections import Row, Section

EARLY, LATE = (5, 55), (955, 1005)
_PATIENCE_SECONDS = 300.0

SECTION = Section(
    title="Late steps",
    text="""One session of 1 005 steps alone on a worker: an agent without capabilities, one with those of a
    run, and one with those of a long task. What a step costs around step 1 000, over what one costs
    around step 10. `make bench-flat` measures this.""",
    rows=tuple(
        Row(title=f"{what}, {of}", key=f"{agent}_{key}", at_most=most)
        for of, agent in (
            ("without capabilities", "plain"),
            ("with those of a run", "capable"),
            ("with those of a long task", "smart"),
        )
        for what, key, most in (
            ("CPU of a late step over an early one", "cpu_ratio", 1.3),
            ("bytes of a late step over an early one", "bytes_ratio", 1.1),
        )
    ),
)


def flat_figures(rounds: int) -> dict[str, object]:
    """All figures, on a worker and a Redis of their own."""
    engine = product("keyed")
    engine = dataclasses.replace(
        engine, env={**engine.env, "CELERY_AGENTS_AGENTS": "engines.product_agents,engines.capable_agents"}
    )
    with Running(engine) as running, tempfile.TemporaryDirectory() as folder:
        url = running.store.environment()["BENCH_REDIS"]
        found = {agent: [_measure(url, agent, Path(folder), number) for number in range(rounds)] for agent in _AGENTS}
    return {
        f"{agent}_{name}": round(statistics.median(each[name] for each in measured), 3)
        for agent, measured in found.items()
        for name in measured[0]
    }


_AGENTS = ("plain", "capable", "smart")


def _measure(url: str, agent: str, folder: Path, number: int) -> dict[str, float]:
    """One session alone on the worker: its cost for each step early and late, and their ratio."""
    from celery_agents import AgentClient, ExecutionBudget

    notes = folder / f"{agent}-{number}"
    client = AgentClient(redis_url=url)
    client.wait_for_agent(agent)
    metadata = {"marks": [*EARLY, *LATE], "notes": str(notes)}
    job = client.submit(agent, "Go.", metadata=metadata, budget=ExecutionBudget(max_steps=2000))
    ended = job.result(timeout=_PATIENCE_SECONDS)
    assert ended.status == "completed", ended
    marks = [json.loads(line) for line in notes.read_text(encoding="utf-8").splitlines()]
    assert [mark["step"] for mark in marks] == [*EARLY, *LATE], marks
    (early, _, late) = (
        {name: (after[name] - before[name]) / (after["step"] - before["step"]) for name in ("cpu", "bytes")}
        for before, after in pairwise(marks)
    )
    return {
        "early_cpu_ms": 1000 * early["cpu"],
        "late_cpu_ms": 1000 * late["cpu"],
        "cpu_ratio": late["cpu"] / early["cpu"],
        "early_bytes": early["bytes"],
        "late_bytes": late["bytes"],
        "bytes_ratio": late["bytes"] / early["bytes"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    SECTION.run(parser, "FLAT", lambda asked: flat_figures(asked.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
