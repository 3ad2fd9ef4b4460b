"""A step's message that does not travel is the one that would have."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

import pytest
from amqp.exceptions import AccessRefused
from celery import Celery
from kombu.exceptions import OperationalError

from celery_agents.config.settings import Settings
from celery_agents.tasks.app import create_app
from celery_agents.tasks.client.client import AgentClient
from celery_agents.tasks.publishing import StepPublisher
from celery_agents.worker.store import StepRef


@pytest.fixture
def publisher(redis_url: str) -> StepPublisher:
    settings = Settings.build(redis_url=redis_url)
    return StepPublisher(create_app(settings), settings)


def fetched(publisher: StepPublisher, ref: StepRef, now_ms: int) -> dict[str, Any]:
    """As it is when it has been read from the queue and its body is decoded."""
    (command,) = publisher.commands(ref, now_ms)
    message = json.loads(command[2])
    assert message["properties"]["body_encoding"] == "base64"
    message["body"] = json.loads(base64.b64decode(message["body"]))
    return message


def without_random(message: dict[str, Any]) -> dict[str, Any]:
    """The delivery tag is another one each time."""
    return {**message, "properties": {**message["properties"], "delivery_tag": ""}}


@pytest.mark.parametrize("step", [1, 2, 987654320])
def test_what_is_delivered_here_is_what_would_have_been_fetched(publisher: StepPublisher, step: int) -> None:
    ref, now_ms = StepRef(uuid.uuid4().hex, "mark0", step), 1_790_000_000_123
    delivered = publisher.make_delivered(ref, now_ms)
    assert delivered is not None
    assert without_random(delivered) == without_random(fetched(publisher, ref, now_ms))
    assert delivered["body"][1] == {
        "session_id": ref.session_id, "execution_id": ref.execution_id, "step": step,
    }  # fmt: skip


def test_what_a_receiver_does_to_a_message_is_not_seen_by_the_next(publisher: StepPublisher) -> None:
    first, second = (StepRef("session", "execution", step) for step in (2, 3))
    expected = fetched(publisher, second, 5)
    spoiled: Any = publisher.make_delivered(first, 5)
    spoiled["headers"].clear()
    spoiled["properties"]["delivery_info"].clear()
    spoiled["properties"].clear()
    spoiled["body"][1].clear()
    delivered = publisher.make_delivered(second, 5)
    assert delivered is not None
    assert without_random(delivered) == without_random(expected)
    assert delivered["properties"]["delivery_tag"] not in (
        "",
        fetched(publisher, second, 5)["properties"]["delivery_tag"],
    )


def published_ms(message: str | bytes) -> int:
    return json.loads(message)["headers"]["celery_agents_published"]


@pytest.mark.parametrize(("now_ms", "published"), [(9, 5), (4, 4)])
def test_a_message_in_front_of_its_queue_is_as_old_as_the_next_one(
    publisher: StepPublisher, now_ms: int, published: int
) -> None:
    """Else the sweep would take all that stand behind it for lost: they were published before the oldest one there."""
    ((_, queue, following),) = publisher.commands(StepRef("first", "execution", 2), 5)
    ref = StepRef("called", "execution", 2)
    assert publisher.next_commands("") == (("LINDEX", queue, -1),)
    ((name, key, message),) = publisher.commands_in_front(ref, now_ms, str(following).encode())
    assert (name, key, published_ms(str(message))) == ("RPUSH", queue, published)
    assert json.loads(base64.b64decode(json.loads(str(message))["body"]))[1]["session_id"] == "called"


@pytest.mark.parametrize(("following", "published"), [(None, 9), (b"of another program", 0)])
def test_a_message_in_front_of_an_empty_queue_is_new_and_in_front_of_an_unknown_one_of_no_known_age(
    publisher: StepPublisher, following: bytes | None, published: int
) -> None:
    ((_, _, message),) = publisher.commands_in_front(StepRef("called", "execution", 2), 9, following)
    assert published_ms(str(message)) == published


def test_where_messages_are_published_separately_none_goes_in_front(redis_url: str) -> None:
    settings = Settings.build(redis_url=redis_url, broker_url="amqp://localhost")
    assert StepPublisher(create_app(settings), settings).next_commands("") == ()


@pytest.mark.parametrize("error", [AccessRefused("Login was refused"), OperationalError("connection refused")])
def test_a_job_whose_step_the_broker_refuses_is_there_and_its_caller_is_told(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A job that is taken for lost is submitted once more, and done twice."""

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(Celery, "send_task", refuse)
    with AgentClient(redis_url, broker_url="amqp://localhost") as client:
        client.store.registry.register("worker", {"queues": [""], "agent_queues": {}}, {"painter": "1"})
        with pytest.warns(UserWarning, match="is stored, and a worker .* the broker takes no message: .*refused"):
            job = client.submit("painter", "a house")
        assert client.header(job.session_id).status == "pending"
