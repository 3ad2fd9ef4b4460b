"""Figures of the HTTP interface: memory and delay of many streams of events on one process.

    python benchmarks/http_streams.py --streams 1000

Streams that follow sessions which wait, opened by this script without a library; then the time from an event's place
in Redis to the reader of its stream, for sessions of several steps that run meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import re
import statistics
import subprocess
import sys
import time
from datetime import timedelta

import psutil
from engines.product import product
from waiting import wait_until
from yardstick.running import Running
from yardstick.sections import Row, Section

STREAMS = 1000
FOLLOWED = 40
# Until then the streams of the sessions that run are open.
DELAY = timedelta(seconds=1.5)

SECTION = Section(
    title="Streams over HTTP",
    text="""1 000 streams of events are open on one process of `celery-agents serve`, of sessions that wait;
    40 more follow sessions that run. `make bench-http` measures this.""",
    rows=(
        Row(title="memory of the process before, MB", key="memory_before_mb"),
        Row(title="… with 1 000 streams", key="memory_with_streams_mb"),
        Row(title="its CPU while nothing happens, percent of a core", key="idle_cpu_percent"),
        Row(title="event in Redis to its reader, ms (median)", key="event_to_reader_ms_median"),
        Row(title="… 95th percentile", key="event_to_reader_ms_p95"),
    ),
)


def http_figures(streams: int) -> dict[str, object]:
    """All figures, on a worker, a Redis and an interface of their own."""
    engine = product("keyed")
    agents = "engines.product_agents,engines.parent_agents"
    engine = dataclasses.replace(engine, env={**engine.env, "CELERY_AGENTS_AGENTS": agents})
    with Running(engine) as running:
        url = running.store.environment()["BENCH_REDIS"]
        served = serve_streams(url, streams)
        try:
            return asyncio.run(_measure(url, served, streams))
        finally:
            served.process.terminate()
            served.process.wait(20)


@dataclasses.dataclass(frozen=True)
class Served:
    process: subprocess.Popen[str]
    port: int

    @property
    def memory(self) -> int:
        """Resident bytes of the process."""
        return psutil.Process(self.process.pid).memory_info().rss


def serve_streams(url: str, streams: int) -> Served:
    env = {
        **os.environ, "CELERY_AGENTS_REDIS_URL": url, "CELERY_AGENTS_HTTP_MAX_STREAMS": str(2 * streams),
        "CELERY_AGENTS_LOG_LEVEL": "WARNING",
    }  # fmt: skip
    command = [sys.executable, "-P", "-m", "celery_agents", "serve", "--address", "127.0.0.1:0"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
    assert said is not None, "the interface has not started"
    return Served(process, int(said[1]))


async def _measure(url: str, served: Served, streams: int) -> dict[str, object]:
    from celery_agents import AgentClient

    client = AgentClient(redis_url=url)
    client.wait_for_agent("child")
    asking = [client.submit("asking", "Do it.").session_id for _ in range(20)]
    wait_until(lambda: all(client.header(session).status == "waiting" for session in asking))
    before = served.memory
    opened = [await _open(served.port, asking[number % len(asking)]) for number in range(streams)]
    await asyncio.sleep(2)
    memory = served.memory
    cpu = psutil.Process(served.process.pid).cpu_times()
    await asyncio.sleep(5)
    idle = sum(psutil.Process(served.process.pid).cpu_times()[:2]) - sum(cpu[:2])
    jobs = [client.submit("child", "go", delay=DELAY) for _ in range(FOLLOWED)]
    delays = await asyncio.gather(*(_follow(served.port, job.session_id) for job in jobs))
    for _, writer in opened:
        writer.close()
    found = sorted(delay for each in delays for delay in each)
    return {
        "streams": streams,
        "memory_before_mb": round(before / 1e6, 1),
        "memory_with_streams_mb": round(memory / 1e6, 1),
        "idle_cpu_percent": round(100 * idle / 5, 1),
        "followed_events": len(found),
        "event_to_reader_ms_median": round(statistics.median(found), 1),
        "event_to_reader_ms_p95": round(found[int(0.95 * len(found))], 1),
    }


async def _open(port: int, session: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a stream, and read until its first event."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /v1/sessions/{session}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    await reader.readuntil(b"data: ")
    return reader, writer


async def _follow(port: int, session: str) -> list[float]:
    """Milliseconds from the place of each event in Redis to its arrival here, of those that came while it was open."""
    reader, writer = await _open(port, session)
    await reader.readline()  # the rest of the first event, which was there before
    opened, delays, kind = time.time() * 1000, list[float](), ""
    while kind != "execution_completed":
        line = await reader.readline()
        if line.startswith(b"event: "):
            kind = line[7:].decode().strip()
        elif line.startswith(b"id: "):
            at_ms = int(line[4:].partition(b"-")[0])
            if at_ms > opened + 300:  # the blocked read knows of the session by then
                delays.append(time.time() * 1000 - at_ms)
    writer.close()
    return delays


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=STREAMS)
    SECTION.run(parser, "HTTP", lambda asked: http_figures(asked.streams))
    return 0


if __name__ == "__main__":
    sys.exit(main())
