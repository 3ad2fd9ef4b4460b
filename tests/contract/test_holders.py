"""Holders of concurrency limits, the lines of those who wait for one, and who is called, on every store."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

import pytest

from celery_agents.flow import ConcurrencyLimit
from celery_agents.worker.errors import ClaimLost
from celery_agents.worker.flow.concurrency import LimitPart, concurrency_field, undefined_cause
from celery_agents.worker.store import Claim, Claimed, NotClaimed
from celery_agents.worker.store.event_records import EventType
from celery_agents.worker.store.flow.holders import Holder, NoneFree, Taken
from celery_agents.worker.store.sessions.whole_sessions import Copy

from support.asking import HOUR_MS, events
from support.child_sessions import child_request, wait_for_children
from support.points import Points
from support.store import Bench

pytestmark = pytest.mark.leaves_keys("sessions stand in lines")

TOTAL = LimitPart("crm")
ACME = LimitPart("crm", "customer", "acme")
BANK = LimitPart("bank")
LEASE_MS = 60_000


def limit(bench: Bench, total: int | None = 1, **per: int) -> None:
    bench.store.flow.set_value(ConcurrencyLimit("crm", total=total, per=per))


def holder(bench: Bench, claim: Claim, *parts: LimitPart, of_call: bool = False) -> Holder:
    parts = parts or (TOTAL,)
    view = bench.store.flow.view().concurrency
    known = [view.get(part.name) for part in parts]
    since_ms = tuple(0 if each is None else each.since_ms for each in known)
    name = f"{claim.id} 0" if of_call else claim.id
    return Holder(name, claim.ref.session_id, parts, since_ms, claimed_ms=claim.now_ms)


def take(bench: Bench, claim: Claim, *parts: LimitPart, stand: bool = True) -> Taken | NoneFree:
    found = bench.store.flow.take_holder(holder(bench, claim, *parts), lease_ms=LEASE_MS, stand=stand)
    assert found is not None
    return found


def keep(bench: Bench, claim: Claim, *parts: LimitPart) -> Taken | None:
    return bench.store.flow.keep_holder(holder(bench, claim, *parts), lease_ms=LEASE_MS)


def give(bench: Bench, claim: Claim, *parts: LimitPart) -> None:
    bench.store.flow.give_holder(holder(bench, claim, *parts))


def put_off(bench: Bench, claim: Claim, part: LimitPart = TOTAL) -> None:
    bench.store.steps.release(claim, delay_ms=HOUR_MS, give_back=True, reason="it waits", put_off=part.cause)


def refuse(bench: Bench, claim: Claim, *parts: LimitPart, of_call: bool = False) -> NoneFree:
    found = bench.store.flow.take_holder(holder(bench, claim, *parts, of_call=of_call), lease_ms=LEASE_MS)
    assert isinstance(found, NoneFree), found
    put_off(bench, claim, found.part)
    return found


def others(bench: Bench, count: int) -> list[Claim]:
    """Claims of further sessions."""
    found: list[Claim] = []
    for _ in range(count):
        bench.session, bench.execution = f"s-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
        bench.submit()
        found.append(bench.claim().claim)
    return found


def claims_again(bench: Bench, claim: Claim) -> bool:
    """Whether the step of a claim may be claimed now; then it is."""
    answer = bench.store.steps.claim(claim.ref, uuid.uuid4().hex, "w2", alone=True)
    assert isinstance(answer, (Claimed, NotClaimed))
    return isinstance(answer, Claimed)


def successor_of(bench: Bench, claim: Claim, *, is_given_back: bool = False) -> Claim:
    """A claim of the same step, which the first one has given up while a function of it was left running."""
    if not is_given_back:
        bench.store.steps.release(claim, delay_ms=None, give_back=True)
    answer = bench.store.steps.claim(claim.ref, uuid.uuid4().hex, "w2", alone=True)
    assert isinstance(answer, Claimed)
    return answer.claim


def line(bench: Bench, part: LimitPart = TOTAL) -> list[str]:
    keys = bench.store.context.fleet.holders(str(part))
    return [name.decode() for name in bench.database("ZRANGE", keys.line, 0, -1)]


def counts(bench: Bench) -> list[tuple[str, int, int]]:
    (status,) = bench.store.flow.concurrency()
    return [(each.name, each.held, each.waiting) for each in status.parts]


def make_overdue(bench: Bench, claim: Claim, part: LimitPart = TOTAL) -> None:
    """As if a session had been called half a minute ago."""
    called = bench.store.context.fleet.holders(str(part)).called
    at = float(bench.database("ZSCORE", called, claim.ref.session_id))
    bench.database("ZADD", called, at - 30_000, claim.ref.session_id)


def test_a_limit_is_set_read_and_removed(bench: Bench) -> None:
    flow = bench.store.flow
    assert flow.concurrency() == []
    flow.set_value(ConcurrencyLimit("crm", total=20, per={"customer": 2}), by="ann")
    (status,) = flow.concurrency()
    assert (status.limit.total, status.limit.per, status.limit.by) == (20, {"customer": 2}, "ann")
    assert flow.view().concurrency["crm"] == status.limit
    assert flow.view().is_empty, "requests to providers have nothing to ask for"
    assert not flow.remove_value(concurrency_field("other"))
    assert flow.remove_value(concurrency_field("crm"))
    assert not flow.remove_value(concurrency_field("crm"))
    assert flow.concurrency() == []
    assert flow.view().concurrency == {"crm": None}, "it is known, and limits nothing"
    assert take(bench, bench.claim().claim) == Taken(others_wait=False)


def test_no_more_hold_than_the_limit_allows_and_the_next_one_is_woken(bench: Bench) -> None:
    limit(bench, total=1)
    first, second, third = bench.claim().claim, *others(bench, 2)
    assert take(bench, first) == Taken(others_wait=False)
    assert refuse(bench, second) == NoneFree(TOTAL, 1, 1)
    refuse(bench, third)
    assert counts(bench) == [("", 1, 2)]
    assert line(bench) == [second.ref.session_id, third.ref.session_id]
    assert take(bench, first) == Taken(others_wait=True), "it holds already, and hears that others wait"
    assert not claims_again(bench, second)
    give(bench, first)
    assert counts(bench) == [("", 0, 2)], "who is called stands in the line until it has come"
    assert not claims_again(bench, third)
    assert claims_again(bench, second)
    (newcomer,) = others(bench, 1)
    assert isinstance(take(bench, newcomer), NoneFree), "what is free is for those in the line"
    assert take(bench, second) == Taken(others_wait=True)


def test_what_is_asked_again_after_a_lost_reply_counts_once(bench: Bench) -> None:
    limit(bench, total=2)
    first, second = bench.claim().claim, *others(bench, 1)
    for _ in range(2):
        assert isinstance(take(bench, first), Taken)
    assert isinstance(take(bench, second), Taken)
    for _ in range(2):
        give(bench, first)
    assert counts(bench) == [("", 1, 0)]


def test_a_holder_that_was_given_back_or_has_ended_is_not_kept(bench: Bench) -> None:
    limit(bench, total=1, customer=1)
    first, second = bench.claim().claim, *others(bench, 1)
    assert isinstance(take(bench, first, ACME, TOTAL), Taken)
    assert keep(bench, first, ACME, TOTAL) == Taken(others_wait=False)
    give(bench, first, ACME, TOTAL)
    assert keep(bench, first, ACME, TOTAL) is None
    assert counts(bench)[0] == ("", 0, 0)
    assert isinstance(take(bench, second, ACME, TOTAL), Taken)
    assert take(bench, first, ACME, TOTAL, stand=False) == NoneFree(ACME, 1, 1)
    assert line(bench, ACME) == []


def test_a_step_that_waits_stays_in_the_line_while_a_function_of_its_session_still_holds(bench: Bench) -> None:
    limit(bench, total=1)
    left_running = bench.claim().claim
    take(bench, left_running)
    successor = successor_of(bench, left_running)
    assert isinstance(take(bench, successor), NoneFree)
    assert keep(bench, left_running) == Taken(others_wait=True)
    put_off(bench, successor)
    assert line(bench) == [successor.ref.session_id]
    give(bench, left_running)
    assert claims_again(bench, successor), "it was called"


def test_a_step_that_waits_stays_in_the_line_when_a_function_of_its_session_takes_its_holder_again(
    bench: Bench,
) -> None:
    limit(bench, total=1)
    left_running = bench.claim().claim
    successor, (other,) = successor_of(bench, left_running), others(bench, 1)
    take(bench, other)
    refuse(bench, successor)
    bench.database("ZREM", bench.store.context.fleet.holders(str(TOTAL)).held, other.id)  # its lease has ended
    again = bench.store.flow.take_holder(holder(bench, left_running), lease_ms=LEASE_MS, stand=False, again=True)
    assert again == Taken(others_wait=True)
    assert line(bench) == [successor.ref.session_id]
    give(bench, left_running)
    assert claims_again(bench, successor)


def test_a_claim_that_was_taken_over_takes_its_session_out_of_no_line(bench: Bench) -> None:
    limit(bench, total=1, customer=2)
    taken_over, (other,) = bench.claim().claim, others(bench, 1)
    take(bench, other)
    time.sleep(0.002)  # claims of one session are told apart by their times
    successor = successor_of(bench, taken_over)
    refuse(bench, successor, ACME, TOTAL)
    bench.database("ZREM", bench.store.context.fleet.holders(str(TOTAL)).held, other.id)  # its lease has ended
    for stand in (True, False):
        with pytest.raises(ClaimLost, match="another claim"):
            take(bench, taken_over, ACME, TOTAL, stand=stand)
    limit(bench, total=1, customer=0)
    with pytest.raises(ClaimLost):  # refused by its label, it would leave the line of the total
        take(bench, taken_over, ACME, TOTAL)
    assert (line(bench), line(bench, ACME)) == ([successor.ref.session_id],) * 2
    limit(bench, total=1, customer=1)
    bench.store.flow.call_waiting()
    later = successor_of(bench, successor, is_given_back=True)
    assert isinstance(take(bench, later, ACME, TOTAL), Taken), "a later claim than the one that stands there"
    assert isinstance(take(bench, taken_over, ACME, TOTAL), NoneFree), "nothing is left of the line"


def test_each_value_of_a_label_has_a_limit_of_its_own(bench: Bench) -> None:
    limit(bench, total=3, customer=1)
    bolt = LimitPart("crm", "customer", "bolt")
    first, second, third, fourth = bench.claim().claim, *others(bench, 3)
    assert isinstance(take(bench, first, ACME, TOTAL), Taken)
    assert refuse(bench, second, ACME, TOTAL).part == ACME
    assert isinstance(take(bench, third, bolt, TOTAL), Taken), "who waits for acme stands in nobody else's way"
    assert line(bench) == []
    assert isinstance(take(bench, fourth), Taken), "a session without the label"
    give(bench, first, ACME, TOTAL)
    assert claims_again(bench, second)
    assert isinstance(take(bench, second, ACME, TOTAL), Taken)


def test_who_waits_for_the_total_keeps_its_place_in_the_line_of_its_label(bench: Bench) -> None:
    limit(bench, total=1, customer=1)
    first, second, third = bench.claim().claim, *others(bench, 2)
    assert isinstance(take(bench, first), Taken)
    assert refuse(bench, second, ACME, TOTAL).part == TOTAL
    assert refuse(bench, third, ACME, TOTAL).part == ACME
    assert (line(bench), line(bench, ACME)) == ([second.ref.session_id], [second.ref.session_id, third.ref.session_id])
    give(bench, first)
    assert claims_again(bench, second)
    assert isinstance(take(bench, second, ACME, TOTAL), Taken)
    give(bench, second, ACME, TOTAL)
    assert claims_again(bench, third)


def test_who_is_refused_by_its_label_leaves_the_line_of_the_total(bench: Bench) -> None:
    limit(bench, total=1, customer=1)
    first, second, third = bench.claim().claim, *others(bench, 2)
    assert isinstance(take(bench, first), Taken)
    refuse(bench, second, ACME, TOTAL)
    refuse(bench, third)
    limit(bench, total=1, customer=0)
    give(bench, first)
    assert claims_again(bench, second), "it was the first in the line of the total"
    assert refuse(bench, second, ACME, TOTAL).part == ACME
    assert line(bench) == [third.ref.session_id]
    assert claims_again(bench, third), "who leaves a line calls the next one"


def test_a_limit_of_zero_lets_nobody_begin_until_it_is_raised(bench: Bench) -> None:
    limit(bench, total=0)
    claim = bench.claim().claim
    assert refuse(bench, claim) == NoneFree(TOTAL, 0, 0)
    assert bench.store.flow.call_waiting() == []
    assert not claims_again(bench, claim)
    limit(bench, total=1)
    bench.store.flow.call_waiting()
    assert claims_again(bench, claim)


def test_a_limit_that_nobody_has_defined_is_waited_for(bench: Bench) -> None:
    claim = bench.claim().claim
    assert take(bench, claim, stand=False) == NoneFree(TOTAL, None)
    assert line(bench) == []
    assert take(bench, claim) == NoneFree(TOTAL, None)
    assert line(bench) == [claim.ref.session_id]
    cause = undefined_cause("crm")
    bench.store.steps.release(claim, delay_ms=HOUR_MS, give_back=True, reason="undefined", put_off=cause)
    assert not claims_again(bench, claim)
    limit(bench)
    bench.store.flow.bring_forward(cause)
    assert claims_again(bench, claim)


def test_who_waits_for_a_limit_to_be_defined_is_called_where_nobody_else_has_brought_it_forward(bench: Bench) -> None:
    claims = [bench.claim().claim, *others(bench, 1)]
    for claim in claims:
        assert take(bench, claim) == NoneFree(TOTAL, None)
        cause = undefined_cause("crm")
        bench.store.steps.release(claim, delay_ms=HOUR_MS, give_back=True, reason="undefined", put_off=cause)
    bench.store.flow.call_waiting()
    assert not claims_again(bench, claims[0])
    limit(bench, total=1)
    bench.store.flow.call_waiting()
    assert [claims_again(bench, claim) for claim in claims] == [True, False]


def test_who_waits_for_a_limit_to_be_defined_stands_in_nobody_elses_way(bench: Bench) -> None:
    limit(bench, total=1)
    claim, newcomer = bench.claim().claim, *others(bench, 1)
    undefined = LimitPart("unknown")
    assert take(bench, claim, TOTAL, undefined) == NoneFree(undefined, None)
    assert (line(bench), line(bench, undefined)) == ([], [claim.ref.session_id])
    assert isinstance(take(bench, newcomer), Taken)


def test_a_limit_that_is_defined_just_before_a_step_is_put_off_lets_it_go(bench: Bench) -> None:
    claim = bench.claim().claim
    assert isinstance(take(bench, claim), NoneFree)
    limit(bench)
    cause = undefined_cause("crm")
    bench.store.steps.release(claim, delay_ms=HOUR_MS, give_back=True, reason="undefined", put_off=cause)
    assert claims_again(bench, claim)


def test_a_worker_that_has_not_heard_of_a_change_is_told_and_nothing_is_written(bench: Bench) -> None:
    limit(bench, total=1)
    claim = bench.claim().claim
    known = holder(bench, claim)
    for change in (lambda: limit(bench, total=0), lambda: bench.store.flow.remove_value(concurrency_field("crm"))):
        time.sleep(0.002)  # limits are told apart by their times
        change()
        assert bench.store.flow.take_holder(known, lease_ms=LEASE_MS) is None
        assert line(bench) == []
    assert isinstance(take(bench, claim), Taken), "it was removed"
    limit(bench, total=0)
    removed = replace(known, since_ms=(0,))
    assert bench.store.flow.take_holder(removed, lease_ms=LEASE_MS) is None


def test_a_removed_limit_lets_all_its_parts_go(bench: Bench) -> None:
    limit(bench, total=1, customer=0)
    first, second, third = bench.claim().claim, *others(bench, 2)
    assert isinstance(take(bench, first), Taken)
    refuse(bench, second)
    refuse(bench, third, ACME, TOTAL)
    bench.store.flow.remove_value(concurrency_field("crm"))
    assert len(bench.store.flow.bring_forward(concurrency_field("crm"))) == 2
    assert claims_again(bench, second)
    assert claims_again(bench, third)
    assert take(bench, third, ACME, TOTAL) == Taken(others_wait=False)


def test_the_holder_of_a_dead_claim_counts_until_its_lease_has_ended_and_the_sweep_calls(bench: Bench) -> None:
    limit(bench)
    first, second = bench.claim().claim, *others(bench, 1)
    take(bench, first)
    refuse(bench, second)
    bench.store.flow.call_waiting()
    assert not claims_again(bench, second)
    held = bench.store.context.fleet.holders("crm").held
    bench.database("ZADD", held, 1, first.id)  # as if a minute had passed
    bench.store.flow.call_waiting()
    assert claims_again(bench, second)
    assert isinstance(take(bench, second), Taken)


def test_after_a_start_of_redis_no_holder_is_gone_for_one_lease(bench: Bench) -> None:
    limit(bench)
    first, second = bench.claim().claim, *others(bench, 1)
    take(bench, first)
    refuse(bench, second)
    bench.database("ZADD", bench.store.context.fleet.holders("crm").held, 1, first.id)
    bench.clock.up_for = 1.0
    bench.store.flow.call_waiting()
    assert not claims_again(bench, second)
    assert keep(bench, first) == Taken(others_wait=True), "its worker comes back"
    bench.clock.up_for = 1e9
    bench.store.flow.call_waiting()
    assert not claims_again(bench, second)


def test_who_was_given_a_holder_before_it_was_put_off_is_woken_by_its_own_look(bench: Bench) -> None:
    limit(bench)
    first, second = bench.claim().claim, *others(bench, 1)
    take(bench, first)
    assert isinstance(take(bench, second), NoneFree)
    give(bench, first)  # it calls a session that is not put off yet
    assert line(bench) == [second.ref.session_id]
    put_off(bench, second)
    assert claims_again(bench, second)


def test_who_will_not_come_leaves_the_line_and_the_next_one_is_called(bench: Bench) -> None:
    limit(bench)
    first, second, third = bench.claim().claim, *others(bench, 2)
    take(bench, first)
    refuse(bench, second)
    refuse(bench, third)
    bench.session = second.ref.session_id
    bench.stop()
    give(bench, first)
    assert line(bench) == [third.ref.session_id]
    assert claims_again(bench, third)


def test_who_was_called_while_it_was_suspended_asks_again_when_it_is_resumed(bench: Bench) -> None:
    limit(bench)
    first, second = bench.claim().claim, *others(bench, 1)
    take(bench, first)
    refuse(bench, second)
    bench.store.sessions.suspend(second.ref.session_id, reason="a freeze")
    give(bench, first)
    assert line(bench) == [], "it stands in nobody's way"
    assert bench.store.sessions.resume(second.ref.session_id).outcome == "changed"
    assert claims_again(bench, second)


def test_who_waits_where_the_limit_is_zero_stands_in_no_other_line(bench: Bench) -> None:
    claim, newcomer = bench.claim().claim, *others(bench, 1)
    limit(bench, total=0, customer=1)
    assert refuse(bench, claim, ACME, TOTAL) == NoneFree(TOTAL, 0)
    assert (line(bench, ACME), line(bench)) == ([], [claim.ref.session_id])
    assert isinstance(take(bench, newcomer, ACME), Taken)


@pytest.fixture
def waits_elsewhere(bench: Bench) -> tuple[Claim, Claim]:
    """One that was called for the bank and waits in the line of its customer before, and one behind it for the bank."""
    limit(bench, total=None, customer=1)
    bench.store.flow.set_value(ConcurrencyLimit("bank", total=1))
    holds, other, waits, behind = bench.claim().claim, *others(bench, 3)
    take(bench, holds, BANK)
    take(bench, other, ACME)
    refuse(bench, waits, BANK, of_call=True)
    refuse(bench, behind, BANK, of_call=True)
    give(bench, holds, BANK)
    time.sleep(0.002)  # claims of one session are told apart by their times
    again = successor_of(bench, waits, is_given_back=True)
    refuse(bench, again, ACME)
    return again, behind


def call_again(bench: Bench, claim: Claim, part: LimitPart) -> None:
    make_overdue(bench, claim, part)
    bench.store.flow.call_waiting()


def test_who_waits_in_another_line_keeps_its_place(bench: Bench, waits_elsewhere: tuple[Claim, Claim]) -> None:
    waits, behind = waits_elsewhere
    call_again(bench, waits, BANK)
    assert line(bench, BANK) == [waits.ref.session_id, behind.ref.session_id]
    assert not claims_again(bench, behind)


@pytest.mark.parametrize("is_removed", [False, True])
def test_who_waits_in_another_line_where_nothing_may_begin_is_passed(
    bench: Bench, waits_elsewhere: tuple[Claim, Claim], is_removed: bool
) -> None:
    waits, behind = waits_elsewhere
    if is_removed:  # as after a loss of Redis
        bench.database("HDEL", bench.store.context.fleet.flow, concurrency_field("crm"))
    else:
        limit(bench, total=None, customer=0)
    call_again(bench, waits, BANK)
    assert line(bench, BANK) == [behind.ref.session_id]
    assert claims_again(bench, behind)


def test_who_waits_where_nothing_may_begin_any_more_is_passed_in_the_lines_before_that(bench: Bench) -> None:
    limit(bench)
    bench.store.flow.set_value(ConcurrencyLimit("bank", total=1))
    first, second, third = bench.claim().claim, *others(bench, 2)
    take(bench, first)
    assert refuse(bench, second, BANK, TOTAL).part == TOTAL
    refuse(bench, third, BANK)
    bench.store.flow.call_waiting()
    assert line(bench, BANK) == [second.ref.session_id, third.ref.session_id]
    limit(bench, total=0)
    call_again(bench, second, BANK)
    assert (line(bench, BANK), line(bench)) == ([third.ref.session_id], [second.ref.session_id])
    assert claims_again(bench, third)


def two_in_line(bench: Bench, full: LimitPart) -> tuple[Claim, Claim]:
    """Two claims that wait for a customer's holder, which is free by now; that of another part is taken."""
    limit(bench, total=None, customer=1)
    first, other, waits, behind = bench.claim().claim, *others(bench, 3)
    take(bench, first, ACME)
    take(bench, other, full)
    refuse(bench, waits, ACME)
    refuse(bench, behind, ACME)
    give(bench, first, ACME)
    time.sleep(0.002)  # claims of one session are told apart by their times
    return waits, behind


def test_who_waits_in_the_line_of_another_customer_by_now_is_passed(bench: Bench) -> None:
    bolt = LimitPart("crm", "customer", "bolt")
    waits, behind = two_in_line(bench, bolt)
    refuse(bench, successor_of(bench, waits, is_given_back=True), bolt)
    call_again(bench, waits, ACME)
    assert (line(bench, ACME), line(bench, bolt)) == ([behind.ref.session_id], [waits.ref.session_id])
    assert claims_again(bench, behind)


def test_who_has_had_its_step_and_waits_for_a_call_is_passed_where_it_stood_for_the_step(bench: Bench) -> None:
    bench.store.flow.set_value(ConcurrencyLimit("bank", total=1))
    waits, behind = two_in_line(bench, BANK)
    again = successor_of(bench, waits, is_given_back=True)
    assert isinstance(take(bench, again, TOTAL), Taken), "the limit was without labels for a moment"
    refuse(bench, again, BANK, of_call=True)
    give(bench, again, TOTAL)
    call_again(bench, waits, ACME)
    assert (line(bench, ACME), line(bench, BANK)) == ([behind.ref.session_id], [waits.ref.session_id])
    assert claims_again(bench, behind)


def test_who_runs_without_needing_the_holder_any_more_leaves_the_line_at_its_second_call(bench: Bench) -> None:
    limit(bench)
    first, second, third = bench.claim().claim, *others(bench, 2)
    take(bench, first)
    refuse(bench, second)
    refuse(bench, third)
    give(bench, first)
    assert claims_again(bench, second)  # and it takes no holder
    bench.store.flow.call_waiting()
    assert line(bench) == [second.ref.session_id, third.ref.session_id], "it was called just now"
    make_overdue(bench, second)
    bench.store.flow.call_waiting()
    assert line(bench) == [third.ref.session_id]
    assert claims_again(bench, third)


def test_a_call_whose_worker_died_is_made_again(bench: Bench) -> None:
    limit(bench)
    first, second = bench.claim().claim, *others(bench, 1)
    take(bench, first)
    refuse(bench, second)
    bench.spy.lose(Points.FLOW_READ)
    with pytest.raises(Exception, match="lost"):
        give(bench, first)
    bench.store.flow.call_waiting()
    assert not claims_again(bench, second), "it was called just now"
    make_overdue(bench, second)
    bench.store.flow.call_waiting()
    assert claims_again(bench, second)


def test_a_step_that_was_asked_to_stop_is_not_put_off(bench: Bench) -> None:
    limit(bench, total=0)
    claim = bench.claim().claim
    assert isinstance(take(bench, claim), NoneFree)
    bench.stop()
    put_off(bench, claim)
    assert claims_again(bench, claim)
    assert EventType.STEP_DELAYED not in events(bench)


def label(bench: Bench, session: str, customer: str) -> None:
    labels = f'{{"customer":"{customer}"}}'.encode()
    bench.database("HSET", bench.store.context.keys(session).session, "labels", labels)


def test_the_labels_of_a_child_are_those_of_its_root_where_it_has_none(bench: Bench) -> None:
    bench.submit()
    label(bench, bench.session, "acme")
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    assert request.child is not None
    assert bench.store.flow.labels_of(request.child.session_id) == {"customer": "acme"}
    assert bench.store.flow.labels_of(bench.session) == {"customer": "acme"}


def test_a_fork_and_its_children_have_the_labels_of_the_fork_alone(bench: Bench) -> None:
    bench.submit()
    label(bench, bench.session, "acme")
    bench.commit(bench.claim(), final=True)
    fork = f"{bench.session}.{0:032x}"
    bench.store.sessions.fork(bench.session, fork, Copy(change=lambda it, parts: (replace(it, labels={}), parts)))
    assert bench.store.flow.labels_of(fork) == {}
    bench.session = fork
    bench.execution = bench.message("go on").execution_id
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    assert request.child is not None
    assert bench.store.flow.labels_of(request.child.session_id) == {}
    label(bench, fork, "bolt")
    assert bench.store.flow.labels_of(request.child.session_id) == {"customer": "bolt"}
