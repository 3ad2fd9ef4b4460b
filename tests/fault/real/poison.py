"""Steps that take their process along, never end, or give back more than anybody can keep."""

from __future__ import annotations

from pathlib import Path

from support.agents import call
from support.lab import Lab, Supervisor
from support.verdict import Verdict

_KINDS = {"kill_process": "failed", "leave": "completed", "endless": "any", "recurse": "completed", "huge": "completed"}


def poison(directory: Path, rounds: int) -> Verdict:
    """Each kind beside innocent jobs: those all complete, and the poison is parked after the limit."""
    verdict = Verdict()
    with Lab(directory, agents="support.fault_agents", env={"CELERY_AGENTS_CONCURRENCY": "20"}) as lab:
        lab.worker()
        lab.client.wait_for_agent("poisonous")
        with Supervisor(lab, [], 1) as supervisor:
            for _ in range(rounds):
                bad = {kind: lab.submit([call(kind)], agent="poisonous") for kind in _KINDS}
                good = [lab.submit(["keyed"], ["keyed_async"], after=0.1) for _ in range(15)]
                lab.wait_for_jobs(120, good)
                lab.wait_for_jobs(150, list(bad.values()))
                for kind, job in bad.items():
                    header = lab.client.header(job.session_id)
                    verdict.counts[f"poison_{kind}_{header.status}"] += 1
                    wanted = _KINDS[kind]
                    verdict.expect(wanted in ("any", header.status), "I9", f"{kind} is {header.status}")
                    size = lab.redis.memory_usage(f"ca:{{0}}:s:{job.session_id}:m:messages:0") or 0
                    verdict.expect(size < 1_000_000, "I9", f"{kind} keeps {size} bytes")
            supervisor.close()
        killed = [job for job in lab.jobs if job.tools == (("kill_process",),)]
        dead = {entry["session"] for entry in lab.client.store.dead(100)}
        verdict.expect({job.session_id for job in killed} <= dead, "I9", "a parked step is not in the list of the dead")
        verdict.counts["deaths"] = len(supervisor.deaths)
        innocent = [job for job in lab.jobs if job.tools[0][0] not in _KINDS]
        verdict.add(lab.verdict(jobs=innocent))
    return verdict
