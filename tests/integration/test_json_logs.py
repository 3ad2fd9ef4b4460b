"""With JSON logs every line of a worker is JSON, from the first one on: a collector takes any other for an error."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from celery_agents import AgentClient

from support.agents import plan
from support.ledger import Ledger
from support.worker_process import WorkerProcess


@pytest.mark.parametrize("pool", ["greenlets", "threads", "prefork", "solo"])
def test_each_line_is_json_from_the_start_through_a_job(
    pool: str, redis_url: str, new_worker: Callable[..., WorkerProcess], ledger: Ledger
) -> None:
    worker = new_worker(
        env={
            **ledger.env, "CELERY_AGENTS_LOG_FORMAT": "json", "CELERY_AGENTS_POOL": pool,
            "CELERY_AGENTS_CONCURRENCY": "2",
        }
    )  # fmt: skip
    with AgentClient(redis_url) as client:
        assert client.submit("planned", plan(answer="fine")).result(timeout=30).final_response == "fine"
    lines = worker.text().splitlines()
    assert [line for line in lines if not line.startswith("{")] == []
    records = [json.loads(line) for line in lines]
    assert all({"time", "level", "logger", "message"} <= record.keys() for record in records)
    assert any(record["message"].endswith("ready.") for record in records)
    assert len({line for line in lines if "ready." in line}) == sum("ready." in line for line in lines) == 1
