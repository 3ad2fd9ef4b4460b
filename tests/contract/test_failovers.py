"""Claims, sweeps and begun calls behind a failover: another replication id is another history and another clock."""

from __future__ import annotations

import pytest

from celery_agents.worker.store import BeginRecord, NotClaimed, NotClaimedReason, QueueSnapshot
from celery_agents.worker.store.records import Claim

from support.store import Bench

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")

LEASE_MS = 5_000


def fail_over(bench: Bench, *, ago_ms: int | None = None) -> None:
    """Let the shard have been on another primary; since `ago_ms` it has been on this one, or nobody has noticed yet."""
    primary = bench.shard.primary
    if ago_ms is None:
        bench.database("SET", primary, "another-id 0")
    else:
        known, _, _ = bench.database("GET", primary).partition(b" ")
        bench.database("SET", primary, known + b" %d" % (bench.store.context.now_ms() - ago_ms))
    bench.store.context.forget_server()


def mark(bench: Bench, claim: Claim, index: int) -> bytes | None:
    return bench.database("HGET", bench.journal(claim.ref), f"t{index}:n")


def is_restarted(bench: Bench) -> bool:
    return bench.answer() == NotClaimed(NotClaimedReason.RESTARTED)


def sweep(bench: Bench) -> list[str]:
    """The sessions that a sweep names as lost."""
    return [ref.session_id for ref in bench.store.housekeeping.sweep(QueueSnapshot()).lost]


def test_claims_without_a_lease_wait_for_one_lease_behind_a_failover(bench: Bench) -> None:
    sweep(bench)
    claim = bench.claim().claim
    bench.end_lease(claim)
    fail_over(bench)
    assert is_restarted(bench), "its worker may be alive, and could not renew it"
    assert is_restarted(bench), "one look does not make it wait less"
    fail_over(bench, ago_ms=LEASE_MS + 10)
    assert not is_restarted(bench)


def test_a_sweep_waits_for_one_lease_behind_a_failover(bench: Bench) -> None:
    sweep(bench)
    claim = bench.claim().claim
    bench.end_lease(claim)
    bench.make_due()
    fail_over(bench)
    assert sweep(bench) == []
    assert sweep(bench) == []
    fail_over(bench, ago_ms=LEASE_MS + 10)
    assert sweep(bench) == [bench.session]


def test_the_first_primary_that_is_noted_delays_nothing(bench: Bench) -> None:
    claim = bench.claim().claim
    bench.end_lease(claim)
    bench.make_due()
    assert sweep(bench) == [bench.session]


def test_a_clock_that_was_set_back_delays_nothing(bench: Bench) -> None:
    sweep(bench)
    claim = bench.claim().claim
    bench.end_lease(claim)
    fail_over(bench)
    sweep(bench)
    fail_over(bench, ago_ms=-3_600_000)
    assert not is_restarted(bench)


def test_a_call_that_is_looked_up_is_marked_with_its_primary_and_no_other_call_is(bench: Bench) -> None:
    claim = bench.claim().claim
    bench.store.steps.begin_calls(claim, {0: 1000, 1: 1000}, claim.now_ms, looked_up=(1,))
    assert mark(bench, claim, 0) is None
    known = mark(bench, claim, 1)
    assert known
    bench.end_lease(claim)
    begun = bench.claim().loaded.journal.begun
    assert (begun[0].primary, begun[1].primary) == ("", known.decode())


def test_a_mark_is_mended_when_the_primary_is_another_one_than_was_known(bench: Bench) -> None:
    claim = bench.claim().claim
    server = bench.store.context.known[bench.store.context.session(bench.session).place]
    server.primary = "another-id"
    bench.store.steps.begin_calls(claim, {0: 1000}, claim.now_ms, looked_up=(0,))
    assert mark(bench, claim, 0) == server.primary.encode() != b"another-id"


def test_the_time_of_a_begun_call_counts_from_the_failover_since_then(bench: Bench) -> None:
    sweep(bench)
    claim = bench.claim().claim
    bench.store.steps.begin_calls(claim, {0: 1000}, 7, looked_up=(0,))
    bench.end_lease(claim)
    (record,) = bench.claim().loaded.journal.begun.values()
    assert bench.store.steps.begun_ms(claim, record) == 7
    fail_over(bench)
    before = bench.store.context.now_ms()
    moved = BeginRecord(record.claim, 10**15, record.timeout_ms, "another-id")
    noted = bench.store.steps.begun_ms(claim, moved)
    assert before <= noted <= bench.store.context.now_ms(), "its own time is of another clock"
    assert bench.store.steps.begun_ms(claim, moved) == noted, "one look more does not move it"
