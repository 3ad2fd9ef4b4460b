"""What the servers that Sentinels know must hold, for one replica of two to confirm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest

from celery_agents.config.settings import Settings
from celery_agents.worker.errors import NotConfirmed, StoreUnavailable
from celery_agents.worker.store.confirming import Confirmer
from celery_agents.worker.store.database import Command, Confirmation, KnownServer
from celery_agents.worker.store.keys import FLEET

SETTINGS: Final = Settings.build(redis_url="redis+sentinel://a:1,b:1,c:1/mymaster", replicas=1)
PRIMARY: Final = KnownServer("a:1", "now", is_replica=False, is_linked=False)
LINKED: Final = KnownServer("b:1", "now", is_replica=True, is_linked=True)
OTHER: Final = KnownServer("c:1", "now", is_replica=True, is_linked=True)
FORMER: Final = KnownServer("c:1", "before", is_replica=False, is_linked=False)
AWAY: Final = KnownServer("c:1")


class StubPrimary:
    """Has as many replicas as a test sets; those that stand still acknowledge nothing."""

    def __init__(self, connected: int, still: int = 0) -> None:
        self.connected, self.still = connected, still
        self.waits: list[int] = []

    def confirm(self, commands: Sequence[Command]) -> Confirmation:
        _, wanted, _ = commands[-1]
        self.waits.append(int(wanted))
        acknowledged = min(self.connected - self.still, int(wanted))
        return Confirmation(acknowledged, self.connected, is_primary=True, primary="now", former="before")

    def place(self, key: str) -> str:
        return "a:1"

    def drop_connections(self, key: str) -> None:
        raise AssertionError("the same primary")


def confirmer(primary: StubPrimary, *servers: KnownServer) -> Confirmer:
    database: Any = primary
    return Confirmer(database, SETTINGS, lambda: servers)


@pytest.mark.parametrize(
    "servers",
    [(PRIMARY, LINKED, AWAY), (KnownServer("a:1"), LINKED, AWAY), (PRIMARY, LINKED, FORMER), (PRIMARY, LINKED)],
    ids=["the other is away", "none but the replica answers", "the former primary was not told yet", "no other"],
)
def test_one_of_two_replicas_confirms_where_no_server_lacks_it(servers: Sequence[KnownServer]) -> None:
    confirmer(StubPrimary(1), *servers).confirm(FLEET, {"now"})


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (KnownServer("c:1", "next", is_replica=False, is_linked=False), "c:1 does not follow this primary"),
        (KnownServer("c:1", "next", is_replica=True, is_linked=True), "c:1 does not follow this primary"),
        (KnownServer("c:1", "now", is_replica=True, is_linked=False), "c:1 does not follow this primary"),
        (KnownServer("c:1", "before", is_replica=True, is_linked=True), "c:1 does not follow this primary"),
        (OTHER, "1 of 2 replicas have it"),
    ],
    ids=["made primary", "follows the next", "lost its link", "follows the former", "lags behind"],
)
def test_one_of_two_replicas_confirms_nothing_that_a_server_lacks(other: KnownServer, why: str) -> None:
    with pytest.raises(NotConfirmed, match=why):
        confirmer(StubPrimary(1), PRIMARY, LINKED, other).confirm(FLEET, {"now"})


def test_a_replica_that_stands_still_answers_nobody_and_keeps_nothing_from_being_confirmed() -> None:
    confirmer(StubPrimary(2, still=1), PRIMARY, LINKED, AWAY).confirm(FLEET, {"now"})


def test_servers_are_asked_only_where_a_replica_has_not_confirmed() -> None:
    def fail() -> Sequence[KnownServer]:
        raise StoreUnavailable("no Sentinel tells which servers there are")

    primary: Any = StubPrimary(2)
    asking = Confirmer(primary, SETTINGS, fail)
    asking.confirm(FLEET, {"now"})
    primary.connected = 1
    with pytest.raises(StoreUnavailable, match="no Sentinel"):
        asking.confirm(FLEET, {"now"})


@pytest.mark.parametrize(("servers", "asked"), [((PRIMARY, LINKED), 1), ((PRIMARY, LINKED, AWAY), 3)])
def test_a_single_replica_is_the_only_one_for_ten_seconds(servers: Sequence[KnownServer], asked: int) -> None:
    primary: Any = StubPrimary(1)
    counted: list[int] = []

    def ask() -> Sequence[KnownServer]:
        counted.append(1)
        return servers

    asking = Confirmer(primary, SETTINGS, ask)
    for _ in range(3):
        asking.confirm(FLEET, {"now"})
    assert len(counted) == asked


def test_a_replica_that_comes_back_is_waited_for_at_once() -> None:
    primary = StubPrimary(1)
    asking = confirmer(primary, PRIMARY, LINKED, AWAY)
    asking.confirm(FLEET, {"now"})
    asking.confirm(FLEET, {"now"})
    primary.connected = 2
    asking.confirm(FLEET, {"now"})
    assert primary.waits == [2, 1, 1, 2], "nobody waits for one that is away"
