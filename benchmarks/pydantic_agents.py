"""Figures of durable agents of pydantic-ai, beside the same agent on DBOS and beside an agent of our own.

    python benchmarks/pydantic_agents.py

20 sessions of 50 steps with one tool call each, in alternating rounds of the same run. DBOS records on PostgreSQL and
in SQLite; PostgreSQL is left out where there is none.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time

from engines.dbos import dbos
from engines.product import product, product_of_pydantic_agents
from plans import FEW
from yardstick.figures import cpu, rounded, throughput
from yardstick.rounds import Plan, Results, alternate

PYDANTIC, OWN = "product_pydantic", "product_keyed"


def pydantic_figures(rounds: int) -> dict[str, object]:
    """Steps a second over those of DBOS, and what a step costs beside one of our own agent."""
    engines = (product_of_pydantic_agents(), product("keyed"), dbos("postgres", "agent"), dbos("files", "agent"))
    results = alternate([Plan(engine, (FEW,)) for engine in engines], rounds, Results())

    def over(lower: str) -> float | None:
        return rounded(results.ratio(throughput, (PYDANTIC, FEW), (lower, FEW)))

    return {
        "pydantic_steps_per_second": rounded(results.median(PYDANTIC, FEW, throughput)),
        "ratio_to_dbos_postgres": over("dbos_pg_agent"),
        "ratio_to_dbos_sqlite": over("dbos_sqlite_agent"),
        "ratio_to_own_agent": over(OWN),
        "cpu_ms_per_step": rounded(results.median(PYDANTIC, FEW, cpu)),
        "cpu_ms_per_step_of_own_agent": rounded(results.median(OWN, FEW, cpu)),
        "cpu_to_own_agent": rounded(results.ratio(cpu, (PYDANTIC, FEW), (OWN, FEW))),
        "cpu_ms_per_step_of_an_unstored_run": own_loop(),
        "failed": sorted(results.failures),
    }


def own_loop() -> float:
    """Milliseconds of CPU that a step takes in a run of pydantic-ai that nobody stores."""
    from engines.pydantic_product_agents import pydantic
    from pydantic_ai.usage import UsageLimits

    def run() -> float:
        began = time.process_time()
        pydantic.run_sync(f"{FEW.steps} 0", usage_limits=UsageLimits(request_limit=None))
        return 1000 * (time.process_time() - began) / FEW.steps

    return round(statistics.median([run() for _ in range(6)][1:]), 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print("BENCH " + json.dumps(pydantic_figures(asked.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
