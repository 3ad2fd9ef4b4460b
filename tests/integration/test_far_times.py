"""Times far away: each argument of the client works with them, or refuses them by its own name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from celery_agents import AgentClient, ExecutionBudget
from celery_agents.config.settings import Settings
from celery_agents.tasks.cli import main
from celery_agents.tasks.observability.waiting_reasons import waiting_reason
from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.store.clock import RedisClock

pytestmark = pytest.mark.filterwarnings("ignore:no worker has registered")

TOO_FAR = (
    datetime.max.replace(tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-12))),
    datetime.min.replace(tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
    datetime(1969, 1, 1, tzinfo=UTC),
)
FAR = (datetime(2300, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC), datetime(1971, 1, 1, tzinfo=UTC))


@pytest.fixture
def client(redis_url: str) -> Iterator[AgentClient]:
    with AgentClient(settings=Settings.build(redis_url=redis_url)) as made:
        yield made
        for header in made.list():
            made.stop(header.session_id, timeout=0)


@pytest.mark.parametrize("at", TOO_FAR, ids=str)
def test_a_time_that_cannot_be_stored_is_refused_by_the_name_of_its_argument(client: AgentClient, at: datetime) -> None:
    client.submit("a", "go", session_id="s1")
    uses: dict[str, Callable[[], Any]] = {
        "start_at": lambda: client.submit("a", "go", start_at=at),
        "until": lambda: client.suspend("s1", reason="r", until=at),
    }
    for name, use in uses.items():
        with pytest.raises(InvalidInput, match=f"^{name}: give a time from 1970 to the year 9999.*{at.year:04}-"):
            use()
    assert len(client.list().items) == 1
    assert client.header("s1").hold is None


@pytest.mark.parametrize("at", [*TOO_FAR, *FAR], ids=str)
def test_listings_take_every_time(client: AgentClient, at: datetime) -> None:
    client.submit("a", "go", session_id="s1")
    expected = ["s1"] if at.year < 2020 else []
    assert [header.session_id for header in client.list(since=at)] == expected
    assert list(client.retry_failed(since=at)) == []
    assert list(client.delete_all(before=at, dry_run=True)) == []


@pytest.mark.parametrize("at", FAR, ids=str)
def test_a_far_start_and_a_far_deadline_work(client: AgentClient, at: datetime) -> None:
    client.submit("a", "go", session_id="s1", start_at=at, budget=ExecutionBudget(deadline=at))
    execution = client.show("s1").state.execution
    assert execution is not None
    assert execution.budget.deadline == at
    reason = waiting_reason(client.store, client.header("s1"))
    assert at.year < 2020 or f"({at:%Y-%m-%d %H:%M:%S} UTC)" in reason


def test_a_hold_that_could_not_last_so_long_is_refused(client: AgentClient) -> None:
    client.submit("a", "go", session_id="s1")
    with pytest.raises(InvalidInput, match="until: a hold ends within 30 days"):
        client.suspend("s1", reason="r", until=datetime.now(UTC) + timedelta(days=31))
    assert client.suspend("s1", reason="r", until=datetime.now(UTC) + timedelta(days=29))


def test_a_hold_that_would_have_ended_before_it_begins_is_refused(client: AgentClient) -> None:
    """It ends the execution: a job was stopped at once by a client whose clock is behind."""
    client.submit("a", "go", session_id="s1")
    with pytest.raises(InvalidInput, match="give a time to come"):
        client.suspend("s1", reason="r", until=datetime.now(UTC) - timedelta(minutes=1))
    assert client.header("s1").hold is None


@pytest.mark.parametrize("hours_ahead", [-2, 2])
def test_commands_take_their_times_from_the_clock_of_redis(
    client: AgentClient, redis_url: str, monkeypatch: pytest.MonkeyPatch, hours_ahead: int
) -> None:
    """It is so many hours ahead of that of this machine."""
    read, ahead_ms = RedisClock.milliseconds, hours_ahead * 3_600_000
    monkeypatch.setattr(RedisClock, "milliseconds", lambda clock, reply: read(clock, reply) + ahead_ms)
    client.submit("a", "go", session_id="s1")
    client.submit("a", "go", session_id="s2")
    client.stop("s2")

    def run(line: str) -> None:
        with pytest.raises(SystemExit) as ended:
            main([*line.split(), "--redis-url", redis_url])
        assert ended.value.code in (0, None)

    run("suspend s1 --reason r --for 1h")
    run("pause tool t --reason r --for 1h")
    run("delete --all --older-than 1h --yes")
    in_an_hour = pytest.approx((time.time() + 3600) * 1000 + ahead_ms, abs=60_000)
    hold, (pause,) = client.header("s1").hold, client.pauses()
    assert (hold.until_ms if hold else 0, pause.until_ms) == (in_an_hour, in_an_hour)
    assert client.header("s2")


def test_the_end_of_a_hold_is_refused_where_nothing_could_end(client: AgentClient) -> None:
    client.submit("a", "go", session_id="s1")
    client.stop("s1")
    with pytest.raises(InvalidInput, match="until: nothing of the session runs"):
        client.suspend("s1", reason="r", until=datetime.now(UTC) + timedelta(days=1))
    assert client.suspend("s1", reason="r")
    client.resume("s1")
