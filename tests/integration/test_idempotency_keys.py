"""Idempotency keys of the client: the same request gets the same job, another one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_agents import AgentClient, ExecutionBudget
from celery_agents.config.settings import Settings
from celery_agents.worker.errors import ActionRefused, IdempotencyMismatch, InvalidInput

pytestmark = pytest.mark.filterwarnings("ignore:no worker has registered")

BUDGET = ExecutionBudget(max_steps=3)


@pytest.fixture
def client(redis_url: str) -> Iterator[AgentClient]:
    with AgentClient(settings=Settings.build(redis_url=redis_url)) as made:
        yield made
        for header in made.list().items:
            made.stop(header.session_id, timeout=0)


def texts(client: AgentClient, session: str) -> list[str]:
    return [message.content for message in client.show(session).state.messages]


def test_a_key_used_again_for_another_text_is_refused_wherever_it_was_used(client: AgentClient) -> None:
    first = client.submit("a", "one", session_id="s1", idempotency_key="k1")
    assert client.submit("a", "one", session_id="s1", idempotency_key="k1").execution_id == first.execution_id
    with pytest.raises(IdempotencyMismatch):
        client.submit("a", "two", session_id="s1", idempotency_key="k1")
    with pytest.raises(IdempotencyMismatch):
        client.send_message("s1", "two", idempotency_key="k1")
    client.send_message("s1", "three", idempotency_key="k3")
    assert client.send_message("s1", "three", idempotency_key="k3").execution_id == first.execution_id
    with pytest.raises(IdempotencyMismatch):
        client.send_message("s1", "four", idempotency_key="k3")
    assert texts(client, "s1") == ["one", "three"]
    other = client.submit("a", "two", session_id="s2", idempotency_key="k1")
    assert other.session_id == "s2", "keys are a session's"
    assert other.execution_id != first.execution_id, "or the calls of both would have the same keys"


def test_the_same_text_of_two_callers_who_both_make_the_session_is_said_twice(
    client: AgentClient, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = client.store.sessions.header

    def look_before_the_other(session: str) -> Any:
        try:
            return look(session)
        finally:
            monkeypatch.undo()
            with AgentClient(settings=Settings.build(redis_url=redis_url)) as other:
                other.submit("a", "one", session_id="s1", idempotency_key="k1")

    monkeypatch.setattr(client.store.sessions, "header", look_before_the_other)
    job = client.submit("a", "one", session_id="s1", idempotency_key="k2")
    assert texts(client, "s1") == ["one", "one"]
    again = client.submit("a", "one", session_id="s1", idempotency_key="k2")
    assert again.execution_id == job.execution_id
    assert texts(client, "s1") == ["one", "one"], "the same key adds nothing"


def test_a_key_used_again_with_another_budget_is_refused(client: AgentClient) -> None:
    client.submit("a", "one", session_id="s1", idempotency_key="k1", budget=BUDGET)
    assert client.submit("a", "one", session_id="s1", idempotency_key="k1", budget=BUDGET).execution_id
    with pytest.raises(IdempotencyMismatch):
        client.submit("a", "one", session_id="s1", idempotency_key="k1")


@pytest.mark.parametrize(
    "later", [{"delay": timedelta(hours=1)}, {"start_at": datetime(2099, 1, 1, tzinfo=UTC)}], ids=["delay", "start_at"]
)
def test_a_repeated_submit_that_starts_later_gets_its_job(client: AgentClient, later: dict[str, Any]) -> None:
    first = client.submit("a", "one", session_id="s1", idempotency_key="k1", **later)
    again = client.submit("a", "one", session_id="s1", idempotency_key="k1", **later)
    assert again.execution_id == first.execution_id
    with pytest.raises(IdempotencyMismatch):
        client.submit("a", "two", session_id="s1", idempotency_key="k1", **later)
    with pytest.raises(InvalidInput, match="only a new session can start later"):
        client.submit("a", "two", session_id="s1", idempotency_key="k2", **later)
    assert texts(client, "s1") == ["one"]


def test_keys_used_before_the_upgrade_behave_as_before(client: AgentClient) -> None:
    first = client.submit("a", "one", session_id="s1", idempotency_key="k1")
    context = client.store.context
    names = context.database.pipeline("test", [("HKEYS", context.keys("s1").session)])[0]
    (kept,) = [name for name in names if name.startswith(b"f:")]
    context.database.pipeline("test", [("HDEL", context.keys("s1").session, kept.decode())])
    assert client.submit("a", "two", session_id="s1", idempotency_key="k1").execution_id == first.execution_id


def test_metadata_written_often_does_not_make_a_message_come_twice(client: AgentClient) -> None:
    client.submit("a", "one", session_id="s1")
    client.send_message("s1", "two", idempotency_key="k1")
    for number in range(140):
        client.write_metadata("s1", "progress", number)
    client.send_message("s1", "two", idempotency_key="k1")
    assert texts(client, "s1") == ["one", "two"]


def test_a_budget_that_a_message_cannot_bring_is_refused_by_name(client: AgentClient) -> None:
    client.submit("a", "one", session_id="s1")
    for send in (
        lambda: client.send_message("s1", "two", budget=BUDGET),
        lambda: client.submit("a", "two", session_id="s1", budget=BUDGET),
    ):
        with pytest.raises(ActionRefused, match="change that one's limits"):
            send()
    assert texts(client, "s1") == ["one"]
    client.stop("s1")
    job = client.send_message("s1", "two", budget=BUDGET)
    execution = client.show("s1").state.execution
    assert execution is not None
    assert (execution.execution_id, execution.budget) == (job.execution_id, BUDGET)
