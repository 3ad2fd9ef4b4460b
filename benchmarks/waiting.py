"""Figures of sessions that wait for an approval: what many of them cost, and how soon one goes on.

    python benchmarks/waiting.py --sessions 10000

The figures: CPU of the worker and of Redis while all wait and while nobody does, messages and leases that are there
meanwhile, bytes of each session, one page of the inbox in commands and milliseconds, the time until all are answered
and complete, and the way from an answer to the woken step's first event beside that from an ordinary submit to its
step's first event. `--write` puts them into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from typing import Any

import psutil
import redis
from engines.product import product
from yardstick.memory import SCORE_BYTES, payload_bytes
from yardstick.running import Running
from yardstick.sections import Row, Section

IDLE_SECONDS = 20.0
PAIRS = 40
PAGE = 50
PAGES = 20
# Sessions whose bytes are counted one by one.
SAMPLES = 20
PATIENCE_SECONDS = 1800.0
# Written by whoever answers, in the transaction that wakes.
_OF_THE_CALLER = frozenset({"request_answered", "execution_resumed", "execution_submitted", "message_joined"})
# Commands that the idle worker and this script send meanwhile; a page of the inbox needs none of them.
_WORKERS_OWN = frozenset(f"cmdstat_{name}" for name in ("info", "blpop", "brpop", "ping", "time", "eval", "evalsha"))

SECTION = Section(
    title="Sessions that wait",
    text="""10 000 sessions of one worker wait for an approval at the same time. Then one client approves
    all of them, and they complete. `make bench-waiting` measures this.""",
    rows=(
        Row(title="answer to the woken step's first event, ms (median)", key="answer_to_event_ms"),
        Row(title="submit to an ordinary step's first event, ms (median)", key="submit_to_event_ms"),
        Row(title="the first over the second", key="answer_to_submit_ratio", at_most=3),
        Row(title="CPU of the worker before, percent of a core", key="worker_cpu_percent_nobody_waits"),
        Row(title="CPU of the worker while all wait", key="worker_cpu_percent_all_wait"),
        Row(title="CPU of Redis before", key="redis_cpu_percent_nobody_waits"),
        Row(title="CPU of Redis while all wait", key="redis_cpu_percent_all_wait"),
        Row(title="messages in the queue while all wait", key="waiting_messages", at_most=0),
        Row(title="leases while all wait", key="waiting_leases", at_most=0),
        Row(title="memory of a waiting session, bytes", key="waiting_memory"),
        Row(title="… beyond what it has written", key="waiting_memory_overhead", at_most=2048),
        Row(title="a page of 50 of the inbox, ms (median)", key="inbox_page_ms"),
        Row(title="… commands to Redis", key="inbox_page_commands", at_most=1),
        Row(title="sessions answered and completed in a second", key="answered_and_complete_per_second"),
    ),
)


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
    from celery_agents import AgentClient

    client = AgentClient(redis_url=url)
    database = redis.Redis.from_url(url)
    nobody_waits = idle_cpu(running, database)
    before = int(database.info("memory")["used_memory"])
    jobs = [client.submit("asking", "Do it.") for _ in range(sessions)]
    wait_until(lambda: client.store.requests.count_open().open == sessions)
    used = (int(database.info("memory")["used_memory"]) - before) / sessions
    all_wait = idle_cpu(running, database)
    samples = jobs[:: max(1, sessions // SAMPLES)]
    written = statistics.mean(_written(client, database, job.session_id) for job in samples)
    return {
        "waiting_sessions": sessions,
        "worker_cpu_percent_nobody_waits": nobody_waits[0],
        "worker_cpu_percent_all_wait": all_wait[0],
        "redis_cpu_percent_nobody_waits": nobody_waits[1],
        "redis_cpu_percent_all_wait": all_wait[1],
        "waiting_messages": sum(database.llen(queue) for queue in database.scan_iter("celery_agents.steps*")),
        "waiting_leases": len(list(database.scan_iter("ca:{*}:lease:*", count=10_000))),
        "waiting_memory": round(used),
        "waiting_memory_overhead": round(used - written),
        **_inbox_figures(client, database, sessions),
        **_answer_all(client, [job.session_id for job in jobs]),
    }


def _inbox_figures(client: Any, database: Any, sessions: int) -> dict[str, object]:
    """Time and reads of one page of the inbox."""
    pages: list[float] = []
    calls = _calls(database)
    for _ in range(PAGES):
        began = time.perf_counter()
        page = client.requests(limit=PAGE)
        pages.append(1000 * (time.perf_counter() - began))
        assert len(page.requests) == min(PAGE, sessions)
    reads = {name: count - calls.get(name, 0) for name, count in _calls(database).items() if name not in _WORKERS_OWN}
    return {
        "inbox_page_ms": round(statistics.median(pages), 2),
        "inbox_page_commands": sum(reads.values()) / PAGES,
    }


def _answer_all(client: Any, sessions: list[str]) -> dict[str, object]:
    """Answer page after page, as a caller does who approves everything."""
    from celery_agents import Approve

    began = time.perf_counter()
    cursor: str | None = None
    while True:
        page = client.requests(limit=1000, cursor=cursor)
        for found in page.requests:
            client.answer(found.summary.session_id, {found.summary.id: Approve()})
        cursor = page.cursor
        if cursor is None:
            break
    wait_until(lambda: not client.store.housekeeping.backlog()[0])
    took = time.perf_counter() - began
    ended = {client.header(session).status for session in sessions}
    assert ended == {"completed"}, ended
    assert not client.store.requests.count_open().open
    return {"answered_and_complete_per_second": round(len(sessions) / took, 1)}


def idle_cpu(running: Running, database: Any) -> tuple[float, float]:
    """Percent of a core that the worker and Redis use while nobody asks for anything."""
    before = _cpu(running), _redis_cpu(database)
    time.sleep(IDLE_SECONDS)
    passed = _cpu(running) - before[0], _redis_cpu(database) - before[1]
    return round(100 * passed[0] / IDLE_SECONDS, 2), round(100 * passed[1] / IDLE_SECONDS, 2)


def _written(client: Any, database: Any, session: str) -> int:
    """Bytes that a waiting session has written: its keys, and its places in the indexes."""
    shard = client.store.context.keys(session).shard
    keys = [*database.scan_iter(f"{shard.prefix}s:{session}*", count=100_000)]
    indexes = [key for key in (shard.due, shard.sessions) if database.zscore(key, session) is not None]
    (asked,) = [entry for entry in database.zrange(shard.requests, 0, -1) if session.encode() in entry]
    places = len(asked) + SCORE_BYTES + len(indexes) * (len(session) + SCORE_BYTES)
    return sum(len(key) + payload_bytes(database, key) for key in keys) + places


def _first_event(job: Any, began: float, after: str) -> float:
    """Milliseconds until the worker's first event of the step is seen."""
    for event in job.events(None if after == "0" else after, timeout=30):
        if event.type not in _OF_THE_CALLER:
            return 1000 * (time.perf_counter() - began)
    raise AssertionError("the job ended without an event")


def _wait_for_requests(client: Any, session_id: str) -> Any:
    wait_until(lambda: client.header(session_id).status == "waiting")
    return client.requests(session_id, tree=False).requests[0]


def wait_until(holds: Any) -> None:
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
    SECTION.run(parser, "WAITING", lambda asked: waiting_figures(asked.sessions, asked.pairs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
