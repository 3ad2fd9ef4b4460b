"""The benchmarks: `run.py --quick` in three minutes, `run.py` everything, with docs/benchmarks.md and its plot."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time

import plans
from own_figures import own_figures
from yardstick.environments import RUNS
from yardstick.figures import Floors, quick_figures
from yardstick.rounds import Plan, Results, alternate, side_by_side

# No further round begins after this; one takes about 50 seconds on an idle machine.
QUICK_SECONDS = 125.0


# Shares of the time of a full run: until then rounds begin, and until then one-time measurements.
ROUNDS_SHARE = 0.5
ONCE_SHARE = 0.93


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the figures with targets only, in one line of JSON")
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds")
    parser.add_argument("--only", default="", help="measure engines whose name holds this, and the floor; no document")
    parser.add_argument("--minutes", type=float, default=20.0, help="no further engine begins after this long")
    asked = parser.parse_args()
    RUNS.mkdir(exist_ok=True)
    signal.signal(signal.SIGTERM, _leave)
    return quick(asked.rounds) if asked.quick else full(asked.rounds, asked.only, asked.minutes * 60)


def _leave(*_: object) -> None:
    """A stop also ends the engines; a second request must not cut that short."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def quick(rounds: int) -> int:
    end = time.monotonic() + QUICK_SECONDS
    # A queue that is not acknowledged is the faster one wherever it was measured; the full run has both.
    floors = [engine for engine in plans.floors() if "no_ack" in engine.name]
    bare = [Plan(engine, (plans.MANY,)) for engine in floors]
    results = side_by_side([*floors, *plans.one_session()], plans.ONE, plans.QUICK_TURNS, Results())
    alternate([*bare, *plans.quick_products()], rounds, results, stop_after=end)
    chosen = Floors.of(results, [*floors, plans.two_workers()[0].engine], plans.MANY, plans.ONE)
    figures = quick_figures(results, chosen, plans.MANY, plans.ONE, plans.SHORT, plans.LONG)
    print("BENCH " + json.dumps(figures))
    return 1 if results.failures else 0


def full(rounds: int, only: str, seconds: float) -> int:
    from yardstick.report import write_report

    started = time.monotonic()
    floors = plans.floors()
    bare = [Plan(engine, (plans.MANY,)) for engine in floors]
    often = [plan for plan in plans.full_plans() if only in plan.engine.name]
    once = [plan for plan in plans.once_plans() if only in plan.engine.name]
    compared = [*bare, *(() if only else plans.with_events()), *often]
    by_turns = [*floors, *(engine for engine in plans.one_session() if only in engine.name)]
    results = side_by_side(by_turns, plans.ONE, plans.TURNS, Results())
    alternate(compared, rounds, results, stop_after=started + ROUNDS_SHARE * seconds)
    singles = alternate(once, 1, Results(), stop_after=started + ONCE_SHARE * seconds)
    (RUNS / "results.json").write_text(json.dumps([*results.as_json(), *singles.as_json()], indent=1))
    chosen = Floors.of(results, [*floors, plans.two_workers()[0].engine], plans.MANY, plans.ONE)
    figures = quick_figures(results, chosen, plans.MANY, plans.ONE, plans.SHORT, plans.LONG)
    if not only:
        own = own_figures()
        figures = write_report(results, singles, chosen, {**figures, **own}, time.monotonic() - started)
    print("BENCH " + json.dumps(figures))
    return 1 if results.failures or singles.failures else 0


if __name__ == "__main__":
    sys.exit(main())
