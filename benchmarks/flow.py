"""What fair shares and a spend cap cost where they are set and hold nobody up.

    python benchmarks/flow.py --rounds 8

Sessions of ten customers on one worker, with each of them and without, in turns. `--write` puts the figures into
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engines.product import CUSTOMERS, product
from plans import FEW
from yardstick.running import Running
from yardstick.sections import Row, Section

from celery_agents import AgentClient
from celery_agents.flow import FairShares, SpendCap

SECTION = Section(
    title="Shares and caps",
    text="""Steps a second of one worker with what holds none of them up, over those without: sessions of ten customers
    who share the slots, and a spend cap for each of them that is never spent, in turns on the same worker.
    `make bench-flow` measures this.""",
    rows=(
        Row(title="fair shares of ten customers", key="shares", at_least=0.85),
        Row(title="a spend cap for each customer", key="caps", at_least=0.85),
    ),
)


def flow_figures(rounds: int) -> dict[str, object]:
    """The figures, on a worker and a Redis of their own."""
    engine, cap = product("keyed"), SpendCap("bench", usd=1_000_000, per="day", label="customer")
    env = {**engine.env, CUSTOMERS: "10", "CELERY_AGENTS_AGENTS": "engines.limited_agents"}
    with (
        Running(replace(engine, env=env)) as running,
        AgentClient(redis_url=running.store.environment()["BENCH_REDIS"]) as client,
    ):
        shares, caps = client.shares, client.caps
        return {
            "shares": _compare(running, rounds, lambda: shares.set(FairShares("customer")), shares.remove),
            "caps": _compare(running, rounds, lambda: caps.set(cap), lambda: caps.remove("bench")),
        }


def _compare(running: Running, rounds: int, begin: Callable[[], Any], end: Callable[[], Any]) -> float:
    """Steps a second with something over those without it, in turns."""
    found: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * rounds + 2):
        is_set = turn % 4 in (1, 2)  # neither is always the first
        (begin if is_set else end)()
        speed = running.measure(FEW).steps_per_second
        if turn > 1:  # both have warmed up
            found[is_set].append(speed)
    end()
    return round(statistics.median(found[True]) / statistics.median(found[False]), 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="with and without each")
    SECTION.run(parser, "FLOW", lambda asked: flow_figures(asked.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
