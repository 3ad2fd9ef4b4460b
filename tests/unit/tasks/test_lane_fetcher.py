"""Turns are given to the share that has had the least, on a real Redis: weights, priorities, corrections, damage."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import redis
from celery import Celery

from celery_agents.config.settings import Settings
from celery_agents.tasks.app import create_app
from celery_agents.tasks.consumer.internals import plain_socket
from celery_agents.tasks.consumer.lane_fetcher import LaneFetcher
from celery_agents.tasks.consumer.queue_fetcher import FetchedElement
from celery_agents.tasks.names import LANE_HEADER
from celery_agents.tasks.publishing import StepPublisher
from celery_agents.worker.errors import StoreUnavailable
from celery_agents.worker.flow.shares import FairShares, lane_of, share_of
from celery_agents.worker.store import StepRef
from celery_agents.worker.store.lanes import lane_key, lanes_key
from celery_agents.worker.store.redis.database import RedisDatabase, connect_to_wait

QUEUE = "celery_agents.steps"
NOW_MS = 1_790_000_000_123


class Desk:
    """A publisher, and a fetcher whose turns are taken one by one.

    Attributes:
        shares: As the worker knows them.
        taken: The shares in the order in which their steps were taken.
    """

    def __init__(self, app: Celery, settings: Settings, client: redis.Redis, database: RedisDatabase) -> None:
        self.client, self.publisher = client, StepPublisher(app, settings)
        self.fetcher = LaneFetcher(
            database, {QUEUE: (QUEUE,)}, count_wanted=lambda: 1, hand_over=lambda elements: True,
            write=self.publisher.message, names={QUEUE: ""}, shares=lambda: self.shares,
        )  # fmt: skip
        self.taken: list[str] = []
        self.shares: FairShares | None = None
        self._number = 0

    def publish(self, share: str, number: int = 1, *, priority: str = "normal", lane: str | None = None) -> None:
        for _ in range(number):
            self._number += 1
            lane_named = lane_of(share, priority) if lane is None else lane
            ref = StepRef(f"s{self._number}", "execution", 1, lane=lane_named)
            pipeline = self.client.pipeline()
            for command in self.publisher.commands(ref, NOW_MS + self._number):
                pipeline.execute_command(*command)
            pipeline.execute()

    def fetch(self, wanted: int = 1) -> list[FetchedElement]:
        return self.fetcher._fetch({QUEUE: (QUEUE,)}, wanted)  # pyright: ignore[reportPrivateUsage]

    def take(self, number: int, seconds: Callable[[str], float] = lambda share: 1.0) -> None:
        """Take so many steps one after another, each of which has its slot for as long as its share says."""
        for _ in range(number):
            (element,) = self.fetch()
            share = share_of(element.lane)
            self.taken.append(share)
            self.fetcher.charge(element, seconds(share))

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.taken)


@pytest.fixture
def desk(redis_url: str, redis_client: redis.Redis) -> Iterable[Desk]:
    settings = Settings.build(redis_url=redis_url)
    database = connect_to_wait(redis_url, timeout_seconds=3, name="test", plain_socket=plain_socket, tls={})
    yield Desk(create_app(settings), settings, redis_client, database)
    database.close()
    redis_client.flushdb()


def test_a_step_in_a_lane_is_a_turn_in_its_queue_and_is_fetched_with_its_lane(desk: Desk) -> None:
    desk.publish('a "quoted" ü\\')
    assert desk.client.llen(QUEUE) == 1
    (element,) = desk.fetch()
    message = json.loads(element.data)
    assert message["headers"][LANE_HEADER] == element.lane == '1/a "quoted" ü\\'
    assert element.queue == element.key == QUEUE
    assert message["headers"]["celery_agents_published"] == NOW_MS + 1
    assert not desk.client.exists(QUEUE, lane_key(QUEUE, element.lane), lanes_key(QUEUE))


def test_a_share_with_many_steps_gets_no_more_turns_than_one_with_few(desk: Desk) -> None:
    desk.publish("heavy", 50)
    for share in ("a", "b"):
        desk.publish(share, 10)
    desk.take(30)
    assert desk.counts == {"heavy": 10, "a": 10, "b": 10}
    desk.take(40)
    assert desk.counts["heavy"] == 50, "what others do not use is not left unused"


def test_a_share_gets_slot_time_by_its_weight_whatever_its_steps_take(desk: Desk) -> None:
    desk.shares = FairShares("customer", weights={"double": 2})
    for share in ("double", "long", "short"):
        desk.publish(share, 300)
    lengths = {"double": 1.0, "long": 4.0, "short": 0.5}
    desk.take(200, lengths.__getitem__)
    used = {share: count * lengths[share] for share, count in desk.counts.items()}
    assert used["double"] == pytest.approx(2 * used["long"], rel=0.2)
    assert used["long"] == pytest.approx(used["short"], rel=0.2)


def test_an_idle_share_earns_no_credit_and_has_no_debt_that_it_did_not_make(desk: Desk) -> None:
    desk.publish("busy", 100)
    desk.take(50)
    desk.publish("late", 50)
    desk.taken.clear()
    desk.take(40)
    assert desk.counts == {"busy": 20, "late": 20}


def test_who_comes_with_one_step_at_a_time_does_not_go_first_each_time(desk: Desk) -> None:
    desk.publish("many", 60)
    for _ in range(30):
        desk.publish("one", 1)
        desk.take(2)
    assert abs(desk.counts["one"] - desk.counts["many"]) <= 2


def test_priorities_share_the_turns_of_their_share_and_no_others(desk: Desk) -> None:
    desk.publish("other", 42)
    for priority in ("bulk", "normal", "interactive"):
        desk.publish("a", 42, priority=priority)
    lanes = [element.lane for _ in range(84) for element in desk.fetch()]
    assert Counter(lanes) == {"1/other": 42, "0/a": 32, "1/a": 8, "2/a": 2}


def test_a_single_priority_gets_all_turns_of_its_share(desk: Desk) -> None:
    desk.publish("a", 5, priority="bulk")
    assert [element.lane for _ in range(5) for element in desk.fetch()] == ["2/a"] * 5


def test_steps_of_a_lane_come_in_their_order(desk: Desk) -> None:
    desk.publish("a", 5)
    found = [json.loads(each.data)["headers"]["celery_agents_published"] for _ in range(5) for each in desk.fetch()]
    assert found == [NOW_MS + number for number in range(1, 6)]


def test_messages_without_a_lane_are_fetched_as_they_are_beside_turns(desk: Desk) -> None:
    desk.publish("", lane="")
    desk.publish("a")
    plain, laned = desk.fetch()[0], desk.fetch()[0]
    assert (plain.lane, laned.lane) == ("", "1/a")


def test_turns_that_were_lost_are_made_up_for_as_long_as_steps_wait(desk: Desk) -> None:
    desk.publish("a", 3)
    desk.client.ltrim(QUEUE, 0, 0)
    assert [len(desk.fetch()) for _ in range(3)] == [1, 1, 1]
    assert not desk.client.exists(QUEUE, lanes_key(QUEUE))


def test_a_turn_for_which_no_step_waits_is_dropped(desk: Desk) -> None:
    desk.publish("a")
    desk.client.delete(lane_key(QUEUE, "1/a"))
    assert desk.fetch() == []
    assert not desk.client.exists(QUEUE, lanes_key(QUEUE))


@pytest.mark.parametrize("entry", [b"", b"1 2 3", b"x s e y 0 0  ", b"\xff 1 1 1 1 1 1 1"])
def test_a_damaged_entry_is_dropped_and_the_next_one_comes(desk: Desk, entry: bytes) -> None:
    desk.publish("a", 2)
    desk.client.rpush(lane_key(QUEUE, "1/a"), entry)
    assert desk.fetch() == []
    assert len(desk.fetch()) == 1


def test_where_redis_takes_no_turns_steps_run_in_the_order_of_their_messages(desk: Desk) -> None:
    desk.publish("a", 2)
    desk.client.set(lanes_key(QUEUE), "of another type")
    (element,) = desk.fetch()
    assert element.lane == ""
    assert json.loads(element.data)["headers"]["id"] == "execution.1"


def test_what_was_popped_is_not_lost_where_the_turns_get_no_answer(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.publish("", lane="")
    desk.publish("a")
    exchange = RedisDatabase.exchange

    def lose(self: RedisDatabase, commands: Any, point: str = "") -> Any:
        replies = exchange(self, commands)
        if commands[0][0] == "EVAL":
            raise StoreUnavailable("the reply was lost")
        return replies

    monkeypatch.setattr(RedisDatabase, "exchange", lose)
    assert sorted(json.loads(each.data)["headers"]["id"] for each in desk.fetch(2)) == ["execution.1"] * 2


def test_the_shares_that_are_known_do_not_grow_with_those_that_ever_were(desk: Desk) -> None:
    for number in range(300):
        desk.publish(f"customer-{number}")
        desk.take(1)
    state = desk.client.hgetall(f"{lanes_key(QUEUE)}:state")
    assert {*state} == {"now", "mean"}
    assert not desk.client.exists(f"{lanes_key(QUEUE)}:idle")
    desk.publish("waiting", 1_000)
    for number in range(300):
        desk.publish(f"customer-{number}")
        desk.take(3)
    assert desk.client.zcard(f"{lanes_key(QUEUE)}:idle") <= 3


def test_a_worker_that_dies_leaves_its_share_charged_with_the_estimate(desk: Desk) -> None:
    desk.publish("dying")
    desk.publish("other", 3)
    for _ in range(2):
        desk.fetch()
    assert desk.client.zscore(f"{lanes_key(QUEUE)}:idle", "dying") == 1.0
