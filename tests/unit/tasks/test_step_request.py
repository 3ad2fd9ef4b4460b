"""What a delivered step makes of Celery's acknowledgement."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Consumer, Queue

from celery_agents.tasks.consumer.step_request import StepRequest


def do_nothing() -> None:
    """A step."""


@pytest.mark.parametrize("is_marked", [True, False])
def test_only_what_somebody_waits_to_see_acknowledged_is(is_marked: bool) -> None:
    app = Celery("test", broker="memory://", set_as_current=False)
    step = app.task(name="step")(do_nothing)
    delivered: list[Any] = []
    acknowledged: list[Any] = []
    with Connection("memory://") as connection, connection.channel() as channel:
        queue = Queue("steps", channel=channel)
        with Consumer(channel, [queue], callbacks=[lambda _, message: delivered.append(message)]):
            producer = app.amqp.Producer(channel)
            app.amqp.send_task_message(producer, step.name, app.amqp.as_task_v2("id", step.name, (), {}), queue=queue)
            connection.drain_events(timeout=1)
        (message,) = delivered
        if is_marked:  # as kombu marks it, and our decoder does for Redis
            message.delivery_info["consumer_tag"] = "unacknowledged"
            channel.no_ack_consumers = {"unacknowledged"}
        request = StepRequest(message, on_ack=lambda *_: acknowledged.append(1), on_reject=None, app=app, task=step)
        request.acknowledge()
        request.acknowledge()
    assert request.acknowledged
    assert len(acknowledged) == (0 if is_marked else 1)
