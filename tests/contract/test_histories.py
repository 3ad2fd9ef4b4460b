"""What workers tell of history that Redis has lost: sessions that they have cached at a later version."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.tasks.client.json_values import header_value
from celery_agents.worker.engine import operation_transition
from celery_agents.worker.store import Claimed, Store
from celery_agents.worker.store.housekeeping.histories import FoundLosses
from celery_agents.worker.store.primaries import REPLICATION

from support.lost_writes import lost_afterwards
from support.store import Bench, an_operation

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")

POINTS = ("history.primary", "history.read", "history.tell")


@pytest.fixture
def bench(cached_bench: Bench) -> Bench:
    return cached_bench


def never(agent: str, tool: str) -> bool:
    del agent, tool
    return False


def check(bench: Bench, store: Store | None = None, *, is_pure: Any = never) -> FoundLosses:
    return (store or bench.store).housekeeping.check_histories("worker", is_pure)


def fail_over(store: Store) -> None:
    """As if the connection had been lost, and had led to another primary before."""
    store.context.forget_server()
    store.housekeeping._primary = "another-id"


def losses(bench: Bench) -> list[dict[str, Any]]:
    return [dict(each.data) for each in bench.store.sessions.events(bench.session) if each.type == "history_lost"]


@pytest.mark.one_server("each node may have moved")
def test_nothing_is_sent_while_no_connection_was_lost(bench: Bench) -> None:
    bench.commit(bench.claim())
    assert check(bench) == FoundLosses()
    assert bench.spy.sent[-1] == ("history.primary", [REPLICATION]), "it notes the primary when it starts"
    bench.spy.sent.clear()
    assert check(bench) == FoundLosses()
    assert bench.spy.sent == []


@pytest.mark.one_server("each node may have moved")
def test_a_lost_connection_to_the_same_primary_costs_one_round_trip(bench: Bench) -> None:
    bench.commit(bench.claim())
    check(bench)
    bench.spy.sent.clear()
    bench.store.context.forget_server()
    assert check(bench) == FoundLosses()
    assert bench.spy.points == ["history.primary"]


def test_the_end_of_a_history_that_is_lost_is_told_once_and_without_a_new_version(bench: Bench) -> None:
    bench.commit(bench.claim())
    with lost_afterwards(bench):
        bench.commit(bench.claim(2))
        bench.commit(bench.claim(3))
    before = bench.store.sessions.load(bench.session).version
    fail_over(bench.store)
    assert check(bench) == FoundLosses(told=(bench.session,))
    (told,) = losses(bench)
    assert told == {
        "known_version": before + 2, "found_version": before, "common_version": before,
        "steps": [2, 3], "calls": [], "worker": "worker",
    }  # fmt: skip
    assert bench.store.sessions.load(bench.session).version == before
    fail_over(bench.store)
    assert check(bench) == FoundLosses()
    assert len(losses(bench)) == 1
    assert header_value(bench.store.sessions.header(bench.session))["history_lost"] == (
        f"Redis lost version {before + 2} and came back with {before}; lost steps: 2, 3."
    )
    assert [name for name, _ in bench.store.housekeeping.list_lost()[1]] == [bench.session]


def test_another_worker_that_knows_less_of_the_same_loss_does_not_tell_it_again(bench: Bench) -> None:
    other = bench.another()
    bench.commit(bench.claim())
    with lost_afterwards(bench):
        bench.commit(bench.claim(2))
        seen = other.steps.claim(bench.ref(3), "c" * 32, "other", alone=True)
        assert isinstance(seen, Claimed)
        bench.end_lease(seen.claim)
        bench.commit(bench.claim(3))
    for store in (bench.store, other):
        fail_over(store)
    assert check(bench) == FoundLosses(told=(bench.session,))
    assert check(bench, other) == FoundLosses()
    assert len(losses(bench)) == 1


def test_a_loss_is_told_when_the_session_has_gone_on_otherwise(bench: Bench) -> None:
    bench.commit(bench.claim())
    with lost_afterwards(bench):
        bench.commit(bench.claim(2))
    bench.step_elsewhere(2)
    bench.step_elsewhere(3)
    fail_over(bench.store)
    assert check(bench) == FoundLosses(told=(bench.session,))
    (told,) = losses(bench)
    assert (told["known_version"], told["found_version"], told["common_version"], told["steps"]) == (3, 4, 2, [2])


def test_a_loss_that_a_claim_finds_is_told_without_a_lost_connection(bench: Bench) -> None:
    bench.commit(bench.claim())
    check(bench)
    with lost_afterwards(bench):
        bench.commit(bench.claim(2))
    bench.step_elsewhere(2)
    bench.claim(3)
    assert check(bench) == FoundLosses(told=(bench.session,))
    assert check(bench) == FoundLosses()


def test_the_lost_end_of_an_execution_is_told(bench: Bench) -> None:
    bench.commit(bench.claim())
    with lost_afterwards(bench):
        bench.commit(bench.claim(2), final=True)
    fail_over(bench.store)
    assert check(bench) == FoundLosses(told=(bench.session,))
    assert losses(bench)[0]["steps"] == [2]


def test_what_others_have_added_is_no_loss(bench: Bench) -> None:
    bench.commit(bench.claim())
    bench.step_elsewhere(2)
    bench.another().sessions.act(bench.session, an_operation("more"), operation_transition)
    fail_over(bench.store)
    assert check(bench) == FoundLosses()
    assert losses(bench) == []


def test_a_session_that_is_saved_between_look_and_telling_is_looked_at_again(bench: Bench) -> None:
    bench.commit(bench.claim())
    with lost_afterwards(bench):
        bench.commit(bench.claim(2))
    fail_over(bench.store)
    bench.spy.before("history.tell", lambda: bench.step_elsewhere(2))
    assert check(bench) == FoundLosses()
    assert check(bench) == FoundLosses(told=(bench.session,))
    assert losses(bench)[0]["found_version"] == 3


def test_a_session_that_is_gone_is_found(bench: Bench) -> None:
    bench.commit(bench.claim())
    bench.database("DEL", bench.store.context.keys(bench.session).session)
    fail_over(bench.store)
    assert check(bench) == FoundLosses(gone=(bench.session,))


def test_a_deletion_explains_that_a_session_is_gone(bench: Bench) -> None:
    bench.commit(bench.claim())
    bench.commit(bench.claim(2), final=True)
    bench.another().sessions.delete(bench.session)
    fail_over(bench.store)
    assert check(bench) == FoundLosses()


def test_a_retention_that_has_passed_explains_that_a_session_is_gone(bench: Bench) -> None:
    bench.commit(bench.claim())
    bench.database("DEL", bench.store.context.keys(bench.session).session)
    bench.store.context.__dict__["retention_ms"] = 0
    fail_over(bench.store)
    assert check(bench) == FoundLosses()


def test_an_unanswered_look_is_repeated(bench: Bench) -> None:
    bench.commit(bench.claim())
    bench.database("DEL", bench.store.context.keys(bench.session).session)
    fail_over(bench.store)
    bench.spy.lose("history.read")
    with pytest.raises(Exception, match=r"history\.read"):
        check(bench)
    assert check(bench) == FoundLosses(gone=(bench.session,))


def test_an_old_loss_leaves_the_list_with_the_prune(bench: Bench) -> None:
    key = bench.shard.lost
    bench.database("ZADD", key, 1, "of long ago", bench.store.context.now_ms(), bench.session)
    bench.store.housekeeping.prune()
    assert bench.database("ZRANGE", key, 0, -1) == [bench.session.encode()]
