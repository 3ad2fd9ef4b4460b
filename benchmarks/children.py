"""Figures of agents that call agents, beside as many sessions of their own in the same run.

    python benchmarks/children.py

64 children of one step, all at once and 8 at a time: their steps a second beside those of 64 independent sessions that
work as many at a time, with a model that takes no time and, 8 at a time, with one that takes 50 ms. 8 at a time also
beside all independent sessions at once. The time from the last child's end to the parent's next model request, beside
an ordinary step of one call and of 64 calls. And what parents cost that wait for a child which waits for a person.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import redis
from engines.parent_agents import CHILDREN, STEPS
from engines.product import product
from waiting import idle_cpu, wait_until
from yardstick.running import Running
from yardstick.sections import Row, Section

ROUNDS = 5
PARENTS = 1000
# The default of `max_children`.
AT_A_TIME = 8

SECTION = Section(
    title="Agents that call agents",
    text="""A parent starts 64 children of 10 steps in one step, all at once or 8 at a time, which is the
    default. Beside it, in the same run, 64 sessions of their own. *As many at a time*: the caller
    has no more of them under way than the parent has children. Then 1 000 parents wait for a child
    which waits for a person. `make bench-children` measures this.""",
    rows=(
        Row(title="steps/s of the children over 64 sessions, all at once", key="together_ratio", at_least=0.6),
        Row(title="steps/s, 8 at a time, over sessions 8 at a time", key="few_at_a_time_ratio", at_least=0.6),
        Row(title="… with a model that takes 50 ms", key="few_at_a_time_ratio_with_latency", at_least=0.6),
        Row(title="steps/s, 8 at a time, over 64 sessions all at once", key="few_at_a_time_to_all_at_once_ratio"),
        Row(title="the last child's end to the parent's next request, ms (median)", key="last_end_to_request_ms"),
        Row(title="… over a step of 64 calls", key="join_to_step_of_as_many_calls_ratio", at_most=3),
        Row(title="… over a step of one call", key="join_to_step_ratio"),
        Row(title="slots that 1 000 waiting parents hold", key="slots_of_waiting_parents", at_most=0),
        Row(title="messages of 1 000 waiting parents", key="messages_of_waiting_parents", at_most=0),
        Row(title="CPU of the worker before, percent of a core", key="worker_cpu_percent_nobody_waits"),
        Row(title="CPU of the worker while 1 000 parents wait", key="worker_cpu_percent_parents_wait"),
        Row(title="CPU of Redis before", key="redis_cpu_percent_nobody_waits"),
        Row(title="CPU of Redis while 1 000 parents wait", key="redis_cpu_percent_parents_wait"),
    ),
)


def children_figures(rounds: int, parents: int) -> dict[str, object]:
    """All figures, on a worker and a Redis of their own."""
    engine = product("keyed")
    engine = dataclasses.replace(
        engine, env={**engine.env, "CELERY_AGENTS_AGENTS": "engines.product_agents,engines.parent_agents"}
    )
    with Running(engine) as running:
        url = running.store.environment()["BENCH_REDIS"]
        return {**throughput(url, rounds), **waiting_parents(url, running, parents)}


def throughput(url: str, rounds: int) -> dict[str, object]:
    """Steps of children a second by those of independent sessions, in turns; medians."""
    from celery_agents import AgentClient

    client = AgentClient(redis_url=url)
    client.wait_for_agent("together")
    independent: list[float] = []
    trees: dict[str, list[float]] = {"few_at_a_time": [], "together": []}
    joins: list[float] = []
    few: list[float] = []
    slow, few_slow = [], []
    steps: list[float] = []
    full_steps: list[float] = []
    _run_independent(client)
    for _ in range(rounds):
        independent.append(_run_independent(client))
        for agent, times in trees.items():
            took, join = _run_tree(client, agent)
            times.append(took)
            joins.append(join)
        few.append(_run_few(client, "child"))
        slow.append(_run_few(client, "slow_child"))
        few_slow.append(_run_tree(client, "few_slow")[0])
        steps += _ordinary_steps(client)
        full_steps += _full_steps(client)
    alone = statistics.median(independent)
    join, step, full = (1000 * statistics.median(times) for times in (joins, steps, full_steps))
    return {
        "independent_steps_per_second": round(CHILDREN * STEPS / alone, 1),
        "together_ratio": round(alone / statistics.median(trees["together"]), 3),
        "few_at_a_time_ratio": round(statistics.median(few) / statistics.median(trees["few_at_a_time"]), 3),
        "few_at_a_time_to_all_at_once_ratio": round(alone / statistics.median(trees["few_at_a_time"]), 3),
        "few_at_a_time_ratio_with_latency": round(statistics.median(slow) / statistics.median(few_slow), 3),
        "last_end_to_request_ms": round(join, 2),
        "ordinary_step_ms": round(step, 2),
        "step_of_as_many_calls_ms": round(full, 2),
        "join_to_step_ratio": round(join / step, 2),
        "join_to_step_of_as_many_calls_ratio": round(join / full, 2),
    }


def waiting_parents(url: str, running: Running, parents: int) -> dict[str, object]:
    """What parents cost while they wait."""
    from celery_agents import AgentClient

    client, database = AgentClient(redis_url=url), redis.Redis.from_url(url)
    nobody = idle_cpu(running, database)
    jobs = [client.submit("parent_of_one", "Go.") for _ in range(parents)]
    # A child's question, and the request of its parent for it.
    wait_until(lambda: len(list(client.store.trees.active_below(jobs[-1].session_id))) == 1)
    wait_until(lambda: client.store.requests.count_open().open >= parents)
    wait_until(lambda: all(client.header(job.session_id).status == "waiting" for job in jobs[-20:]))
    all_wait = idle_cpu(running, database)
    (facts,) = client.workers().values()
    figures = {
        "waiting_parents": parents,
        "slots_of_waiting_parents": facts["running"],
        "worker_cpu_percent_nobody_waits": nobody[0],
        "worker_cpu_percent_parents_wait": all_wait[0],
        "redis_cpu_percent_nobody_waits": nobody[1],
        "redis_cpu_percent_parents_wait": all_wait[1],
        "messages_of_waiting_parents": sum(database.llen(name) for name in database.scan_iter("celery_agents.steps*")),
    }
    for job in jobs:
        client.stop(job.session_id, timeout=0)
    return figures


def _run_independent(client: Any) -> float:
    """Seconds until as many sessions as a parent has children are complete."""
    began = time.perf_counter()
    jobs = [client.submit("child", f"part {number}") for number in range(CHILDREN)]
    _wait_for_all(client, jobs)
    return time.perf_counter() - began


def _run_few(client: Any, agent: str) -> float:
    """Seconds until as many sessions are complete as a parent has children, as few at a time as it has."""
    began = time.perf_counter()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        ends = pool.map(lambda number: client.submit(agent, f"part {number}").result(timeout=60), range(CHILDREN))
        assert {end.status for end in ends} == {"completed"}
    return time.perf_counter() - began


def _run_tree(client: Any, agent: str) -> tuple[float, float]:
    """Seconds until a parent is complete, and from the end of its last child until its model was asked again."""
    began = time.perf_counter()
    job = client.submit(agent, "Go.")
    _wait_for_all(client, [job])
    took = time.perf_counter() - began
    tree = client.tree(job.session_id)
    assert len(tree.children) == CHILDREN, len(tree.children)
    ends = [client.store.sessions.latest_events(node.session_id, 1)[-1] for node in tree.children]
    assert {event.type for event in ends} == {"execution_completed"}
    asked = float(job.result(timeout=1).final_response)
    return took, max(0.0, asked - max(event.at_ms for event in ends) / 1000)


def _ordinary_steps(client: Any) -> list[float]:
    """Seconds between the commits of a session that is alone."""
    job = client.submit("child", "alone")
    _wait_for_all(client, [job])
    commits = [event.at_ms for event in client.store.sessions.events(job.session_id) if event.type == "step_committed"]
    return [(after - before) / 1000 for before, after in pairwise(commits)]


def _full_steps(client: Any) -> list[float]:
    """Seconds between the model requests of a session whose steps have as many calls as a parent has children."""
    job = client.submit("caller", "alone")
    _wait_for_all(client, [job])
    asked = [float(step.inference_response.content) for step in client.show(job.session_id).state.steps]
    return [after - before for before, after in pairwise(asked)]


def _wait_for_all(client: Any, jobs: list[Any]) -> None:
    due = client.store.context.shards[0].due
    wait_until(lambda: not client.store.context.database.pipeline("bench", [("ZCARD", due)])[0])
    for job in jobs:
        assert client.header(job.session_id).status == "completed", client.header(job.session_id)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--parents", type=int, default=PARENTS)
    SECTION.run(parser, "CHILDREN", lambda asked: children_figures(asked.rounds, asked.parents))
    return 0


if __name__ == "__main__":
    sys.exit(main())
