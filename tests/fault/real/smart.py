"""kill -9 of real workers whose agent has every capability of `state.smart`."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Final

from support.lab import Lab, Submitted, Supervisor, wait_while_feeding
from support.smart_agents import STEPS
from support.smart_parts import problems_of_pairs, problems_of_smart_parts
from support.verdict import Verdict

POINTS: Final = ("c1", "c3", "c4", "c5", "c6", "c7", "c8")
"""Points at which no model call is on its way: behind them, each answer that was paid for is journaled."""

# One session at a time, so that a worker dies in no other session's model call; and leases that a busy
# machine renews in time, so that no step is taken over from a worker that lives.
_ENVIRONMENT: Final = {
    "CELERY_AGENTS_CONCURRENCY": "1",
    "CELERY_AGENTS_LEASE_SECONDS": "5",
    "CELERY_AGENTS_LEASE_RENEW_SECONDS": "0.5",
}


def kill_smart(directory: Path, rounds: int, seed: int, *, timeout: float) -> Verdict:
    """Each crash point so many times; no model call is paid twice, and no part loses or doubles anything."""
    chance = random.Random(seed)
    plans = [f"{point}:0.15:{chance.randrange(10**9)}" for point in POINTS * rounds]
    verdict = Verdict()
    with Lab(directory, quick=True, agents="support.smart_agents", env=_ENVIRONMENT) as lab:
        lab.worker()
        lab.client.wait_for_agent("smart")
        lab.workers[-1].end()
        with Supervisor(lab, plans, 2) as supervisor:

            def feed() -> None:
                lab.say("smart", "the task")

            wait_while_feeding(
                lambda: supervisor.done, feed,
                in_flight=lambda: sum(not lab.ended(job) for job in lab.jobs[-5:]), most=1, timeout=timeout,
                why="every crash plan has killed its worker",
            )  # fmt: skip
            lab.wait_for_jobs(90)
        verdict.counts["kills"] = sum(death.code == -9 for death in supervisor.deaths)
        verdict.counts.update(f"killed_{death.crash.split(':', 1)[0]}" for death in supervisor.deaths if death.crash)
        _check_calls(lab, verdict)
        for job in lab.jobs:
            _check_session(lab, job, verdict)
    return verdict


def _check_calls(lab: Lab, verdict: Verdict) -> None:
    """No model call is paid twice, calls and results stand in pairs, and no effect happens twice."""
    entries = lab.ledger.entries()
    calls = [entry for entry in entries if entry["kind"] == "driver"]
    for key, times in Counter(entry["key"] for entry in calls).items():
        verdict.expect(times == 1, "paid", f"{key} was paid {times} times")
    for problem in problems_of_pairs(calls):
        verdict.expect(False, "pairs", problem)
    effects = Counter(entry["key"] for entry in entries if entry["kind"] == "effect")
    for key, times in effects.items():
        verdict.expect(times == 1, "effects", f"{key} happened {times} times")
    verdict.counts["auxiliary_calls"] = sum(bool(entry["purpose"]) for entry in calls)


def _check_session(lab: Lab, job: Submitted, verdict: Verdict) -> None:
    state = lab.client.show(job.session_id).state
    for problem in problems_of_smart_parts(state):
        verdict.expect(False, "parts", f"{job.session_id}: {problem}")
    calls = [e for e in lab.ledger.entries() if e["kind"] == "driver" and job.execution_id in e["key"] and e["purpose"]]
    kept = len(state.smart.reflections) + len(state.smart.summaries) + 1  # the verdict about the answer
    verdict.expect(len(calls) == kept, "parts", f"{job.session_id}: {len(calls)} calls paid for, {kept} kept")
    wanted = state.usage.total == 15 * kept
    verdict.expect(wanted, "usage", f"{job.session_id}: {state.usage.total} tokens for {kept} calls")
    events = Counter(
        event.data["type"] for event in lab.client.store.sessions.events(job.session_id) if event.type == "capability"
    )
    verdict.expect(events["reflection"] == STEPS + 1, "events", f"{job.session_id}: {events}")
    incidents = len(state.smart.guardrail_result.incidents)
    verdict.expect(events["guardrail"] == incidents, "events", f"{job.session_id}: {events}")
    verdict.expect(events["plan"] == state.smart.plan_version, "events", f"{job.session_id}: {events}")
    verdict.counts["smart_jobs"] += 1
    verdict.counts["summaries"] += len(state.smart.summaries)
    verdict.counts["archived_results"] += len(state.smart.tool_history_archived)
