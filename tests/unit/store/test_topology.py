"""The map of a cluster's slots: how it is read, when it is read again, and which keys a command names."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from celery_agents.config.redis_urls import ClusterUrl
from celery_agents.worker.errors import ConfigurationError, StoreUnavailable
from celery_agents.worker.store.database import Command
from celery_agents.worker.store.keys import FleetKeys, ShardKeys
from celery_agents.worker.store.redis.topology import SLOTS, Place, Topology, keys_of, slot_of

from support.wait import wait_until

URL = ClusterUrl.parse("redis+cluster://user:secret@a:7000,b,c:7002?socket_timeout=3")
HALF = SLOTS // 2


class Nodes:
    """Nodes that answer as they are told; an exception is raised."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def ask(self, place: Place, command: Command) -> Any:
        assert command == ("CLUSTER", "SLOTS")
        self.asked.append(place[0])
        answer = self.answers[place[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer


def served(*ranges: tuple[int, int, bytes]) -> list[Any]:
    return [[first, last, [host, 7000, b"id"], [b"replica", 7009, b"id"]] for first, last, host in ranges]


WHOLE = served((0, HALF - 1, b"a"), (HALF, SLOTS - 1, b"d"))


def test_a_url_names_nodes_with_a_port_of_their_own_or_that_of_redis() -> None:
    assert URL.nodes == (("a", 7000), ("b", 6379), ("c", 7002))
    assert URL.server == "redis://user:secret@/0?socket_timeout=3"
    assert "secret" not in repr(URL)


def test_each_slot_has_the_node_that_a_node_names_for_it() -> None:
    topology = Topology(URL, Nodes(a=WHOLE, b=WHOLE, c=WHOLE).ask)
    assert (topology.find(0), topology.find(SLOTS - 1)) == (("a", 7000), ("d", 7000))
    assert topology.nodes == [("a", 7000), ("d", 7000)]


def test_a_node_may_name_itself_by_no_host() -> None:
    nameless = served((0, SLOTS - 1, b""))
    assert Topology(URL, Nodes(a=nameless, b=nameless, c=nameless).ask).find(5) == ("a", 7000)


def test_nodes_that_are_away_are_passed_over() -> None:
    away = redis.ConnectionError("refused")
    topology = Topology(URL, Nodes(a=away, b=redis.TimeoutError("late"), c=WHOLE).ask)
    assert topology.find(0) == ("a", 7000)
    topology = Topology(URL, Nodes(a=away, b=away, c=away).ask)
    with pytest.raises(StoreUnavailable, match=r"a:7000: ConnectionError: refused; b:6379: .*; start them, or correct"):
        topology.find(0)


def test_a_node_that_has_left_the_cluster_takes_no_slot_away() -> None:
    topology = Topology(URL, Nodes(a=[], b=WHOLE, c=[], d=[]).ask)
    for _ in range(8):  # nodes are asked in an order by chance
        assert topology.find(0) == ("a", 7000)
        topology.read()
    topology = Topology(URL, Nodes(a=[], b=[], c=[]).ask)
    with pytest.raises(ConfigurationError, match=f"{SLOTS} of the {SLOTS} slots"):
        topology.find(0)


def test_a_server_that_is_no_node_and_slots_that_are_served_by_none_are_named() -> None:
    alone = redis.ResponseError("This instance has cluster support disabled")
    with pytest.raises(ConfigurationError, match="b:6379 is no node of a cluster"):
        Topology(URL, Nodes(a=WHOLE, b=alone, c=WHOLE).ask).find(0)
    half = served((0, HALF - 1, b"a"))
    with pytest.raises(ConfigurationError, match=f"{HALF} of the {SLOTS} slots"):
        Topology(URL, Nodes(a=half, b=half, c=half).ask).find(0)


def test_a_map_that_has_changed_is_told_once() -> None:
    nodes, told = Nodes(a=WHOLE, b=WHOLE, c=WHOLE, d=WHOLE), list[str]()
    topology = Topology(URL, nodes.ask)
    topology.on_change = lambda: told.append("changed")
    topology.find(0)
    topology.read()
    assert told == ["changed"]
    nodes.answers = dict.fromkeys("abcd", served((0, SLOTS - 1, b"c")))
    topology.read()
    assert told == ["changed", "changed"]
    assert topology.find(0) == ("c", 7000)


def test_a_map_that_is_read_soon_needs_no_caller_to_wait() -> None:
    nodes = Nodes(a=WHOLE, b=WHOLE, c=WHOLE, d=WHOLE)
    topology = Topology(URL, nodes.ask)
    topology.find(0)
    nodes.answers = dict.fromkeys("abcd", served((0, SLOTS - 1, b"c")))

    def is_read() -> bool:
        topology.read_soon()
        return topology.find(0) == ("c", 7000)

    wait_until(is_read, "the map is read again", 5)


def test_keys_of_a_session_share_a_slot_and_those_of_the_fleet_another() -> None:
    shard, fleet = ShardKeys(7), FleetKeys(is_apart=True)
    session = shard.session("s")
    slots = {slot_of(key) for key in (shard.due, session.ctl, session.journal("e", 3), shard.lease("c"))}
    assert slots == {slot_of("ca:{7}:x")}
    keys = (fleet.agents, fleet.flow, *fleet.rate("d").all, fleet.tool_list("x"))
    assert {slot_of(key) for key in keys} == {slot_of("{fleet}")}


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        (("TIME",), ()),
        (("PUBLISH", "channel", "x"), ()),
        (("HSET", "k", "f", "v"), ("k",)),
        (("DEL", "k", "l"), ("k", "l")),
        (("EVALSHA", "sha", 2, "k", "l", "word"), ("k", "l")),
        (("XREAD", "COUNT", 5, "STREAMS", "k", "l", "0", "0"), ("k", "l")),
    ],
)
def test_the_keys_of_a_command_are_known(command: Command, keys: tuple[str, ...]) -> None:
    assert tuple(keys_of(command)) == keys
