"""Naive Celery: what one writes in an afternoon. The whole state is one JSON value, read and written under WATCH
at every step; the next task is published after that. A crash in between loses the session, or a step's effects.
"""

from __future__ import annotations

import json
import os
from typing import Any

import redis
from celery import Celery
from engines.floor import celery_worker
from yardstick.engine import Engine
from yardstick.load import Load, in_waves, serve
from yardstick.work import call_model, call_tool, job_text

URL = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379/0")

app = Celery("naive", broker=URL)
app.conf.update(
    task_ignore_result=True,
    worker_send_task_events=os.environ.get("BENCH_EVENTS") == "1",
    task_send_sent_event=False,
    task_default_queue="naive",
    broker_connection_retry_on_startup=True,
)
store = redis.Redis.from_url(URL, max_connections=256, socket_timeout=None)


@app.task(name="naive.step")
def step(session: str) -> None:
    key = f"session:{session}"
    with store.pipeline() as pipe:
        pipe.watch(key)
        state: dict[str, Any] = json.loads(pipe.get(key))
        number = state["step"] + 1
        answer = call_model(number, state["steps"], state["latency"])
        state["messages"] += [answer, *(call_tool(call) for call in answer["tool_calls"])]
        state["step"] = number
        pipe.multi()
        pipe.set(key, json.dumps(state))
        pipe.execute()
    if number < state["steps"]:
        step.apply_async((session,))
    else:
        store.rpush("done", session)


def run(load: Load) -> None:
    submitted = store.incr("runs")

    def submit(number: int) -> None:
        session = f"{submitted}-{number}"
        job = {"role": "user", "content": job_text(load.steps, load.latency)}
        state = {"step": 0, "steps": load.steps, "latency": load.latency, "messages": [job]}
        store.set(f"session:{session}", json.dumps(state))
        step.apply_async((session,))

    in_waves(load, submit, lambda count: [store.blpop(["done"], timeout=0) for _ in range(count)] and None)


def naive(slots: int, *, events: bool = False) -> Engine:
    """State as one value, saved and published separately, in a pool of that many threads."""
    return Engine(
        name="naive_events" if events else "naive",
        title=f"naive Celery{', events' if events else ''}",
        module="engines.naive",
        workers=celery_worker("engines.naive", "threads", slots),
        env={"BENCH_EVENTS": "1" if events else "0"},
    )


if __name__ == "__main__":
    serve(run)
