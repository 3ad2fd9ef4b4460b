"""A step that waits gives everything back but its journal, and wakes by an answer, its time or a stop, on every store."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from celery_agents.worker import crash_points
from celery_agents.worker.engine import retry_transition, stop_transition
from celery_agents.worker.errors import ClaimLost, RequestNotOpen, StateUnreadable, VersionConflict
from celery_agents.worker.moments import moment
from celery_agents.worker.state import (
    AnswerVerb,
    ExecutionBudget,
    ExecutionStatus,
)
from celery_agents.worker.store import Claimed, NotClaimed, NotClaimedReason, QueueSnapshot, StepRef
from celery_agents.worker.store.control import LONGEST_WAIT_MS
from celery_agents.worker.store.database import Database
from celery_agents.worker.store.memory.database import MemoryDatabase

from support.asking import (
    ANSWER,
    HOUR_MS,
    a_request,
    approve,
    ask,
    commit_leg,
    control,
    denial,
    events,
    failing_transition,
    header,
    indexed,
    now_ms,
    on_expiry,
    open_requests,
    refused_wait,
    soon,
    try_to_wait,
    wait,
    waiting_transition,
)
from support.fake_redis import FakeRedisDatabase
from support.points import Points
from support.store import Bench

pytestmark = pytest.mark.leaves_keys("executions wait")


# --- the wait ---------------------------------------------------------------------------------------------------------


def test_a_step_that_waits_gives_back_claim_lease_and_place_in_the_queue(bench: Bench) -> None:
    claimed = bench.claim()
    request = a_request(bench, expires_at_ms=soon(bench))
    waited = wait(bench, claimed, open_requests(bench, claimed, request), {3: b"a pure result"})
    assert waited.open == (request,)
    assert control(bench, "phase", "claim", "worker", "attempts", "legs") == ["wait", "", "", "0", "1"]
    assert bench.due() == request.expires_at_ms == waited.until_ms
    assert not bench.database("EXISTS", bench.shard.lease(claimed.claim.id))
    journal = bench.database("HGETALL", bench.journal(bench.ref()))
    assert (b"t3:r", b"a pure result") in list(zip(journal[::2], journal[1::2], strict=True))
    assert bench.database("PTTL", bench.journal(bench.ref())) == -1
    assert header(bench).status == "waiting"
    state = bench.store.sessions.load(bench.session).state
    assert state.status is ExecutionStatus.WAITING
    assert state.execution is not None
    assert [each.call for each in state.execution.waiting_for] == ["refund(cents=0)"]
    assert state.schema_version == 3, "a worker that knows no requests must not run the leg"
    assert events(bench)[-2:] == ["request_opened", "execution_waiting"]


def test_a_request_without_an_expiry_is_looked_at_in_thirty_days(bench: Bench) -> None:
    before = now_ms(bench)
    waited = ask(bench)
    assert before + LONGEST_WAIT_MS <= waited.until_ms <= now_ms(bench) + LONGEST_WAIT_MS
    assert bench.due() == waited.until_ms


def test_a_step_waits_no_longer_than_to_its_deadline(bench: Bench) -> None:
    claimed = bench.claim()
    journal = open_requests(bench, claimed, a_request(bench, expires_at_ms=soon(bench, 7200)))
    deadline = moment(now_ms(bench) + HOUR_MS)

    def transition(snapshot: Any) -> Any:
        found = waiting_transition(claimed, journal.open_requests)(snapshot)
        execution = found.state.execution.with_limits(ExecutionBudget(deadline=deadline), 0)
        return type(found)(found.state.with_context_and_execution(found.state.context, execution))

    waited = bench.store.steps.wait(claimed.claim, claimed.loaded, transition, seen=journal, results={})
    assert moment(waited.until_ms) - deadline < timedelta(milliseconds=1)


def test_a_claim_before_the_time_of_a_waiting_step_is_refused_and_changes_nothing(bench: Bench) -> None:
    ask(bench)
    before = bench.snapshot()
    assert bench.answer() == NotClaimed(NotClaimedReason.WAITING)
    assert bench.snapshot() == before


def test_an_answer_wakes_the_step_and_the_leg_finds_everything(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    assert approve(bench, request).outcome == "woken"
    assert control(bench, "phase", "not_before", "nudges") == ["run", "0", "0"]
    due = bench.due()
    assert due is not None
    assert due <= now_ms(bench) + 5000, "no expiry is needed to find it"
    leg = bench.claim()
    journal = leg.loaded.journal
    assert (leg.loaded.legs, journal.answer, journal.open_requests) == (1, ANSWER, ())
    record = journal.answer_to(request)
    assert record is not None
    assert (record.verb, record.by) == (AnswerVerb.APPROVE, "ann")
    assert header(bench).status == "in_progress"


def test_a_leg_may_wait_again_and_its_messages_have_another_id(bench: Bench) -> None:
    first, second = a_request(bench), a_request(bench, 1)
    ask(bench, first, second)
    woken = approve(bench, first)
    assert woken.publish == StepRef(bench.session, bench.execution, 1, legs=1)
    assert woken.publish is not None
    assert woken.publish.task_id == f"{bench.execution}.1.w1"
    leg = bench.claim()
    assert wait(bench, leg, leg.loaded.journal).open == (second,)
    again = approve(bench, second).publish
    assert again is not None
    assert again.task_id.endswith(".1.w2")
    assert indexed(bench) == []


def test_the_commit_of_a_leg_makes_an_ordinary_step_of_the_next(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    approve(bench, request)
    committed = commit_leg(bench, bench.claim())
    assert committed.next == StepRef(bench.session, bench.execution, 2)
    assert control(bench, "legs", "phase", "step") == ["", "run", "2"]
    state = bench.store.sessions.load(bench.session).state
    assert (state.status, state.schema_version) == (ExecutionStatus.IN_PROGRESS, 1)
    (resolution,) = state.execution.step_executions[0].step.tool_executions[0].resolutions  # pyright: ignore[reportOptionalMemberAccess]
    assert (resolution.request_id, resolution.by) == (request.id, "ann")
    bench.spy.sent.clear()
    bench.claim(2)
    expected = [Points.CLAIM_ATTEMPT] if bench.is_quick else [Points.CLAIM_FIRST, Points.CLAIM_LOAD]
    assert not bench.is_quick or bench.spy.points == expected


def test_the_time_of_waiting_does_not_count_and_that_of_a_leg_does(bench: Bench) -> None:
    request, other = a_request(bench), a_request(bench, 1)
    ask(bench, request, other)
    approve(bench, request)
    leg = bench.claim()
    wait(bench, leg, leg.loaded.journal)
    execution = bench.store.sessions.load(bench.session).state.execution
    assert execution is not None
    assert execution.waiting_since is not None
    assert execution.waiting_since >= moment(leg.claim.now_ms)
    assert execution.elapsed_seconds(execution.waiting_since + timedelta(days=3)) < 60


# --- what hinders a wait ----------------------------------------------------------------------------------------------


def test_an_answer_that_came_before_the_wait_is_found_by_it(bench: Bench) -> None:
    claimed = bench.claim()
    request, other = a_request(bench), a_request(bench, 1)
    journal = open_requests(bench, claimed, request, other)
    assert approve(bench, request).outcome == "recorded"
    refused = refused_wait(bench, claimed, journal)
    assert refused.journal.answers.keys() == {request.place}
    assert wait(bench, claimed, refused.journal).open == (other,)


def test_an_answer_in_the_middle_of_a_wait_is_not_lost(bench: Bench) -> None:
    claimed = bench.claim()
    request = a_request(bench)
    journal = open_requests(bench, claimed, request)
    bench.spy.before(Points.WAIT_EXEC, lambda: approve(bench, request))
    assert refused_wait(bench, claimed, journal).journal.open_requests == ()


def test_a_stop_keeps_a_step_from_waiting(bench: Bench) -> None:
    claimed = bench.claim()
    journal = open_requests(bench, claimed, a_request(bench))
    bench.spy.before(Points.WAIT_EXEC, lambda: bench.store.sessions.stop(bench.session, None, stop_transition))
    assert refused_wait(bench, claimed, journal).cancel == bench.execution


def test_a_step_without_an_open_request_does_not_wait(bench: Bench) -> None:
    claimed = bench.claim()
    assert refused_wait(bench, claimed, claimed.loaded.journal).cancel is None


def test_a_wait_needs_the_claim_and_the_version(bench: Bench) -> None:
    claimed = bench.claim()
    journal = open_requests(bench, claimed, a_request(bench))
    session = bench.store.context.keys(bench.session).session
    bench.database("HSET", session, "version", 7)
    with pytest.raises(VersionConflict):
        try_to_wait(bench, claimed, journal)
    bench.database("HSET", session, "version", 1)
    bench.end_lease(claimed.claim)
    bench.claim()
    with pytest.raises(ClaimLost):
        try_to_wait(bench, claimed, journal)


def test_a_deleted_session_is_not_written_again_by_a_wait(bench: Bench) -> None:
    claimed = bench.claim()
    journal = open_requests(bench, claimed, a_request(bench))
    keys = bench.store.context.keys(bench.session)
    bench.database("DEL", keys.session, keys.ctl, keys.events, bench.journal(bench.ref()))
    with pytest.raises(ClaimLost):
        try_to_wait(bench, claimed, journal)
    assert not bench.database("EXISTS", keys.session, keys.ctl)


def test_a_wait_whose_reply_was_lost_is_recognised(bench: Bench) -> None:
    claimed = bench.claim()
    request = a_request(bench)
    journal = open_requests(bench, claimed, request)
    bench.spy.lose(Points.WAIT_EXEC)
    waited = wait(bench, claimed, journal)
    assert (waited.open, waited.version) == ((request,), 2)
    assert control(bench, "legs") == ["1"]
    assert events(bench).count("execution_waiting") == 1


def test_a_wait_whose_reply_was_lost_leaves_a_step_that_another_has(bench: Bench) -> None:
    claimed = bench.claim()
    request = a_request(bench)
    journal = open_requests(bench, claimed, request)

    def go_on() -> None:
        approve(bench, request)
        bench.claim()

    bench.spy.lose(Points.WAIT_EXEC)
    bench.spy.after(2, go_on)
    with pytest.raises(ClaimLost):
        try_to_wait(bench, claimed, journal)


# --- waking by time ---------------------------------------------------------------------------------------------------


def test_the_sweep_finds_a_step_whose_request_has_expired(bench: Bench) -> None:
    request = a_request(bench, expires_at_ms=soon(bench, -1))
    ask(bench, request)
    (lost,) = [ref for ref in _sweep(bench) if ref.session_id == bench.session]
    assert lost.task_id.endswith(".1.w1")
    leg = bench.claim()
    assert leg.loaded.journal.open_requests == (request,)
    assert control(bench, "phase") == ["run"], "phase wait means: no claim"
    assert events(bench).count("execution_resumed") == 1


def test_a_leg_answers_at_the_expiry_and_the_first_answer_counts(bench: Bench) -> None:
    request, other = (a_request(bench, index, expires_at_ms=soon(bench, -1)) for index in (0, 1))
    ask(bench, request, other)
    leg = bench.claim()
    stored = bench.store.steps.close_requests(leg.claim, {request.id: denial(bench)})
    assert stored[request.id].by_expiry
    again = bench.store.steps.close_requests(leg.claim, {request.id: denial(bench, reason="another")})
    assert again == stored
    assert events(bench)[-1] == "request_expired"
    assert indexed(bench) == [other.id]


def test_an_answer_of_a_person_stays_when_a_leg_closes_the_request(bench: Bench) -> None:
    request, other = a_request(bench), a_request(bench, 1)
    ask(bench, request, other)
    approve(bench, other)
    leg = bench.claim()
    bench.spy.before(Points.REQUEST_CLOSE, lambda: approve(bench, request, by="auditor"))
    stored = bench.store.steps.close_requests(leg.claim, {request.id: denial(bench)})
    assert (stored[request.id].verb, stored[request.id].by) == (AnswerVerb.APPROVE, "auditor")


def test_a_request_that_is_passed_on_opens_its_next_round(bench: Bench) -> None:
    rule = on_expiry("pass_on", to="boss", after_ms=HOUR_MS)
    request = a_request(bench, expires_at_ms=soon(bench, -1), on_expiry=rule)
    ask(bench, request)
    leg = bench.claim()
    following = request.passed_on(now_ms(bench))
    record = denial(bench, verb="pass_on")
    stored = bench.store.steps.close_requests(leg.claim, {request.id: record}, opens=[following])
    journal = leg.loaded.journal.with_answers({request.place: stored[request.id]}).with_requests([following])
    waited = wait(bench, leg, journal)
    assert waited.open == (following,)
    assert (following.to, following.round) == ("boss", 1)
    assert following.id != request.id
    assert waited.until_ms == following.expires_at_ms
    assert indexed(bench) == [following.id]


def test_closing_a_request_needs_the_claim(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    approve(bench, request)
    leg = bench.claim()
    bench.end_lease(leg.claim)
    bench.claim()
    with pytest.raises(ClaimLost):
        bench.store.steps.close_requests(leg.claim, {request.id: denial(bench)})


# --- ends -------------------------------------------------------------------------------------------------------------


def test_a_stop_of_a_waiting_step_wakes_it_in_one_transaction(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    stopped = bench.store.sessions.stop(bench.session, bench.execution, stop_transition)
    assert stopped.outcome == "queued"
    assert stopped.publish == StepRef(bench.session, bench.execution, 1, legs=1)
    assert control(bench, "phase", "cancel", "not_before") == ["run", bench.execution, "0"]
    leg = bench.claim()
    assert leg.loaded.cancel == bench.execution
    cancelled = denial(bench, verb="cancel", by_expiry=False)
    bench.store.steps.close_requests(leg.claim, {request.id: cancelled})
    state = commit_leg(bench, leg).state
    assert state is not None
    assert state.status.is_terminal()
    assert control(bench, "phase", "legs", "cancel") == ["end", "", ""]
    assert (bench.due(), indexed(bench)) == (None, [])


@pytest.mark.parametrize("lost", [False, True])
def test_every_end_takes_open_requests_out_of_the_index(bench: Bench, lost: bool) -> None:
    ask(bench, a_request(bench, expires_at_ms=soon(bench, -1)))
    if lost:
        bench.spy.lose(bench.commits_at)
    commit_leg(bench, bench.claim(), failed=True)
    assert indexed(bench) == []
    assert control(bench, "phase", "legs") == ["end", ""]
    assert bench.database("PTTL", bench.journal(bench.ref())) > 0


def test_a_message_waits_behind_the_open_calls(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    assert bench.message("and hurry").outcome == "queued"
    assert control(bench, "phase") == ["wait"], "a message alone wakes nobody"
    approve(bench, request)
    assert bench.message("please").outcome == "queued", "the step's journal is open"
    commit_leg(bench, bench.claim())
    keys = bench.store.context.keys(bench.session)
    assert bench.database("LLEN", keys.inbox) == 0


@pytest.mark.parametrize("name", ["t0:q0", "t0:a0", "t0:q1"])
def test_a_damaged_request_is_named_and_the_rest_stays(bench: Bench, name: str) -> None:
    request = a_request(bench, expires_at_ms=soon(bench, -1))
    ask(bench, request)
    bench.database("HSET", bench.journal(bench.ref()), name, b"{")
    with pytest.raises(StateUnreadable, match=f"journal {name}"):
        approve(bench, request)
    with pytest.raises(StateUnreadable, match=f"journal {name}"):
        bench.answer()
    assert control(bench, "phase", "claim") == ["wait", ""]
    bench.store.steps.park(bench.ref(), "it is damaged")
    assert indexed(bench) == []


@pytest.mark.parametrize("field", ["legs", "held", "held inf", "held -1"])
def test_garbage_in_the_fields_of_waiting_parks_the_session(bench: Bench, field: str) -> None:
    ask(bench)
    name, _, value = field.partition(" ")
    bench.database("HSET", bench.store.context.keys(bench.session).ctl, name, value or "garbage")
    bench.make_due()
    _sweep(bench)
    assert control(bench, "phase") == ["parked"]
    assert bench.due() is None


def test_a_leg_that_was_killed_is_found_and_counted_as_any_other(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    approve(bench, request)
    first = bench.claim()
    bench.end_lease(first.claim)
    bench.make_due()
    assert [ref.legs for ref in _sweep(bench) if ref.session_id == bench.session] == [1]
    second = bench.claim()
    assert second.claim.attempt == 2
    assert second.loaded.journal.answer_to(request) is not None


def test_a_release_of_a_leg_publishes_it_under_its_own_id(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    approve(bench, request)
    ref = bench.store.steps.release(bench.claim().claim, delay_ms=None, give_back=True)
    assert ref is not None
    assert ref.task_id.endswith(".1.w1")


def test_a_parked_step_takes_answers_and_goes_on_when_it_is_retried(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    bench.store.steps.park(bench.ref(), "no worker can read it")
    assert indexed(bench) == [], "the inbox shows what somebody can go on with"
    assert approve(bench, request).outcome == "recorded"
    assert bench.due() is None
    bench.store.sessions.retry(bench.session, stop_transition)
    assert control(bench, "phase", "not_before") == ["run", "0"]
    assert bench.claim().loaded.journal.open_requests == ()


def test_a_retry_finds_the_requests_that_an_end_left_open(bench: Bench) -> None:
    request, other = a_request(bench), a_request(bench, 1)
    ask(bench, request, other)
    approve(bench, other)
    leg = bench.claim()
    fail = failing_transition(leg)
    bench.store.steps.commit(leg.claim, leg.loaded, fail, results={}, keep_claim=False)
    with pytest.raises(RequestNotOpen, match="left without an answer"):
        approve(bench, request)
    bench.store.sessions.retry(bench.session, retry_transition(None))
    assert approve(bench, request).outcome == "recorded"
    leg = bench.claim()
    assert leg.loaded.journal.open_requests == ()
    assert bench.database("PTTL", bench.journal(bench.ref())) == -1


def test_a_retry_asks_again_what_an_end_had_cancelled(bench: Bench) -> None:
    request = a_request(bench, expires_at_ms=soon(bench, -1))
    ask(bench, request)
    leg = bench.claim()
    bench.store.steps.close_requests(leg.claim, {request.id: denial(bench, verb="cancel", by_expiry=False)})
    bench.store.steps.commit(leg.claim, leg.loaded, failing_transition(leg), results={}, keep_claim=False)
    bench.store.sessions.retry(bench.session, retry_transition(None))
    leg = bench.claim()
    renewed = request.renewed(soon(bench))
    opened = bench.store.steps.open_requests(leg.claim, [renewed])
    assert wait(bench, leg, leg.loaded.journal.with_requests(opened.requests)).open == (renewed,)
    assert indexed(bench) == [renewed.id]


def test_a_leg_whose_worker_died_at_the_end_of_a_hold_goes_on_when_it_is_resumed(bench: Bench) -> None:
    request = a_request(bench, expires_at_ms=soon(bench))
    ask(bench, request)
    bench.store.sessions.suspend(bench.session, reason="why", until_ms=soon(bench, -1))
    leg = bench.claim()
    bench.store.sessions.resume(bench.session)
    bench.end_lease(leg.claim)
    approve(bench, request)
    bench.make_due()
    assert _sweep(bench) != ()
    assert isinstance(bench.answer(), Claimed)


# --- the way through the code -----------------------------------------------------------------------------------------


def test_a_leg_is_claimed_the_long_way_at_once(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    request = a_request(bench)
    ask(bench, request)
    approve(bench, request)
    bench.spy.sent.clear()
    bench.claim()
    assert bench.spy.points == [Points.CLAIM_READ, Points.CLAIM_EXEC]


def test_a_wait_and_an_answer_take_few_round_trips(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    claimed = bench.claim()
    request = a_request(bench)
    journal = open_requests(bench, claimed, request)
    bench.spy.sent.clear()
    wait(bench, claimed, journal)
    assert bench.spy.points == [Points.WAIT_READ, Points.WAIT_EXEC]
    bench.spy.sent.clear()
    approve(bench, request)
    assert bench.spy.points == [Points.ANSWER_READ, Points.ANSWER_JOURNAL, Points.ANSWER_EXEC]


def test_a_step_that_waits_passes_its_crash_points(bench: Bench) -> None:
    passed: list[str] = []
    crash_points.install(passed.append)
    try:
        request = a_request(bench)
        ask(bench, request)
        approve(bench, request)
        bench.claim()
    finally:
        crash_points.install(None)
    assert [point for point in passed if point.startswith("w")] == ["w0", "w1", "w2", "w3"]


@pytest.mark.one_server("its keys cannot be listed by one command")
def test_a_waiting_session_costs_no_more_than_two_thousand_bytes(database: Database) -> None:
    if isinstance(database, MemoryDatabase | FakeRedisDatabase):
        pytest.skip("only a Redis tells what its keys take: fakeredis knows no MEMORY USAGE")
    bench = Bench(database)
    bench.submit()
    claimed = bench.claim()
    before = _memory(bench)
    request = a_request(bench)
    wait(bench, claimed, open_requests(bench, claimed, request))
    assert _memory(bench) - before - len(request.to_json()) - len(ANSWER) <= 2048


def _memory(bench: Bench) -> int:
    """Bytes of the keys of a session, and of the index of requests."""
    keys = bench.store.context.keys(bench.session)
    names = [*bench.database("KEYS", keys.session + "*"), keys.shard.requests]
    return sum(bench.database("MEMORY", "USAGE", name, "SAMPLES", 0) or 0 for name in names)


def _sweep(bench: Bench) -> tuple[StepRef, ...]:
    return bench.store.housekeeping.sweep(QueueSnapshot()).lost
