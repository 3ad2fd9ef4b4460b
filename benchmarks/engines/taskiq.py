"""Taskiq on a Redis list, saving what a step adds in one transaction of its own before the next one is sent.

There is no claim, no journal and no recovery: a crash loses the session. It is here as the price of a lighter queue.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from yardstick.engine import Engine
from yardstick.load import Load, in_waves, serve
from yardstick.work import call_model, call_tool

URL = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379/0")

if os.environ.get("BENCH_TASKIQ"):
    from redis import asyncio as redis
    from taskiq_redis import ListQueueBroker

    broker: Any = ListQueueBroker(URL, queue_name="taskiq")
    store = redis.Redis.from_url(URL, socket_timeout=None)

    @broker.task(task_name="step")
    async def step(session: str, number: int, steps: int, latency: float) -> None:
        if latency:
            await asyncio.sleep(latency)
        answer = call_model(number, steps, 0.0)
        added = [answer, *(call_tool(call) for call in answer["tool_calls"])]
        async with store.pipeline() as pipe:
            pipe.rpush(f"session:{session}:messages", *(json.dumps(message) for message in added))
            pipe.hset(f"session:{session}", mapping={"step": number, "steps": steps})
            await pipe.execute()
        if number < steps:
            await step.kiq(session, number + 1, steps, latency)
        else:
            await store.rpush("done", session)


def main() -> None:
    with asyncio.Runner() as runner:
        runner.run(broker.startup())
        runs = 0

        def run(load: Load) -> None:
            nonlocal runs
            runs += 1

            async def submit(number: int) -> None:
                await step.kiq(f"{runs}-{number}", 1, load.steps, load.latency)

            async def wait(count: int) -> None:
                for _ in range(count):
                    await store.blpop("done", timeout=0)

            in_waves(load, lambda number: runner.run(submit(number)), lambda count: runner.run(wait(count)))

        serve(run)


def taskiq(slots: int) -> Engine:
    return Engine(
        name="taskiq",
        title="Taskiq with a state save of its own",
        module="engines.taskiq",
        workers=(
            "taskiq", "worker", "engines.taskiq:broker", "--workers", "1", "--max-async-tasks", str(slots),
            "--log-level", "WARNING",
        ),
        env={"BENCH_TASKIQ": "1"},
        requirements=("taskiq==0.13.0", "taskiq-redis==1.2.4"),
    )  # fmt: skip


if __name__ == "__main__":
    main()
