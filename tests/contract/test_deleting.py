"""Deleting a session, on every store: nothing stays but a mark, and nothing brings the session back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.engine import operation_transition, retry_transition, stop_transition
from celery_agents.worker.errors import (
    ActionRefused,
    ClaimLost,
    SessionConflict,
    SessionDeleted,
    SessionNotFound,
)
from celery_agents.worker.store import Claimed, EventType, NewEvent, NotClaimed, QueueSnapshot
from celery_agents.worker.store.database import Database

from support.asking import a_request, approve, ask
from support.points import Points
from support.store import Bench, an_operation


def delete(bench: Bench, **options: Any) -> str:
    return bench.store.sessions.delete(bench.session, **options).outcome


def ended(bench: Bench, *, steps: int = 1) -> Bench:
    """The bench with its execution ended after so many steps."""
    for number in range(1, steps + 1):
        bench.commit(bench.claim(number), final=number == steps)
    return bench


def left_of(bench: Bench) -> tuple[list[str], list[str]]:
    """The keys of the session, and the indexes that name it."""
    keys = bench.store.context.keys(bench.session)
    shard = keys.shard
    names = [
        keys.session, keys.ctl, keys.inbox, keys.events, keys.live, keys.section("messages", 0), keys.steps(bench.execution),
        *(keys.journal(bench.execution, step) for step in range(5)),
    ]  # fmt: skip
    indexes = ("sessions", "due", "delayed", "failed", "ending", "children", "unoffered", "callbacks", "requests")
    listed = {name: bench.database("ZRANGEBYSCORE", getattr(shard, name), "-inf", "+inf") for name in indexes}
    named = [name for name, found in listed.items() if any(bench.session.encode() in each for each in found)]
    return [name.removeprefix(keys.session) for name in names if bench.database("EXISTS", name)], named


def test_nothing_is_left_of_a_deleted_session_but_its_mark(bench: Bench) -> None:
    ended(bench, steps=3)
    assert len(left_of(bench)[0]) > 5
    keys = bench.store.context.keys(bench.session)
    assert delete(bench) == "changed"
    assert left_of(bench) == ([""], [])
    assert bench.database("HGETALL", keys.session)[::2] == [b"created"]
    assert 0 < bench.database("PTTL", keys.session) <= bench.settings.retention_seconds * 1000  # type: ignore[operator]


def test_a_mark_of_sessions_that_stay_for_ever_goes_after_thirty_days(database: Database) -> None:
    bench = Bench(database, retention_seconds=None)
    bench.submit()
    ended(bench)
    delete(bench)
    assert 29 < bench.database("PTTL", bench.store.context.keys(bench.session).session) / 86_400_000 <= 30


@pytest.mark.leaves_keys("the execution runs")
@pytest.mark.parametrize("is_claimed", [False, True])
def test_a_session_that_runs_is_refused_and_stays_as_it_is(bench: Bench, is_claimed: bool) -> None:
    if is_claimed:
        bench.claim()
    before = bench.snapshot()
    with pytest.raises(ActionRefused, match="stop it"):
        delete(bench)
    assert bench.snapshot() == before


@pytest.mark.leaves_keys("the execution waits")
def test_a_session_that_waits_is_refused_and_can_be_answered(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    with pytest.raises(ActionRefused, match="stop it"):
        delete(bench)
    assert approve(bench, request).outcome == "woken"


def test_a_session_that_was_stopped_is_deleted_with_its_journal(bench: Bench) -> None:
    claim = bench.claim()
    bench.store.steps.record_answer(claim.claim, b"paid")
    bench.store.sessions.stop(bench.session, None, stop_transition)
    bench.commit(claim, final=True)
    delete(bench)
    assert left_of(bench) == ([""], [])


def test_a_second_deletion_says_that_it_is_done_and_one_of_nothing_that_there_is_nothing(bench: Bench) -> None:
    ended(bench)
    assert [delete(bench), delete(bench)] == ["changed", "again"]
    bench.session = "nobody"
    with pytest.raises(SessionNotFound) as refusal:
        delete(bench)
    assert not isinstance(refusal.value, SessionDeleted)


def test_a_deletion_whose_reply_is_lost_is_made_once_and_says_so(bench: Bench) -> None:
    ended(bench)
    bench.spy.lose(Points.DELETE_EXEC)
    assert delete(bench) == "changed"
    assert left_of(bench) == ([""], [])


def test_another_version_is_refused_with_both(bench: Bench) -> None:
    ended(bench)
    stored = bench.store.sessions.header(bench.session).version
    with pytest.raises(SessionConflict) as refusal:
        delete(bench, version=stored - 1)
    assert (refusal.value.expected, refusal.value.stored) == (stored - 1, stored)
    assert delete(bench, version=stored) == "changed"


@pytest.mark.leaves_keys("the second execution runs")
def test_an_execution_that_begins_between_look_and_deletion_is_not_deleted(bench: Bench) -> None:
    ended(bench)
    bench.spy.before(Points.DELETE_EXEC, lambda: bench.message("the next execution"))
    with pytest.raises(ActionRefused):
        delete(bench)
    assert bench.store.sessions.header(bench.session).status == "pending"


ACTIONS: dict[str, Callable[[Bench], object]] = {
    "submit": lambda bench: bench.submit(),
    "submit of something else": lambda bench: bench.submit(fingerprint="other"),
    "message": lambda bench: bench.store.sessions.act(bench.session, an_operation("late"), operation_transition),
    "stop": lambda bench: bench.store.sessions.stop(bench.session, None, stop_transition),
    "retry": lambda bench: bench.store.sessions.retry(bench.session, retry_transition(None)),
    "suspend": lambda bench: bench.store.sessions.suspend(bench.session, reason="why"),
    "resume": lambda bench: bench.store.sessions.resume(bench.session),
    "answer": lambda bench: approve(bench, a_request(bench)),
    "load": lambda bench: bench.store.sessions.load(bench.session),
    "header": lambda bench: bench.store.sessions.header(bench.session),
    "outcome": lambda bench: bench.store.sessions.outcome(bench.session, bench.execution),
    "records": lambda bench: bench.store.sessions.records(bench.session),
    "joined": lambda bench: bench.store.sessions.read_joined(bench.session, "op-first"),
    "facts": lambda bench: bench.store.sessions.step_facts(bench.session),
    "tree": lambda bench: bench.store.trees.tree(bench.session),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_whoever_comes_afterwards_is_told_that_the_session_was_deleted(bench: Bench, action: str) -> None:
    delete(ended(bench))
    with pytest.raises(SessionDeleted, match="was deleted"):
        ACTIONS[action](bench)
    assert left_of(bench) == ([""], [])


@pytest.mark.leaves_keys("the new session runs")
def test_an_id_can_be_used_again_when_its_mark_is_gone(bench: Bench) -> None:
    delete(ended(bench))
    bench.database("DEL", bench.store.context.keys(bench.session).session)
    assert bench.submit().outcome == "started"
    assert bench.claim().loaded.version == 1


# --- workers that come late -------------------------------------------------------------------------------------------


def late_worker(bench: Bench) -> Claimed:
    """A worker whose session was stopped by another while it was paused, and deleted then."""
    claimed = bench.claim()
    bench.end_lease(claimed.claim)
    bench.store.sessions.stop(bench.session, None, stop_transition)
    delete(bench)
    return claimed


LATE: dict[str, Callable[[Bench, Claimed], object]] = {
    "answer": lambda bench, claimed: bench.store.steps.record_answer(claimed.claim, b"paid"),
    "result": lambda bench, claimed: bench.store.steps.record_results(claimed.claim, {0: b"done"}),
    "failure": lambda bench, claimed: bench.store.steps.record_failure(
        claimed.claim, 1, b"{}", [NewEvent(EventType.MODEL_CALL_FAILED, bench.execution, 1, {})]
    ),
    "auxiliary": lambda bench, claimed: bench.store.steps.record_auxiliary(claimed.claim, "title", b"paid"),
    "tools": lambda bench, claimed: bench.store.steps.record_tools(claimed.claim, b"digest"),
    "begin": lambda bench, claimed: bench.store.steps.begin_calls(claimed.claim, {0: 1000}, at_ms=1),
    "commit": lambda bench, claimed: bench.commit(claimed, final=True),
    "release": lambda bench, claimed: bench.store.steps.restore(claimed.claim),
    "park": lambda bench, claimed: bench.store.steps.park(claimed.claim.ref, "cannot be read"),
    "claim": lambda bench, claimed: bench.answer(),
    "trace": lambda bench, _: bench.store.sessions.note_failed_sinks(bench.session, bench.execution, {"http": "why"}),
    "end of a job": lambda bench, claimed: bench.store.steps.end_job(claimed.claim, 0, "gone", 1),
    "follow": lambda bench, _: bench.store.live.keep_followed(bench.session),
}


@pytest.mark.parametrize("doing", LATE)
def test_a_worker_that_comes_late_brings_nothing_of_the_session_back(bench: Bench, doing: str) -> None:
    claimed = late_worker(bench)
    try:
        answer = LATE[doing](bench, claimed)
        assert doing != "commit"
        assert not isinstance(answer, Claimed)
    except ClaimLost:
        assert doing in ("begin", "commit")
    assert left_of(bench) == ([""], [])
    assert bench.database("HGETALL", bench.store.context.keys(bench.session).session)[::2] == [b"created"]


def test_a_forged_entry_of_the_due_index_brings_nothing_back(bench: Bench) -> None:
    delete(ended(bench))
    bench.make_due()
    bench.store.housekeeping.sweep(QueueSnapshot())
    assert left_of(bench) == ([""], [])
    assert isinstance(bench.answer(), NotClaimed)


# --- what is parked or damaged ----------------------------------------------------------------------------------------


def test_a_parked_session_can_be_deleted(bench: Bench) -> None:
    bench.claim()
    bench.store.steps.park(bench.ref(), "cannot be read")
    assert delete(bench) == "changed"
    assert left_of(bench) == ([""], [])


@pytest.mark.parametrize("field", ["head", "executions", "notify", "parent", "version", "lineage"])
def test_a_damaged_session_can_be_deleted(bench: Bench, field: str) -> None:
    ended(bench)
    keys = bench.store.context.keys(bench.session)
    bench.database("HSET", keys.session, field, b"\xff no JSON")
    assert delete(bench) == "changed"
    assert bench.database("HGETALL", keys.session)[::2] == [b"created"]
    assert bench.database("EXISTS", keys.ctl) == 0
    bench.database("DEL", keys.steps(bench.execution), *(keys.journal(bench.execution, step) for step in range(3)))


def test_callbacks_that_were_not_made_are_not_made_any_more(database: Database) -> None:
    bench = Bench(database)
    bench.submit(notify={"webhook": "https://example.org/hook"})
    ended(bench)
    assert "callbacks" in left_of(bench)[1]
    delete(bench)
    assert left_of(bench) == ([""], [])


def test_a_callback_that_fails_after_the_deletion_counts_nothing(database: Database) -> None:
    bench = Bench(database)
    bench.submit(notify={"webhook": "https://example.org/hook"})
    ended(bench)
    (callback,) = bench.store.housekeeping.due_callbacks(limit=10, hold_ms=1000)
    delete(bench)
    bench.store.housekeeping.fail_callback(callback, delay_ms=10, reason="away")
    assert left_of(bench) == ([""], [])
