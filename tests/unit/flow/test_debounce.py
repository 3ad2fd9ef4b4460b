"""When a debounced job begins, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from celery_agents.flow import Debounce
from celery_agents.worker.errors import InvalidInput

MADE = Debounce("repo-17", quiet=timedelta(seconds=30), at_most=timedelta(minutes=5))


@pytest.mark.parametrize(
    ("first", "now", "starts"),
    [(0, 0, 30), (0, 20, 50), (0, 269, 299), (0, 271, 300), (0, 300, 300), (0, 400, 400)],
)
def test_a_job_begins_behind_a_quiet_time_and_at_the_latest_so_long_after_its_first_message(
    first: int, now: int, starts: int
) -> None:
    assert MADE.start_ms(first * 1000, now * 1000) == starts * 1000


def test_a_burst_is_one_of_its_agent_and_key() -> None:
    longer = Debounce("repo-17", quiet=timedelta(seconds=60), at_most=timedelta(minutes=5))
    other = Debounce("repo-18", quiet=timedelta(seconds=30), at_most=timedelta(minutes=5))
    assert MADE.burst_of("a") == longer.burst_of("a")
    assert len({MADE.burst_of("a"), MADE.burst_of("b"), other.burst_of("a")}) == 3


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"key": ""}, "Debounce.key"),
        ({"key": "k" * 201}, "Debounce.key"),
        ({"key": 5}, "Debounce.key"),
        ({"quiet": 30}, "Debounce.quiet"),
        ({"quiet": timedelta()}, "Debounce.quiet"),
        ({"quiet": timedelta(seconds=-1)}, "Debounce.quiet"),
        ({"at_most": timedelta(days=31)}, "Debounce.at_most"),
        ({"at_most": None}, "Debounce.at_most"),
        ({"at_most": timedelta(seconds=29)}, "Debounce.at_most"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name(changes: dict[str, Any], field: str) -> None:
    given: dict[str, Any] = {"key": "k", "quiet": timedelta(seconds=30), "at_most": timedelta(minutes=5), **changes}
    with pytest.raises(InvalidInput) as refused:
        Debounce(given.pop("key"), **given)
    assert refused.value.field == field
