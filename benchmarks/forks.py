"""How long it takes to fork a session of a thousand steps.

    python benchmarks/forks.py

A worker makes the session, with an answer and a result of about 1 KB in each step, and ends. Then one client forks it,
with nothing else to do for Redis; medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

from engines.product import product
from yardstick.running import Running
from yardstick.sections import Row, Section

STEPS = 1_000
_PATIENCE_SECONDS = 300.0

SECTION = Section(
    title="Forks",
    text="""One session of 1 001 steps, each with an answer and a result of about 1 KB, forked by one client on an idle
    Redis: from the call to the answer, the median of its rounds. A fork that goes on has its execution under another
    id, which each message and each record of a step names. `make bench-forks` measures this.""",
    rows=(
        Row(title="fork at step 1 000 that goes on, ms", key="go_on_ms", at_most=50),
        Row(title="… with another result of a call", key="edited_ms", at_most=50),
        Row(title="… that waits for a message", key="idle_ms", at_most=50),
        Row(title="… of the last commit, that waits for a message", key="whole_ms", at_most=50),
        Row(title="… at step 500, that goes on", key="half_ms"),
        Row(title="rewind to step 500, ms", key="rewind_ms"),
    ),
)


def fork_figures(rounds: int) -> dict[str, object]:
    """Milliseconds, on a worker and a Redis of their own."""
    with Running(product("keyed")) as running:
        return _measure(running.store.environment()["BENCH_REDIS"], rounds)


def _measure(url: str, rounds: int) -> dict[str, object]:
    from celery_agents import AgentClient, ExecutionBudget
    from celery_agents.worker.state import SetResult

    client = AgentClient(redis_url=url)
    client.wait_for_agent("keyed")
    metadata = {"steps": STEPS + 1, "latency": 0}
    job = client.submit("keyed", "Go.", metadata=metadata, budget=ExecutionBudget(max_steps=2000))
    ended = job.result(timeout=_PATIENCE_SECONDS)
    assert (ended.status, ended.step_count > STEPS) == ("completed", True), ended
    call = client.state(job.session_id, at=STEPS).last_step.tool_executions[0].tool_call.id
    ways: dict[str, dict[str, Any]] = {
        "go_on_ms": {"at": STEPS, "go_on": True},
        "edited_ms": {"at": STEPS, "go_on": True, "edit": [SetResult(call, "another")]},
        "idle_ms": {"at": STEPS},
        "whole_ms": {},
        "half_ms": {"at": STEPS // 2, "go_on": True},
    }
    times: dict[str, list[float]] = {key: [] for key in ways}
    for _ in range(rounds):
        for key, options in ways.items():
            began = time.perf_counter()
            fork = client.fork(job.session_id, **options)
            times[key].append(1000 * (time.perf_counter() - began))
            client.stop(fork)
    began = time.perf_counter()
    client.rewind(job.session_id, to=STEPS // 2)
    times["rewind_ms"] = [1000 * (time.perf_counter() - began)]
    return {key: round(statistics.median(found), 1) for key, found in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    SECTION.run(parser, "FORKS", lambda asked: fork_figures(asked.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
