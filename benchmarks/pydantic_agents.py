"""Figures of durable agents of pydantic-ai, beside the same agent on DBOS and beside an agent of our own.

    python benchmarks/pydantic_agents.py

20 sessions of 50 steps with one tool call each, in alternating rounds of the same run. DBOS records on PostgreSQL and
in SQLite; PostgreSQL is left out where there is none.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from engines.dbos import dbos
from engines.product import product, product_of_pydantic_agents
from plans import FEW
from yardstick.figures import cpu, rounded, throughput
from yardstick.rounds import Plan, Results, alternate
from yardstick.sections import Row, Section

PYDANTIC, OWN = "product_pydantic", "product_keyed"

SECTION = Section(
    title="Agents of pydantic-ai",
    text="""20 sessions of 50 steps of one agent of pydantic-ai with one tool: made durable here, made
    durable by DBOS, and beside it an agent of our own. One worker each. A run of pydantic-ai that
    nobody stores takes the CPU time of the last row for each step, and every engine pays it. `make
    bench-pydantic` measures this.""",
    rows=(
        Row(title="steps/s", key="pydantic_steps_per_second"),
        Row(title="over DBOS on PostgreSQL", key="ratio_to_dbos_postgres", at_least=5),
        Row(title="over DBOS on SQLite", key="ratio_to_dbos_sqlite"),
        Row(title="over our own agent", key="ratio_to_own_agent"),
        Row(title="CPU ms a step", key="cpu_ms_per_step"),
        Row(title="… of our own agent", key="cpu_ms_per_step_of_own_agent"),
        Row(title="… of a run of pydantic-ai that nobody stores", key="cpu_ms_per_step_of_an_unstored_run"),
    ),
)


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
    SECTION.run(parser, "BENCH", lambda asked: pydantic_figures(asked.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
