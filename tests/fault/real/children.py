"""kill -9 of workers whose agents call agents: each child is made, ends and answers once, and no tree overspends."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

from celery_agents.worker.state import ExecutionBudget

from support.agents import call, driver_key, plan
from support.lab import Lab, Supervisor, wait_while_feeding
from support.tree_agents import MOST_PER_CALL, delegate
from support.verdict import Submitted, Verdict
from support.wait import wait_until

POINTS = ("w0", "w1", "w3", "w4", "w5", "c3", "c7")
BUDGET = 1.0
_AGENTS = "support.tree_agents"
_IN_FLIGHT = 3
# Leases of these scenarios are two seconds long.
_LONGEST_SECONDS = 10


def kill_trees(directory: Path, rounds: int, seed: int, *, timeout: float, separate: bool = False) -> Verdict:
    """Kill a worker at each crash point of children so many times, while trees of three levels run.

    One worker is never killed, two carry crash plans and are started again with the next one when they die.
    """
    chance = random.Random(seed)
    plans = [f"{point}:0.3:{chance.randrange(10**9)}" for point in POINTS * rounds]
    with Lab(directory, agents=_AGENTS, separate=separate) as lab:
        steady = lab.worker()
        lab.client.wait_for_agent("node")
        with Supervisor(lab, list(plans), 2) as supervisor:
            numbers = itertools.count()
            wait_while_feeding(
                lambda: supervisor.done, lambda: _submit_tree(lab, next(numbers)),
                in_flight=lambda: sum(not lab.ended(job) for job in lab.jobs[-50:]), most=_IN_FLIGHT, timeout=timeout,
                why="every crash plan has killed its worker",
            )  # fmt: skip
            lab.wait_for_jobs(90)
        verdict = lab.verdict(jobs=[])  # nothing is due any more; the trees are judged below
        effects = Counter(each["work"] for each in lab.ledger.entries() if each["kind"] == "effect" and each["effect"])
        for number, job in enumerate(lab.jobs):
            _judge_tree(lab, verdict, job, number, effects)
        verdict.expect(steady.alive, "workers", "the worker that nobody killed has ended")
        for problem in supervisor.problems:
            verdict.expect(False, "lab", problem)
        waits = lab.recoveries(supervisor.deaths)
        for number, death in enumerate(supervisor.deaths):
            if death.crash:
                verdict.counts["kills"] += 1
                verdict.counts[f"killed_{death.crash.split(':', 1)[0]}_delegate"] += 1
                verdict.recoveries += [wait for wait in waits[number] if wait <= _LONGEST_SECONDS]
        verdict.counts["jobs"] = len(lab.jobs)
    return verdict


def _submit_tree(lab: Lab, number: int) -> None:
    """Submit a tree: a root, a child with two children of its own, and another child."""
    leaves = [plan([call("keyed", work=f"{number}.{leaf}")], answer=f"leaf {leaf}") for leaf in ("a", "b", "c")]
    middle = plan([delegate(leaves[0]), delegate(leaves[1])], answer="middle", before=0.02)
    job = lab.client.submit("node", plan([delegate(middle), call("keyed", work=f"{number}.d"), delegate(leaves[2])]))
    tools = ("delegate", "keyed", "delegate")
    lab.jobs.append(Submitted(job.session_id, job.execution_id, (tools,)))


def _judge_tree(lab: Lab, verdict: Verdict, job: Submitted, number: int, effects: Counter[str]) -> None:
    """I14 of one tree: its children were made, ended and answered once, and every effect happened once."""
    nodes = list(lab.client.tree(job.session_id).walk())
    verdict.expect(len(nodes) == 5, "I14", f"{job.session_id} has {len(nodes)} sessions")
    open_ones = [node.session_id for node in nodes if node.header.status != "completed"]
    verdict.expect(not open_ones, "I14", f"{open_ones} have not completed")
    state = lab.client.show(job.session_id).state
    texts = [made.as_message() for made in state.steps[0].tool_executions]
    verdict.expect(texts == ["middle", f"{number}.d done", "leaf c"], "I14", f"{job.session_id} has read {texts}")
    for work in (f"{number}.{leaf}" for leaf in "abcd"):
        verdict.expect(effects[work] == 1, "I8", f"{work} happened {effects[work]} times")
    for node in nodes:
        types = Counter(event.type for event in lab.client.store.sessions.events(node.session_id))
        started, ended = types["child_started"], types["child_ended"]
        verdict.expect(started == ended == len(node.children), "I14", f"{node.session_id}: {started} → {ended}")
    verdict.counts["children"] += len(nodes) - 1
    verdict.counts["jobs_completed"] += state.status.value == "completed"


def spend(directory: Path, trees: int, seed: int, *, kills: int, timeout: float) -> Verdict:
    """Trees of 40 sessions that want several times the root's budget, while workers are killed."""
    chance = random.Random(seed)
    plans = [f"{chance.choice(POINTS)}:0.1:{chance.randrange(10**9)}" for _ in range(kills)]
    with Lab(directory, agents=_AGENTS) as lab:
        lab.worker()
        lab.client.wait_for_agent("spender")
        jobs: list[Any] = []

        def feed() -> None:
            jobs.append(lab.client.submit("spender", "level 0", budget=ExecutionBudget(max_cost=BUDGET)))
            lab.jobs.append(Submitted(jobs[-1].session_id, jobs[-1].execution_id, ()))

        with Supervisor(lab, list(plans), 1) as supervisor:
            wait_while_feeding(
                lambda: supervisor.done and len(jobs) >= trees, feed,
                in_flight=lambda: sum(not lab.ended(job) for job in lab.jobs), most=2, timeout=timeout,
                why="every crash plan has killed its worker, and the trees are there",
            )  # fmt: skip
            lab.wait_for_jobs(120)
        verdict = lab.verdict(jobs=[])
        paid = _payments(lab)
        for job in jobs:
            _judge_spending(lab, verdict, job, paid)
        for death in supervisor.deaths:
            verdict.counts["kills"] += bool(death.crash)
    return verdict


def _payments(lab: Lab) -> dict[str, list[float]]:
    """The costs of the model calls, by key; more than one where an answer was paid for and lost with its worker."""
    paid: dict[str, list[float]] = {}
    for entry in lab.ledger.entries():
        if entry["kind"] == "driver":
            paid.setdefault(entry["key"], []).append(entry["cost"])
    return paid


def _judge_spending(lab: Lab, verdict: Verdict, job: Any, paid: dict[str, list[float]]) -> None:
    """I15 of one tree: it spent the root's budget at most, and the calls that were in flight when a limit was reached."""
    tree = lab.client.tree(job.session_id)
    nodes = list(tree.walk())
    for node in nodes:
        _judge_making(lab, verdict, node.session_id)
    spent, in_flight, lost = 0.0, 0, 0
    for node in nodes:
        execution = lab.client.show(node.session_id).state.execution
        assert execution is not None
        verdict.expect(execution.status.is_terminal(), "I14", f"{node.session_id} has not ended")
        in_flight += execution.status.value == "stopped"
        for step in range(1, execution.step_count + 2):
            costs = paid.get(driver_key(execution.execution_id, step), [])
            spent += sum(costs)
            lost += max(0, len(costs) - 1)
    allowed = BUDGET + (in_flight + lost) * MOST_PER_CALL
    verdict.expect(spent <= allowed, "I15", f"{job.session_id} spent {spent:.4f} of {allowed:.4f} in {len(nodes)}")
    charged = tree.cost or 0.0
    # Both are sums of the same costs in another order; lost answers are not charged.
    verdict.expect(charged <= spent + 1e-6, "I15", f"{job.session_id} was charged {charged:.4f} of {spent:.4f}")
    missing = spent - charged - lost * MOST_PER_CALL
    verdict.expect(missing <= 1e-6, "I15", f"{job.session_id} spent {spent:.4f}, and was charged {charged:.4f}")
    verdict.counts["trees"] += 1
    verdict.counts["tree_sessions"] += len(nodes)
    verdict.counts["stopped_by_cost"] += in_flight
    verdict.counts["answers_lost"] += lost


def _judge_making(lab: Lab, verdict: Verdict, session_id: str) -> None:
    """I15: each child was made while its reservation was covered by what its parent had left at that moment."""
    execution = lab.client.show(session_id).state.execution
    assert execution is not None
    limit = execution.budget.max_cost
    assert limit is not None, "every session of these trees has a share of the root's budget"
    costs = [each.step.inference_response.cost or 0.0 for each in execution.step_executions]
    children: dict[str, float] = {}
    has_ended = False
    for event in lab.client.store.sessions.events(session_id):
        child = str(event.data.get("session", ""))
        if event.type == "child_ended":
            has_ended = True
            children[child] = float(event.data.get("cost") or 0.0)
        elif event.type == "child_started":
            made = lab.client.show(child).state.execution
            assert made is not None
            children[child] = made.budget.max_cost or 0.0
            taken = sum(costs[: event.step]) + sum(children.values())
            why = f"{child} was made when {taken:.4f} of {limit:.4f} were taken"
            verdict.expect(taken <= limit + 1e-6, "I15", why)
            verdict.counts["children_made_late"] += has_ended


def stop_trees(directory: Path, trees: int) -> Verdict:
    """Stop trees while their leaves work; nothing of them happens two seconds after the stop has returned."""
    with Lab(directory, agents=_AGENTS) as lab:
        lab.worker()
        lab.worker()
        verdict = Verdict()
        for number in range(trees):
            slow = plan(*[[call("keyed", work=f"{number}.{n}")] for n in range(60)], before=0.1)
            middle = plan([delegate(slow), delegate(slow)], [call("keyed", work=f"{number}.late")])
            job = lab.client.submit("node", plan([delegate(middle), delegate(slow)]))
            _wait_for_sessions(lab, job.session_id, 5)
            lab.client.stop(job.session_id, timeout=60)
            stopped_at = lab.ledger.entries()
            began = lab.now_ms()
            wait_until(lambda since=began: lab.now_ms() > since + 2000, "two seconds have passed")
            later = len(lab.ledger.entries()) - len(stopped_at)
            verdict.expect(later == 0, "I14", f"{job.session_id}: {later} calls after its stop had returned")
            verdict.counts["trees_stopped"] += 1
    return verdict


def _wait_for_sessions(lab: Lab, session_id: str, count: int) -> None:
    wait_until(lambda: len(list(lab.client.tree(session_id).walk())) == count, "the tree has begun", 60)
