"""Ten thousand steps at a provider, one small worker: what they hold meanwhile, and what looking for answers costs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fault.real.provider_jobs import stage
from support.wait import wait_until

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:no worker has registered"),
]
SESSIONS = 10_000
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def test_ten_thousand_steps_at_a_provider_hold_no_slot_no_lease_and_no_message(tmp_path: Path) -> None:
    """Run with `-s` for the figures of docs/patience.md."""
    polls = {"CELERY_AGENTS_JOB_POLL_SECONDS": "400", "CELERY_AGENTS_JOB_POLL_MAX_SECONDS": "600"}
    with stage(tmp_path, **polls, CELERY_AGENTS_CONCURRENCY="4", CELERY_AGENTS_SWEEP_SECONDS="1") as played:
        lab, book = played.lab, played.provider.book
        played.provider.control("plan", held=True)
        worker = lab.worker()
        began = time.monotonic()
        jobs = [lab.client.submit("within_8h", f"night {number}") for number in range(SESSIONS)]
        wait_until(lambda: len(book.created()) == SESSIONS, "all are at the provider", 600)
        asked = time.monotonic() - began
        wait_until(lambda: _leases(lab.redis) == 0, "no lease is left", 30)
        wait_until(lambda: lab.redis.llen("celery_agents.steps") == 0, "no message is left", 30)
        wait_until(
            lambda: [each["running"] for each in lab.client.store.registry.workers().values()] == [0], "no slot", 30
        )
        used, at, looked = cpu_seconds(worker.pid), time.monotonic(), len(book.polls())
        time.sleep(60)
        used, passed, looked = cpu_seconds(worker.pid) - used, time.monotonic() - at, len(book.polls()) - looked
        memory = lab.redis.info("memory")["used_memory"]
        print(
            f"\n{SESSIONS} steps asked in {asked:.0f} s; then {looked} looks in {passed:.0f} s with {used:.1f} s of CPU, "
            f"{1000 * used / max(looked, 1):.1f} ms a look; Redis {memory / SESSIONS:.0f} B a session"
        )
        played.provider.control("release", id=None)
        wait_until(lambda: all(_ended(lab, job) for job in (jobs[0], jobs[-1])), "they end", 600)
        assert len(book.paid()) == SESSIONS
        assert len(book.created()) == SESSIONS


def _leases(redis: object) -> int:
    return sum(1 for _ in redis.scan_iter("ca:{*}:lease:*", count=10_000))  # type: ignore[attr-defined]


def _ended(lab: object, job: object) -> bool:
    return lab.client.header(job.session_id).status == "completed"  # type: ignore[attr-defined]
