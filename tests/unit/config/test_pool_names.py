from __future__ import annotations

import pytest
from celery.concurrency import get_implementation

from celery_agents.config.celery import GREENLETS, pool_name


@pytest.mark.parametrize(
    ("implementation", "name"),
    [(GREENLETS, "greenlets"), ("threads", "threads"), ("prefork", "prefork"), ("solo", "solo")],
)
def test_a_pool_class_has_the_name_that_the_setting_uses(implementation: str, name: str) -> None:
    assert pool_name(get_implementation(implementation)) == name
