"""The queues that a worker takes: those of its agents, as far as it is not restricted."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from celery import Celery, Task

from celery_agents.config.settings import Settings
from celery_agents.tasks.app import create_app, install
from celery_agents.tasks.consumer.taken_queues import TakenQueues
from celery_agents.worker.errors import ConfigurationError

URL = "redis://127.0.0.1:1/0"
STEPS, CONTROL = "celery_agents.steps", "celery_agents.control"


def settings(**more: str) -> Settings:
    return Settings.build(redis_url=URL, agents="support.queue_agents", **more)


def consumed(app: Celery) -> set[str]:
    """The queues that a worker of the app consumes, without that of its group."""
    return {name for name in app.amqp.queues.consume_from if "@" not in name}


def test_tasks_go_to_their_queues_and_celery_warns_of_none() -> None:
    bound = list[str]()

    class Own(Task):  # pyright: ignore[reportMissingTypeArgument, reportUntypedBaseClass]
        @classmethod
        def on_bound(cls, app: Any) -> None:
            bound.append(cls.name)

    app = Celery("shop", broker=URL, set_as_current=False, task_cls=Own)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        install(app, settings())
        app.finalize()
    queues = {name: task.queue for name, task in app.tasks.items() if name.startswith("celery_agents.")}
    assert queues.pop("celery_agents.step") == STEPS
    assert set(queues.values()) == {CONTROL}
    assert {"celery_agents.step", *queues} <= {*bound}


def test_a_worker_takes_the_queues_of_its_agents_and_that_of_its_group() -> None:
    app = create_app(settings())
    taken = TakenQueues(app, settings())
    assert consumed(app) == {STEPS, f"{STEPS}.gpu", CONTROL}
    (group,) = [name for name in taken.steps if name.startswith("@")]
    assert taken.steps == {"": STEPS, "gpu": f"{STEPS}.gpu", group: f"{STEPS}.{group}"}
    assert taken.describe() == "default, gpu"
    assert not taken.has_others


def test_a_restricted_worker_takes_no_other_queue_of_agents() -> None:
    app = create_app(settings(queues="gpu"))
    TakenQueues(app, settings(queues="gpu"))
    assert consumed(app) == {f"{STEPS}.gpu", CONTROL}


def test_a_project_that_names_the_queue_of_an_agent_takes_only_that_one() -> None:
    app = Celery("shop", broker=URL, set_as_current=False)
    install(app, settings())
    app.amqp.queues.select(["celery", f"{STEPS}.gpu"])
    taken = TakenQueues(app, settings())
    assert consumed(app) == {"celery", f"{STEPS}.gpu"}
    assert taken.settings.queues == "gpu"
    assert taken.has_others


def test_a_project_that_consumes_its_own_queues_takes_none() -> None:
    app = Celery("shop", broker=URL, set_as_current=False)
    install(app, Settings.build(redis_url=URL))
    app.amqp.queues.select(["celery"])
    assert TakenQueues(app, Settings.build(redis_url=URL)).all == ()
    assert consumed(app) == {"celery"}


def test_a_worker_that_would_take_steps_without_agents_does_not_start() -> None:
    app = create_app(Settings.build(redis_url=URL))
    with pytest.raises(ConfigurationError, match="needs agents"):
        TakenQueues(app, Settings.build(redis_url=URL))


def test_a_restriction_to_a_queue_that_no_agent_has_is_refused() -> None:
    app = create_app(settings(queues="tpu"))
    with pytest.raises(ConfigurationError, match=r"no agent here has the queue 'tpu'.*default, gpu"):
        TakenQueues(app, settings(queues="tpu"))


def test_queues_that_are_set_aside_are_consumed_later() -> None:
    app = Celery("shop", broker=URL, set_as_current=False)
    install(app, settings())
    app.amqp.queues.select(["celery", STEPS, CONTROL])
    taken = TakenQueues(app, settings())
    names = taken.set_aside()
    assert consumed(app) == {"celery"}

    class Parent:
        consumer = None

    taken.consume(Parent(), names)
    assert consumed(app) == {"celery", STEPS, f"{STEPS}.gpu", CONTROL}


def test_celerys_consumer_leaves_our_queues_alone_and_the_worker_still_has_them() -> None:
    app = create_app(settings())
    taken = TakenQueues(app, settings())
    assert {STEPS, f"{STEPS}.gpu", CONTROL} <= set(taken.set_aside())
    assert list(app.amqp.queues.consume_from) == []
    assert {STEPS, f"{STEPS}.gpu", CONTROL} <= {queue.name for queue in taken.queues()}
    assert taken.set_aside() == []
