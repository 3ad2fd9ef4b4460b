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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from .deleting import unseen_deleting
from .holding import unseen_holding
from .interrupting import unseen_interrupting
from .limiting import unseen_limiting
from .rewinding import unseen_rewinding
from .vacuity import unknown, unseen, unseen_capable, unseen_smart, unseen_waiting
from .world import Tally

TESTS: Final = Path(__file__).resolve().parents[2]
CHUNK: Final = 500
_PART: Final = 12  # of the seeds that plain sessions have, one in so many: these kinds take ten times as long a seed
# By what a chunk's file is named after: the options that make it so.
_OPTIONS: Final[Mapping[str, str]] = {
    "seeds": "",
    "waiting": "--waiting",
    "capable": "--capable",
    "deleting": "--deleting",
    "smart": "--smart",
    "limiting": "--limiting",
    "rewinding": "--rewinding",
    "interrupting": "--interrupting",
    "holding": "--holding",
    "together": "--waiting --deleting --limiting --rewinding --interrupting --holding",
}
_FEWER: Final = frozenset(
    {"capable", "deleting", "smart", "limiting", "rewinding", "interrupting", "holding", "together"}
)


def campaign(seeds: int, folder: Path, *, first: int = 0, processes: int = 2, chunk: int = CHUNK) -> dict[str, Any]:
    """Run seeds, and sum up; what stands in the folder counts as run.

    Each is run also with sessions that ask; one in twelve also with agents that have every capability (those
    of `state.run`, and those of `state.smart`), and with clients that delete sessions, change budgets, rewind or
    interrupt, under concurrency limits, and with all of these clients and limits together.

    Returns:
        The verdict: seeds, seconds of work, failures with their replay commands, and what never happened.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ends = {kind: first + (seeds // _PART if kind in _FEWER else seeds) for kind in _OPTIONS}
    jobs = [(kind, start) for kind, end in ends.items() for start in range(first, end, chunk)]
    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        files = pool.map(lambda job: _chunk(folder, job[1], min(chunk, ends[job[0]] - job[1]), job[0]), jobs)
        found = [(kind, json.loads(file.read_text())) for (kind, _), file in zip(jobs, files, strict=True)]
    return verdict({kind: [part for of, part in found if of == kind] for kind in _OPTIONS})


def verdict(chunks: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """One verdict of many chunks: of plain sessions, of those that ask, with every capability, and with deletions."""
    tallies = {kind: _tally(parts) for kind, parts in chunks.items()}
    missing = set(unseen(tallies["seeds"]))
    missing.update(unseen_waiting(tallies["waiting"]) if chunks["waiting"] else ())
    missing.update(unseen_capable(tallies["capable"]) if chunks["capable"] else ())
    missing.update(unseen_smart(tallies["smart"]) if chunks["smart"] else ())
    missing.update(unseen_limiting(tallies["limiting"]) if chunks["limiting"] else ())
    missing.update(unseen_rewinding(tallies["rewinding"]) if chunks["rewinding"] else ())
    missing.update(unseen_interrupting(tallies["interrupting"]) if chunks["interrupting"] else ())
    missing.update(unseen_holding(tallies["holding"]) if chunks["holding"] else ())
    missing.update(unseen_deleting(tallies["deleting"]) if chunks["deleting"] else ())
    unlisted = sorted({name for tally in tallies.values() for name in unknown(tally)})
    found = [part for parts in chunks.values() for part in parts]
    tally = _tally(found)
    failures = [
        {**failure, "replay": f"python -m fault.sim.run --seed {failure['seed']} {_OPTIONS[kind]}".rstrip()}
        for kind, parts in chunks.items()
        for part in parts
        for failure in part["failures"]
    ]
    seconds = sum(part["seconds"] for part in found)
    count = sum(part["seeds"] for part in found)
    return {
        "ok": not failures and not missing and not unlisted,
        "seeds": count,
        "seeds_by_kind": {kind: sum(part["seeds"] for part in parts) for kind, parts in chunks.items()},
        "seconds": round(seconds, 1),
        "seeds_per_second_and_core": round(count / seconds, 1) if seconds else None,
        "failures": failures,
        "never_happened": sorted(missing),
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


def _chunk(folder: Path, start: int, count: int, kind: str) -> Path:
    file = folder / f"{kind}-{start}-{count}.json"
    if not file.exists():
        command = [sys.executable, "-m", "fault.sim.run", "--seeds", f"{start}:{start + count}", "--most", str(count)]
        command += _OPTIONS[kind].split()
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
