"""Commits and first claims, on every store."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.engine import stop_transition
from celery_agents.worker.errors import (
    ClaimLost,
    SessionNotFound,
    StateTooNew,
    StateUnreadable,
    StoreUnavailable,
    VersionConflict,
)
from celery_agents.worker.store import (
    Claim,
    Claimed,
    NotClaimed,
    NotClaimedReason,
    QueueSnapshot,
)
from celery_agents.worker.store.database import Database

from support.interference import ELSEWHERE, HERE, behind
from support.points import Points
from support.store import Bench, step_transition
from support.wait import wait_until

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")


def test_a_commit_makes_the_step_real_and_names_the_next(bench: Bench) -> None:
    claimed = bench.claim()
    committed = bench.commit(claimed)
    assert (committed.version, committed.next, committed.again) == (2, bench.ref(2), False)
    state = bench.store.sessions.load(bench.session).state
    assert state == committed.state
    assert state.step_count == 1
    assert bench.store.steps.renew([claimed.claim])[0].alive is False


def test_a_commit_asked_for_again_gives_the_same_and_changes_nothing(bench: Bench) -> None:
    claimed = bench.claim()
    bench.commit(claimed)
    before = bench.snapshot()
    again = bench.commit(claimed)
    assert (again.version, again.next, again.again) == (2, bench.ref(2), True)
    assert bench.snapshot() == before


def test_a_commit_knows_itself_after_the_next_step_has_been_committed(bench: Bench) -> None:
    first = bench.claim()
    bench.commit(first)
    bench.commit(bench.claim(2))
    assert bench.commit(first).again is True


def test_a_lost_reply_to_a_commit_commits_once(bench: Bench) -> None:
    bench.spy.lose(bench.commits_at)
    committed = bench.commit(bench.claim())
    assert (committed.again, committed.next) == (True, bench.ref(2))
    assert bench.store.sessions.load(bench.session).state.step_count == 1


def test_a_store_that_does_not_answer_is_told_and_nothing_is_lost(bench: Bench) -> None:
    claimed = bench.claim()
    bench.spy.lose(Points.COMMIT_ATTEMPT, times=0)
    bench.spy.before(Points.COMMIT_ATTEMPT, lambda: bench.message("on the way"))  # so that it has to go the long way
    bench.spy.lose(Points.COMMIT_READ, times=100)
    with pytest.raises(StoreUnavailable):
        bench.commit(claimed)
    bench.spy.lose(Points.COMMIT_READ, times=0)
    assert bench.commit(claimed).version == 2


def test_whoever_lost_the_claim_commits_nothing(bench: Bench) -> None:
    slept = bench.claim()
    bench.end_lease(slept.claim)
    bench.claim()
    before = bench.snapshot()
    with pytest.raises(ClaimLost):
        bench.commit(slept)
    assert bench.snapshot() == before


def test_a_commit_over_a_later_save_is_a_conflict_until_it_is_applied_to_it(bench: Bench) -> None:
    claimed = bench.claim()
    keys = bench.store.context.keys(bench.session)
    bench.database("HSET", keys.session, "version", 2)  # somebody saved the same state
    with pytest.raises(VersionConflict):
        bench.commit(claimed)
    loaded = bench.store.steps.reload(claimed.claim)
    assert loaded.version == 2
    committed = bench.commit(Claimed(claimed.claim, loaded))
    assert committed.version == 3


def test_a_reload_is_refused_to_whoever_lost_the_claim(bench: Bench) -> None:
    slept = bench.claim().claim
    bench.end_lease(slept)
    bench.claim()
    with pytest.raises(ClaimLost):
        bench.store.steps.reload(slept)


def test_a_commit_may_carry_the_claim_on(bench: Bench) -> None:
    claimed = bench.claim()
    committed = bench.commit(claimed, keep_claim=True)
    assert committed.carried is not None
    assert committed.carried.claim.id == claimed.claim.id
    assert committed.carried.claim.ref == bench.ref(2)
    assert bench.answer(2) == NotClaimed(NotClaimedReason.BUSY)
    assert bench.commit(committed.carried, final=True).version == 3


def test_the_end_takes_the_session_out_of_the_due_index_and_gives_its_keys_a_life(bench: Bench) -> None:
    bench.commit(bench.claim())
    assert bench.commit(bench.claim(2), final=True).next is None
    assert bench.due() is None
    record = bench.store.sessions.record(bench.session, bench.execution)
    assert record is not None
    assert (record.status, record.step_count) == ("completed", 2)
    keys = bench.store.context.keys(bench.session)
    lasting = [keys.session, keys.ctl, keys.events, keys.steps(bench.execution), keys.section("messages", 0)]
    lasting += [keys.journal(bench.execution, step) for step in (1, 2)]
    assert [name for name in lasting if bench.database("PTTL", name) == -1] == []


def test_events_are_told_in_the_transaction_that_makes_them_true(bench: Bench) -> None:
    bench.commit(bench.claim())
    bench.commit(bench.claim(2), final=True)
    types = [(event.type, event.step) for event in bench.store.sessions.events(bench.session)]
    assert types.count(("step_committed", 1)) == types.count(("step_committed", 2)) == 1
    first = bench.store.sessions.events(bench.session)[0]
    assert first not in bench.store.sessions.events(bench.session, after=first.id)


@pytest.mark.parametrize(
    "missed",
    [pytest.param(0, marks=pytest.mark.long), 1, 6, None],
    ids=lambda missed: "unseen" if missed is None else str(missed),
)
@pytest.mark.parametrize("happened", HERE)
def test_a_claim_that_expects_something_else_than_there_is_answers_what_one_does_that_expects_nothing(
    database: Database, happened: str, missed: int | None
) -> None:
    bench, blind = Bench(database), Bench(database, cache_bytes=0)
    ref = behind(bench, missed)
    HERE[happened](bench, ref)
    blind.session, blind.execution = bench.session, bench.execution
    before = bench.snapshot()
    mine = bench.answer(ref.step, "mine")
    if isinstance(mine, Claimed):  # as one that knows nothing beforehand would have
        bench.database(
            "HSET", bench.store.context.keys(bench.session).ctl, *(part for item in before[1].items() for part in item)
        )
        bench.database("HDEL", bench.journal(ref), "try:mine")
        theirs = blind.answer(ref.step, "mine")
        assert isinstance(theirs, Claimed)
        assert (mine.loaded.state, mine.loaded.attempts, mine.loaded.cancel) == (
            theirs.loaded.state, theirs.loaded.attempts, theirs.loaded.cancel,
        )  # fmt: skip
        assert mine.loaded.journal.answer == theirs.loaded.journal.answer
        assert mine.loaded.started_ms == theirs.loaded.started_ms
    else:
        assert bench.snapshot() == before


def test_the_first_step_of_a_new_session_is_claimed_and_read(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    mine = bench.claim()
    assert mine.loaded.state == bench.store.sessions.load(bench.session).state
    assert (mine.claim.attempt, mine.loaded.started_ms > 0) == (1, True)
    events = [event.type for event in bench.store.sessions.events(bench.session)]
    assert events.count("execution_started") == 1
    bench.commit(mine, final=True)
    assert bench.store.sessions.header(bench.session).status == "completed"


def test_a_session_with_a_history_is_claimed_and_read(database: Database) -> None:
    bench = Bench(database)
    first, ref = bench.execution, bench.follow_up()
    mine = bench.another().steps.claim(ref, "mine", "worker", alone=True)
    assert isinstance(mine, Claimed)
    assert mine.loaded.state == bench.store.sessions.load(bench.session).state
    assert bench.started_ms == mine.loaded.started_ms > 0
    begun = [
        event.execution_id for event in bench.store.sessions.events(bench.session) if event.type == "execution_started"
    ]
    assert begun == [first, ref.execution_id]
    bench.store.steps.commit(mine.claim, mine.loaded, step_transition(mine, final=False), results={}, keep_claim=False)
    again = bench.another().steps.claim(bench.ref(2), "again", "worker", alone=True)
    assert isinstance(again, Claimed)
    assert again.loaded.state == bench.store.sessions.load(bench.session).state


@pytest.mark.parametrize("lost", [Points.CLAIM_FIRST, Points.CLAIM_LOAD])
def test_a_claim_whose_reply_is_lost_is_the_same_claim_when_it_is_asked_for_again(
    database: Database, lost: str
) -> None:
    bench = Bench(database)
    bench.submit()
    bench.commit(bench.claim())
    bench.spy.lose(lost)
    other = bench.another()
    with pytest.raises(StoreUnavailable):
        other.steps.claim(bench.ref(2), "mine", "worker", alone=True)
    assert isinstance(bench.answer(2, "a rival's"), NotClaimed)
    mine = other.steps.claim(bench.ref(2), "mine", "worker", alone=True)
    assert isinstance(mine, Claimed)
    assert (mine.claim.attempt, mine.loaded.attempts) == (1, 1)
    assert mine.loaded.state == bench.store.sessions.load(bench.session).state


@pytest.mark.parametrize("point", [Points.CLAIM_NEW, Points.CLAIM_LOAD])
@pytest.mark.parametrize("is_applied", [True, False], ids=["reply lost", "never sent"])
def test_an_execution_whose_first_claim_is_asked_for_again_begins_once(
    database: Database, point: str, *, is_applied: bool
) -> None:
    bench = Bench(database)
    ref = bench.follow_up()

    def fail() -> None:
        raise StoreUnavailable("nothing was sent")

    if is_applied:
        bench.spy.lose(point)
    else:
        bench.spy.before(point, fail)
    with pytest.raises(StoreUnavailable):
        bench.store.steps.claim(ref, "mine", "worker", alone=True)
    mine = bench.store.steps.claim(ref, "mine", "worker", alone=True)
    assert isinstance(mine, Claimed)
    assert (mine.loaded.attempts, bench.begun()) == (1, 1)
    assert bench.started_ms == mine.loaded.started_ms > 0
    assert bench.store.sessions.header(bench.session).status == "in_progress"


def test_a_claim_that_slept_before_it_read_changes_nothing_of_what_others_did_meanwhile(database: Database) -> None:
    bench = Bench(database)
    ref = bench.follow_up()

    def take_over() -> None:
        bench.end_lease(Claim("slept", "worker", ref, 1, 0))
        bench.commit(bench.claim(), final=True)

    bench.spy.before(Points.CLAIM_LOAD, take_over)
    assert bench.another().steps.claim(ref, "slept", "worker", alone=True) == NotClaimed(NotClaimedReason.ENDED)
    assert bench.store.sessions.header(bench.session).status == "completed"
    assert bench.store.sessions.outcome(bench.session, bench.execution) is not None
    assert bench.begun() == 1


def test_a_claim_that_slept_before_it_read_finds_the_stop_meanwhile(database: Database) -> None:
    bench = Bench(database)
    ref = bench.follow_up()

    def stop() -> None:
        bench.end_lease(Claim("slept", "worker", ref, 1, 0))
        bench.store.sessions.stop(bench.session, None, stop_transition)

    bench.spy.before(Points.CLAIM_LOAD, stop)
    assert bench.another().steps.claim(ref, "slept", "worker", alone=True) == NotClaimed(NotClaimedReason.ENDED)
    assert bench.store.sessions.header(bench.session).status == "stopped"


@pytest.mark.parametrize("step", [1, 2])
def test_a_session_of_which_only_the_control_fields_are_left_is_not_recreated(database: Database, step: int) -> None:
    bench = Bench(database)
    bench.follow_up()
    if step == 2:
        bench.commit(bench.claim())
    keys = bench.store.context.keys(bench.session)
    bench.database("DEL", keys.session, keys.events)
    with pytest.raises(SessionNotFound):
        bench.another().steps.claim(bench.ref(step), "mine", "worker", alone=True)
    assert bench.database("EXISTS", keys.session, keys.events) == 0


@pytest.mark.parametrize("missed", [4, 31, 40])
def test_a_worker_that_missed_steps_reads_what_is_stored(database: Database, missed: int) -> None:
    """Some of these it reads alone; 40 are more than a lineage tells of, and then it reads them all."""
    bench = Bench(database)
    mine = bench.claim(behind(bench, missed).step)
    assert mine.loaded.state == bench.store.sessions.load(bench.session).state
    bench.commit(mine)
    bench.claim(mine.claim.ref.step + 1)


@pytest.mark.parametrize("happened", ELSEWHERE)
def test_a_first_claim_in_one_round_trip_answers_what_the_long_way_does(database: Database, happened: str) -> None:
    quick, blind = Bench(database), Bench(database, cache_bytes=0)
    answers: list[object] = []
    for bench in (quick, blind):
        bench.submit()
        ELSEWHERE[happened](bench, bench.ref())
        try:
            answer = bench.answer(1, "mine")
        except SessionNotFound:
            answer = SessionNotFound
        if isinstance(answer, Claimed):
            loaded = answer.loaded
            facts = (loaded.journal.answer, loaded.attempts, loaded.cancel, loaded.version, loaded.started_ms == 9)
            answers.append((*facts, [message.content for message in loaded.state.messages]))
        else:
            answers.append(answer)
    assert answers[0] == answers[1]


def test_a_worker_that_missed_steps_and_a_message_reads_what_is_new(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    bench.commit(bench.claim())
    bench.step_elsewhere(2)
    bench.message("joins")
    bench.step_elsewhere(3)
    mine = bench.claim(4)
    assert mine.loaded.state == bench.store.sessions.load(bench.session).state
    assert mine.claim.attempt == 1
    bench.commit(mine, final=True)
    assert bench.store.sessions.header(bench.session).status == "completed"


def test_a_worker_that_missed_steps_finds_a_damaged_part(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    bench.commit(bench.claim())
    bench.step_elsewhere(2)
    bench.database("RPUSH", bench.store.context.keys(bench.session).section("messages", 0), b"{not json")
    with pytest.raises(StateUnreadable, match="messages"):
        bench.answer(3, "mine")


def test_a_worker_too_old_for_the_session_gives_its_claim_back(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    bench.commit(bench.claim())
    bench.step_elsewhere(2)
    keys = bench.store.context.keys(bench.session)
    bench.become_newer()
    for number in range(3):
        with pytest.raises(StateTooNew):
            bench.answer(3, f"mine-{number}")
    claim, attempts = bench.database("HMGET", keys.ctl, "claim", "attempts")
    assert (claim, attempts) == (b"", b"0"), "or the steps of newer workers would end as poison"
    assert bench.claims_made(3) == 1, "of the third step there was one claim; the next look comes before it"
    assert not bench.database("EXISTS", keys.shard.lease("mine-0"))


@pytest.mark.parametrize("step", [1, 2])
def test_a_worker_too_old_for_sessions_it_does_not_hold_claims_the_first_of_them_only(
    database: Database, step: int
) -> None:
    bench = Bench(database)
    old = bench.another()
    for number in range(3):
        bench.session = f"{bench.session}-{number}"
        bench.submit()
        if step == 2:
            bench.commit(bench.claim())
        bench.become_newer()
        with pytest.raises(StateTooNew):
            old.steps.claim(bench.ref(step), f"mine-{number}", "old", alone=True)
        ctl = bench.store.context.keys(bench.session).ctl
        assert bench.database("HMGET", ctl, "claim", "attempts") == [b"", b"0"]
        if number:
            assert bench.claims_made(step) == 0, "a claim was taken, and two old workers pass its message on for ever"


def test_an_announced_version_that_another_worker_made_differently_is_not_taken(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    first = bench.claim()
    other = bench.another()
    bench.spy.lose(Points.COMMIT_ATTEMPT)
    bench.spy.before(Points.COMMIT_ATTEMPT, lambda: bench.end_lease(first.claim))
    taken: list[Any] = []

    def rival() -> None:
        bench.end_lease(first.claim)
        taken.append(other.steps.claim(bench.ref(), "rival", "other", alone=True))
        other.steps.commit(
            taken[0].claim,
            taken[0].loaded,
            step_transition(taken[0], final=False, text="theirs"),
            results={},
            keep_claim=False,
        )

    bench.spy.before(Points.COMMIT_ATTEMPT, rival)
    with pytest.raises(ClaimLost):
        bench.commit(first, text="mine")
    said = [message.content for message in bench.claim(2).loaded.state.messages]
    assert said == ["first", "theirs"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda bench, ctl: bench.database("HSET", ctl, "step", b"x"),
        lambda bench, ctl: bench.database("HSET", ctl, "retries", b"\xff"),
        lambda bench, ctl: (bench.database("DEL", ctl), bench.database("SET", ctl, "x")),
    ],
)
def test_damaged_control_fields_park_their_session_and_hide_no_other(
    bench: Bench, damage: Callable[[Bench, str], object]
) -> None:
    keys = bench.store.context.keys(bench.session)
    broken = bench.session
    damage(bench, keys.ctl)
    bench.make_due()
    bench.session = next(
        name for name in (uuid.uuid4().hex for _ in range(1000)) if bench.store.context.keys(name).shard is keys.shard
    )
    bench.submit(execution=uuid.uuid4().hex)
    bench.make_due()
    lost = bench.store.housekeeping.sweep(QueueSnapshot()).lost
    assert bench.session in [ref.session_id for ref in lost]
    assert broken not in [ref.session_id for ref in lost]
    assert broken in [entry["session"] for entry in bench.store.housekeeping.list_dead()]
    assert bench.database("ZSCORE", keys.shard.due, broken) is None
    headers, _ = bench.store.sessions.headers(limit=50)
    assert bench.session in [header.session_id for header in headers]


def test_pruning_takes_out_all_that_has_expired_however_much_it_is(database: Database) -> None:
    bench = Bench(database, sweep_batch=3, retention_seconds=0.01)
    for _ in range(11):
        bench.session, bench.execution = uuid.uuid4().hex, uuid.uuid4().hex
        bench.submit()
        bench.commit(bench.claim(), final=True)
    keys = bench.store.context.keys(bench.session)
    ours = {shard.sessions for shard in bench.store.context.shards}
    assert sum(bench.database("ZCARD", name) for name in ours) >= 11
    wait_until(lambda: not bench.database("EXISTS", keys.session), "the last session has expired", 5)
    bench.store.housekeeping.prune()
    assert [bench.database("ZSCORE", keys.shard.sessions, bench.session)] == [None]
    assert bench.database("ZCARD", keys.shard.ending) == 0
