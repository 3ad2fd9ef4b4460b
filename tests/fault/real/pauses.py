"""Workers that stand still past their lease and wake up, that are asked to leave, and steps that are asked to stop."""

from __future__ import annotations

import random
import time
from pathlib import Path

from support.agents import call
from support.http_service import Entry
from support.lab import Lab
from support.redis_keys import session_keys
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


def drains(directory: Path, rounds: int) -> Verdict:
    """SIGTERM under load: exit 0, what is short finishes, what is long is carried on elsewhere within two seconds."""
    with Lab(directory, quick=False, env={"CELERY_AGENTS_DRAIN_SECONDS": "2"}) as lab:
        leaving = lab.worker()
        verdict = Verdict()
        for number in range(rounds):
            first, gate = len(lab.jobs), f"drain-{number}"
            short = [lab.submit(["keyed", "unsafe"], ["keyed"], after=0.1) for _ in range(8)]
            long = [lab.submit([call("keyed_async", work="x", gate=gate)]) for _ in range(4)]
            wait_until(lambda gate=gate: len(_at_gate(lab, gate)) == 4, "the long calls are under way", 60)
            staying = lab.worker()
            asked_at = time.time()
            leaving.terminate()
            wait_until(lambda gate=gate: len(_at_gate(lab, gate)) == 8, "the long calls are made elsewhere", 60)
            for entry in _at_gate(lab, gate)[4:]:
                late = entry["at"] - asked_at - 2
                verdict.recoveries.append(max(0.0, late))
                verdict.expect(late <= 2, "drain", f"a call was carried on {late:.1f} s after the drain")
            code = leaving.wait(30)
            took = time.time() - asked_at
            verdict.expect(code == 0, "workers", f"a drained worker ended with {code}")
            verdict.expect(took < 10, "drain", f"it took {took:.1f} s to leave")
            lab.ledger.open(gate)
            lab.wait_for_jobs(60, lab.jobs[first:])
            verdict.counts["drained_jobs"] += len(short) + len(long)
            verdict.counts["drains"] += 1
            leaving = staying
        verdict.add(lab.verdict())
        verdict.expect(verdict.counts["outcome_unknown"] == 0, "drain", "a call was cut off by a drain")
    return verdict


def versions(directory: Path, rounds: int) -> Verdict:
    """A worker that lacks an agent beside one that has it, then the old one leaves: all is done, nothing parked."""
    with Lab(directory, agents="support.fault_agents") as lab:
        new = lab.worker()
        lab.client.wait_for_agent("second")
        verdict = Verdict()
        for _ in range(rounds):
            lab.agents = "support.agents"
            old = lab.worker()
            lab.agents = "support.fault_agents"
            first = len(lab.jobs)
            for number in range(20):
                lab.submit(["keyed", "unsafe"], ["keyed"], agent=("planned", "second")[number % 2], after=0.05)
            verdict.expect(old.stop() == 0, "workers", "the old worker did not leave in order")
            lab.wait_for_jobs(60, lab.jobs[first:])
            verdict.counts["moved"] += sum(map(lab.has_moved, lab.jobs[first:]))
        verdict.expect(new.alive, "workers", "the new worker has ended")
        verdict.add(lab.verdict())
    return verdict


def _at_gate(lab: Lab, gate: str) -> list[Entry]:
    """Calls that have come to a gate, in order."""
    return [entry for entry in lab.ledger.entries() if entry.get("gate") == gate]


def stops(directory: Path, rounds: int) -> Verdict:
    """A stop while the step stands at each crash point: nothing begins after it, what was obtained is committed."""
    with Lab(directory) as lab:
        verdict = Verdict()
        for _ in range(rounds):
            for point in POINTS:
                # One call ends well before the other: what ends together needs no record of its own, and passes no c6.
                job = lab.submit(["keyed", call("unsafe", work="x", after=0.3)], ["keyed", "unsafe"])
                worker = lab.worker(wait=False, crash=f"{point}:1:1:stop=1.2")
                wait_until(lambda worker=worker: _stands_still(worker), f"the worker stands at {point}", 30)
                lab.client.stop(job.session_id, timeout=0)
                stopped_at, begun, stood = time.time(), _begun(lab, job), _stands_still(worker)
                lab.wait_for_jobs(30, [job])
                _check_stop(lab, verdict, job, point, stopped_at, begun, stood=stood)
                worker.kill()
        verdict.add(lab.verdict(statuses=("stopped", "completed")))
    return verdict


def _check_stop(
    lab: Lab,
    verdict: Verdict,
    job: Submitted,
    point: str,
    stopped_at: float,
    begun: set[tuple[int, int]],
    *,
    stood: bool,
) -> None:
    if not stood:  # it went on while the stop was being recorded, and what it began before that may run
        verdict.counts["stopped_too_late"] += 1
        return
    verdict.counts[f"stopped_at_{point}_{lab.client.header(job.session_id).status}"] += 1
    made = [e for e in lab.ledger.entries() if e.get("execution") == job.execution_id and e["at"] > stopped_at]
    # What has begun is finished: from c4 on this step's calls.
    late = [entry for entry in made if (entry["step"], entry["index"]) not in begun]
    verdict.expect(not late, "I6", f"{point}: {len(late)} calls began after the stop")


def _begun(lab: Lab, job: Submitted) -> set[tuple[int, int]]:
    """Steps and indexes of the calls that are recorded as begun now; all tools of these jobs have effects."""
    session = session_keys(job.session_id)
    recorded = [(step, name) for step in (1, 2) for name in lab.redis.hkeys(session.journal(job.execution_id, step))]
    return {(step, int(name[1:-2])) for step, name in recorded if name.startswith("t") and name.endswith(":s")}


def _stands_still(worker: WorkerProcess) -> bool:
    if not worker.alive:
        return False
    try:
        return Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
