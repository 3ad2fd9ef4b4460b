"""kill -9 of real workers whose agents have every capability of `state.run`."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Final

from celery_agents.worker.run_state import RunReason

from support.agents import call, plan
from support.capable_agents import TERMINAL
from support.lab import Lab, Submitted, Supervisor, wait_while_feeding
from support.run_parts import problems_of_parts
from support.verdict import Verdict

POINTS: Final = ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")
_IN_FLIGHT: Final = 6
_REPEATED: Final = "repeated"


def kill_capable(directory: Path, rounds: int, seed: int, *, timeout: float) -> Verdict:
    """Each crash point so many times under load; no part loses or doubles a step, and no recorded effect happens again.

    Jobs of three kinds take turns: one goes through all its steps, one makes equal calls, and one ends by its terminal
    tool, gets another message, and goes on.
    """
    chance = random.Random(seed)
    plans = [f"{point}:0.2:{chance.randrange(10**9)}" for point in POINTS * rounds]
    plain: list[Submitted] = []
    repeating: list[Submitted] = []
    terminal: list[Submitted] = []
    with Lab(directory, quick=True, agents="support.capable_agents") as lab:
        lab.worker()
        lab.client.wait_for_agent("planned")
        numbers = itertools.count()
        with Supervisor(lab, plans, 2) as supervisor:

            def feed() -> None:
                kind = next(numbers) % 3
                equal = call("unsafe", work=f"{_REPEATED}.{len(lab.jobs)}")
                if kind == 0:
                    plain.append(
                        lab.submit(["keyed", "unsafe"], ["unsafe", "pure"], ["keyed_async"], ["unsafe"], before=0.02)
                    )
                elif kind == 1:
                    repeating.append(lab.submit([equal, equal], ["keyed"], [equal], before=0.02))
                else:
                    terminal.append(lab.submit(["keyed"], [TERMINAL], ["unsafe"], before=0.02))

            wait_while_feeding(
                lambda: supervisor.done and all((plain, repeating, terminal)), feed,
                in_flight=lambda: sum(not lab.ended(job) for job in lab.jobs[-50:]), most=_IN_FLIGHT, timeout=timeout,
                why="every crash plan has killed its worker",
            )  # fmt: skip
            lab.wait_for_jobs(60)
        verdict = lab.verdict(jobs=plain)
        verdict.counts["kills"] = sum(death.code == -9 for death in supervisor.deaths)
        verdict.counts.update(f"killed_{death.crash.split(':', 1)[0]}" for death in supervisor.deaths if death.crash)
        _check_repeating(lab, repeating, verdict)
        _check_terminal(lab, terminal, verdict)
        for job in lab.jobs:
            verdict.counts["capable_jobs"] += 1
            for problem in problems_of_parts(lab.client.show(job.session_id).state):
                verdict.expect(False, "parts", f"{job.session_id}: {problem}")
    return verdict


def _check_repeating(lab: Lab, jobs: list[Submitted], verdict: Verdict) -> None:
    """A call that succeeded was made once; one whose worker died over it is unknown, and so may be made again."""
    entries = [entry for entry in lab.ledger.entries() if str(entry.get("work", "")).startswith(_REPEATED)]
    for job in jobs:
        executions = lab.client.show(job.session_id).state.run.tool_executions
        equal = [each for each in executions if each.tool_call.name == "unsafe"]
        made = [entry for entry in entries if entry["session"] == job.session_id]
        ran = [each for each in equal if not each.idempotent_cache_hit]
        hits = len(equal) - len(ran)
        verdict.expect(
            len(equal) == 3 and hits >= 1, "hits", f"{job.session_id}: {len(equal)} equal calls, {hits} hits"
        )
        verdict.expect(len(made) <= len(ran), "hits", f"{job.session_id}: {len(ran)} calls ran, {len(made)} effects")
        verdict.counts["results_given_again"] += hits


def _check_terminal(lab: Lab, jobs: list[Submitted], verdict: Verdict) -> None:
    """The terminal tool ended the execution behind its step, and did not end that of the next message."""
    for job in jobs:
        run = lab.client.show(job.session_id).state.run
        is_ended = (run.reason, run.iteration) == (RunReason.TERMINAL_TOOL, 2)
        verdict.expect(is_ended, "ends", f"{job.session_id} ended by {run.reason} after {run.iteration} steps")
        verdict.counts["ended_by_terminal_tool"] += is_ended
    following = [lab.client.send_message(job.session_id, plan([call("pure", work="more")])) for job in jobs]
    for job in following:
        job.result(timeout=60)
        run = lab.client.show(job.session_id).state.run
        is_new = (run.reason, run.iteration, run.tool_history) == (RunReason.COMPLETE, 2, ("pure",))
        verdict.expect(
            is_new, "ends", f"{job.session_id}: the next message ended by {run.reason} after {run.iteration}"
        )
