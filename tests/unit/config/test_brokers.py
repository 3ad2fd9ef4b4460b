"""Whether broker and store are one database, however their URLs are spelled."""

from __future__ import annotations

import pytest

from celery_agents.config.brokers import is_redis, shares_a_database
from celery_agents.config.settings import Settings


@pytest.mark.parametrize(
    ("broker", "shared"),
    [
        (None, True),
        ("redis://store", True),
        ("redis://store:6379/0", True),
        ("redis://:secret@store:6379", True),
        ("redis://store:6379/1", False),
        ("redis://store:6379?db=0", True),
        ("redis://store:6379/0?db=1", False),
        ("redis://store:6380/0", False),
        ("redis://other:6379/0", False),
        ("amqp://store:6379/0", False),
    ],
)
def test_the_same_database_is_known_by_each_spelling_of_its_url(broker: str | None, shared: bool) -> None:
    assert shares_a_database(Settings.build(redis_url="redis://store:6379/0", broker_url=broker)) is shared


def test_a_redis_is_known_by_the_scheme_of_its_url() -> None:
    assert all(map(is_redis, ["redis://a", "rediss://a", "unix:///run/redis.sock"]))
    assert not any(map(is_redis, ["amqp://a", "sqs://a", "redis-cluster"]))
