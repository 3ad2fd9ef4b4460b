"""No secret of a worker's environment leaves it by a tool: not into Redis, not into an event, not into a log."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from celery_agents import AgentClient

from support.wait import wait_until

SECRETS = {
    "ACME_PASS": "not-a-real-pass/word",
    "GH_PAT": "not+a+real+pat",
    "ACME_DATABASE": "postgres://auditor:not-a-real-db-password@db.invalid/x",
    "CELERY_AGENTS_WEBHOOK_SECRET": "not-a-real-webhook-secret",
}
READABLE = {"CELERY_AGENTS_COMPRESSION": "false"}
VALUES = ["not-a-real-pass/word", "not-a-real-pass%2Fword", "not+a+real+pat", "not%2Ba", "not-a-real-db-password"]
VALUES += ["not-a-real-webhook-secret"]
ENCODED = [base64.b64encode(value.encode()).decode().rstrip("=")[:-1] for value in SECRETS.values()]


def all_of(client: Any) -> str:
    """Everything that Redis holds, as one text."""
    readers = {
        "string": client.get,
        "hash": client.hgetall,
        "list": lambda key: client.lrange(key, 0, -1),
        "stream": client.xrange,
        "zset": lambda key: client.zrange(key, 0, -1),
        "set": client.smembers,
    }
    return " ".join(str(readers[client.type(key)](key)) for key in client.keys("*"))


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_tool_that_returns_raises_and_logs_the_environment_gives_no_secret_away(
    redis_url: str, redis_client: Any, new_worker: Any, log_format: str
) -> None:
    worker = new_worker(
        agents="support.leaking_agents", env={**SECRETS, **READABLE, "CELERY_AGENTS_LOG_FORMAT": log_format}
    )
    client = AgentClient(redis_url)
    job = client.submit("leaking", "hello")
    assert job.result(timeout=30).status == "completed"
    calls = client.show(job.session_id).state.execution.step_executions[0].step.tool_executions  # type: ignore[union-attr]
    assert calls[0].value["ACME_PASS"] == "[redacted]"
    assert "they are" in worker.text()
    everywhere = all_of(redis_client) + worker.text() + json.dumps([dict(event.data) for event in job.events()])
    assert [value for value in (*VALUES, *ENCODED) if value in everywhere] == []


@pytest.mark.parametrize(
    ("module", "agent", "ends_as"),
    [
        ("leaking_agents", "asking", "waiting"), ("leaking_agents", "spawning", "completed"),
        ("leaking_agents", "consulting", "completed"), ("leaking_agents", "hooked", "completed"),
        ("leaking_pydantic", "validated", "completed"), ("leaking_pydantic", "shaped", "completed"),
        ("leaking_pydantic", "calling", "completed"), ("leaking_pydantic", "deferring", "waiting"),
    ],
)  # fmt: skip
@pytest.mark.leaves_keys("sessions that wait stay")
def test_what_code_asks_passes_on_and_rejects_gives_no_secret_away(
    redis_url: str, redis_client: Any, new_worker: Any, module: str, agent: str, ends_as: str
) -> None:
    worker = new_worker(agents=f"support.{module}", env={**SECRETS, **READABLE})
    client = AgentClient(redis_url)
    job = client.submit(agent, "hello")
    status = lambda: client.header(job.session_id).status  # noqa: E731
    wait_until(lambda: status() == ends_as, f"the session is {ends_as}", 30, details=worker.tail)
    everywhere = all_of(redis_client) + worker.text()
    assert [value for value in (*VALUES, *ENCODED) if value in everywhere] == []
    assert "[redacted]" in everywhere
