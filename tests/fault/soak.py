"""Load for half an hour, then everything must be back where it was: `make soak`.

    python tests/fault/soak.py [--minutes 30] [--folder .fault-runs]

Two workers carry jobs without a pause, a third is killed once a minute. Memory, descriptors and threads of the two,
connections and keys of Redis are sampled; after the load and the retention they are compared with the baseline, which is
taken after a minute of load and the same rest. Where a whole campaign left its verdict in the folder, docs/guarantees.md
is brought up to date (`report.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

TESTS: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from fault.report import refresh  # noqa: E402
from support.lab import Lab  # noqa: E402
from support.redis_keys import session_key  # noqa: E402
from support.worker_process import WorkerProcess  # noqa: E402

_KEPT_SECONDS: Final = 5
_REST_SECONDS: Final = 75  # retention, and a pass of the pruning of the indexes
_IN_FLIGHT: Final = 40
# What may stay: allocators keep what they had, and caches fill up.
_MORE: Final = {"rss_mb": 40, "fds": 10, "threads": 10, "connections": 10, "keys": 20, "redis_mb": 5}


def soak(minutes: float, directory: Path) -> dict[str, Any]:
    """The report; `holds` says whether everything came back."""
    env = {
        "CELERY_AGENTS_RETENTION_SECONDS": str(_KEPT_SECONDS),
        "CELERY_AGENTS_JOURNAL_SECONDS": str(_KEPT_SECONDS),
        "CELERY_AGENTS_TASK_EVENTS": "true",
        # Celery makes a slot's thread when it is first needed, and all of these are needed in the first minute.
        "CELERY_AGENTS_CONCURRENCY": "16",
        # Full after the first minute: what grows later is no cache.
        "CELERY_AGENTS_CACHE_BYTES": "4000000",
    }
    with Lab(
        directory, quick=False, agents="support.fault_agents", redis_options={"append_only": "everysec"}, env=env
    ) as lab:
        steady = [lab.worker(), lab.worker()]
        lab.client.wait_for_agent("busy")
        done = _load(lab, steady, 60, [])
        time.sleep(_REST_SECONDS)
        before = _sample(lab, steady)
        samples: list[dict[str, float]] = []
        done += _load(lab, steady, minutes * 60, samples)
        time.sleep(_REST_SECONDS)
        after = _sample(lab, steady)
        total, _, _ = lab.client.store.housekeeping.backlog()
        alive = all(worker.alive for worker in steady)
    grown = {name: round(after[name] - before[name], 1) for name in before}
    slope = _slope(samples[len(samples) // 4 :])
    too_much = [name for name, limit in _MORE.items() if grown[name] > limit]
    return {
        "holds": not too_much and total == 0 and alive and slope <= 60,
        "minutes": minutes,
        "jobs": done,
        "before": before,
        "after": after,
        "grown": grown,
        "too_much": too_much,
        "rss_mb_per_hour": slope,
        "due": total,
        "samples": samples,
    }


def _load(lab: Lab, steady: list[WorkerProcess], seconds: float, samples: list[dict[str, float]]) -> int:
    """Keep jobs in flight; how many were done."""
    ended = threading.Event()
    killer = threading.Thread(target=_kill_one_each_minute, args=(lab, ended), daemon=True)
    killer.start()
    end, sampled, done = time.monotonic() + seconds, time.monotonic(), 0
    going: list[Any] = []
    while time.monotonic() < end or going:
        still = [job for job in going if not _ended(lab, job)]
        done += len(going) - len(still)
        going = still
        while len(going) < _IN_FLIGHT and time.monotonic() < end:
            going.append(lab.client.submit("busy", "work"))
        if time.monotonic() - sampled >= 10:
            samples.append({"at": round(time.monotonic(), 1), **_sample(lab, steady)})
            sampled = time.monotonic()
        time.sleep(0.05)
    ended.set()
    killer.join(30)
    return done


def _ended(lab: Lab, job: Any) -> bool:
    key = session_key(job.session_id)
    # With so short a retention a session may be gone before it is looked at.
    return bool(lab.redis.hexists(key, f"e:{job.execution_id}")) or not lab.redis.exists(key)


def _kill_one_each_minute(lab: Lab, ended: threading.Event) -> None:
    while not ended.is_set():
        worker = lab.worker(wait=False)
        ended.wait(60)
        worker.kill()
        lab.workers.remove(worker)


def _sample(lab: Lab, workers: list[WorkerProcess]) -> dict[str, float]:
    """The largest of the workers, and Redis."""
    status = [Path(f"/proc/{worker.pid}/status").read_text() for worker in workers]
    return {
        "rss_mb": max(round(_field(text, "VmRSS") / 1024, 1) for text in status),
        "threads": max(_field(text, "Threads") for text in status),
        "fds": max(len(list(Path(f"/proc/{worker.pid}/fd").iterdir())) for worker in workers),
        "connections": lab.redis.info("clients")["connected_clients"],
        "keys": lab.redis.dbsize(),
        "redis_mb": round(lab.redis.info("memory")["used_memory"] / 2**20, 1),
    }


def _field(text: str, name: str) -> int:
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name}:"))


def _slope(samples: list[dict[str, float]]) -> float:
    """Megabytes an hour, by least squares."""
    if len(samples) < 3:
        return 0.0
    mean_at = sum(s["at"] for s in samples) / len(samples)
    mean = sum(s["rss_mb"] for s in samples) / len(samples)
    spread = sum((s["at"] - mean_at) ** 2 for s in samples)
    return round(3600 * sum((s["at"] - mean_at) * (s["rss_mb"] - mean) for s in samples) / spread, 1)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--folder", type=Path, default=Path(".fault-runs"))
    options = parser.parse_args()
    report = soak(options.minutes, Path(tempfile.mkdtemp(prefix="ca-soak-")) / "lab")
    report["date"] = time.strftime("%Y-%m-%d")
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "soak.json").write_text(json.dumps(report, indent=1))
    print(json.dumps({name: value for name, value in report.items() if name != "samples"}, indent=1))
    refresh(options.folder)
    return 0 if report["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
