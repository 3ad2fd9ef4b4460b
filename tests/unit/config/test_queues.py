"""Names of queues in the settings, and the store that follows from a project's broker."""

from __future__ import annotations

import pytest

from celery_agents.config.celery import is_our_queue
from celery_agents.config.settings import Settings, SettingsError


def test_the_brokers_name_of_a_queue_and_back() -> None:
    settings = Settings.build(queue="shop.steps")
    for name in ("", "gpu", "@1a2b3c4d"):
        assert settings.queue_name(settings.step_queue(name)) == name
    assert settings.step_queue("gpu") == "shop.steps.gpu"
    for other in ("shop.step", "shop.steps.", "shop.steps.a b", "shop.stepsgpu", None, 5, ["shop.steps"]):
        assert settings.queue_name(other) is None


def test_our_queues_are_those_of_steps_and_the_control_queue() -> None:
    settings = Settings.build()
    ours = ["celery_agents.steps", "celery_agents.steps.gpu", "celery_agents.control"]
    assert [name for name in [*ours, "celery", "celery_agents"] if is_our_queue(settings, name)] == ours


def test_a_worker_is_restricted_to_queues_by_their_names() -> None:
    assert Settings.build().chosen_queues is None
    assert Settings.build(queues="gpu, default").chosen_queues == ("gpu", "")
    with pytest.raises(SettingsError, match=r"CELERY_AGENTS_QUEUES='gpu,a b'.*'a b' is no queue of an agent"):
        Settings.build(queues="gpu,a b")


def test_the_store_of_the_environment_counts_more_than_a_projects_broker() -> None:
    broker = "redis://broker:6379/0"
    named = Settings.from_environment({"CELERY_AGENTS_REDIS_URL": "redis://store:6379/0"}, default_redis_url=broker)
    assert named.redis_url == "redis://store:6379/0"
    assert Settings.from_environment({}, default_redis_url=broker).redis_url == broker
