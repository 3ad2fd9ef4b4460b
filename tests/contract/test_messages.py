"""Messages with a mode: where each goes, in which order they follow, what holds them, and how they are taken back."""

from __future__ import annotations

import time

import pytest

from celery_agents.worker.engine.transitions import operation_transition, retry_transition
from celery_agents.worker.errors import (
    ActionRefused,
    IdempotencyMismatch,
    MessageNotOwn,
    MessageNotWaiting,
    SessionBusy,
    SessionNotFound,
)
from celery_agents.worker.store.records import InboxKind, MessageMode, Operation, Placement

from support.points import Points
from support.store import Bench, NewBench

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")

STEER, QUEUE = MessageMode.STEER, MessageMode.QUEUE


def answer(bench: Bench) -> None:
    """The execution that is due answers, and is completed."""
    bench.commit(bench.next_claim(), final=True)


def test_each_queued_message_gets_an_execution_of_its_own_in_order(bench: Bench) -> None:
    claimed = bench.claim()
    assert bench.message("one", "q1", when="queue").placed is Placement.QUEUED
    assert bench.message("two", "q2", when="queue").placed is Placement.QUEUED
    bench.commit(claimed)
    assert bench.said == ["first"], "a step that goes on takes none of them"
    bench.commit(bench.claim(step=2), final=True)
    assert (bench.said, bench.queue) == (["first", "one"], (["q2"], ""))
    answer(bench)
    assert (bench.said, bench.queue) == (["first", "one", "two"], ([], ""))
    joined = [bench.store.sessions.read_joined(bench.session, each) for each in ("op-first", "q1", "q2")]
    assert len({*joined, ""}) == 4
    answer(bench)
    assert bench.store.sessions.header(bench.session).status == "completed"
    assert bench.database("EXISTS", bench.store.context.keys(bench.session).next) == 0


def test_steering_messages_start_together_in_front_of_queued_ones(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("later", "q1", when="queue")
    bench.message("now", "s1", when="steer")
    bench.message("and this", "s2", when="steer")
    bench.commit(claimed, final=True)
    assert (bench.said, bench.queue) == (["first", "now", "and this"], (["q1"], ""))
    answer(bench)
    assert bench.said[-1] == "later"


@pytest.mark.parametrize("end", ["failed", "stopped"])
def test_every_other_end_holds_the_queue_with_what_the_inbox_had_in_front(bench: Bench, end: str) -> None:
    claimed = bench.claim()
    bench.message("queued", "q1", when="queue")
    bench.message("steering", "s1", when="steer")
    if end == "stopped":
        bench.stop()
    bench.commit(claimed, failed=end == "failed")
    assert (bench.queue, bench.due()) == ((["s1", "q1"], end), None)
    held = [each for each in bench.store.sessions.events(bench.session) if each.type == "queue_held"]
    assert [dict(each.data) for each in held] == [{"reason": end, "messages": 2}]
    assert bench.message("more", "q2", when="queue").placed is Placement.HELD
    started = bench.message("in front", "s2", when="steer")
    assert (started.outcome, started.placed) == ("started", Placement.STARTS)
    answer(bench)
    assert (bench.queue, bench.due()) == ((["s1", "q1", "q2"], end), None), "the queue stays held"
    assert bench.release_queue().outcome == "started"
    for _ in range(3):
        answer(bench)
    assert bench.said == ["first", "in front", "steering", "queued", "more"]


def test_a_message_behind_a_stop_starts_when_the_stopped_execution_ends(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("before", "s1", when="steer")
    bench.stop()
    bench.message("behind", "s2", when="steer")
    bench.commit(claimed)
    assert (bench.said, bench.queue) == (["first", "behind"], (["s1"], "stopped"))
    answer(bench)
    assert bench.queue == (["s1"], "stopped")


def test_a_retry_lets_the_queue_follow_again(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("queued", "q1", when="queue")
    bench.commit(claimed, failed=True)
    bench.store.sessions.retry(bench.session, retry_transition(None))
    assert bench.queue == (["q1"], "")
    bench.commit(bench.claim(step=2), final=True)
    assert bench.said == ["first", "queued"]


def test_a_stop_clears_what_waits_if_it_is_asked_to_and_nothing_that_comes_later(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("steering", "s1", when="steer")
    bench.message("queued", "q1", when="queue")
    bench.stop(clear_queue=True)
    bench.message("later", "q2", when="queue")
    bench.commit(claimed)
    assert (bench.said, bench.queue) == (["first", "later"], ([], ""))
    undelivered = [e.data for e in bench.store.sessions.events(bench.session) if e.type == "message_undelivered"]
    assert [dict(each) for each in undelivered] == [
        {"operation": "s1", "reason": "cleared"},
        {"operation": "q1", "reason": "cleared"},
    ]
    assert bench.message("steering", "s1", when="steer").outcome == "again", "its id stays known"


def test_a_stop_that_clears_leaves_what_is_no_message_and_knows_it_again(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("steering", "s1", when="steer")
    change = Operation("change", InboxKind.METADATA, {"key": "colour", "value": "red"})
    bench.store.sessions.act(bench.session, change, operation_transition)
    bench.stop(clear_queue=True)
    assert bench.store.sessions.act(bench.session, change, operation_transition).outcome == "again"
    assert len(bench.database("LRANGE", bench.store.context.keys(bench.session).inbox, 0, -1)) == 1
    bench.commit(claimed)
    assert bench.store.sessions.load(bench.session).state.context.metadata["colour"] == "red"


def test_a_stop_that_ends_the_execution_itself_clears_and_holds_too(bench: Bench) -> None:
    bench.message("queued", "q1", when="queue")
    assert bench.stop(clear_queue=True).outcome == "changed"
    assert (bench.queue, bench.due()) == (([], ""), None)
    assert bench.message("queued", "q1", when="queue").outcome == "again"
    bench.message("go on", "s1")
    bench.message("then", "q2", when="queue")
    bench.stop()
    assert (bench.queue, bench.due()) == ((["q2"], "stopped"), None)


@pytest.mark.parametrize("when", ["steer", "interrupt", "queue"])
@pytest.mark.parametrize("sender", ["ada", ""])
def test_who_may_change_their_own_messages_changes_no_others(bench: Bench, when: str, sender: str) -> None:
    bench.claim()
    bench.message("not yours", "m1", when=when, by=sender)
    before = bench.store.sessions.read_waiting(bench.session)
    version = bench.store.sessions.header(bench.session).version
    for own in ("jo", "Ada", "ada ", ""):
        with pytest.raises(MessageNotOwn, match=r"message m1 of session .* was not sent by"):
            bench.store.sessions.withdraw(bench.session, "m1", own=own)
        for mode in MessageMode:
            with pytest.raises(MessageNotOwn):
                bench.set_mode("m1", mode, own=own)
    assert bench.store.sessions.read_waiting(bench.session) == before
    assert bench.store.sessions.header(bench.session).version == version
    assert "message_undelivered" not in [each.type for each in bench.store.sessions.events(bench.session)]


def test_a_message_stays_its_senders_wherever_it_is_moved(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("mine", "m1", when="steer", by="ada")
    for mode in (QUEUE, MessageMode.INTERRUPT, QUEUE, STEER):
        assert bench.set_mode("m1", mode, own="ada").outcome == "changed"
    bench.message("mine", "m1", when="steer", by="jo")
    bench.commit(claimed, failed=True)
    assert bench.queue == (["m1"], "failed"), "an end has put it there"
    with pytest.raises(MessageNotOwn):
        bench.store.sessions.withdraw(bench.session, "m1", own="jo")
    assert bench.store.sessions.withdraw(bench.session, "m1", own="ada").outcome == "changed"
    assert bench.store.sessions.withdraw(bench.session, "m1", own="ada").outcome == "again"
    with pytest.raises(MessageNotWaiting):
        bench.store.sessions.withdraw(bench.session, "m2", own="ada")


def test_all_that_waits_is_read_at_once_so_that_no_message_is_seen_twice_or_not_at_all(bench: Bench) -> None:
    bench.claim()
    bench.message("queued", "q1", when="queue")
    bench.message("steering", "s1", when="steer")
    bench.spy.sent.clear()
    waiting = bench.store.sessions.read_waiting(bench.session)
    assert len(bench.spy.sent) == 1
    assert [each.id for each in waiting.inbox] == ["s1"]
    assert [each.id for each in waiting.queue.messages] == ["q1"]
    with pytest.raises(SessionNotFound):
        bench.store.sessions.read_waiting("nobody")


@pytest.mark.parametrize("where", ["inbox", "queue", "held queue"])
def test_a_message_that_waits_can_be_taken_back(bench: Bench, where: str) -> None:
    claimed = bench.claim()
    bench.message("other", "s0", when="steer")
    bench.message("withdrawn", "m1", when="steer" if where == "inbox" else "queue", key="1:k")
    if where == "held queue":
        bench.commit(claimed, failed=True)
        bench.store.sessions.withdraw(bench.session, "s0")
    assert bench.store.sessions.withdraw(bench.session, "m1", by="ada").outcome == "changed"
    assert bench.queue == ([], "")
    assert bench.store.sessions.withdraw(bench.session, "m1").outcome == "again"
    again = bench.message("withdrawn", "m1", when="steer", key="1:k")
    assert (again.outcome, again.placed) == ("again", Placement.JOINS if where == "inbox" else Placement.QUEUED)
    (event,) = [e for e in bench.store.sessions.events(bench.session) if e.data.get("operation") == "m1"][1:]
    assert (event.type, dict(event.data)["by"]) == ("message_undelivered", "ada")
    if where != "held queue":
        bench.commit(claimed)
        assert bench.said == ["first", "other"]


def test_a_message_that_was_delivered_cannot_be_taken_back_or_moved(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("more", "m1")
    bench.commit(claimed)
    with pytest.raises(MessageNotWaiting, match=f"delivered to execution {bench.execution}"):
        bench.store.sessions.withdraw(bench.session, "m1")
    with pytest.raises(MessageNotWaiting, match="no message has this id"):
        bench.set_mode("never sent", QUEUE)


def test_a_commit_and_a_withdrawal_that_race_deliver_or_withdraw_but_never_both(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("more", "m1")
    bench.spy.before(Points.COMMIT_EXEC, lambda: bench.store.sessions.withdraw(bench.session, "m1"))
    bench.commit(claimed)
    assert bench.said == ["first"]


@pytest.mark.parametrize("act", ["withdraw", "mode"])
def test_an_act_on_a_message_that_a_commit_takes_in_the_middle_finds_it_delivered(bench: Bench, act: str) -> None:
    claimed = bench.claim()
    bench.message("more", "m1")
    point = Points.WITHDRAW_EXEC if act == "withdraw" else Points.MODE_EXEC
    bench.spy.before(point, lambda: bench.commit(claimed))
    with pytest.raises(MessageNotWaiting, match="delivered"):
        bench.store.sessions.withdraw(bench.session, "m1") if act == "withdraw" else bench.set_mode("m1", QUEUE)
    assert (bench.said, bench.queue) == (["first", "more"], ([], ""))


def test_a_queued_message_that_races_the_end_follows_it(bench: Bench) -> None:
    claimed = bench.claim()
    point = bench.commits_at
    bench.spy.before(point, lambda: bench.message("more", "q1", when="queue"))
    bench.commit(claimed, final=True)
    assert (bench.said, bench.queue) == (["first", "more"], ([], ""))


def test_the_mode_of_a_message_that_waits_can_be_changed(bench: Bench) -> None:
    claimed = bench.claim()
    for name, when in (("a", "queue"), ("b", "steer"), ("c", "queue")):
        bench.message(name, name, when=when)
        time.sleep(0.002)  # arrivals are told apart by milliseconds
    assert bench.set_mode("b", QUEUE).placed is Placement.QUEUED
    assert bench.queue == (["a", "b", "c"], ""), "a demoted message has the place of its arrival"
    assert bench.set_mode("c", STEER).placed is Placement.JOINS
    assert bench.set_mode("c", STEER).outcome == "again"
    assert bench.queue == (["a", "b"], "")
    bench.commit(claimed)
    assert bench.said == ["first", "c"]


def test_a_held_message_that_is_promoted_starts_and_leaves_the_others_held(bench: Bench) -> None:
    claimed = bench.claim()
    for name in "abc":
        bench.message(name, name, when="queue")
    bench.commit(claimed, failed=True)
    assert bench.set_mode("b", STEER).placed is Placement.STARTS
    assert (bench.said, bench.queue) == (["first", "b"], (["a", "c"], "failed"))
    answer(bench)
    assert bench.queue == (["a", "c"], "failed")


def test_releasing_again_under_the_same_id_does_not_release_a_later_hold(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("a", "a", when="queue")
    bench.message("b", "b", when="queue")
    assert bench.release_queue("r0").outcome == "idle"
    bench.commit(claimed, failed=True)
    assert bench.release_queue("r1").outcome == "started"
    bench.commit(bench.next_claim(), failed=True)
    assert bench.release_queue("r1").outcome == "again"
    assert bench.queue == (["b"], "failed")
    bench.message("now", "s1")
    assert bench.release_queue("r2").outcome == "changed"
    assert bench.queue == (["b"], "")


def test_a_queue_that_a_build_without_queues_has_left_behind_is_released(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("a", "a", when="queue")
    bench.message("b", "b", when="queue")
    bench.commit(claimed, failed=True)
    bench.database("HDEL", bench.store.context.keys(bench.session).ctl, "next_held")
    assert (bench.queue, bench.due()) == ((["a", "b"], ""), None)
    assert bench.release_queue("r1").outcome == "started"
    assert bench.release_queue("r1").outcome == "again"
    answer(bench)
    assert (bench.said, bench.queue) == (["first", "a", "b"], ([], ""))


def test_a_lost_reply_changes_nothing_of_a_message_twice(bench: Bench) -> None:
    claimed = bench.claim()
    bench.spy.lose(Points.ACT_PUSH)
    sent = bench.message("a", "a", when="queue")
    assert (sent.outcome, sent.placed, bench.queue) == ("again", Placement.QUEUED, (["a"], ""))
    bench.spy.lose(Points.WITHDRAW_EXEC)
    assert bench.store.sessions.withdraw(bench.session, "a").outcome == "again"
    bench.message("b", "b", when="queue")
    bench.spy.lose(Points.MODE_EXEC)
    assert bench.set_mode("b", STEER).placed is Placement.JOINS
    bench.message("c", "c", when="queue")
    bench.commit(claimed, failed=True)
    bench.spy.lose(Points.ACT_EXEC)
    assert bench.release_queue("r1").outcome == "started"
    assert (bench.said, bench.queue) == (["first", "b"], (["c"], ""))


def test_a_resend_under_its_key_gets_the_first_placement_and_no_second_effect(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("a", "a", when="queue", key="1:k")
    bench.commit(claimed, final=True)
    again = bench.message("a", "a", when="queue", key="1:k")
    assert (again.outcome, again.placed, bench.said) == ("again", Placement.QUEUED, ["first", "a"])
    with pytest.raises(IdempotencyMismatch):
        bench.message("another", "a", when="steer", key="1:other")


def test_a_message_that_must_not_wait_is_refused_with_what_runs(bench: Bench) -> None:
    with pytest.raises(SessionBusy, match="runs, at step 1") as refused:
        bench.message("now", "r1", when="refuse")
    assert (refused.value.phase, refused.value.step) == ("run", 1)
    bench.commit(bench.claim(), final=True)
    assert bench.message("now", "r1", when="refuse").placed is Placement.STARTS


def test_the_queue_has_a_limit_that_messages_of_an_end_do_not_meet(new_bench: NewBench) -> None:
    bench = new_bench(max_queued=2)
    bench.submit()
    claimed = bench.claim()
    bench.message("a", "a", when="queue")
    bench.message("b", "b", when="queue")
    with pytest.raises(ActionRefused, match="CELERY_AGENTS_MAX_QUEUED"):
        bench.message("c", "c", when="queue")
    bench.message("s", "s", when="steer")
    bench.commit(claimed, failed=True)
    assert bench.queue == (["s", "a", "b"], "failed")


@pytest.mark.parametrize("retention", [3600, None])
def test_a_held_queue_lives_as_long_as_its_session(new_bench: NewBench, retention: int | None) -> None:
    bench = new_bench(retention_seconds=retention)
    bench.submit()
    claimed, keys = bench.claim(), bench.store.context.keys(bench.session)
    bench.message("a", "a", when="queue")
    bench.commit(claimed, failed=True)
    bench.message("b", "b", when="queue")
    lives = [bench.database("PTTL", key) for key in (keys.session, keys.next)]
    assert all(life > 3_590_000 if retention else life == -1 for life in lives)
    bench.message("now", "s1")
    assert bench.database("PTTL", keys.next) == -1


def test_a_second_stop_is_for_what_was_sent_behind_the_first(bench: Bench) -> None:
    claimed = bench.claim()
    bench.stop()
    bench.message("behind", "s1")
    bench.stop()
    bench.message("behind both", "s2")
    bench.commit(claimed)
    assert (bench.said, bench.queue) == (["first", "behind both"], (["s1"], "stopped"))


def test_a_message_that_is_promoted_behind_a_stop_starts_when_the_stopped_execution_ends(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("queued", "q1", when="queue")
    bench.message("other", "q2", when="queue")
    bench.stop()
    assert bench.set_mode("q1", STEER).placed is Placement.JOINS
    bench.commit(claimed)
    assert (bench.said, bench.queue) == (["first", "queued"], (["q2"], "stopped"))


def test_a_message_behind_a_stop_starts_though_the_stopped_execution_fails(bench: Bench) -> None:
    claimed = bench.claim()
    bench.stop()
    bench.message("behind", "s1")
    bench.commit(claimed, failed=True)
    assert bench.said == ["first", "behind"]


def test_a_stop_that_comes_too_late_clears_the_queue_all_the_same(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("queued", "q1", when="queue")
    bench.commit(claimed, failed=True)
    assert bench.stop(clear_queue=True).outcome == "again"
    assert bench.queue == ([], "")
    assert bench.message("queued", "q1", when="queue").outcome == "again"


def test_a_held_message_stays_held_when_its_mode_becomes_queue(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("steering", "s1")
    bench.commit(claimed, failed=True)
    assert bench.set_mode("s1", QUEUE).placed is Placement.HELD
    assert (bench.queue, bench.due()) == ((["s1"], "failed"), None)


@pytest.mark.parametrize("end", ["stopped", "completed"])
def test_what_is_queued_behind_a_stop_follows_its_end_and_is_held_by_the_next(bench: Bench, end: str) -> None:
    claimed = bench.claim()
    bench.stop()
    for name in "abc":
        bench.message(name, name, when="queue")
    if end == "stopped":
        bench.commit(claimed)
    else:  # the stop has come behind the answer
        bench.database("HSET", bench.store.context.keys(bench.session).ctl, "cancel", "!other")
        bench.commit(claimed, final=True)
    assert (bench.said, bench.queue) == (["first", "a"], (["b", "c"], ""))
    claimed = bench.next_claim()
    bench.stop()
    bench.commit(claimed)
    assert bench.queue == (["b", "c"], "stopped")


def test_a_message_before_a_stop_holds_those_behind_it(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("before", "b", when="queue")
    bench.stop()
    bench.message("behind", "c", when="queue")
    bench.commit(claimed)
    assert bench.queue == (["b", "c"], "stopped")
