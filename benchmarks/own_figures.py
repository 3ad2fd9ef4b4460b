"""Figures of this product alone: how soon events come, and what many stored sessions cost."""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import redis
from engines.product import product
from yardstick.memory import SCORE_BYTES, payload_bytes
from yardstick.running import Running

JOBS = 40
STORED = 100_000
LATER = 10_000
DUE_NOW = 1_000
LOOKS = 5
PASSES = 200
SCHEDULES = 10_000
IDLE = 300
_PREFIX = "ca:{0}:"
# Sessions copied in one pipeline.
_BATCH = 500
# The sweep looks away for one lease after Redis has started.
_LEASE_SECONDS = 7.0
# Redis's table of keys has up to twice as many slots of eight bytes as keys.
_SLOT_BYTES = 16


def own_figures() -> dict[str, object]:
    """Milliseconds and bytes; measured on a worker and a Redis of their own, with all sessions in one shard."""
    os.environ["CELERY_AGENTS_SHARDS"] = "1"
    with Running(product("keyed")) as running:
        url = running.store.environment()["BENCH_REDIS"]
        figures = event_times(url)
    with Running(product("keyed")) as running:
        url = running.store.environment()["BENCH_REDIS"]
        figures |= many_sessions(url, running)
        figures |= many_schedules(url)
    return figures


def event_times(url: str) -> dict[str, object]:
    """How long until an idle worker has begun, and how long until a watcher sees what was written."""
    from celery_agents import AgentClient

    client = AgentClient(redis_url=url)
    begun: list[float] = []
    seen: list[float] = []
    for _ in range(JOBS):
        submitted = time.perf_counter()
        job = client.submit("keyed", "Look it up.", metadata={"steps": 3, "latency": 0.02})
        for event in job.events(timeout=30):
            if event.type == "execution_started":
                begun.append(1000 * (time.perf_counter() - submitted))
            if event.type == "step_committed":
                seen.append(time.time() * 1000 - event.at_ms)
        time.sleep(0.05)
    return {
        "submit_to_started_ms": round(statistics.median(begun), 1),
        "event_to_watcher_ms": round(statistics.median(seen), 1),
    }


def many_sessions(url: str, running: Running) -> dict[str, object]:
    """100 000 sessions stored, 10 000 of them due later, 1 000 due at once: a sweep pass, a page, and the memory."""
    from celery_agents import AgentClient
    from celery_agents.worker.store import QueueSnapshot

    client = AgentClient(redis_url=url)
    database = redis.Redis.from_url(url)
    job = _idle_session(client, database)
    for worker in running.workers:  # its own sweep would take the sessions first
        worker.end()
    keys = _keys(database, job.session_id)
    per_session, payload = _memory(database, job.session_id, keys)
    _copy(database, job.session_id, keys)
    time.sleep(_LEASE_SECONDS)
    store: Any = client.store
    sweeps: list[float] = []
    pages: list[float] = []
    for _ in range(LOOKS):
        _make_due(database, store.housekeeping.now_ms())
        swept, passed = _timed(lambda: store.housekeeping.sweep(QueueSnapshot()))
        assert len(swept.lost) == DUE_NOW, swept
        sweeps.append(passed)
        page, passed = _timed(lambda: client.list(limit=50))
        assert len(page.items) == 50
        pages.append(passed)
    return {
        "sweep_ms": round(statistics.median(sweeps), 1),
        "list_page_ms": round(statistics.median(pages), 1),
        "memory_per_idle_session": per_session,
        "payload_per_idle_session": payload,
    }


def many_schedules(url: str) -> dict[str, object]:
    """What a sweep pass takes more with 10 000 schedules than with none, and what a slot of one of them takes."""
    from celery_agents import AgentClient
    from celery_agents.flow import Schedule
    from celery_agents.tasks.housekeeping.schedules import ScheduleRunner
    from celery_agents.worker.store import QueueSnapshot

    client, database = AgentClient(redis_url=url), redis.Redis.from_url(url)
    store = client.store
    runner = ScheduleRunner(store, lambda: client)

    def work() -> None:
        runner.are_due |= store.housekeeping.sweep(QueueSnapshot()).has_schedules
        runner.run_due()

    database.delete(f"{_PREFIX}due")
    alone = [_timed(work)[1] for _ in range(PASSES)]
    _set_schedules(client, database, Schedule("number", cron="0 0 1 1 *", agent="keyed", message="Look it up."))
    beside = [_timed(work)[1] for _ in range(PASSES)]
    slots: list[float] = []
    for number in range(LOOKS):
        client.schedules.set(Schedule(f"due-{number}", cron="* * * * * *", agent="keyed", message="Look it up."))
        while not client.store.housekeeping.sweep(QueueSnapshot()).has_schedules:
            time.sleep(0.05)
        slots.append(_timed(work)[1])
        assert client.schedules.get(f"due-{number}").submitted == 1
        client.schedules.remove(f"due-{number}")
    return {
        "schedules_pass_ms": round(statistics.median(beside) - statistics.median(alone), 2),
        "schedule_slot_ms": round(statistics.median(slots), 1),
    }


def _set_schedules(client: Any, database: redis.Redis, schedule: Any) -> None:
    """Set a schedule under many names."""
    client.schedules.set(schedule)
    (raw,), ((_, score),) = (
        database.hvals(f"{_PREFIX}schedules"),
        database.zrange(f"{_PREFIX}scheduled", 0, 0, withscores=True),
    )
    names = [f"number-{number}" for number in range(SCHEDULES)]
    for name in names:
        database.hset(f"{_PREFIX}schedules", name, raw.replace(b'"number"', f'"{name}"'.encode()))
    database.zadd(f"{_PREFIX}scheduled", dict.fromkeys(names, score))
    assert len(client.schedules.list()) == SCHEDULES + 1


def _idle_session(client: Any, database: Any) -> Any:
    """A job that has ended, among others; copies would be packed more tightly than what a worker has written."""
    jobs = [client.submit("keyed", "Look it up.", metadata={"steps": 1, "latency": 0.0}) for _ in range(IDLE)]
    for job in jobs:
        job.result(timeout=60)
    for journal in database.scan_iter("*:j:*", count=1000):  # they end a minute after their step
        database.delete(journal)
    return jobs[0]


def _memory(database: Any, session_id: str, keys: list[str]) -> tuple[int, int]:
    """What a session takes of Redis's memory with its places in the indexes, and how many bytes are written there."""
    indexes = [key for key in database.scan_iter(f"{_PREFIX}*", count=1000) if database.type(key) == b"zset"]
    holding = [key for key in indexes if database.zscore(key, session_id) is not None]
    places = sum(_used(database, key) / database.zcard(key) for key in holding)
    taken = sum(_used(database, key) + _SLOT_BYTES for key in keys) + places
    written = sum(len(key) + payload_bytes(database, key) for key in keys) + len(holding) * (
        len(session_id) + SCORE_BYTES
    )
    return round(taken), written


def _used(database: Any, key: str | bytes) -> int:
    return int(database.memory_usage(key, samples=0))


def _keys(database: Any, session_id: str) -> list[str]:
    """The keys that live as long as the session; a journal ends a minute after its step."""
    keys = [key.decode() for key in database.scan_iter(f"{_PREFIX}s:{session_id}*", count=10_000)]
    return [key for key in keys if ":j:" not in key]


def _copy(database: redis.Redis, session_id: str, keys: list[str]) -> None:
    """Copy a finished session under other ids."""
    now = time.time() * 1000
    for first in range(0, STORED, _BATCH):
        with database.pipeline(transaction=False) as pipe:
            for number in range(first, first + _BATCH):
                for key in keys:
                    pipe.copy(key, key.replace(session_id, _copy_id(number)))
                pipe.zadd(f"{_PREFIX}sessions", {_copy_id(number): now + number})
            pipe.execute()


def _copy_id(number: int) -> str:
    return f"{number:032x}"


def _make_due(database: redis.Redis, now_ms: int) -> None:
    with database.pipeline(transaction=False) as pipe:
        for number in range(LATER + DUE_NOW):
            pipe.hset(f"{_PREFIX}s:{_copy_id(number)}:ctl", mapping={"phase": "run", "claim": "", "published": 0})
            due = now_ms - 1 if number < DUE_NOW else now_ms + 3_600_000
            pipe.zadd(f"{_PREFIX}due", {_copy_id(number): due})
        pipe.execute()


def _timed(call: Any) -> tuple[Any, float]:
    started = time.perf_counter()
    answer = call()
    return answer, 1000 * (time.perf_counter() - started)
