"""Which rate limits a worker takes from remote control."""

from __future__ import annotations

import pytest

from celery_agents.tasks.consumer.command_limits import StampLimit, refuse_rate
from celery_agents.tasks.names import CONTROL, STEP


@pytest.mark.parametrize("limit", ["10/s", "10/m", "600/h", "60/h", "1/m", "0.5/s", "20", "0", "0/m"])
def test_a_rate_limit_of_the_steps_is_taken(limit: str) -> None:
    assert refuse_rate({"task_name": STEP, "rate_limit": limit}) is None


@pytest.mark.parametrize(
    "limit",
    [
        "",
        "m",
        "/m",
        "10/d",
        "10/m ",
        "-1/s",
        "1e9/s",
        "inf/s",
        "nan/s",
        "٣/s",
        "9" * 7,
        10,
        0,
        True,
        None,
        ["10/m"],
        {},
    ],
)
def test_what_celery_would_not_understand_is_refused_with_what_to_write(limit: object) -> None:
    assert "is not a text like 10/s" in str(refuse_rate({"task_name": STEP, "rate_limit": limit}))


@pytest.mark.parametrize("limit", ["1/h", "59/h", "0.9/m", "0.001/s"])
def test_a_standstill_is_refused_with_what_to_do_instead(limit: str) -> None:
    assert "less than 1/m; to take no steps" in str(refuse_rate({"task_name": STEP, "rate_limit": limit}))


@pytest.mark.parametrize("task", [*CONTROL, None, 7])
def test_control_tasks_are_never_slowed_down(task: object) -> None:
    assert refuse_rate({"task_name": task, "rate_limit": "10/m"}) is not None


def test_other_tasks_of_a_project_are_its_own() -> None:
    assert refuse_rate({"task_name": "shop.order_paid", "rate_limit": "1/h"}) is None


def test_a_worker_keeps_a_limited_number_of_revoked_stamps() -> None:
    limit = StampLimit(most=3)
    assert limit.refuse({"headers": {"batch": ["a", "b"]}}) is None
    assert "is revoked already" in str(limit.refuse({"headers": {"batch": "a"}}))
    assert "3 revoked stamps at most" in str(limit.refuse({"headers": {"batch": ["c", "d"]}}))
    assert limit.refuse({"headers": {"other": "a"}}) is None


@pytest.mark.parametrize("headers", [None, ["a=b"], "a=b", {"a": 7}, {"a": [{}]}, {"a": [None]}])
def test_stamps_that_are_none_are_refused(headers: object) -> None:
    assert StampLimit().refuse({"headers": headers}) is not None
