"""Figures of sessions that wait for an approval: what many of them cost, and how soon one goes on.

    python benchmarks/waiting.py --sessions 10000

The figures: CPU of the worker and of Redis while all wait, bytes of each, one page of the inbox in round trips and
milliseconds, the time until all are answered and complete, and the way from an answer to the woken step's first event
beside that from an ordinary submit to its step's first event.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import statistics
import sys
import time
from typing import Any

import psutil
import redis
from engines.product import product
from yardstick.running import Running

IDLE_SECONDS = 10.0
PAIRS = 40
PAGE = 50
PATIENCE_SECONDS = 1800.0
# Written by whoever answers, in the transaction that wakes.
_OF_THE_CALLER = frozenset({"request_answered", "execution_resumed", "execution_submitted", "message_joined"})


def waiting_figures(sessions: int, pairs: int = PAIRS) -> dict[str, object]:
    """All figures, on a worker and a Redis of their own."""
    engine = product("keyed")
    engine = dataclasses.replace(
        engine, env={**engine.env, "CELERY_AGENTS_AGENTS": "engines.product_agents,engines.asking_agents"}
    )
    with Running(engine) as running:
        url = running.store.environment()["BENCH_REDIS"]
        return {**wake_times(url, pairs), **many_waiting(url, running, sessions)}


def wake_times(url: str, pairs: int) -> dict[str, object]:
    """Milliseconds to the first event of a woken step and of an ordinary one, in turns; medians."""
    from celery_agents import AgentClient, Approve

    client = AgentClient(redis_url=url)
    client.wait_for_agent("asking")
    woken: list[float] = []
    ordinary: list[float] = []
    for _ in range(pairs):
        began = time.perf_counter()
        ordinary.append(_first_event(client.submit("acting", "Do it."), began, "0"))
        job = client.submit("asking", "Do it.")
        found = _wait_for_requests(client, job.session_id)
        last = client.store.sessions.latest_events(job.session_id, 1)[-1].id
        began = time.perf_counter()
        client.answer(job.session_id, {found.summary.id: Approve()})
        woken.append(_first_event(job, began, last))
        job.result(timeout=30)
    times = statistics.median(woken), statistics.median(ordinary)
    return {
        "answer_to_event_ms": round(times[0], 2),
        "submit_to_event_ms": round(times[1], 2),
        "answer_to_submit_ratio": round(times[0] / times[1], 2),
    }


def many_waiting(url: str, running: Running, sessions: int) -> dict[str, object]:
    """Sessions that all wait at once."""
    from celery_agents import AgentClient, Approve

    client = AgentClient(redis_url=url)
    database = redis.Redis.from_url(url)
    before = int(database.info("memory")["used_memory"])
    jobs = [client.submit("asking", "Do it.") for _ in range(sessions)]
    _wait_until(lambda: client.store.requests.count_open().open == sessions)
    used = int(database.info("memory")["used_memory"]) - before
    idle_before = _cpu(running), _redis_cpu(database)
    time.sleep(IDLE_SECONDS)
    idle = _cpu(running) - idle_before[0], _redis_cpu(database) - idle_before[1]
    calls = _calls(database)
    began = time.perf_counter()
    page = client.requests(limit=PAGE)
    page_ms = 1000 * (time.perf_counter() - began)
    reads = {name: count - calls.get(name, 0) for name, count in _calls(database).items()}
    assert len(page.requests) == min(PAGE, sessions)
    began = time.perf_counter()
    cursor: str | None = None
    while True:
        page = client.requests(limit=1000, cursor=cursor)
        for found in page.requests:
            client.answer(found.summary.session_id, {found.summary.id: Approve()})
        cursor = page.cursor
        if cursor is None:
            break
    _wait_until(lambda: not database.zcard("ca:{0}:due"))
    took = time.perf_counter() - began
    ended = [client.header(job.session_id).status for job in jobs]
    assert set(ended) == {"completed"}, set(ended)
    return {
        "waiting_sessions": sessions,
        "worker_cpu_percent_while_waiting": round(100 * idle[0] / IDLE_SECONDS, 2),
        "redis_cpu_percent_while_waiting": round(100 * idle[1] / IDLE_SECONDS, 2),
        "memory_per_waiting_session": round(used / sessions),
        "inbox_page_ms": round(page_ms, 2),
        "inbox_page_index_reads": reads.get("cmdstat_zrangebyscore", 0),
        "answered_and_complete_per_second": round(sessions / took, 1),
    }


def _first_event(job: Any, began: float, after: str) -> float:
    """Milliseconds until the worker's first event of the step is seen."""
    for event in job.events(None if after == "0" else after, timeout=30):
        if event.type not in _OF_THE_CALLER:
            return 1000 * (time.perf_counter() - began)
    raise AssertionError("the job ended without an event")


def _wait_for_requests(client: Any, session_id: str) -> Any:
    _wait_until(lambda: client.header(session_id).status == "waiting")
    return client.requests(session_id, tree=False).requests[0]


def _wait_until(holds: Any) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.005)


def _cpu(running: Running) -> float:
    processes = [psutil.Process(worker.pid) for worker in running.workers]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _redis_cpu(database: Any) -> float:
    info = database.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def _calls(database: Any) -> dict[str, int]:
    return {name: int(stats["calls"]) for name, stats in database.info("commandstats").items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    asked = parser.parse_args()
    print("WAITING " + json.dumps(waiting_figures(asked.sessions, asked.pairs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
