"""Children in the store: a wait makes them, the commit that ends one answers its parent, on every store."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_agents.worker.engine import operation_transition, retry_transition, stop_transition
from celery_agents.worker.errors import (
    ActionRefused,
    ClaimLost,
    RequestNotFound,
    SessionConflict,
    SessionDeleted,
    StateUnreadable,
)
from celery_agents.worker.state import MAX_DEPTH, ChildEnd, ParentLink
from celery_agents.worker.store import ChildPlan, InboxKind, Operation, RefusedWait, StoredWait

from support.asking import (
    a_request,
    ask,
    commit_leg,
    control,
    denial,
    events,
    failing_transition,
    header,
    open_requests,
    waiting_transition,
)
from support.child_sessions import as_child, child_request, end_child, new_child, wait_for_children
from support.store import Bench
from support.store_client import StoreClient

pytestmark = pytest.mark.leaves_keys("executions wait")


def test_a_wait_makes_its_children_and_lists_them_below_the_root(bench: Bench) -> None:
    first, second = child_request(bench), child_request(bench, 1)
    waited = wait_for_children(bench, bench.claim(), first, second, made=1)
    assert isinstance(waited, StoredWait)
    assert waited.open == (first, second)
    assert first.child is not None
    assert bench.store.trees.members(bench.session) == [first.child.session_id]
    assert "child_started" in events(bench)
    with as_child(bench, first):
        assert header(bench).status == "pending"
        assert bench.due() is not None
    tree = bench.store.trees.tree(bench.session)
    assert [node.session_id for node in tree.walk()] == [bench.session, first.child.session_id]
    assert bench.store.sessions.header(first.child.session_id).agent == "agent"


@pytest.mark.parametrize("part", ["session", "ctl"])
def test_a_child_whose_key_holds_another_type_hides_no_other_session_of_its_tree(bench: Bench, part: str) -> None:
    first, second = child_request(bench), child_request(bench, 1)
    wait_for_children(bench, bench.claim(), first, second)
    assert first.child is not None
    assert second.child is not None
    damaged = getattr(bench.store.context.keys(first.child.session_id), part)
    bench.database("DEL", damaged)
    bench.database("SET", damaged, "x")
    tree = bench.store.trees.tree(bench.session)
    assert [node.header.status for node in tree.walk() if node.session_id == first.child.session_id] == ["unreadable"]
    assert second.child.session_id in [node.session_id for node in tree.walk()]
    assert second.child.session_id in [each.session_id for each in bench.store.trees.active_below(bench.session)]
    assert bench.store.trees.tree(first.child.session_id).header.status == "unreadable"


def test_the_end_of_a_child_answers_and_wakes_its_parent_in_one_transaction(bench: Bench) -> None:
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    end_child(bench, request)
    assert control(bench, "phase", "not_before") == ["run", "0"]
    leg = bench.claim()
    answer = leg.loaded.journal.answer_to(request)
    assert answer is not None
    end = answer.child_end()
    assert isinstance(end, ChildEnd)
    assert (end.status.value, end.steps) == ("completed", 1)
    assert leg.loaded.journal.made == {request.place}
    assert "child_ended" in events(bench)


def test_a_child_brings_values_that_nest_as_deep_as_they_may(bench: Bench) -> None:
    deep: dict[str, Any] = {}
    for _ in range(MAX_DEPTH - 2):
        deep = {"a": deep}
    request = child_request(bench, merge=("plan",))
    wait_for_children(bench, bench.claim(), request)
    with as_child(bench, request):
        bench.store.sessions.act(
            bench.session, Operation("0" * 32, InboxKind.METADATA, {"key": "plan", "value": deep}), operation_transition
        )
    end_child(bench, request)
    answer = bench.claim().loaded.journal.answer_to(request)
    assert answer is not None
    end = answer.child_end()
    assert end is not None
    assert dict(end.metadata) == {"plan": deep}


def test_a_parent_that_needs_all_its_children_is_woken_by_the_last_end(bench: Bench) -> None:
    requests = [child_request(bench, index) for index in range(3)]
    wait_for_children(bench, bench.claim(), *requests, waits_for_all=True)
    for request in requests[1:]:
        end_child(bench, request)
        assert (*control(bench, "phase"), "execution_resumed" in events(bench)) == ("wait", False)
    end_child(bench, requests[0])
    assert (*control(bench, "phase"), "execution_resumed" in events(bench)) == ("run", True)
    assert len(bench.claim().loaded.journal.answers) == 3


def test_a_leg_that_begins_for_another_reason_counts_the_ends_anew(bench: Bench) -> None:
    requests = [child_request(bench, index) for index in range(3)]
    wait_for_children(bench, bench.claim(), *requests, waits_for_all=True)
    end_child(bench, requests[0])
    bench.store.sessions.suspend(bench.session, reason="a look", by="", until_ms=None)
    end_child(bench, requests[1])
    bench.store.sessions.resume(bench.session, by="")
    claimed = bench.claim()
    journal = claimed.loaded.journal
    waited = bench.store.steps.wait(
        claimed.claim, claimed.loaded, waiting_transition(claimed, journal.open_requests),
        seen=journal, results={}, plan=ChildPlan(waits_for_all=True),
    )  # fmt: skip
    assert isinstance(waited, StoredWait)
    end_child(bench, requests[2])
    assert control(bench, "phase") == ["run"]


@pytest.mark.parametrize("rest", [b"", b"-1", b"many", b"256", b"9" * 400, b"\xff"])
def test_a_count_of_ends_that_is_damaged_lets_the_end_wake(bench: Bench, rest: bytes) -> None:
    requests = [child_request(bench, index) for index in range(2)]
    wait_for_children(bench, bench.claim(), *requests, waits_for_all=True)
    bench.database("HSET", bench.store.context.keys(bench.session).ctl, "rest", rest)
    end_child(bench, requests[0])
    assert control(bench, "phase") == ["run"]


def test_a_commit_of_a_child_whose_reply_is_lost_answers_once(bench: Bench) -> None:
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    bench.spy.lose("commit.exec")
    end_child(bench, request)
    assert events(bench).count("child_ended") == 1
    assert len(bench.claim().loaded.journal.answers) == 1


def test_a_wait_whose_reply_is_lost_has_made_its_children_once(bench: Bench) -> None:
    request = child_request(bench)
    bench.spy.lose("wait.exec")
    waited = wait_for_children(bench, bench.claim(), request)
    assert isinstance(waited, StoredWait)
    assert events(bench).count("child_started") == 1


def test_a_child_that_exists_already_is_refused_and_nothing_is_written(bench: Bench) -> None:
    request, claimed = child_request(bench), bench.claim()
    assert request.child is not None
    bench.database("HSET", bench.store.context.keys(request.child.session_id).session, "version", 1)
    refused = wait_for_children(bench, claimed, request)
    assert isinstance(refused, RefusedWait)
    assert "exists already" in refused.refused[request.id]
    assert control(bench, "phase") == ["run"]


def test_a_full_tree_makes_no_further_child(bench: Bench) -> None:
    request, index = child_request(bench), bench.store.context.keys(bench.session).shard.children
    words = [word for number in range(255) for word in (0, f"{bench.session}.{number:032x}")]
    bench.database("ZADD", index, *words)
    refused = wait_for_children(bench, bench.claim(), request)
    assert isinstance(refused, RefusedWait)
    assert "a tree may have 256 sessions" in refused.refused[request.id]


def test_what_forks_have_started_fills_no_other_tree(bench: Bench) -> None:
    request, shard = child_request(bench), bench.store.context.keys(bench.session).shard
    fork = ParentLink(session_id=f"{bench.session}.{'f' * 32}", execution_id="e", step=1, index=0, request_id="r")
    for number in range(300):
        name = f"{bench.session}.{number:032x}"
        bench.database("ZADD", shard.children, 0, name)
        bench.database("HSET", shard.session(name).session, "version", 1, "parent", fork.to_json())
    assert isinstance(wait_for_children(bench, bench.claim(), request), StoredWait)


def test_a_failed_child_is_not_listed_among_the_failed_sessions(bench: Bench) -> None:
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    end_child(bench, request, final=False, failed=True)
    assert request.child is not None
    failed = bench.database("ZRANGEBYSCORE", bench.store.context.keys(bench.session).shard.failed, "-inf", "+inf")
    assert request.child.session_id.encode() not in failed
    answer = bench.claim().loaded.journal.answer_to(request)
    assert answer is not None
    assert answer.child_end().has_failed  # type: ignore[union-attr]


def test_a_parent_that_does_not_ask_any_more_is_left_alone(bench: Bench) -> None:
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    bench.database("DEL", bench.journal(bench.ref()))
    before = control(bench, "phase", "not_before")
    end_child(bench, request)
    assert control(bench, "phase", "not_before") == before
    with as_child(bench, request):
        assert header(bench).status == "completed"


def test_a_held_parent_keeps_the_end_of_its_child_and_does_not_wake(bench: Bench) -> None:
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    bench.store.sessions.suspend(bench.session, reason="audit", by="operator", until_ms=None)
    end_child(bench, request)
    assert control(bench, "phase") == ["wait"]
    bench.store.sessions.resume(bench.session, by="operator")
    assert bench.claim().loaded.journal.answer_to(request) is not None


def test_a_stopped_child_that_nobody_runs_answers_at_once(bench: Bench) -> None:
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    assert request.child is not None
    bench.store.sessions.stop(request.child.session_id, None, stop_transition)
    answer = bench.claim().loaded.journal.answer_to(request)
    assert answer is not None
    end = answer.child_end()
    assert end is not None
    assert end.is_partial


def test_an_ended_child_takes_no_message_and_no_retry(bench: Bench) -> None:
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    end_child(bench, request)
    with as_child(bench, request), pytest.raises(ActionRefused, match="is a child of"):
        bench.message("more")


def test_a_child_of_a_step_taken_over_meanwhile_is_not_made(bench: Bench) -> None:
    claimed, request = bench.claim(), child_request(bench)
    journal = open_requests(bench, claimed, request)
    bench.end_lease(claimed.claim)
    bench.claim()
    with pytest.raises(ClaimLost):
        bench.store.steps.wait(
            claimed.claim,
            claimed.loaded,
            waiting_transition(claimed, journal.open_requests),
            seen=journal,
            results={},
            plan=ChildPlan(new=(new_child(bench, request),)),
        )
    assert bench.store.trees.members(bench.session) == []


# --- ends that meet a parent that has changed meanwhile -------------------------------------------------------------


def test_the_end_of_a_child_reaches_a_stopped_parent_before_its_last_leg(bench: Bench) -> None:
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    bench.store.sessions.stop(bench.session, None, stop_transition)
    end_child(bench, request)
    leg = bench.claim()
    assert leg.loaded.journal.answer_to(request) is not None
    commit_leg(bench, leg)
    assert control(bench, "phase") == ["end"]
    assert events(bench).count("child_ended") == 1


def test_the_end_of_a_child_leaves_a_parent_that_has_stopped_as_it_is(bench: Bench) -> None:
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    bench.store.sessions.stop(bench.session, None, stop_transition)
    commit_leg(bench, bench.claim())
    before = (control(bench, "phase", "step", "not_before"), events(bench), bench.due())
    end_child(bench, request)
    assert (control(bench, "phase", "step", "not_before"), events(bench), bench.due()) == before
    with as_child(bench, request):
        assert header(bench).status == "completed"


def test_the_end_of_a_child_brings_nothing_of_a_parent_back_that_has_expired(bench: Bench) -> None:
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    keys = bench.store.context.keys(bench.session)
    gone = (keys.session, keys.ctl, keys.events, bench.journal(bench.ref()))
    bench.database("DEL", *gone)
    end_child(bench, request)
    assert bench.database("EXISTS", *gone) == 0
    with as_child(bench, request):
        assert header(bench).status == "completed"


def test_the_end_of_a_child_answers_a_parent_that_waits_again(bench: Bench) -> None:
    first, second = child_request(bench), child_request(bench, 1)
    wait_for_children(bench, bench.claim(), first, second)
    end_child(bench, first)
    leg = bench.claim()
    journal = leg.loaded.journal
    again = bench.store.steps.wait(leg.claim, leg.loaded, waiting_transition(leg, (second,)), seen=journal, results={})
    assert isinstance(again, StoredWait)
    assert control(bench, "phase") == ["wait"]
    end_child(bench, second)
    answers = bench.claim().loaded.journal
    assert answers.answer_to(first) is not None
    assert answers.answer_to(second) is not None
    assert events(bench).count("child_ended") == 2


def test_the_end_of_a_child_answers_a_parent_that_runs_and_its_next_wait_is_refused(bench: Bench) -> None:
    first, second = child_request(bench), child_request(bench, 1)
    wait_for_children(bench, bench.claim(), first, second)
    end_child(bench, first)
    leg = bench.claim()
    end_child(bench, second)
    refused = bench.store.steps.wait(
        leg.claim, leg.loaded, waiting_transition(leg, (second,)), seen=leg.loaded.journal, results={}
    )
    assert isinstance(refused, RefusedWait)
    assert events(bench).count("child_ended") == 2


def test_the_end_of_a_child_answers_a_parent_that_was_retried(bench: Bench) -> None:
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    bench.store.sessions.stop(bench.session, None, stop_transition)
    leg = bench.claim()
    bench.store.steps.commit(leg.claim, leg.loaded, failing_transition(leg), results={}, keep_claim=False)
    assert header(bench).status == "failed"
    bench.store.sessions.retry(bench.session, retry_transition(None))
    end_child(bench, request)
    assert bench.claim().loaded.journal.answer_to(request) is not None
    assert events(bench).count("child_ended") == 1


def test_the_end_of_a_child_that_was_given_up_changes_no_answer(bench: Bench) -> None:
    first, second = child_request(bench), child_request(bench, 1)
    wait_for_children(bench, bench.claim(), first, second)
    end_child(bench, first)
    leg = bench.claim()
    given_up = denial(bench, verb="cancel", by_expiry=True)
    bench.store.steps.close_requests(leg.claim, {second.id: given_up})
    end_child(bench, second)
    bench.end_lease(leg.claim)
    assert bench.claim().loaded.journal.answer_to(second) == given_up
    assert events(bench).count("child_ended") == 1


def test_a_parked_child_that_is_deleted_answers_its_parent_and_is_charged_what_was_reserved(bench: Bench) -> None:
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    with as_child(bench, request):
        bench.claim()
        bench.store.steps.park(bench.ref(), "cannot be read")
        bench.spy.lose("delete.exec")
        assert bench.store.sessions.delete(bench.session).outcome == "changed"
    assert control(bench, "phase") == ["run"]
    leg = bench.claim()
    answer = leg.loaded.journal.answer_to(request)
    assert answer is not None
    assert (answer.verb.value, answer.child_end()) == ("fail", None)
    assert "deleted" in answer.reason
    assert bench.store.trees.members(bench.session) == []


def test_an_ended_child_that_is_deleted_has_answered_and_is_not_made_again(bench: Bench) -> None:
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    end_child(bench, request)
    with as_child(bench, request):
        bench.store.sessions.delete(bench.session)
    claimed = bench.claim()
    assert claimed.loaded.journal.answer_to(request) is not None
    again = wait_for_children(bench, claimed, child_request(bench, 1), request, made=2)
    assert isinstance(again, RefusedWait)
    assert "exists already" in again.refused[request.id]


def test_an_end_that_meets_a_deleted_parent_leaves_nothing_of_it(bench: Bench) -> None:
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    bench.store.sessions.stop(bench.session, None, stop_transition)
    commit_leg(bench, bench.claim(), final=True)
    bench.store.sessions.delete(bench.session)
    end_child(bench, request)
    keys = bench.store.context.keys(bench.session)
    assert bench.database("HGETALL", keys.session)[::2] == [b"created"]
    assert not any(bench.database("EXISTS", name) for name in (keys.ctl, keys.events, bench.journal(bench.ref())))
    assert bench.due() is None


def test_a_tree_whose_events_never_stop_is_followed_until_its_time_is_over(bench: Bench) -> None:
    bench.submit()
    event = ("type", "retrying", "execution", bench.execution, "step", 1, "data", "{}")

    def follow() -> None:
        for number, _ in enumerate(StoreClient(bench.store).tree_events(bench.session, timeout=0.2)):
            assert number < 10_000
            bench.database("XADD", bench.store.context.keys(bench.session).events, "*", *event)

    with pytest.raises(TimeoutError, match=f"session {bench.session} has not ended in time"):
        follow()


@pytest.mark.parametrize("field", ["phase", "step", "execution", "cancel", "not_before", "held"])
def test_a_damaged_session_keeps_no_other_of_its_tree_from_its_stop(bench: Bench, field: str) -> None:
    requests = [child_request(bench, index) for index in range(3)]
    wait_for_children(bench, bench.claim(), *requests)
    for request in requests:
        with as_child(bench, request):
            ask(bench, a_request(bench))
    names = [str(each.child.session_id) for each in requests if each.child]
    bench.database("HSET", bench.store.context.keys(sorted(names)[1]).ctl, field, b"\xff")
    StoreClient(bench.store).stop(bench.session, timeout=0)
    stopped = [name for name in sorted(names) if bench.database("HGET", bench.store.context.keys(name).ctl, "cancel")]
    assert {sorted(names)[0], sorted(names)[2]} <= {*stopped}


def test_a_request_below_a_session_is_found_behind_a_thousand_others(bench: Bench) -> None:
    first = child_request(bench)
    wait_for_children(bench, bench.claim(), first)
    assert first.child is not None
    with as_child(bench, first):
        asked = [a_request(bench, number, asked_at_ms=number) for number in range(1001)]
        entries = [word for each in asked for word in (each.asked_at_ms, each.summarize().to_json())]
        bench.database("ZADD", bench.store.context.keys(bench.session).shard.requests, *entries)
    with pytest.raises(RequestNotFound) as found:  # the index alone has them
        StoreClient(bench.store).request(bench.session, asked[-1].id)
    assert found.value.session_id == first.child.session_id


def tree_that_has_ended(bench: Bench) -> str:
    """The child of a session, which have both ended."""
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    end_child(bench, request)
    commit_leg(bench, bench.claim(), final=True)
    assert request.child is not None
    return request.child.session_id


def test_a_delete_that_a_message_overtakes_leaves_the_sessions_below(bench: Bench) -> None:
    child = tree_that_has_ended(bench)
    version = bench.store.sessions.header(bench.session).version
    root = bench.store.context.keys(bench.session).session
    bench.spy.before("delete.read", lambda: bench.database("HSET", root, "version", 99))
    with pytest.raises(SessionConflict):
        StoreClient(bench.store).delete(bench.session, expected_version=version)
    assert bench.store.sessions.header(child).status == "completed", "nothing was deleted"


@pytest.mark.parametrize("version", [None, 3])
def test_what_a_deleted_session_has_left_below_is_stopped_and_deleted_with_it(
    bench: Bench, version: int | None
) -> None:
    child = tree_that_has_ended(bench)
    bench.store.sessions.delete(bench.session)  # and its process died
    assert [each.session_id for each in bench.store.trees.below(bench.session)] == [child]
    assert StoreClient(bench.store).delete(bench.session, expected_version=version) is False
    with pytest.raises(SessionDeleted):
        bench.store.sessions.header(child)


def test_a_session_whose_parent_has_gone_is_deleted_with_all_that_ended(bench: Bench) -> None:
    child = tree_that_has_ended(bench)
    client, later = StoreClient(bench.store), datetime.now(UTC) + timedelta(days=1)
    assert [*client.delete_all(before=later, dry_run=True)] == [bench.session], "it goes with its parent"
    bench.store.sessions.delete(bench.session)  # and its process died
    assert [*client.delete_all(before=later)] == [child]


@pytest.mark.parametrize("length", [1, 2])
def test_links_that_lead_in_a_circle_come_to_an_end(bench: Bench, length: int) -> None:
    requests = [child_request(bench, index) for index in range(2)]
    wait_for_children(bench, bench.claim(), *requests)
    names = [str(each.child.session_id) for each in requests if each.child]
    for name, above in zip(names, {1: names, 2: names[::-1]}[length], strict=True):
        keys = bench.store.context.keys(name)
        link = json.loads(bench.database("HGET", keys.session, "parent"))
        bench.database("HSET", keys.session, "parent", json.dumps({**link, "session_id": above}))
    trees = bench.store.trees
    assert [node.session_id for node in trees.tree(names[0]).walk()] == names[:length]
    assert [each.session_id for each in trees.below(names[0])] == names[1:length]
    assert trees.roots(names).keys() == {*names}


@pytest.mark.leaves_keys("a key of another type stays, with what its session has")
@pytest.mark.parametrize("part", ["session", "ctl"])
def test_a_tree_with_a_child_that_cannot_be_read_is_not_deleted_without_it(bench: Bench, part: str) -> None:
    child = tree_that_has_ended(bench)
    damaged = getattr(bench.store.context.keys(child), part)
    bench.database("DEL", damaged)
    bench.database("SET", damaged, "x")
    with pytest.raises(StateUnreadable):
        StoreClient(bench.store).delete(bench.session)
    assert bench.store.sessions.header(bench.session).status == "completed"
