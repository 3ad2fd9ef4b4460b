"""Many seeds in several processes, resumable: `python -m fault.sim.campaign --seeds 60000 --folder .fault-runs/simulation`.

Every chunk leaves a file with its sums; a chunk whose file is there is not run again.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from .vacuity import unknown, unseen
from .world import Tally

TESTS: Final = Path(__file__).resolve().parents[2]
CHUNK: Final = 500


def campaign(seeds: int, folder: Path, *, first: int = 0, processes: int = 2, chunk: int = CHUNK) -> dict[str, Any]:
    """Run seeds and sum up; what stands in the folder counts as run.

    Returns:
        The verdict: seeds, seconds of work, failures with their replay commands, and what never happened.
    """
    folder.mkdir(parents=True, exist_ok=True)
    starts = range(first, first + seeds, chunk)
    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        files = list(pool.map(lambda start: _chunk(folder, start, min(chunk, first + seeds - start)), starts))
    return verdict([json.loads(file.read_text()) for file in files])


def verdict(found: list[dict[str, Any]]) -> dict[str, Any]:
    """One verdict of many chunks."""
    tally = Tally()
    for part in found:
        for name in ("points", "faults", "answers"):
            getattr(tally, name).update(part[name])
    failures = [failure for part in found for failure in part["failures"]]
    seconds = sum(part["seconds"] for part in found)
    count = sum(part["seeds"] for part in found)
    missing, unlisted = sorted(unseen(tally)), sorted(unknown(tally))
    return {
        "ok": not failures and not missing and not unlisted,
        "seeds": count,
        "seconds": round(seconds, 1),
        "seeds_per_second_and_core": round(count / seconds, 1) if seconds else None,
        "failures": [{**each, "replay": f"python -m fault.sim.run --seed {each['seed']}"} for each in failures],
        "never_happened": missing,
        "without_a_place_in_the_fault_plan": unlisted,
        "faults": dict(tally.faults),
        "answers": dict(sorted(tally.answers.items())),
        "points": dict(sorted(tally.points.items())),
    }


def _chunk(folder: Path, start: int, count: int) -> Path:
    file = folder / f"seeds-{start}-{count}.json"
    if not file.exists():
        command = [sys.executable, "-m", "fault.sim.run", "--seeds", f"{start}:{start + count}", "--most", str(count)]
        ran = subprocess.run(
            [*command, "--json", str(file.resolve())], cwd=TESTS, capture_output=True, text=True, check=False
        )
        if not file.exists():
            raise RuntimeError(f"seeds {start} to {start + count} ended with {ran.returncode}: {ran.stderr[-2000:]}")
    return file


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fault.sim.campaign", description=__doc__)
    parser.add_argument("--seeds", type=int, default=60_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path(".fault-runs/simulation"))
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    found = campaign(options.seeds, options.folder, first=options.first, processes=options.processes)
    (options.folder / "verdict.json").write_text(json.dumps(found, indent=1))
    shown = {name: value for name, value in found.items() if name not in ("points", "answers")}
    print(json.dumps(shown, indent=1))
    print(f"{time.perf_counter() - began:.0f} s")
    return int(not found["ok"])


if __name__ == "__main__":
    sys.exit(main())
