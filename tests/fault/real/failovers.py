"""A primary with two replicas and three Sentinels is lost in several ways, under load, without confirmations.

Replication is behind the replies of Redis, so a failover may forget what was acknowledged. How much it forgot is counted;
that every job it knows ends, that no worker ends and that no keyed effect is doubled is judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from support.failover_lab import FailoverLab
from support.verdict import Submitted, Verdict
from support.wait import wait_until
from support.worker_process import WorkerProcess

_JOBS = 40
_STOPPED_SECONDS = 27.0
# Longer than the Sentinels need to agree on a failover that they have begun.
_NOTICED_SECONDS = 4.0
# What a failover without confirmations may do, by a text of the judge: effects of a part of history that it forgot.
_FORGOTTEN = {
    "I3: unsafe ": "unsafe_doubled",
    "had an effect that the history does not know": "effects_forgotten",
    "I4: ": "answers_paid_again",
}


def lose_primaries(directory: Path, fault: str, times: int) -> Verdict:
    """The same fault several times, each while jobs are under way. Faults are named as in `_FAULTS`."""
    verdict = Verdict()
    with FailoverLab(directory) as lab:
        workers = [lab.worker(wait=False) for _ in range(2)]
        for worker in workers:
            wait_until(worker._is_registered, "it has registered", 60, details=worker.tail)
        for _ in range(times):
            jobs = [lab.submit(["keyed", "unsafe"], ["keyed"], ["pure"], after=0.3) for _ in range(_JOBS)]
            before = lab.ledger.deliveries().total()
            wait_until(lambda before=before: lab.ledger.deliveries().total() > before + 20, "the work is under way", 60)
            verdict.recoveries += _FAULTS[fault](lab)
            lab.group.wait_until_settled()
            lab.connect_again()  # one that was idle meanwhile may lead to the former primary
            _judge(lab, jobs, verdict)
        verdict.counts["faults"] += times
        verdict.counts["failovers"] += len(verdict.recoveries)
        _expect_alive(workers, verdict)
    return verdict


def _judge(lab: FailoverLab, jobs: list[Submitted], verdict: Verdict) -> None:
    known = [job for job in jobs if lab.redis.exists(f"ca:{{0}}:s:{job.session_id}")]
    verdict.counts["jobs_lost"] += len(jobs) - len(known)
    lab.wait_for_jobs(90, known)
    found = lab.verdict(jobs=known)
    for violation in list(found.violations):
        name = next((name for text, name in _FORGOTTEN.items() if text in violation), None)
        if name is not None:
            found.violations.remove(violation)
            found.counts[name] += 1
    verdict.add(found)


def _expect_alive(workers: list[WorkerProcess], verdict: Verdict) -> None:
    verdict.counts["workers_ended"] += sum(not worker.alive for worker in workers)
    verdict.expect(verdict.counts["workers_ended"] == 0, "workers", "a worker has ended")


def _first_step(lab: FailoverLab) -> float:
    """Seconds until a call is made, from now on: the Sentinels have just chosen."""
    began, before = time.monotonic(), lab.ledger.deliveries().total()
    wait_until(
        lambda: lab.ledger.deliveries().total() > before, "the first step behind the failover", 10, interval=0.02
    )
    return time.monotonic() - began


def _kill(lab: FailoverLab) -> list[float]:
    killed = lab.kill_primary()
    first = _first_step(lab)
    killed.start()
    return [first]


def _stop(lab: FailoverLab) -> list[float]:
    """The primary stands still and wakes up as a primary that is none any more."""
    before, began = lab.group.primary, time.monotonic()
    before.pause()
    lab.group.wait_for_failover(before)
    first = _first_step(lab)
    time.sleep(max(0.0, _STOPPED_SECONDS - (time.monotonic() - began)))
    before.resume()
    return [first]


def _three(lab: FailoverLab) -> list[float]:
    """Three primaries in a row, each as soon as a replica follows it."""
    found: list[float] = []
    for _ in range(3):
        jobs = [lab.submit(["keyed"], ["keyed"], after=0.3) for _ in range(10)]
        found += _kill(lab)
        lab.group.wait_for_replicas()
        lab.wait_for_jobs(90, [job for job in jobs if lab.redis.exists(f"ca:{{0}}:s:{job.session_id}")])
    return found


def _restart(lab: FailoverLab) -> list[float]:
    """The primary is back at once. Where the Sentinels have begun a failover, it is demoted seconds later."""
    primary = lab.group.primary
    primary.kill()
    primary.start()
    first = _first_step(lab)
    time.sleep(_NOTICED_SECONDS)
    return [first]


_FAULTS: dict[str, Callable[[FailoverLab], list[float]]] = {
    "kill": _kill,
    "stop": _stop,
    "three": _three,
    "restart": _restart,
}
