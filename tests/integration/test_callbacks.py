"""Completion callbacks, with a real worker, a real web server and another service's queue."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from typing import Any

import pytest

from celery_agents import AgentClient
from celery_agents.config.settings import Settings
from celery_agents.tasks.client.json_values import result_value
from celery_agents.tasks.observability.doctor.checks import examine
from celery_agents.worker.errors import InvalidInput

from support.agents import plan
from support.post_receiver import PostReceiver
from support.redis_keys import count_entries
from support.wait import wait_until

SECRET = "not-a-real-secret"


class Receiver(PostReceiver):
    """Remembers what is posted; refuses the first `refusals` posts."""

    def __init__(self) -> None:
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.refusals = 0
        super().__init__(self._answer)

    def _answer(self, headers: dict[str, str], body: bytes) -> int:
        self.posts.append((headers, body))
        return 503 if len(self.posts) <= self.refusals else 204


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def test_a_webhook_is_signed_and_repeated_until_it_is_heard(
    redis_url: str, redis_client: Any, new_worker: Any, ledger: Any, receiver: Receiver
) -> None:
    receiver.refusals = 2
    new_worker(env={**ledger.env, "CELERY_AGENTS_WEBHOOK_SECRET": SECRET, "CELERY_AGENTS_WEBHOOK_ALLOW": "127.0.0.1"})
    job = AgentClient(redis_url).submit("planned", plan(answer="told"), webhook=f"{receiver.url}/ended")
    assert job.result(timeout=30).status == "completed"
    said = f"1; the webhook of session {job.session_id} has failed 2 times, and comes again in "
    wait_until(lambda: said in _failing(redis_url), "doctor tells of it", timeout=15)
    wait_until(lambda: len(receiver.posts) == 3, "the webhook comes again after each refusal", timeout=15)
    wait_until(lambda: count_entries(redis_client, "callbacks") == [0], "the note of the callback is gone")
    assert _failing(redis_url) == "none"
    assert len(receiver.posts) == 3
    headers, body = receiver.posts[2]
    told = json.loads(body)
    assert (told["status"], told["final_response"], told["session_id"]) == ("completed", "told", job.session_id)
    assert told == result_value(job.result())
    assert headers["X-Celery-Agents-Id"] == job.execution_id
    timestamp, given = (part.split("=")[1] for part in headers["X-Celery-Agents-Signature"].split(","))
    expected = hmac.new(SECRET.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(given, expected)


def _failing(redis_url: str) -> str:
    """The finding of `doctor` about callbacks that fail."""
    found = examine(Settings.build(redis_url=redis_url))
    return next(each.what for each in found if each.name == "failed callbacks")


def test_a_task_of_another_service_gets_the_result_once(
    redis_url: str, redis_client: Any, new_worker: Any, ledger: Any
) -> None:
    new_worker(env=ledger.env)
    signature = {"task": "their.task", "kwargs": {"ticket": 7}, "options": {"queue": "theirs"}}
    client = AgentClient(redis_url)
    job = client.submit("planned", plan(answer="told"), on_complete=signature, idempotency_key="once")
    client.submit("planned", plan(answer="told"), on_complete=signature, idempotency_key="once")
    assert job.result(timeout=30).status == "completed"
    wait_until(lambda: redis_client.llen("theirs") > 0, "the task is in the other service's queue")
    wait_until(lambda: count_entries(redis_client, "callbacks") == [0], "the note of the callback is gone")
    (message,) = [json.loads(each) for each in redis_client.lrange("theirs", 0, -1)]
    _, kwargs, _ = json.loads(base64.b64decode(message["body"]))
    assert message["headers"]["task"] == "their.task"
    assert message["headers"]["id"] == f"{job.execution_id}.callback"
    assert kwargs["ticket"] == 7
    assert kwargs["result"] == result_value(job.result())
    redis_client.delete("theirs")


@pytest.mark.parametrize(
    ("on_complete", "webhook"),
    [("", None), (7, None), ({"kwargs": {}}, None), ({"task": "x", "args": [object()]}, None), (None, "ftp://x/y")],
)
def test_a_callback_that_cannot_be_made_is_refused_at_submit(
    redis_url: str, redis_client: Any, on_complete: Any, webhook: str | None
) -> None:
    with pytest.raises(InvalidInput):
        AgentClient(redis_url).submit("planned", "hello", on_complete=on_complete, webhook=webhook)
    assert not redis_client.keys("ca:*:s:*")


def test_a_webhook_that_no_worker_can_sign_is_refused(
    redis_url: str, redis_client: Any, new_worker: Any, ledger: Any
) -> None:
    new_worker(env=ledger.env)
    with pytest.raises(InvalidInput, match="CELERY_AGENTS_WEBHOOK_SECRET"):
        AgentClient(redis_url).submit("planned", "hello", webhook="https://example.com/hook")
    assert not redis_client.keys("ca:*:s:*")
