"""Steps that take their process along, never end, or give back more than anybody can keep."""

from __future__ import annotations

from pathlib import Path

from celery_agents.worker.state import StopReason

from support.agents import call
from support.lab import Lab, Submitted, Supervisor
from support.redis_keys import session_key, session_keys
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
                    size = lab.redis.memory_usage(session_key(job.session_id, ":m:messages:0")) or 0
                    verdict.expect(size < 1_000_000, "I9", f"{kind} keeps {size} bytes")
            supervisor.close()
        killed = [job for job in lab.jobs if job.tools == (("kill_process",),)]
        dead = {entry["session"] for entry in lab.client.store.housekeeping.list_dead(100)}
        verdict.expect({job.session_id for job in killed} <= dead, "I9", "a parked step is not in the list of the dead")
        verdict.counts["deaths"] = len(supervisor.deaths)
        innocent = [job for job in lab.jobs if job.tools[0][0] not in _KINDS]
        verdict.add(lab.verdict(jobs=innocent))
    verdict.add(_endless_drivers(directory.parent / f"{directory.name}-drivers", rounds))
    return verdict


def _endless_drivers(directory: Path, jobs: int) -> Verdict:
    """Plain driver functions that never return: each step is given up at its time, and its execution fails.

    It costs the worker a thread, which no power can take back, and nothing else: the same process goes on.
    """
    env = {"CELERY_AGENTS_ABANDONED_SHARE": "1", "CELERY_AGENTS_CONCURRENCY": str(20 + jobs)}
    with Lab(directory, agents="support.fault_agents", env=env) as lab:
        worker = lab.worker()
        lab.client.wait_for_agent("unanswered")
        first = worker.pid
        endless = [lab.submit(agent="unanswered") for _ in range(jobs)]
        beside = [lab.submit(["keyed"], ["keyed_async"], after=0.1) for _ in range(15)]
        lab.wait_for_jobs(60 + 20 * jobs, beside)
        lab.wait_for_jobs(60 + 20 * jobs, endless)
        after = [lab.submit(["keyed"], ["unsafe"]) for _ in range(15)]
        lab.wait_for_jobs(60, after)
        verdict = lab.verdict(jobs=[*beside, *after])
        verdict.expect(worker.alive and worker.pid == first, "workers", "the worker has ended")
        for job in endless:
            _judge_endless_driver(verdict, lab, job)
    return verdict


def _judge_endless_driver(verdict: Verdict, lab: Lab, job: Submitted) -> None:
    result = lab.client.job(job.session_id).result(timeout=10)
    verdict.counts[f"endless_driver_{result.status}"] += 1
    end = (result.status, result.stop_reason)
    verdict.expect(end == ("failed", StopReason.TIME_LIMIT_REACHED), "I9", f"an endless driver's job has ended: {end}")
    journal = session_keys(job.session_id).journal(job.execution_id, 1)
    tries = sum(name.startswith("try:") for name in lab.redis.hkeys(journal))  # type: ignore[union-attr]
    verdict.counts["endless_driver_claims"] += tries
    # The second claim finds that the driver has gone on behind the step's time; it does not call it again.
    verdict.expect(tries == 2, "I9", f"an endless driver was claimed {tries} times")
