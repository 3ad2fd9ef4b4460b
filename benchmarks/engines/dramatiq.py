"""Dramatiq on Redis, saving what a step adds in one transaction of its own before the next one is sent.

There is no claim and no journal: a crash repeats or loses what was being done. It is the price of another queue.
"""

from __future__ import annotations

import json
import os
from typing import Any

from yardstick.engine import Engine
from yardstick.load import Load, in_waves, serve
from yardstick.work import call_model, call_tool

URL = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379/0")

if os.environ.get("BENCH_DRAMATIQ"):
    import dramatiq as queue
    import redis
    from dramatiq.brokers.redis import RedisBroker

    queue.set_broker(RedisBroker(url=URL))
    store: Any = redis.Redis.from_url(URL, socket_timeout=None)

    @queue.actor(queue_name="steps", max_retries=0)
    def step(session: str, number: int, steps: int, latency: float) -> None:
        answer = call_model(number, steps, latency)
        added = [answer, *(call_tool(call) for call in answer["tool_calls"])]
        with store.pipeline() as pipe:
            pipe.rpush(f"session:{session}:messages", *(json.dumps(message) for message in added))
            pipe.hset(f"session:{session}", mapping={"step": number, "steps": steps})
            pipe.execute()
        if number < steps:
            step.send(session, number + 1, steps, latency)
        else:
            store.rpush("done", session)


def main() -> None:
    runs = 0

    def run(load: Load) -> None:
        nonlocal runs
        runs += 1

        def wait(count: int) -> None:
            for _ in range(count):
                store.blpop(["done"], timeout=0)

        in_waves(load, lambda number: step.send(f"{runs}-{number}", 1, load.steps, load.latency), wait)

    serve(run)


def dramatiq(slots: int) -> Engine:
    return Engine(
        name="dramatiq",
        title="Dramatiq with a state save of its own",
        module="engines.dramatiq",
        workers=("dramatiq", "engines.dramatiq", "--processes", "1", "--threads", str(slots)),
        env={"BENCH_DRAMATIQ": "1"},
        requirements=("dramatiq[redis]==2.2.1",),
    )


if __name__ == "__main__":
    main()
