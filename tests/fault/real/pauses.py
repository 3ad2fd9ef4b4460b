"""Workers that stand still past their lease and wake up, that are asked to leave, and steps that are asked to stop."""

from __future__ import annotations

import random
import time
from pathlib import Path

from support.agents import call
from support.lab import Lab
from support.verdict import Submitted, Verdict
from support.wait import wait_until
from support.worker_process import WorkerProcess

POINTS = ("c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")


def zombies(directory: Path, rounds: int, seed: int) -> Verdict:
    """SIGSTOP for longer than a lease while jobs are under way, another worker takes over, SIGCONT."""
    chance = random.Random(seed)
    with Lab(directory) as lab:
        workers = [lab.worker(), lab.worker()]
        for number in range(rounds):
            first = len(lab.jobs)
            for _ in range(12):
                lab.submit(
                    ["keyed", "unsafe"], [call("keyed_async", work="x", after=0.2)], ["looked_up"],
                    after=chance.choice([0.05, 0.2, 0.5]),
                )  # fmt: skip
            before = lab.ledger.deliveries().total()
            wait_until(lambda before=before: lab.ledger.deliveries().total() > before + 10, "the work is under way", 30)
            paused = workers[number % 2]
            paused.pause()
            time.sleep(3.5)
            paused.resume()
            lab.wait_for_jobs(60, lab.jobs[first:])
        time.sleep(1)  # whatever the woken worker still does
        verdict = lab.verdict()
        verdict.counts["pauses"] += rounds
        verdict.expect(all(worker.alive for worker in workers), "workers", "a worker has ended")
    return verdict


def drains(directory: Path, rounds: int, seed: int) -> Verdict:
    """SIGTERM under load: exit 0, what is short finishes, what is long is carried on elsewhere within two seconds."""
    chance = random.Random(seed)
    with Lab(directory, quick=False, env={"CELERY_AGENTS_DRAIN_SECONDS": "2"}) as lab:
        leaving = lab.worker()
        verdict = Verdict()
        for _ in range(rounds):
            first = len(lab.jobs)
            short = [lab.submit(["keyed", "unsafe"], ["keyed"], after=0.1) for _ in range(8)]
            waits = [chance.choice([7, 8]) for _ in range(4)]
            long = [lab.submit([call("keyed_async", work="x", before=wait)]) for wait in waits]
            wait_until(
                lambda long=long: all(lab.client.header(job.session_id).status == "in_progress" for job in long),
                "the long calls are under way", 30,
            )  # fmt: skip
            staying = lab.worker()
            asked_at = lab.now_ms()
            leaving.terminate()
            code = leaving.wait(30)
            left_at = lab.now_ms()
            verdict.expect(code == 0, "workers", f"a drained worker ended with {code}")
            verdict.expect(left_at - asked_at < 6000, "drain", f"it took {left_at - asked_at} ms to leave")
            lab.wait_for_jobs(60, lab.jobs[first:])
            for job, wait in zip(long, waits, strict=True):
                (done,) = [
                    e for e in lab.client.store.events(job.session_id) if e.type == "step_committed" and e.step == 1
                ]
                late = (done.at_ms - asked_at) / 1000 - 2 - wait
                verdict.recoveries.append(max(0.0, late))
                verdict.expect(late <= 2, "drain", f"{job.session_id} was carried on {late:.1f} s after the drain")
            verdict.counts["drained_jobs"] += len(short) + len(long)
            verdict.counts["drains"] += 1
            leaving = staying
        verdict.add(lab.verdict())
        verdict.expect(verdict.counts["outcome_unknown"] == 0, "drain", "a call was cut off by a drain")
    return verdict


def stops(directory: Path, rounds: int) -> Verdict:
    """A stop while the step stands at each crash point: nothing begins after it, what was obtained is committed."""
    with Lab(directory) as lab:
        verdict = Verdict()
        for _ in range(rounds):
            for point in POINTS:
                job = lab.submit(["keyed", "unsafe"], ["keyed", "unsafe"])
                worker = lab.worker(wait=False, crash=f"{point}:1:1:stop=1.2")
                wait_until(lambda worker=worker: _stands_still(worker), f"the worker stands at {point}", 30)
                lab.client.stop(job.session_id, timeout=0)
                stopped_at = time.time()
                lab.wait_for_jobs(30, [job])
                _check_stop(lab, verdict, job, point, stopped_at)
                worker.kill()
        verdict.add(lab.verdict(statuses=("stopped", "completed")))
    return verdict


def _check_stop(lab: Lab, verdict: Verdict, job: Submitted, point: str, stopped_at: float) -> None:
    verdict.counts[f"stopped_at_{point}_{lab.client.header(job.session_id).status}"] += 1
    late = [e for e in lab.ledger.entries() if e.get("execution") == job.execution_id and e["at"] > stopped_at]
    # At c4 the calls had begun before the stop; what has begun is finished.
    verdict.expect(not late or point in ("c4", "c5"), "I6", f"{point}: {len(late)} calls began after the stop")


def _stands_still(worker: WorkerProcess) -> bool:
    if not worker.alive:
        return False
    try:
        return Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
