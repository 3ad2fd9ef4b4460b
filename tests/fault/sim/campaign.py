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

from .vacuity import unknown, unseen, unseen_waiting
from .world import Tally

TESTS: Final = Path(__file__).resolve().parents[2]
CHUNK: Final = 500


def campaign(seeds: int, folder: Path, *, first: int = 0, processes: int = 2, chunk: int = CHUNK) -> dict[str, Any]:
    """Run seeds, each also with sessions that ask, and sum up; what stands in the folder counts as run.

    Returns:
        The verdict: seeds, seconds of work, failures with their replay commands, and what never happened.
    """
    folder.mkdir(parents=True, exist_ok=True)
    starts = range(first, first + seeds, chunk)
    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        jobs = [(start, waiting) for waiting in (False, True) for start in starts]
        files = pool.map(lambda job: _chunk(folder, job[0], min(chunk, first + seeds - job[0]), waiting=job[1]), jobs)
        found = [(waiting, json.loads(file.read_text())) for (_, waiting), file in zip(jobs, files, strict=True)]
    return verdict([part for waiting, part in found if not waiting], [part for waiting, part in found if waiting])


def verdict(plain: list[dict[str, Any]], asking: list[dict[str, Any]]) -> dict[str, Any]:
    """One verdict of many chunks: of sessions that ask nobody, and of those that do."""
    seen, seen_asking = _tally(plain), _tally(asking)
    missing = sorted({*unseen(seen), *(unseen_waiting(seen_asking) if asking else ())})
    unlisted = sorted({*unknown(seen), *unknown(seen_asking)})
    tally, found = _tally([*plain, *asking]), [*plain, *asking]
    failures = [
        {**failure, "replay": f"python -m fault.sim.run --seed {failure['seed']}{option}"}
        for parts, option in ((plain, ""), (asking, " --waiting"))
        for part in parts
        for failure in part["failures"]
    ]
    seconds = sum(part["seconds"] for part in found)
    count = sum(part["seeds"] for part in found)
    return {
        "ok": not failures and not missing and not unlisted,
        "seeds": count,
        "seconds": round(seconds, 1),
        "seeds_per_second_and_core": round(count / seconds, 1) if seconds else None,
        "failures": failures,
        "never_happened": missing,
        "without_a_place_in_the_fault_plan": unlisted,
        "faults": dict(tally.faults),
        "answers": dict(sorted(tally.answers.items())),
        "points": dict(sorted(tally.points.items())),
    }


def _tally(found: list[dict[str, Any]]) -> Tally:
    tally = Tally()
    for part in found:
        for name in ("points", "faults", "answers"):
            getattr(tally, name).update(part[name])
    return tally


def _chunk(folder: Path, start: int, count: int, *, waiting: bool) -> Path:
    file = folder / f"{'waiting' if waiting else 'seeds'}-{start}-{count}.json"
    if not file.exists():
        command = [sys.executable, "-m", "fault.sim.run", "--seeds", f"{start}:{start + count}", "--most", str(count)]
        command += ["--waiting"] if waiting else []
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
