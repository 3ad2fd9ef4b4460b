"""A capability in real workers: its parts go from one to the other, and count each step once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents import AgentClient, Message
from celery_agents.worker.errors import IdempotencyMismatch, InvalidInput

from support.counting_agents import STEPS, Counted, Entries
from support.lab import QUICK
from support.wait import wait_until
from support.worker_process import WorkerProcess


def test_parts_count_each_step_once_across_two_workers_one_of_them_killed(
    new_worker: Callable[..., WorkerProcess], redis_url: str
) -> None:
    client = AgentClient(redis_url)
    doomed = new_worker(agents="support.counting_agents", env=dict(QUICK))
    job = client.submit("counting", "go")
    wait_until(lambda: client.show(job.session_id).state.step_count >= 5, "the first worker has made five steps", 30)
    new_worker(agents="support.counting_agents", env=dict(QUICK))
    doomed.kill()
    assert job.result(timeout=60).final_response == f"counted {STEPS - 1}"
    state = client.show(job.session_id).state
    assert state.part(Counted).steps == STEPS
    assert [entry.step for entry in state.part(Entries)] == list(range(1, STEPS + 1))


def test_a_transcript_begins_a_new_session(new_worker: Callable[..., WorkerProcess], redis_url: str) -> None:
    client = AgentClient(redis_url)
    new_worker(agents="support.counting_agents", env=dict(QUICK))
    said = [Message.user("what is 2 + 2?"), Message.assistant("4")]
    job = client.submit("counting", "go", messages=said, idempotency_key="seeded")
    again = client.submit("counting", "go", messages=said, idempotency_key="seeded")
    assert (job.session_id, job.result(timeout=60).status) == (again.session_id, "completed")
    texts = [message.content for message in client.show(job.session_id).state.messages]
    assert texts[:3] == ["what is 2 + 2?", "4", "go"]
    with pytest.raises(IdempotencyMismatch):
        client.submit("counting", "go", messages=said[:1], idempotency_key="seeded")


@pytest.mark.parametrize(
    ("messages", "session_id", "error"),
    [
        ("hello", None, "messages: .*list of Message"),
        ([Message.user("a"), "b"], None, r"messages\[1\]: .*give a Message"),
        ([Message.user("a")], "mine", "leave out session_id"),
        ([Message.user("a" * 2_000_000)], None, r"messages\[0\]: .*at most"),
    ],
)
def test_a_transcript_that_cannot_be_used_writes_nothing(
    redis_url: str, messages: Any, session_id: str | None, error: str
) -> None:
    client = AgentClient(redis_url)
    with pytest.raises(InvalidInput, match=error):
        client.submit("counting", "go", messages=messages, session_id=session_id)
    assert client.list().items == ()
