"""Times in milliseconds: each time that a datetime can hold comes back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from celery_agents.flow import Pause
from celery_agents.worker.engine.run import milliseconds
from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.guards import Delay
from celery_agents.worker.moments import LAST_MS, moment, unix_ms
from celery_agents.worker.tools.delegation import check_rules

LAST = datetime.max.replace(tzinfo=UTC)


def test_the_last_time_of_all_is_not_rounded_into_the_year_10_000() -> None:
    assert unix_ms(LAST) == LAST_MS
    assert moment(unix_ms(LAST)).year == 9999
    assert Pause(kind="agent", name="a", reason="b", until=LAST).until_ms == LAST_MS


@pytest.mark.parametrize("seconds", [1e9, 1e305, 1.7e308])
def test_the_longest_delay_is_a_year(seconds: float) -> None:
    assert milliseconds(Delay(seconds).seconds) == 366 * 86_400_000


@pytest.mark.parametrize("timeout", [timedelta.max, timedelta(days=3661), timedelta(0)])
def test_a_child_has_no_longer_time_than_any_other_request(timeout: timedelta) -> None:
    with pytest.raises(ConfigurationError, match="above 0 and up to 3660 days, or None"):
        check_rules("ctx.spawn", "input", "tell", "all", timeout)
