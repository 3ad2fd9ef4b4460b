"""Sessions that end in the line of a concurrency limit which lets nobody go, on every store."""

from __future__ import annotations

import uuid

import pytest

from celery_agents.flow import ConcurrencyLimit
from celery_agents.worker.flow.concurrency import LimitPart
from celery_agents.worker.store import Claim
from celery_agents.worker.store.flow.holders import Holder, NoneFree

from support.asking import HOUR_MS
from support.store import Bench

pytestmark = pytest.mark.leaves_keys("sessions stand in lines")

PART = LimitPart("crm")


def take(bench: Bench, claim: Claim) -> object:
    """Take a holder for a claim, or put it off."""
    known = bench.store.flow.view().concurrency.get("crm")
    since_ms = -1 if known is None else known.since_ms
    holder = Holder(claim.id, claim.ref.session_id, (PART,), (since_ms,), claimed_ms=claim.now_ms)
    found = bench.store.flow.take_holder(holder, lease_ms=60_000)
    if isinstance(found, NoneFree):
        bench.store.steps.release(claim, delay_ms=HOUR_MS, give_back=True, reason="it waits", put_off=PART.cause)
    return found


def a_claim(bench: Bench) -> Claim:
    """The claim of a further session."""
    bench.session, bench.execution = f"s-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
    bench.submit()
    return bench.claim().claim


def line(bench: Bench) -> list[str]:
    keys = bench.store.context.fleet.holders(str(PART))
    return [name.decode() for name in bench.database("ZRANGE", keys.line, 0, -1)]


@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("most", [0, 1, None])
def test_who_has_ended_leaves_a_line_in_which_nobody_is_called(
    bench: Bench, most: int | None, is_deleted: bool
) -> None:
    if most is not None:  # else nobody has defined the limit
        bench.store.flow.set_value(ConcurrencyLimit("crm", total=most))
    if most:
        take(bench, a_claim(bench))
    stays, goes = a_claim(bench), a_claim(bench)
    assert isinstance(take(bench, stays), NoneFree)
    assert isinstance(take(bench, goes), NoneFree)
    bench.stop()
    if is_deleted:
        bench.store.sessions.delete(bench.session)
    bench.database("HSET", bench.store.context.keys(stays.ref.session_id).ctl, "step", "it cannot be read")
    bench.store.flow.call_waiting()
    assert line(bench) == [stays.ref.session_id]


def test_who_stands_in_a_line_by_a_later_claim_stays(bench: Bench) -> None:
    bench.store.flow.set_value(ConcurrencyLimit("crm", total=0))
    take(bench, a_claim(bench))
    bench.stop()

    def begin_again() -> None:
        bench.execution = bench.message("go on").execution_id
        take(bench, bench.claim().claim)

    bench.spy.before("holders.leave", begin_again)
    bench.store.flow.call_waiting()
    assert line(bench) == [bench.session]
