"""Claims and leases, on every store."""

from __future__ import annotations

import pytest

from celery_agents.worker.engine import LeaseKeeper, retry_transition, stop_transition
from celery_agents.worker.errors import (
    InvalidTransition,
    StateUnreadable,
    StoreUnavailable,
)
from celery_agents.worker.store import (
    Claim,
    Claimed,
    NotClaimed,
    NotClaimedReason,
    StepRef,
    Store,
    Suspect,
)
from celery_agents.worker.store.context import Publisher
from celery_agents.worker.store.database import Database

from support.points import Points
from support.store import Bench, PatientClock
from support.wait import wait_until

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")


def test_a_claim_gives_the_session_and_counts_the_attempt(bench: Bench) -> None:
    claimed = bench.claim()
    assert claimed.claim.attempt == 1
    assert claimed.loaded.version == 1
    assert claimed.loaded.agent == "agent"
    assert claimed.loaded.state == bench.store.sessions.load(bench.session).state


def test_a_lease_is_confirmed_when_the_keeper_says_so(bench: Bench) -> None:
    passed = 0.0
    keeper = LeaseKeeper(bench.store, bench.settings, monotonic=lambda: passed)
    lease = keeper.keep(bench.claim().claim, 60.0, passed)
    passed = bench.settings.lease_seconds * 0.8
    assert not keeper.is_fresh(lease)
    assert keeper.confirm(lease)


def test_a_live_claim_keeps_others_away_and_nothing_changes(bench: Bench) -> None:
    bench.claim()
    before = bench.snapshot()
    assert bench.answer() == NotClaimed(NotClaimedReason.BUSY)
    assert bench.snapshot() == before


def test_the_same_claim_asked_for_again_is_held_and_not_counted_again(bench: Bench) -> None:
    first = bench.claim(claim_id="mine")
    again = bench.claim(claim_id="mine")
    assert again.claim.attempt == first.claim.attempt


def test_a_lost_reply_to_a_claim_is_found_by_asking_again(bench: Bench) -> None:
    bench.spy.lose(bench.claims_at)
    with pytest.raises(StoreUnavailable):
        bench.answer(claim_id="mine")
    assert bench.claim(claim_id="mine").claim.attempt == 1


def test_a_claim_whose_lease_has_ended_is_taken_over_and_counted(bench: Bench) -> None:
    first = bench.claim()
    bench.end_lease(first.claim)
    second = bench.claim()
    assert second.claim.attempt == 2


def test_a_lease_ends_by_itself(database: Database) -> None:
    bench = Bench(database, lease_seconds=0.2, lease_renew_seconds=0.05)
    bench.submit()
    first = bench.claim()
    wait_until(lambda: isinstance(bench.answer(), Claimed), "the lease ends", 5)
    assert bench.store.steps.renew([first.claim])[0].alive is False


@pytest.mark.parametrize(
    ("execution", "step", "reason"),
    [
        ("own", 0, NotClaimedReason.STALE),
        ("own", 2, NotClaimedReason.AHEAD),
        ("own", 10**9, NotClaimedReason.AHEAD),
        ("own", -7, NotClaimedReason.STALE),
        ("forged", 1, NotClaimedReason.STALE),
        ("", 1, NotClaimedReason.STALE),
    ],
)
def test_a_message_that_is_stale_early_or_forged_changes_nothing(
    bench: Bench, execution: str, step: int, reason: NotClaimedReason
) -> None:
    before = bench.snapshot()
    ref = StepRef(bench.session, bench.execution if execution == "own" else execution, step)
    assert bench.store.steps.claim(ref, "claim", "worker", alone=True) == NotClaimed(reason)
    assert bench.snapshot() == before


def test_a_message_for_nobody_leaves_nothing_behind(bench: Bench) -> None:
    answer = bench.store.steps.claim(StepRef("nobody", "nothing", 1), "claim", "worker", alone=True)
    assert answer == NotClaimed(NotClaimedReason.MISSING)
    assert bench.database("EXISTS", bench.store.context.keys("nobody").ctl) == 0


def test_a_step_that_was_committed_is_stale(bench: Bench) -> None:
    bench.commit(bench.claim())
    assert bench.answer(1) == NotClaimed(NotClaimedReason.STALE)
    assert isinstance(bench.answer(2), Claimed)


def test_the_step_of_an_ended_execution_is_over(bench: Bench) -> None:
    bench.commit(bench.claim(), final=True)
    assert bench.answer(1) == NotClaimed(NotClaimedReason.ENDED)


def test_a_step_that_died_often_is_a_suspect_until_it_is_claimed_alone(bench: Bench) -> None:
    for _ in range(bench.settings.suspect_attempts - 1):
        bench.end_lease(bench.claim(alone=False).claim)
    before = bench.snapshot()
    assert bench.answer(alone=False) == Suspect(bench.settings.suspect_attempts - 1)
    assert bench.snapshot() == before
    assert bench.claim(alone=True).claim.attempt == bench.settings.suspect_attempts


def test_a_renewal_tells_of_the_lease_and_of_a_stop(bench: Bench) -> None:
    claim = bench.claim().claim
    (renewal,) = bench.store.steps.renew([claim])
    assert (renewal.alive, renewal.cancel) == (True, None)
    bench.store.sessions.stop(bench.session, None, stop_transition)
    assert bench.store.steps.renew([claim])[0].cancel == bench.execution
    bench.end_lease(claim)
    assert bench.store.steps.renew([claim])[0].alive is False


def test_a_lease_is_taken_back_only_while_the_claim_stands(bench: Bench) -> None:
    first = bench.claim().claim
    bench.end_lease(first)
    assert bench.store.steps.restore(first) is True
    assert bench.answer() == NotClaimed(NotClaimedReason.BUSY)
    bench.end_lease(first)
    second = bench.claim().claim
    assert bench.store.steps.restore(first) is False
    assert bench.store.steps.renew([second])[0].alive is True


def test_a_rival_that_has_only_looked_loses_against_a_lease_taken_back(bench: Bench) -> None:
    first = bench.claim().claim
    bench.end_lease(first)
    bench.spy.before(Points.CLAIM_EXEC, lambda: bench.store.steps.restore(first))
    assert bench.answer() == NotClaimed(NotClaimedReason.BUSY)


def test_whoever_holds_an_older_version_reads_what_is_new(bench: Bench) -> None:
    other = bench.another()
    other.steps.claim(bench.ref(), "looking", "other", alone=True)
    bench.end_lease(Claim("looking", "other", bench.ref(), 1, 0))
    bench.commit(bench.claim(), text="one")
    bench.commit(bench.claim(2), text="two")
    claimed = other.steps.claim(bench.ref(3), "mine", "other", alone=True)
    assert isinstance(claimed, Claimed)
    assert claimed.loaded.state == bench.store.sessions.load(bench.session).state
    assert [message.content for message in claimed.loaded.state.messages] == ["first", "one", "two"]


def test_a_save_between_two_reads_is_not_taken_for_damage(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    # It holds the session as it was in another execution, and guesses no time, so that it goes the long way.
    blind = PatientClock(estimates=False)
    other = Store(bench.spy, bench.settings, clock=blind, publisher=Publisher())
    other.steps.claim(bench.ref(), "looking", "other", alone=True)
    bench.end_lease(Claim("looking", "other", bench.ref(), 1, 0))
    bench.commit(bench.claim(), final=True)
    started_by = bench.message("next")
    ref = StepRef(bench.session, started_by.execution_id, 1)
    bench.spy.before(Points.LOAD_ALL, lambda: bench.message("joins between two reads"))
    claimed = other.steps.claim(ref, "mine", "other", alone=True)
    assert isinstance(claimed, Claimed)
    contents = [message.content for message in claimed.loaded.state.messages]
    assert contents[-1] == "joins between two reads"


@pytest.mark.parametrize("act", ["stop", "message", "retry"])
def test_another_execution_that_begins_between_two_reads_is_not_taken_for_damage(bench: Bench, act: str) -> None:
    def begin_another() -> None:
        bench.store.sessions.stop(bench.session, bench.execution, stop_transition)
        bench.message("next")

    bench.spy.before(Points.ACT_LOAD, begin_another)
    if act == "stop":
        assert bench.store.sessions.stop(bench.session, None, stop_transition).outcome == "changed"
    elif act == "message":
        assert bench.message("and this").outcome == "joined"
    else:
        with pytest.raises(InvalidTransition):  # there is nothing to retry: the other one runs
            bench.store.sessions.retry(bench.session, retry_transition(None))
    state = bench.store.sessions.load(bench.session).state
    assert state.execution is not None
    assert state.execution.execution_id != bench.execution
    assert "next" in [message.content for message in state.messages]


def test_a_session_with_a_damaged_part_is_refused_and_its_parts_are_untouched(bench: Bench) -> None:
    keys = bench.store.context.keys(bench.session)
    bench.database("RPUSH", keys.section("messages", 0), b"{not json")
    before, parts = bench.snapshot(), bench.database("LRANGE", keys.section("messages", 0), 0, -1)
    with pytest.raises(StateUnreadable):
        bench.another().steps.claim(bench.ref(), "claim", "worker", alone=True)
    with pytest.raises(StateUnreadable):
        bench.store.sessions.load(bench.session)
    assert bench.database("HMGET", keys.session, "version", "head") == [before[0][b"version"], before[0][b"head"]]
    assert bench.database("LRANGE", keys.section("messages", 0), 0, -1) == parts
    taken = b"claim" if bench.is_quick else b""
    assert bench.database("HGET", keys.ctl, "claim") == taken, "where the claim comes first, it is read behind it"


def test_a_new_session_with_a_damaged_message_is_refused_and_its_parts_are_untouched(bench: Bench) -> None:
    keys = bench.store.context.keys(bench.session)
    section = keys.section("messages", 0)
    bench.database("DEL", section)
    bench.database("RPUSH", section, b"{not json")
    before = bench.snapshot()
    with pytest.raises(StateUnreadable, match="messages"):
        bench.another().steps.claim(bench.ref(), "claim", "worker", alone=True)
    assert bench.database("HMGET", keys.session, "version", "head") == [before[0][b"version"], before[0][b"head"]]
    assert bench.database("LRANGE", section, 0, -1) == [b"{not json"]
    taken = b"claim" if bench.is_quick else b""
    assert bench.database("HGET", keys.ctl, "claim") == taken, "in one round trip it is read with the claim"
