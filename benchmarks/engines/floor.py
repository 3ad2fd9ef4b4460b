"""The floor: a bare Celery task that puts itself into the queue again, with no state at all.

What is measured here is Celery and Redis alone; everything that an engine on Celery adds comes on top.
"""

from __future__ import annotations

import os
import time

import redis
from celery import Celery
from kombu import Queue
from yardstick.engine import Engine
from yardstick.load import Load, in_waves, serve

URL = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379/0")
EVENTS = os.environ.get("BENCH_EVENTS") == "1"
HINTS = os.environ.get("BENCH_QUEUE") == "no_ack"

app = Celery("floor", broker=URL)
app.conf.update(
    task_ignore_result=True,
    worker_send_task_events=EVENTS,
    task_send_sent_event=False,
    task_default_queue="floor",
    broker_connection_retry_on_startup=True,
)
if HINTS:
    app.conf.update(task_queues=[Queue("floor", no_ack=True)], worker_disable_prefetch=True)

# One for each slot, where all sessions end at once: redis-py refuses the 101st otherwise.
results = redis.Redis.from_url(URL, max_connections=1000, socket_timeout=None)


@app.task(name="floor.step")
def step(session: str, number: int, steps: int, latency: float) -> None:
    if latency:
        time.sleep(latency)
    if number < steps:
        step.apply_async((session, number + 1, steps, latency))
    else:
        results.rpush("done", session)


def wait(count: int) -> None:
    for _ in range(count):
        results.blpop(["done"], timeout=0)


def run(load: Load) -> None:
    in_waves(load, lambda n: step.apply_async((f"s{n}", 1, load.steps, load.latency)), wait)


def celery_worker(module: str, pool: str, slots: int) -> tuple[str, ...]:
    """The command line of a worker, after `python -m`."""
    return (
        "celery", "-A", module, "worker", "-P", pool, "-c", str(slots), "-n", "w{number}@%h",
        "-l", "WARNING", "--without-gossip", "--without-mingle",
    )  # fmt: skip


def floor(pool: str, slots: int, queue: str, *, processes: int = 1, events: bool = False) -> Engine:
    """Celery alone, in a pool of that many slots; `queue` is stock or no_ack."""
    several = f" × {processes}" if processes > 1 else ""
    return Engine(
        name=f"floor_{pool}{processes if processes > 1 else ''}_{queue}{'_events' if events else ''}",
        title=f"bare Celery task, {pool} {slots}{several}, {queue} queue{', events' if events else ''}",
        module="engines.floor",
        workers=celery_worker("engines.floor", pool, slots),
        processes=processes,
        env={"BENCH_QUEUE": queue, "BENCH_EVENTS": "1" if events else "0"},
    )


if __name__ == "__main__":
    serve(run)
