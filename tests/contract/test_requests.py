"""Answering, listing and finding requests, on every store."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest

from celery_agents.worker.engine import stop_transition
from celery_agents.worker.errors import ActionRefused, InvalidInput, RequestNotFound, RequestNotOpen, SessionNotFound
from celery_agents.worker.requests import check_answer
from celery_agents.worker.state import (
    AgentState,
    Answer,
    AnswerNote,
    AnswerVerb,
    Approve,
    Complete,
    Deny,
    Fail,
    GivenAnswer,
    ParentLink,
    Request,
    RequestKind,
    RequestStatus,
)
from celery_agents.worker.store import AnswerAction, RequestFilter, StoredSession
from celery_agents.worker.store.database import Database

from support.asking import (
    a_request,
    answer,
    approve,
    ask,
    commit_leg,
    control,
    denial,
    events,
    indexed,
    now_ms,
    open_requests,
    soon,
)
from support.points import Points
from support.store import Bench

pytestmark = pytest.mark.leaves_keys("executions wait")

KINDS: list[tuple[RequestKind, GivenAnswer, AnswerVerb, Any]] = [
    (RequestKind.APPROVAL, Approve(), AnswerVerb.APPROVE, None),
    (RequestKind.APPROVAL, Deny("too much"), AnswerVerb.DENY, None),
    (RequestKind.QUESTION, Answer({"Which?": "EUR"}), AnswerVerb.ANSWER, {"Which?": "EUR"}),
    (RequestKind.QUESTION, Deny("not now"), AnswerVerb.DENY, None),
    (RequestKind.EXTERNAL, Complete([1, 2]), AnswerVerb.COMPLETE, (1, 2)),
    (RequestKind.EXTERNAL, Fail("no such file"), AnswerVerb.FAIL, None),
]


@pytest.fixture
def bench(database: Database) -> Bench:
    found = Bench(database)
    found.submit()
    return found


# --- answering --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "given", "verb", "value"), KINDS, ids=lambda value: getattr(value, "value", ""))
def test_an_answer_of_its_kind_is_stored_and_told(
    bench: Bench, kind: RequestKind, given: GivenAnswer, verb: AnswerVerb, value: Any
) -> None:
    request = a_request(bench, kind=kind)
    ask(bench, request)
    answer(bench, {request.id: given}, by="ann", operation="op-1")
    record = bench.claim().loaded.journal.answer_to(request)
    assert record is not None
    assert (record.verb, record.value, record.by, record.operation_id) == (verb, value, "ann", "op-1")
    assert record.reason == (getattr(given, "reason", "") or getattr(given, "error", ""))
    assert "request_answered" in events(bench)


@pytest.mark.parametrize(("kind", "given"), [(RequestKind.APPROVAL, Answer(1)), (RequestKind.QUESTION, Approve())])
def test_an_answer_of_another_kind_is_refused(bench: Bench, kind: RequestKind, given: GivenAnswer) -> None:
    request = a_request(bench, kind=kind)
    ask(bench, request)
    _refused(bench, {request.id: given}, rf"answers\.{request.id}")


def test_all_answers_are_stored_or_none(bench: Bench) -> None:
    first, second = a_request(bench), a_request(bench, 1)
    ask(bench, first, second)
    _refused(bench, {first.id: Approve(), second.id: Complete(1)}, second.id)
    result = answer(bench, {second.id: Deny("no"), first.id: Approve()})
    assert set(result.requests) == {first.id, second.id}
    assert bench.claim().loaded.journal.open_requests == ()


def test_an_answer_serves_only_the_arguments_that_it_was_meant_for(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    with pytest.raises(InvalidInput, match="other arguments, with digest"):
        approve(bench, request, expect={request.id: "0" * 64})
    assert approve(bench, request, expect={request.id: request.digest}).outcome == "woken"


def test_other_arguments_need_a_request_that_allows_them(bench: Bench) -> None:
    fixed, free = a_request(bench), a_request(bench, 1, edits_allowed=True)
    ask(bench, fixed, free)
    _refused(bench, {fixed.id: Approve(args={"cents": 2})}, rf"answers\.{fixed.id}\.args")
    answer(bench, {free.id: Approve(args={"cents": 2})})
    record = bench.claim().loaded.journal.answer_to(free)
    assert record is not None
    assert record.value == {"cents": 2}


def test_a_check_of_the_caller_refuses_all_answers_and_names_the_field(bench: Bench) -> None:
    first, second = a_request(bench), a_request(bench, 1)
    ask(bench, first, second)

    def check(request: Request, given: GivenAnswer) -> GivenAnswer:
        if request.id == second.id:
            raise InvalidInput("args.cents", "much", "it is no number.")
        return given

    with pytest.raises(InvalidInput, match=rf"answers\.{second.id}\.args\.cents"):
        answer(bench, {first.id: Approve(), second.id: Approve()}, check=check)
    assert control(bench, "phase") == ["wait"]


def test_an_answer_is_bounded_and_no_other_than_json(bench: Bench) -> None:
    request = a_request(bench, kind=RequestKind.QUESTION)
    ask(bench, request)
    _refused(bench, {request.id: Answer("x" * 70_000)}, "bytes")
    _refused(bench, {request.id: Answer({"a": {1, 2}})}, rf"answers\.{request.id}\.values")
    with pytest.raises(InvalidInput):
        answer(bench, {})


def test_an_answer_needs_an_operation_id_and_texts(bench: Bench) -> None:
    request = a_request(bench, expires_at_ms=soon(bench, -1))
    ask(bench, request, a_request(bench, 1))
    leg = bench.claim()
    bench.store.steps.close_requests(leg.claim, {request.id: denial(bench)})
    with pytest.raises(InvalidInput, match="operation_id"):  # the worker's record has none, either
        bench.store.requests.answer(bench.session, AnswerAction({request.id: Approve()}, AnswerNote(""), check_answer))
    _refused(bench, {a_request(bench, 1).id: Approve()}, "by", by="\ud800")
    _refused(bench, {a_request(bench, 1).id: Deny("\ud800")}, "reason")


def test_a_request_may_be_named_by_the_id_of_its_call(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    assert answer(bench, {request.call_id: Approve()}).requests == (request.id,)


def test_an_id_of_several_calls_names_no_request(bench: Bench) -> None:
    twins = [a_request(bench, index, call_id="dup") for index in range(2)]
    ask(bench, *twins)
    with pytest.raises(ActionRefused, match=f"{twins[0].id} or {twins[1].id}"):
        answer(bench, {"dup": Approve()})
    with pytest.raises(ActionRefused, match="2 calls"):
        bench.store.requests.find(bench.session, "dup")
    assert answer(bench, {twins[1].id: Approve()}).requests == (twins[1].id,)


def test_one_request_cannot_be_answered_twice_at_once(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    _refused(bench, {request.call_id: Approve(), request.id: Deny()}, "answers already")


# --- what is not open -------------------------------------------------------------------------------------------------


def test_a_second_decision_is_refused_and_says_by_whom_the_first_was_made(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    approve(bench, request, by="ann")
    with pytest.raises(RequestNotOpen, match=r"it was approved by ann at \d{4}-") as refused:
        answer(bench, {request.id: Deny()}, by="auditor")
    assert (refused.value.by, refused.value.status) == ("ann", "answered")
    assert refused.value.at_ms > 0


def test_of_two_answers_at_the_same_time_one_counts(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    bench.spy.before(Points.ANSWER_EXEC, lambda: approve(bench, request, by="ann"))
    with pytest.raises(RequestNotOpen, match="by ann"):
        answer(bench, {request.id: Deny()}, by="auditor")
    assert events(bench).count("request_answered") == 1


def test_many_answers_at_the_same_time_make_one(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    results: list[str] = []

    def give(name: str) -> None:
        try:
            results.append(approve(bench, request, by=name).outcome)
        except RequestNotOpen:
            results.append("refused")

    threads = [threading.Thread(target=give, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["refused"] * 7 + ["woken"]


def test_an_answer_after_the_expiry_is_refused_though_nobody_journaled_the_expiry(bench: Bench) -> None:
    request = a_request(bench, expires_at_ms=soon(bench, -1))
    ask(bench, request)
    with pytest.raises(RequestNotOpen, match="expired") as refused:
        approve(bench, request)
    assert refused.value.at_ms == request.expires_at_ms


def test_an_answer_after_a_stop_is_refused(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    bench.store.sessions.stop(bench.session, None, stop_transition)
    with pytest.raises(RequestNotOpen, match="its execution is stopping"):
        approve(bench, request)


def test_an_answer_to_a_committed_step_says_what_became_of_the_request(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    approve(bench, request, by="ann")
    commit_leg(bench, bench.claim())
    with pytest.raises(RequestNotOpen, match="approved by ann") as refused:
        approve(bench, request, by="auditor")
    assert refused.value.status == "used"


@pytest.mark.parametrize("final", [False, True])
def test_the_same_operation_again_gets_the_same_reply_also_after_the_commit(bench: Bench, final: bool) -> None:
    request = a_request(bench)
    ask(bench, request)
    first = approve(bench, request, operation="op-1")
    again = approve(bench, request, operation="op-1")
    assert (again.outcome, again.requests) == ("again", first.requests)
    commit_leg(bench, bench.claim(), final=final)
    later = approve(bench, request, operation="op-1")
    assert (later.outcome, later.requests) == ("again", first.requests)
    assert events(bench).count("request_answered") == 1


def test_a_lost_reply_answers_once_and_gets_the_reply(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    bench.spy.lose(Points.ANSWER_EXEC)
    assert approve(bench, request).outcome == "woken"
    assert events(bench).count("request_answered") == 1


def test_an_unknown_request_or_session_is_named(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    with pytest.raises(RequestNotFound, match="no-such"):
        answer(bench, {request.id: Approve(), "no-such": Approve()})
    assert control(bench, "phase") == ["wait"]
    bench.session = "nobody"
    with pytest.raises(SessionNotFound):
        answer(bench, {request.id: Approve()})


def test_a_deleted_session_is_not_written_again_by_an_answer(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    keys = bench.store.context.keys(bench.session)
    names = (keys.session, keys.ctl, keys.events, bench.journal(bench.ref()))
    bench.spy.before(Points.ANSWER_EXEC, lambda: bench.database("DEL", *names))
    with pytest.raises(SessionNotFound):
        approve(bench, request)
    assert not bench.database("EXISTS", *names)


def test_an_answer_makes_no_conflict_for_a_step_that_runs(bench: Bench) -> None:
    claimed = bench.claim()
    request = a_request(bench)
    open_requests(bench, claimed, request)
    version = bench.store.sessions.header(bench.session).version
    assert approve(bench, request).outcome == "recorded"
    assert bench.store.sessions.header(bench.session).version == version


# --- listing ----------------------------------------------------------------------------------------------------------


@pytest.mark.one_server("each node is read")
def test_a_page_of_the_inbox_is_one_read_of_the_index_and_one_of_messages_however_many_wait(bench: Bench) -> None:
    start = now_ms(bench)
    requests = [a_request(bench, index, asked_at_ms=start + index) for index in range(40)]
    ask(bench, *requests)
    mine = [each.id for each in requests]
    found: list[str] = []
    cursor, pages = None, 0
    while True:
        bench.spy.sent.clear()
        page = bench.store.requests.page(RequestFilter(), limit=15, cursor=cursor)
        assert bench.spy.points == [Points.REQUESTS_PAGE, Points.REQUESTS_LATER]
        found += [each.summary.id for each in page.requests]
        cursor, pages = page.cursor, pages + 1
        if cursor is None:
            break
    assert [each for each in found if each in mine] == mine
    assert len(found) == len(set(found))


def test_the_inbox_of_several_shards_is_in_the_order_of_asking(database: Database) -> None:
    bench = Bench(database, shards=4)
    start, expected = now_ms(bench), []
    for number in range(12):
        bench.session, bench.execution = uuid.uuid4().hex, uuid.uuid4().hex
        bench.submit()
        request = a_request(bench, asked_at_ms=start + 1000 - number, to="shards")
        ask(bench, request)
        expected.insert(0, request.id)
    assert (
        len({bench.store.context.keys(each.summary.session_id).shard.shard for each in _inbox(bench, to="shards")}) > 1
    )
    first = bench.store.requests.page(RequestFilter(to="shards"), limit=5)
    rest = bench.store.requests.page(RequestFilter(to="shards"), limit=50, cursor=first.cursor)
    assert [each.summary.id for each in (*first.requests, *rest.requests)] == expected


def test_the_inbox_shows_what_is_asked_without_the_session(bench: Bench) -> None:
    request = a_request(bench, to="managers", expires_at_ms=soon(bench), args={"cents": 400})
    ask(bench, request)
    (found,) = _inbox(bench, to="managers")
    assert found.summary == request.summarize()
    assert (found.summary.call, found.summary.text) == ("refund(cents=400)", "May it?")
    assert found.status is RequestStatus.OPEN


def test_the_inbox_is_filtered_by_addressee_and_kind(bench: Bench) -> None:
    approval, question = a_request(bench, to="ann"), a_request(bench, 1, to="ann", kind=RequestKind.QUESTION)
    ask(bench, approval, question, a_request(bench, 2, to="auditor"))
    assert {each.summary.id for each in _inbox(bench, to="ann")} == {approval.id, question.id}
    assert [each.summary.id for each in _inbox(bench, to="ann", kind=RequestKind.QUESTION)] == [question.id]
    assert _inbox(bench, to="nobody") == []


def test_a_session_lists_its_requests_with_what_became_of_them(bench: Bench) -> None:
    first, second = a_request(bench), a_request(bench, 1)
    ask(bench, first, second)
    approve(bench, first)
    statuses = {each.summary.id: each.status for each in _inbox(bench, session_id=bench.session, status=None)}
    assert statuses == {first.id: RequestStatus.ANSWERED, second.id: RequestStatus.OPEN}
    assert [each.request for each in _inbox(bench, session_id=bench.session)] == [second]
    approve(bench, second)
    commit_leg(bench, bench.claim())
    used = _inbox(bench, session_id=bench.session, status=RequestStatus.USED)
    assert {each.summary.id for each in used} == {first.id, second.id}


def test_a_tree_lists_the_requests_below_its_root(bench: Bench) -> None:
    root = bench.session
    bench.session = f"{root}.{'0' * 32}"
    bench.submit()
    link = ParentLink(session_id=root, execution_id=bench.execution, step=1, index=0, request_id="0" * 32)
    bench.database("HSET", bench.store.context.keys(bench.session).session, "parent", link.to_json())
    bench.database("ZADD", bench.store.context.keys(root).shard.children, 0, bench.session)
    request = a_request(bench)
    ask(bench, request)
    bench.submit(root, execution="e" * 32)
    assert [each.summary.id for each in _inbox(bench, session_id=root, tree=True)] == [request.id]
    assert _inbox(bench, session_id=root) == []


def test_a_damaged_entry_does_not_hide_the_others(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    index = bench.shard.requests
    bench.database("ZADD", index, 1, b"\xff\x00no json")
    try:
        assert request.id in [each.summary.id for each in _inbox(bench)]
    finally:
        bench.database("ZREM", index, b"\xff\x00no json")


@pytest.mark.parametrize(
    ("wanted", "options", "field"),
    [
        ({}, {"cursor": "next"}, "cursor"),
        ({}, {"limit": 0}, "limit"),
        ({}, {"limit": 1001}, "limit"),
        ({"status": RequestStatus.USED}, {}, "status"),
        ({"status": None}, {}, "status"),
    ],
)
def test_a_wrong_question_about_requests_names_its_field(
    bench: Bench, wanted: dict[str, Any], options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput, match=field):
        bench.store.requests.page(RequestFilter(**wanted), **options)


def test_open_requests_are_counted_with_the_age_of_the_oldest(bench: Bench) -> None:
    before = bench.store.requests.count_open().open
    first = a_request(bench, asked_at_ms=1000)
    ask(bench, first, a_request(bench, 1))
    counted = bench.store.requests.count_open()
    assert (counted.open, counted.oldest_ms) == (before + 2, 1000)
    approve(bench, first)
    assert bench.store.requests.count_open().open == before + 1


def test_a_request_is_found_by_its_id_and_its_call(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    assert bench.store.requests.find(bench.session, request.id).request == request
    answer(bench, {request.id: Deny("no")}, by="ann")
    found = bench.store.requests.find(bench.session, request.call_id)
    assert (found.status, found.answer and found.answer.by) == (RequestStatus.DENIED, "ann")
    commit_leg(bench, bench.claim(), final=True)
    used = bench.store.requests.find(bench.session, request.id)
    assert (used.status, used.resolution and used.resolution.reason) == (RequestStatus.USED, "no")
    assert bench.store.requests.find(bench.session, request.call_id) == used
    assert (used.summary.call, used.summary.asked_at_ms) == ('refund({"cents":0})', request.asked_at_ms)
    with pytest.raises(RequestNotFound):
        bench.store.requests.find(bench.session, "no-such")


def test_the_index_has_exactly_what_is_open(bench: Bench) -> None:
    first, second = a_request(bench), a_request(bench, 1)
    ask(bench, first, second)
    assert set(indexed(bench)) == {first.id, second.id}
    approve(bench, first)
    assert indexed(bench) == [second.id]
    leg = bench.claim()
    approve(bench, second)
    assert indexed(bench) == []
    commit_leg(bench, leg, failed=True)
    assert indexed(bench) == []


def _inbox(bench: Bench, **wanted: Any) -> list[Any]:
    return list(bench.store.requests.page(RequestFilter(**wanted), limit=1000).requests)


def _refused(bench: Bench, answers: dict[str, GivenAnswer], match: str, **options: Any) -> None:
    before = bench.snapshot(), bench.database("HGETALL", bench.journal(bench.ref()))
    with pytest.raises(InvalidInput, match=match):
        answer(bench, answers, **options)
    assert (bench.snapshot(), bench.database("HGETALL", bench.journal(bench.ref()))) == before


def test_a_session_that_has_had_no_execution_has_no_requests_and_is_not_deleted(bench: Bench) -> None:
    bench.store.sessions.create("fresh", StoredSession(agent="agent", state=AgentState.fresh()))
    for status in (RequestStatus.OPEN, None):
        assert bench.store.requests.page(RequestFilter(session_id="fresh", status=status)).requests == ()
    with pytest.raises(RequestNotFound):
        bench.store.requests.find("fresh", "r1")


def list_others(bench: Bench, *times: int) -> list[bytes]:
    """List open requests to others, asked at these times; give their entries in the index."""
    shard = bench.store.context.keys(bench.session).shard
    requests = [a_request(bench, index, to="others", asked_at_ms=at_ms) for index, at_ms in enumerate(times)]
    entries = [request.summarize().to_json() for request in requests]
    for at_ms, entry in zip(times, entries, strict=True):
        bench.database("ZADD", shard.requests, at_ms, entry)
    return entries


def test_requests_that_are_answered_while_a_page_is_read_hide_no_others(bench: Bench) -> None:
    bench.submit()
    others, shard = list_others(bench, *range(1, 61)), bench.store.context.keys(bench.session).shard
    wanted = a_request(bench, 60, to="team", asked_at_ms=10)
    bench.database("ZADD", shard.requests, wanted.asked_at_ms, wanted.summarize().to_json())
    bench.spy.after(1, lambda: bench.database("ZREM", shard.requests, *others[:7]))
    page = bench.store.requests.page(RequestFilter(to="team"), limit=5)
    assert [each.summary.id for each in page.requests] == [wanted.id]


@pytest.mark.parametrize("times", [1, 3, 60])
def test_each_of_more_requests_than_are_read_at_once_is_found_once(bench: Bench, times: int) -> None:
    bench.submit()
    list_others(bench, *(1 + number % times for number in range(60)))
    wanted = RequestFilter(to="others")
    found, page = [], bench.store.requests.page(wanted, limit=2)
    while page.cursor:
        found += page.requests
        page = bench.store.requests.page(wanted, limit=2, cursor=page.cursor)
    ids = [each.summary.id for each in (*found, *page.requests)]
    assert len(set(ids)) == len(ids) == 60
