"""Run seeds: `python -m fault.sim.run --seed 17`, or `--seeds 0:1000`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .database import StoreContext
from .simulation import Simulation, Verdict
from .world import Tally
from support.redis_server import RedisServer


@contextmanager
def a_redis() -> Iterator[str]:
    """A Redis of our own behind a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="ca-sim-") as folder:
        socket = str(Path(folder) / "redis.sock")
        with RedisServer(Path(folder), config={"unixsocket": socket}):
            yield f"unix://{socket}"


def run_seeds(
    url: str,
    seeds: Iterable[int],
    tally: Tally,
    *,
    waiting: bool = False,
    capable: bool = False,
    deleting: bool = False,
    smart: bool = False,
    limiting: bool = False,
    rewinding: bool = False,
    interrupting: bool = False,
    holding: bool = False,
) -> Iterator[Verdict]:
    """One verdict a seed, as they come."""
    context = StoreContext(url)
    for seed in seeds:
        verdict = Simulation(
            context,
            seed,
            waiting=waiting,
            capable=capable,
            deleting=deleting,
            smart=smart,
            limiting=limiting,
            rewinding=rewinding,
            interrupting=interrupting,
            holding=holding,
        ).run()
        tally.add(verdict.tally)
        yield verdict


def write(file: Path, first: int, done: int, took: float, failures: list[dict[str, Any]], tally: Tally) -> None:
    """The sums of a run, in one piece."""
    sums = {"points": tally.points, "faults": tally.faults, "answers": tally.answers}
    found = {"first": first, "seeds": done, "seconds": took, "failures": failures, **sums}
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(found))
    draft.replace(file)


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition(":")
        yield from range(int(first), int(last) if last else int(first) + 1)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fault.sim.run", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed, with its story")
    parser.add_argument(
        "--seeds", default="0:1000", help="from:to, or several of them and single seeds, separated by commas"
    )
    parser.add_argument("--waiting", action="store_true", help="calls ask for answers, and sessions are held")
    parser.add_argument("--capable", action="store_true", help="the agents have every capability of `state.run`")
    parser.add_argument("--smart", action="store_true", help="the agents have every capability of `state.smart`")
    parser.add_argument("--limiting", action="store_true", help="clients change budgets")
    parser.add_argument("--rewinding", action="store_true", help="clients take sessions back to a step")
    parser.add_argument("--interrupting", action="store_true", help="messages interrupt steps")
    parser.add_argument("--holding", action="store_true", help="steps and calls run under concurrency limits")
    parser.add_argument("--deleting", action="store_true", help="clients delete sessions")
    parser.add_argument("--most", type=int, default=1, help="stop after so many failing seeds (1)")
    parser.add_argument("--url", help="a Redis to be emptied; without it one is started")
    parser.add_argument("--json", type=Path, help="write the sums to this file")
    parser.add_argument("--seconds", type=float, default=1e9, help="no longer than this")
    options = parser.parse_args(arguments)
    seeds = [options.seed] if options.seed is not None else list(_numbers(options.seeds))
    logging.getLogger("celery_agents").setLevel(logging.CRITICAL)  # the story says it, in virtual time
    tally, failed, done = Tally(), 0, 0
    failures: list[dict[str, Any]] = []
    began = time.perf_counter()
    with a_redis() as url:
        chosen = {
            name: getattr(options, name)
            for name in ("waiting", "capable", "deleting", "smart", "limiting", "rewinding", "interrupting", "holding")
        }
        for verdict in run_seeds(options.url or url, seeds, tally, **chosen):
            done += 1
            if options.seed is not None:
                print("\n".join(verdict.story))
                print(json.dumps(verdict.as_dict(), indent=1))
            if verdict.violations:
                failed += 1
                failures.append(verdict.as_dict())
                print(f"seed {verdict.seed} ({verdict.kind}): {verdict.violations[0]}", flush=True)
                names = "".join(f" --{name}" for name, is_chosen in chosen.items() if is_chosen)
                print(f"  replay: python -m fault.sim.run --seed {verdict.seed}{names}", flush=True)
                if failed >= options.most:
                    break
            if time.perf_counter() - began > options.seconds:
                break
        took = time.perf_counter() - began
    print(f"{done} seeds, {failed} failed, {done / took:.1f} seeds/s")
    if options.json is not None:
        write(options.json, seeds[0], done, took, failures, tally)
    elif options.seed is None:
        print(json.dumps({"faults": tally.faults, "answers": dict(sorted(tally.answers.items()))}, indent=1))
    return int(failed > 0)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # simulated threads that wait for ever are no reason to wait
