"""Limits and pauses as data, and requests that are reserved and settled, on every store."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_agents.flow import BucketStatus, ModelEndpoint, Pause, ProviderLimit
from celery_agents.worker.errors import StoreUnavailable
from celery_agents.worker.flow.values import (
    AT_PROVIDER,
    FlowView,
    LearnedLimit,
    ProviderFacts,
    limit_field,
    pause_field,
)
from celery_agents.worker.store import Claim, Claimed, NotClaimed, NotClaimedReason
from celery_agents.worker.store.flow.forwarding import bring_forward
from celery_agents.worker.store.flow.records import (
    CallCounts,
    Refused,
    Reservation,
    Settled,
    Settlement,
)
from celery_agents.worker.store.keys import BucketKeys

from support.asking import HOUR_MS, control, events, now_ms
from support.points import Points
from support.store import Bench, NewBench

pytestmark = pytest.mark.leaves_keys("sessions are put off")

M = ModelEndpoint("openai:m", "", "team")
SLOW = ProviderLimit("openai:m", rpm=1)
"""One request at once, the next one a minute later."""


def keys(bench: Bench) -> BucketKeys:
    """The keys of the bucket of `M`."""
    return bench.store.context.fleet.rate(M.digest)


def reserve(bench: Bench, claim: Claim, limit: ProviderLimit | None = SLOW, call: str = "1", **cost: float) -> Any:
    costs: Mapping[Any, float] = cost
    return bench.store.flow.reserve(claim, M, limit, call=call, cost=costs, lease_ms=60_000)


def admitted(bench: Bench, claim: Claim, limit: ProviderLimit | None = SLOW, call: str = "1") -> Reservation:
    found = reserve(bench, claim, limit, call)
    assert isinstance(found, Reservation), found
    return found


def refused(bench: Bench, claim: Claim, limit: ProviderLimit | None = SLOW, call: str = "1") -> Refused:
    found = reserve(bench, claim, limit, call)
    assert isinstance(found, Refused), found
    return found


def settlement(reservation: Reservation, kind: Any = "ok", **facts: Any) -> Settlement:
    told = ProviderFacts(kind=kind, **facts)
    return Settlement(reservation, told, CallCounts("w1"), used={"requests": 1})


def settle(bench: Bench, reservation: Reservation, kind: Any = "ok", **facts: Any) -> Settled:
    return bench.store.flow.settle(settlement(reservation, kind, **facts))


def others(bench: Bench, count: int) -> list[Claim]:
    """Claims of further sessions."""
    found: list[Claim] = []
    for _ in range(count):
        bench.session, bench.execution = f"s-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
        bench.submit()
        found.append(bench.claim().claim)
    return found


def hand_back(bench: Bench, claim: Claim, put_off: str, delay_ms: int = HOUR_MS) -> None:
    bench.store.steps.release(claim, delay_ms=delay_ms, give_back=True, reason="later", put_off=put_off)


def status(bench: Bench) -> BucketStatus:
    return next(each for each in bench.store.flow.buckets() if each.bucket == M)


def held(bench: Bench) -> int:
    return bench.database("ZCARD", keys(bench).held)


# --- limits and pauses ------------------------------------------------------------------------------------------------


def test_limits_are_found_by_the_group_and_else_for_every_group(bench: Bench) -> None:
    flow = bench.store.flow
    assert flow.view().is_empty
    every, team = ProviderLimit("openai:m", rpm=5), ProviderLimit("openai:m", tpm=900, group="team")
    flow.set_value(every, by="ann")
    flow.set_value(team)
    view = flow.view()
    of_team, of_other = view.limit_of(M), view.limit_of(ModelEndpoint("openai:m", "", "other"))
    assert of_team is not None
    assert of_other is not None
    assert (of_team.per_minute, of_other.per_minute) == (team.per_minute, every.per_minute)
    assert (of_team.by, of_other.by) == ("", "ann")
    assert abs(of_other.since_ms - now_ms(bench)) < 10_000
    assert view.must_reserve(M)
    assert not view.must_reserve(ModelEndpoint("openai:n"))
    assert flow.remove_value(limit_field("openai:m", "team"))
    assert not flow.remove_value(limit_field("openai:m", "team"))
    assert flow.remove_value(limit_field("openai:m", None))
    assert flow.view().is_empty


def test_a_pause_holds_until_it_is_ended_or_its_time_is_over(bench: Bench) -> None:
    flow, soon = bench.store.flow, datetime.now(UTC) + timedelta(hours=1)
    flow.pause(Pause("provider", "openai", reason="the bill", by="ann"))
    flow.pause(Pause("tool", "refund", reason="the bank is down", until=soon, tell=True))
    view = flow.view()
    found = view.pause_of("provider", "openai", view.at_ms)
    assert found is not None
    assert (found.reason, found.by, found.kind) == ("the bill", "ann", "provider")
    refund = view.pause_of("tool", "refund", view.at_ms)
    assert refund is not None
    assert refund.until_ms == round(soon.timestamp() * 1000)
    assert view.pause_of("tool", "refund", refund.until_ms) is None, "its time is over"
    assert view.pause_of("agent", "refund", view.at_ms) is None
    assert flow.unpause("provider", "openai")
    assert not flow.unpause("provider", "openai")
    assert flow.view().pause_of("provider", "openai", view.at_ms) is None


def test_what_is_over_is_no_longer_seen_and_the_prune_removes_it(bench: Bench) -> None:
    flow, past = bench.store.flow, datetime.now(UTC) - timedelta(hours=1)
    flow.pause(Pause("queue", "slow", reason="maintenance", until=past))
    flow.pause(Pause("queue", "", reason="maintenance"))
    flow.set_value(SLOW)
    claim = bench.claim().claim
    admitted(bench, claim)
    bench.database(
        "HSET",
        bench.store.context.fleet.flow,
        "bucket:0000000000000000",
        b'1 ["gone","",""]',
        "limit:x",
        b"{",
        "pause:tool:x",
        b"\xff",
    )
    assert list(flow.view().pauses) == ["pause:queue:"]
    assert not flow.view().buckets
    bench.store.housekeeping.prune()
    left = set(bench.database("HGETALL", bench.store.context.fleet.flow)[::2])
    assert left == {b"pause:queue:", b"limit:openai:m", f"bucket:{M.digest}".encode(), b"limit:x", b"pause:tool:x"}


# --- reserving --------------------------------------------------------------------------------------------------------


def test_a_request_goes_and_the_next_gets_an_appointment(bench: Bench) -> None:
    first, second, third = bench.claim().claim, *others(bench, 2)
    admitted(bench, first)
    answers = [refused(bench, second), refused(bench, third)]
    assert [answer.why for answer in answers] == ["rate", "rate"]
    assert (answers[0].dimension, answers[0].per_minute, answers[0].source) == ("requests", 1, "set")
    assert 50_000 < answers[0].wait_ms <= 60_000
    assert 110_000 < answers[1].wait_ms <= 120_000, "one after another, not as a herd"
    assert refused(bench, second).wait_ms <= answers[0].wait_ms, "who asks again keeps the place"
    assert (status(bench).in_flight, status(bench).waiting) == (1, 2)


def test_a_reservation_that_is_asked_for_again_counts_once(bench: Bench) -> None:
    claim = bench.claim().claim
    bench.spy.lose(Points.FLOW_RESERVE)
    with pytest.raises(StoreUnavailable):
        reserve(bench, claim)
    admitted(bench, claim)
    assert held(bench) == 1
    (another,) = others(bench, 1)
    assert refused(bench, another).wait_ms <= 60_000


def test_a_limit_of_zero_admits_nothing_until_it_is_raised(bench: Bench) -> None:
    claim = bench.claim().claim
    nothing = ProviderLimit("openai:m", tpm=0)
    bench.store.flow.set_value(nothing)
    answer = refused(bench, claim, nothing)
    assert (answer.why, answer.dimension) == ("zero", "tokens")
    hand_back(bench, claim, M.digest)
    bench.store.flow.set_value(ProviderLimit("openai:m", tpm=10))
    assert not bench.store.flow.bring_forward(limit_field("openai:m", "another")), "of another group"
    assert len(bench.store.flow.bring_forward(nothing.field)) == 1
    assert isinstance(bench.answer(), Claimed)


def test_what_costs_more_than_a_minute_goes_when_nothing_is_owed(bench: Bench) -> None:
    first, second = bench.claim().claim, *others(bench, 1)
    limit = ProviderLimit("openai:m", tpm=1000)
    assert isinstance(reserve(bench, first, limit, tokens=99_999), Reservation)
    answer = reserve(bench, second, limit, tokens=1)
    assert isinstance(answer, Refused)
    assert answer.wait_ms <= 60_000


@pytest.mark.one_server("a bucket is on another node")
def test_the_reservation_of_a_worker_that_died_ends_with_its_lease(bench: Bench) -> None:
    first, second = bench.claim().claim, *others(bench, 1)
    reservation = admitted(bench, first, None)
    settle(bench, reservation, "rate_limit", retry_after=0.0)
    bench.database("HDEL", keys(bench).bucket, "at:requests", "learned:requests")
    dead = admitted(bench, first, None, "2")
    assert refused(bench, second, None).why == "window"
    bench.end_lease(first)
    bench.database("DEL", keys(bench).line)
    admitted(bench, second, None)
    assert not settle(bench, dead).refused
    assert held(bench) == 1


# --- settling ---------------------------------------------------------------------------------------------------------


@pytest.mark.one_server("a bucket is on another node")
def test_an_answer_is_journaled_and_settled_in_one_round_trip(bench: Bench) -> None:
    claim = bench.claim().claim
    asked = settlement(admitted(bench, claim))
    bench.spy.sent.clear()
    assert bench.store.steps.record_answer(claim, b"raw", asked) == b"raw"
    assert bench.spy.points == [Points.JOURNAL_ANSWER]
    assert asked.settled == Settled()
    assert held(bench) == 0
    assert bench.store.flow.settle(asked) == Settled(), "it is settled already"
    assert bench.spy.points == [Points.JOURNAL_ANSWER]


@pytest.mark.one_server("a bucket is on another node")
def test_what_was_reserved_too_much_is_given_back_once(bench: Bench) -> None:
    claim, limit = bench.claim().claim, ProviderLimit("openai:m", tpm=60_000)
    found = reserve(bench, claim, limit, tokens=60_000)
    assert isinstance(found, Reservation)
    reserved = float(bench.database("HGET", keys(bench).bucket, "at:tokens"))
    asked = settlement(found)
    asked.used = {"tokens": 20_000}
    bench.spy.lose(Points.JOURNAL_AUXILIARY)
    with pytest.raises(StoreUnavailable):
        bench.store.steps.record_auxiliary(claim, "title", b"raw", asked)
    assert asked.settled is None
    for _ in range(2):
        bench.store.steps.record_auxiliary(claim, "title", b"raw", asked)
    given_back = reserved - float(bench.database("HGET", keys(bench).bucket, "at:tokens"))
    assert abs(given_back - 40_000) < 1, "a token takes a millisecond"


def test_a_refusal_holds_the_fleet_back_and_teaches_it_a_rate(bench: Bench) -> None:
    first, second = bench.claim().claim, *others(bench, 1)
    sent = bench.store.flow.unreserved(first, M, call="1")
    asked = settlement(sent, "rate_limit", retry_after=1.5)
    asked.counts = CallCounts("w1", last_minute=4, accepted=3, busy_seconds=1.5)
    told = bench.store.flow.settle(asked)
    assert (told.learned, told.refused, told.opened, told.closed) == (True, True, False, False)
    view = bench.store.flow.view()
    assert view.buckets == {M.digest: M}, "from now on every worker asks"
    answer = refused(bench, second, None)
    assert answer.why == "not_before"
    assert 0 < answer.wait_ms <= 1_600
    (learned,) = status(bench).learned
    assert (learned.dimension, learned.source) == ("requests", "refusals")
    assert learned.per_minute == pytest.approx(60.0, rel=0.02), "3 answers in 1.5 s and 1.5 s more"
    # Another request that was in flight is no new refusal; the answers of another worker count.
    asked = settlement(bench.store.flow.unreserved(second, M, call="1"), "rate_limit", retry_after=1.0)
    asked.counts = CallCounts("w2", accepted=6)
    assert not bench.store.flow.settle(asked).refused
    assert status(bench).learned[0].per_minute == pytest.approx(180.0, rel=0.02)
    assert status(bench).window == 1


def test_what_a_provider_says_outranks_our_arithmetic(bench: Bench) -> None:
    claim = bench.claim().claim
    settle(bench, admitted(bench, claim, None), limits={"requests": 60.0}, remaining={"requests": 50})
    assert status(bench).learned == (LearnedLimit("requests", 60.0, "header", status(bench).learned[0].at_ms),)
    settle(bench, admitted(bench, claim, None, "2"), limits={"requests": 60.0}, remaining={"requests": 0})
    answer = refused(bench, claim, None, "3")
    assert (answer.why, answer.source, answer.per_minute) == ("rate", "header", 60.0)
    # A limit that was set below is kept, whatever is left of the provider's.
    settle(
        bench, bench.store.flow.unreserved(claim, M, call="4"), limits={"requests": 60.0}, remaining={"requests": 55}
    )
    settle(bench, admitted(bench, claim, None, "5"), limits={"requests": 60.0}, remaining={"requests": 55})
    low = ProviderLimit("openai:m", rpm=2)
    settle(bench, admitted(bench, claim, low, "6"), limits={"requests": 60.0}, remaining={"requests": 55})
    assert refused(bench, claim, low, "7").source == "set"


def test_a_used_up_quota_is_a_pause_with_probes_and_ends_by_hand(bench: Bench) -> None:
    claim = bench.claim().claim
    told = settle(bench, bench.store.flow.unreserved(claim, M, call="1"), "quota")
    assert not told.refused
    answer = refused(bench, claim, None, "2")
    assert answer.why == "quota"
    assert 890_000 < answer.wait_ms <= 900_000, "a probe each 15 minutes"
    assert status(bench).why == "quota"
    assert answer.since_ms == status(bench).not_before_ms
    assert bench.store.flow.unpause("model", "openai:m")
    admitted(bench, claim, None, "2")


# --- the breaker ------------------------------------------------------------------------------------------------------


def open_breaker(bench: Bench) -> list[Claim]:
    """Five failed calls of three sessions."""
    claims = [bench.claim().claim, *others(bench, 2)]
    told = [
        settle(bench, bench.store.flow.unreserved(claims[number % 3], M, call=f"f{number}"), "outage")
        for number in range(5)
    ]
    assert [each.opened for each in told] == [False] * 4 + [True]
    return claims


def let_probe(bench: Bench) -> None:
    """As if the time of the next probe had come."""
    bench.database("HSET", keys(bench).bucket, "probe_at", 1)


@pytest.mark.one_server("a bucket is on another node")
def test_one_probe_goes_at_a_time_and_its_success_brings_the_others_forward(bench: Bench) -> None:
    one, two, three = open_breaker(bench)
    answer = refused(bench, one, None)
    assert answer.why == "breaker"
    assert 4_000 < answer.wait_ms <= 5_000
    let_probe(bench)
    probe = admitted(bench, one, None)
    assert probe.is_probe
    assert refused(bench, two, None).why == "breaker"
    hand_back(bench, two, M.digest)
    let_probe(bench)
    assert refused(bench, three, None).why == "breaker", "the probe is under way"
    asked = settlement(probe)
    bench.spy.lose(Points.JOURNAL_ANSWER)
    with pytest.raises(StoreUnavailable):
        bench.store.steps.record_answer(one, b"raw", asked)
    bench.store.steps.record_answer(one, b"raw", asked)
    assert asked.settled == Settled(closed=True), "whoever settles again is told, too"
    assert status(bench).away_since_ms == 0
    assert len(bench.store.flow.bring_forward(M.digest)) == 1
    hand_back(bench, three, M.digest)
    assert control(bench, "not_before") == ["0"], "it was refused before, and put off afterwards"


@pytest.mark.one_server("a bucket is on another node")
def test_a_failed_or_dead_probe_leaves_its_place(bench: Bench) -> None:
    one, two, _ = open_breaker(bench)
    let_probe(bench)
    settle(bench, admitted(bench, one, None), "outage")
    assert refused(bench, two, None).wait_ms <= 5_000 + 1_000
    let_probe(bench)
    bench.database("DEL", keys(bench).line)
    assert admitted(bench, one, None, "2").is_probe
    bench.end_lease(one)
    let_probe(bench)
    assert admitted(bench, two, None).is_probe


def test_refusals_of_the_rate_open_no_breaker(bench: Bench) -> None:
    claims = [bench.claim().claim, *others(bench, 2)]
    for number in range(9):
        sent = bench.store.flow.unreserved(claims[number % 3], M, call=str(number))
        assert not settle(bench, sent, "rate_limit", retry_after=0.0).opened
    assert bench.database("ZCARD", keys(bench).failures) == 0


# --- steps that are put off -------------------------------------------------------------------------------------------


def test_a_step_that_is_put_off_counts_nothing_and_says_why(bench: Bench) -> None:
    claim = bench.claim().claim
    field = pause_field("agent", "agent")
    bench.store.flow.pause(Pause("agent", "agent", reason="a freeze"))
    hand_back(bench, claim, field)
    assert control(bench, "attempts", "delays", "put_off", "why") == ["0", "0", field, "later"]
    facts = bench.store.sessions.step_facts(bench.session)
    assert (facts.put_off, facts.reason, facts.delays) == (field, "later", 0)
    assert [each.reason for each in bench.store.housekeeping.list_delayed()] == ["later"]
    (waiting,) = bench.store.sessions.waiting(10).sessions
    assert waiting.put_off == field
    assert bench.answer() == NotClaimed(NotClaimedReason.NOT_YET)
    assert events(bench)[-1] == "step_delayed"


def test_time_in_which_a_step_is_put_off_does_not_count_as_retrying(bench: Bench) -> None:
    bench.store.steps.release(bench.claim().claim, delay_ms=0, give_back=True, reason="503")
    before = int(control(bench, "delayed")[0])
    claimed = bench.claim()
    assert claimed.loaded.delays == 1
    bench.store.flow.pause(Pause("agent", "agent", reason="a freeze"))
    hand_back(bench, claimed.claim, pause_field("agent", "agent"))
    assert 0 <= int(control(bench, "delayed")[0]) - before - HOUR_MS < 5_000, "an hour, and until it was claimed"
    bench.store.flow.unpause("agent", "agent")
    assert len(bench.store.flow.bring_forward(pause_field("agent", "agent"))) == 1
    assert abs(int(control(bench, "delayed")[0]) - before) < 5_000
    assert bench.claim().loaded.delays == 1


@pytest.mark.parametrize("is_held", [True, False])
def test_time_in_which_a_delayed_step_is_due_and_not_run_does_not_count_as_retrying(
    bench: Bench, is_held: bool
) -> None:
    bench.store.steps.release(bench.claim().claim, delay_ms=0, give_back=True, reason="503")
    keys = bench.store.context.keys(bench.session)
    delayed, due = (int(value) - 25 * HOUR_MS for value in control(bench, "delayed", "not_before"))
    bench.database("HSET", keys.ctl, "delayed", delayed, "not_before", due)  # it was so 25 hours ago
    if is_held:
        bench.store.sessions.suspend(bench.session, reason="a freeze", by="ann")
        bench.store.sessions.resume(bench.session, by="ann")
    claimed = bench.claim()
    assert claimed.loaded.now_ms - claimed.loaded.tried_since_ms < 5_000
    bench.store.steps.release(claimed.claim, delay_ms=0, give_back=True, reason="503")
    again = bench.claim().loaded
    assert (again.delays, again.now_ms - again.tried_since_ms < 10_000) == (2, True)


def test_those_that_were_put_off_by_the_same_are_brought_forward_and_no_others(bench: Bench) -> None:
    flow, mine, other = bench.store.flow, pause_field("agent", "agent"), pause_field("tool", "tool")
    flow.pause(Pause("agent", "agent", reason="a freeze"))
    flow.pause(Pause("tool", "tool", reason="a freeze"))
    claims = [bench.claim().claim, *others(bench, 4)]
    for number, claim in enumerate(claims):
        hand_back(bench, claim, other if number == 2 else mine, HOUR_MS - number * 1000)
    bench.store.steps.release(others(bench, 1)[0], delay_ms=HOUR_MS, give_back=True)
    found = flow.bring_forward(mine)
    assert [ref and ref.session_id for ref in found] == [claims[number].ref.session_id for number in (4, 3, 1, 0)]
    assert len(flow.bring_forward(mine)) == 0


def test_bringing_forward_reads_in_pages_also_what_is_due_at_the_same_moment(bench: Bench) -> None:
    claims = [bench.claim().claim, *others(bench, 6)]
    field = pause_field("agent", "agent")
    bench.store.flow.pause(Pause("agent", "agent", reason="a freeze"))
    until = now_ms(bench) + HOUR_MS
    for claim in claims:
        hand_back(bench, claim, field)
        keys = bench.store.context.keys(claim.ref.session_id)
        bench.database("ZADD", keys.shard.delayed, until, claim.ref.session_id)
    assert len(bring_forward(bench.store.context, [field], page=2)) == 7


@pytest.mark.parametrize("phase", ["claimed", "held", "stopped"])
def test_a_step_that_goes_on_otherwise_is_not_brought_forward(bench: Bench, phase: str) -> None:
    field = pause_field("agent", "agent")
    bench.store.flow.pause(Pause("agent", "agent", reason="a freeze"))
    hand_back(bench, bench.claim().claim, field)
    ctl = bench.store.context.keys(bench.session).ctl
    if phase == "claimed":
        bench.database("HSET", ctl, "claim", "another")
    elif phase == "held":
        bench.store.sessions.suspend(bench.session, reason="a freeze", by="ann")
    else:
        bench.database("HSET", ctl, "phase", "end")
    assert len(bench.store.flow.bring_forward(field)) == 0


def test_a_step_that_is_put_off_after_its_pause_has_ended_comes_at_once(bench: Bench) -> None:
    claim = bench.claim().claim
    ref = bench.store.steps.release(
        claim, delay_ms=HOUR_MS, give_back=True, reason="later", put_off=pause_field("agent", "agent")
    )
    assert ref == claim.ref, "for a queue that is elsewhere"
    assert isinstance(bench.answer(), Claimed)


@pytest.mark.parametrize(
    ("changes", "comes"),
    [({}, False), ({"hours": 2}, False), ({"hours": 1}, False), ({"hours": 0.5}, True), ({"tell": True}, True)],
    ids=str,
)
def test_a_step_that_is_put_off_after_its_pause_was_replaced_comes_as_the_new_one_says(
    bench: Bench, changes: Mapping[str, Any], comes: bool
) -> None:
    flow, claim = bench.store.flow, bench.claim().claim
    assert not flow.pause(Pause("tool", "refund", reason="a freeze"))
    hours = changes.get("hours")
    until = None if hours is None else datetime.fromtimestamp(now_ms(bench) / 1000, UTC) + timedelta(hours=hours)
    assert flow.pause(Pause("tool", "refund", reason="another", until=until, tell="tell" in changes))
    put_off = pause_field("tool", "refund")
    ref = bench.store.steps.release(claim, delay_ms=HOUR_MS, give_back=True, reason="later", put_off=put_off)
    assert ref == (claim.ref if comes else None)
    assert flow.unpause("tool", "refund")


def test_a_limit_without_a_bucket_is_listed(bench: Bench) -> None:
    limit = ProviderLimit("openai:n", rpm=3, group="team")
    bench.store.flow.set_value(limit)
    (found,) = bench.store.flow.buckets()
    assert found.limit is not None
    assert found.bucket == ModelEndpoint("openai:n", "", "team")
    assert found.limit == limit.set_by("", found.limit.since_ms)


def test_an_empty_view_holds_nothing_back() -> None:
    view = FlowView()
    assert view.is_empty
    assert not view.must_reserve(M)
    assert view.pause_of("provider", "openai", 0) is None


def test_delayed_steps_behind_many_at_their_providers_are_listed(new_bench: NewBench) -> None:
    bench, field = new_bench(shards=2), pause_field("agent", "agent")
    bench.store.flow.pause(Pause("agent", "agent", reason="a freeze"))
    claims = others(bench, 12)
    for number, claim in enumerate(claims):
        cause = field if number in (7, 11) else AT_PROVIDER
        hand_back(bench, claim, cause, delay_ms=HOUR_MS + number * 1000)
    housekeeping = bench.store.housekeeping
    late = [claims[number].ref.session_id for number in (7, 11)]
    assert [each.session_id for each in housekeeping.list_delayed(3)] == [each.ref.session_id for each in claims[:3]]
    assert [each.session_id for each in housekeeping.list_delayed(3, without=AT_PROVIDER)] == late
    assert [each.session_id for each in housekeeping.list_delayed(1, without=AT_PROVIDER)] == late[:1]
