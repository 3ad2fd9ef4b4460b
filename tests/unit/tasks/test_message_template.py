"""The recorded message is, byte for byte, the one that kombu pushes to a real Redis."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
import redis
from celery import Celery

from celery_agents.config.settings import Settings
from celery_agents.tasks.app import create_app, install
from celery_agents.tasks.message_template import message_options, record_message
from celery_agents.tasks.names import STEP
from celery_agents.tasks.publishing import StepPublisher
from celery_agents.worker.store import StepRef

NOW_MS = 1_790_000_000_123
APPS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "with a key prefix": {"broker_transport_options": {"global_keyprefix": "shop:"}},
    "with a priority": {"task_default_priority": 6},
    "with steps of priority": {
        "task_default_priority": 5, "broker_transport_options": {"priority_steps": [0, 5, 9], "sep": ":"},
    },
    "with events of publishing": {"task_send_sent_event": True},
    "with compression": {"task_compression": "gzip"},
}  # fmt: skip


def pushed(client: redis.Redis) -> tuple[str, str]:
    (key,) = [key for key in client.scan_iter() if client.type(key) == "list"]
    return key, client.lpop(key)


def without_tag(message: str) -> str:
    tag = json.loads(message)["properties"]["delivery_tag"]
    return message.replace(tag, "")


@pytest.fixture(params=[*APPS, "our own"])
def app(request: pytest.FixtureRequest, redis_url: str) -> Celery:
    if request.param == "our own":
        return create_app(Settings.build(redis_url=redis_url))
    made = Celery("shop", broker=redis_url, set_as_current=False)
    made.conf.update(APPS[request.param])
    install(made, Settings.build(redis_url=redis_url))
    return made


@pytest.mark.parametrize("queue", ["", "gpu", "@1a2b3c4d"])
@pytest.mark.parametrize("step", [1, 7])
@pytest.mark.leaves_keys("kombu binds queues for ever")
def test_what_is_recorded_is_what_kombu_pushes(
    app: Celery, step: int, queue: str, redis_url: str, redis_client: redis.Redis
) -> None:
    settings = Settings.build(redis_url=redis_url)
    ref = StepRef(uuid.uuid4().hex, uuid.uuid4().hex, step, queue=queue)
    StepPublisher(app, settings).publish(ref, NOW_MS)
    key, message = pushed(redis_client)
    recorded_key, recorded = record_message(app, STEP, message_options(settings, ref, NOW_MS))
    assert recorded_key == key
    assert without_tag(recorded) == without_tag(message)


@pytest.mark.parametrize("queue", ["", "gpu", "@1a2b3c4d"])
@pytest.mark.leaves_keys("kombu binds queues for ever")
def test_what_is_filled_in_is_what_kombu_pushes(
    app: Celery, queue: str, redis_url: str, redis_client: redis.Redis
) -> None:
    settings = Settings.build(redis_url=redis_url)
    ref = StepRef(uuid.uuid4().hex, uuid.uuid4().hex, 3, queue=queue)
    publisher = StepPublisher(app, settings)
    if app.conf.task_compression:
        assert publisher.commands(ref, NOW_MS) == (), "a compressed body has no marks"
        return
    ((_, filled_key, filled),) = publisher.commands(ref, NOW_MS)
    StepPublisher(app, settings).publish(ref, NOW_MS)
    key, message = pushed(redis_client)
    assert filled_key == key
    assert without_tag(str(filled)) == without_tag(message)
    assert publisher.queue_key(queue) == key


def test_templates_need_no_broker() -> None:
    settings = Settings.build(redis_url="redis://127.0.0.1:1/0")
    assert StepPublisher(create_app(settings), settings).works


def test_a_name_of_a_queue_that_no_agent_can_have_counts_as_the_common_queue() -> None:
    settings = Settings.build(redis_url="redis://127.0.0.1:1/0")
    publisher = StepPublisher(create_app(settings), settings)
    ((_, key, _),) = publisher.commands(StepRef("s", "e", 1, queue="../../ something else"), NOW_MS)
    assert key == settings.queue
    assert message_options(settings, StepRef("s", "e", 1, queue="a b"), NOW_MS)["queue"] == settings.queue
