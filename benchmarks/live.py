"""Figures of live text: what it costs a worker, and how soon a reader has it.

    python benchmarks/live.py --sessions 100

Sessions that write 50 pieces a second for some seconds, in turns followed by nobody and by somebody; the worker's CPU
of both. Then the time from a driver's emit to the reader, by the client and by Server-Sent Events.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import statistics
import sys
import threading
import time
from datetime import timedelta
from typing import Any

from engines.product import product
from http_streams import serve_streams
from waiting import wait_until
from yardstick.running import Running
from yardstick.sections import Row, Section

SESSIONS = 100
ROUNDS = 3
SECONDS = 8.0
READERS = 10
# Until then all sessions are followed.
DELAY = timedelta(seconds=2)

SECTION = Section(
    title="Live text",
    text="""100 sessions of one worker write 50 pieces a second each, in turns followed by nobody and by
    somebody. Then 10 readers, by the client and by Server-Sent Events. `make bench-live` measures
    this.""",
    rows=(
        Row(title="CPU of the worker while all are followed, over nobody", key="cpu_watched_share", at_most=1.5),
        Row(title="pieces emitted", key="pieces_emitted"),
        Row(title="entries written to Redis for them", key="entries_written"),
        Row(title="emit to the client's reader, ms (median)", key="emit_to_client_ms_median"),
        Row(title="… 99th percentile", key="emit_to_client_ms_p99"),
        Row(title="emit to a reader of Server-Sent Events, ms (median)", key="emit_to_sse_ms_median"),
        Row(title="… 99th percentile", key="emit_to_sse_ms_p99"),
    ),
)


def live_figures(sessions: int, rounds: int) -> dict[str, object]:
    """All figures, on a worker, a Redis and an interface of their own."""
    engine = product("keyed")
    env = {
        **engine.env,
        "CELERY_AGENTS_AGENTS": "engines.product_agents,engines.live_agents",
        "CELERY_AGENTS_CONCURRENCY": str(sessions),
    }
    with Running(dataclasses.replace(engine, env=env)) as running:
        url = running.store.environment()["BENCH_REDIS"]
        cpu: dict[bool, list[float]] = {False: [], True: []}
        written = 0
        for _ in range(rounds):
            for is_followed in (False, True):
                seconds, count = _write(url, running, sessions, is_followed=is_followed)
                cpu[is_followed].append(seconds)
                written += count
        quiet, watched = statistics.median(cpu[False]), statistics.median(cpu[True])
        return {
            "sessions": sessions,
            "pieces_emitted": sessions * rounds * int(SECONDS * 50),
            "entries_written": written,
            "cpu_unwatched_s": round(quiet, 2),
            "cpu_watched_s": round(watched, 2),
            "cpu_watched_share": round(watched / quiet, 2),
            **_delays(url),
        }


def _write(url: str, running: Running, sessions: int, *, is_followed: bool) -> tuple[float, int]:
    """Let sessions write: seconds of the worker's CPU, and entries of live text."""
    from celery_agents import AgentClient

    with AgentClient(redis_url=url) as client:
        client.wait_for_agent("writer")
        jobs = [client.submit("writer", str(SECONDS), delay=DELAY) for _ in range(sessions)]
        for job in jobs if is_followed else ():
            client.store.live.keep_followed(job.session_id)
        before = sum(worker.cpu_seconds() for worker in running.workers)
        for job in jobs:
            job.result(timeout=60)
        cpu = sum(worker.cpu_seconds() for worker in running.workers) - before
        keys = [client.store.context.keys(job.session_id).live for job in jobs]
        counts = client.store.context.database.pipeline("count", [("XLEN", key) for key in keys])
        return cpu, sum(counts)


def _delays(url: str) -> dict[str, object]:
    """Milliseconds from an emit to its reader."""
    served = serve_streams(url, 2 * READERS)
    try:
        by_client = _by_client(url)
        by_sse = asyncio.run(_by_sse(url, served.port))
    finally:
        served.process.terminate()
        served.process.wait(20)
    return {
        **{f"emit_to_client_ms_{name}": value for name, value in _summary(by_client).items()},
        **{f"emit_to_sse_ms_{name}": value for name, value in _summary(by_sse).items()},
    }


def _by_client(url: str) -> list[float]:
    from celery_agents import AgentClient

    found: list[float] = []
    with AgentClient(redis_url=url) as client:
        jobs = [client.submit("writer", "3", delay=DELAY) for _ in range(READERS)]

        def read(job: Any) -> None:
            for item in job.stream(timeout=60):
                if item.delta is not None and item.delta.id:
                    found.extend(_ages(item.delta.text))

        threads = [threading.Thread(target=read, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


async def _by_sse(url: str, port: int) -> list[float]:
    from celery_agents import AgentClient

    with AgentClient(redis_url=url) as client:
        jobs = [client.submit("writer", "3", delay=DELAY) for _ in range(READERS)]
        found = await asyncio.gather(*(_follow(port, job.session_id) for job in jobs))
        wait_until(lambda: all(client.header(job.session_id).status == "completed" for job in jobs))
    return [age for each in found for age in each]


async def _follow(port: int, session: str) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    path = f"/v1/sessions/{session}/events?live=true&until=end"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    found, kind = list[float](), ""
    while kind != "execution_completed":
        line = await reader.readline()
        if line.startswith(b"event: "):
            kind = line[7:].decode().strip()
        elif line.startswith(b"data: ") and kind == "live":
            found += _ages(json.loads(line[6:])["text"])
    writer.close()
    return found


def _ages(text: str) -> list[float]:
    """Milliseconds since each of the pieces of a text was emitted."""
    now = time.time()
    return [1000 * (now - float(piece)) for piece in text.split()]


def _summary(found: list[float]) -> dict[str, float]:
    ordered = sorted(found)
    return {"median": round(statistics.median(ordered), 1), "p99": round(ordered[int(0.99 * len(ordered))], 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    figures = SECTION.run(parser, "LIVE", lambda asked: live_figures(asked.sessions, asked.rounds))
    return 0 if figures["cpu_watched_share"] <= 1.5 else 1  # type: ignore[operator]


if __name__ == "__main__":
    sys.exit(main())
