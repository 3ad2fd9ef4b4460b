"""How many primaries and replicas a cluster has, by what its nodes tell."""

from __future__ import annotations

from celery_agents.worker.store.redis.cluster_views import ClusterMembers, parse_members

PRIMARY = "a1 10.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-5460 [93->-b2]"
REPLICA = "b1 10.0.0.2:7000@17000,name-of-host slave a1 0 0 1 connected"


def members(*lines: str) -> tuple[int, int]:
    found = parse_members("\n".join([*lines, ""]))
    assert isinstance(found, ClusterMembers)
    return found.primaries, found.others


def test_those_that_serve_slots_are_primaries_and_all_others_may_be_replicas() -> None:
    assert members(PRIMARY, REPLICA) == (1, 1)


def test_a_replica_that_is_away_and_a_primary_that_was_replaced_are_still_there() -> None:
    away = REPLICA.replace("slave", "slave,fail").replace("connected", "disconnected")
    replaced = "c1 10.0.0.3:7000@17000 master,fail - 0 0 2 disconnected"
    assert members(PRIMARY, away) == (1, 1)
    assert members(PRIMARY, replaced) == (1, 1)


def test_a_new_primary_serves_none_of_the_slots_that_are_on_their_way_to_it() -> None:
    assert members(PRIMARY, "b2 10.0.0.4:7000@17000 master - 0 0 3 connected [93-<-a1]") == (1, 1)


def test_nodes_that_have_not_joined_or_have_no_address_are_none() -> None:
    assert members(
        PRIMARY, "d1 :0@0 master,noaddr - 0 0 4 disconnected", "e1 10.0.0.5:7000@17000 handshake - 0 0 0 -"
    ) == (
        1,
        0,
    )
