"""Messages that come while a request waits: shown with it, numbered, and compared with what its answer has seen."""

from __future__ import annotations

import random
from typing import Any

import pytest

from celery_agents.worker.engine import operation_transition
from celery_agents.worker.errors import InvalidInput, MessagesUnseen, RequestNotOpen, StateUnreadable
from celery_agents.worker.state import Approve, Request, RequestStatus
from celery_agents.worker.store import FoundRequest, InboxKind, Operation, RequestFilter
from celery_agents.worker.store.database import Database
from celery_agents.worker.store.records import MessageMode

from support.asking import a_request, answer, approve, ask, commit_leg, control, events, open_requests, wait
from support.child_sessions import as_child, child_request, wait_for_children
from support.points import Points
from support.store import Bench, an_operation

pytestmark = pytest.mark.leaves_keys("executions wait")


@pytest.fixture
def bench(database: Database) -> Bench:
    found = Bench(database)
    found.submit()
    return found


def shown(bench: Bench, request: Request) -> list[tuple[int, str]]:
    """The messages behind a request, each with its number; its listings say the same."""
    found = bench.store.requests.find(request.session_id, request.id)
    listed = [
        each
        for wanted in (RequestFilter(), RequestFilter(session_id=request.session_id))
        for each in bench.store.requests.page(wanted, limit=1000).requests
        if each.summary.id == request.id
    ]
    assert [seen_of(each) for each in listed] == [seen_of(found)] * 2
    numbers = [each.number for each in found.messages]
    assert not numbers or numbers == list(range(found.newest_message - len(numbers) + 1, found.newest_message + 1))
    return [(each.number, each.text) for each in found.messages]


def seen_of(found: FoundRequest) -> Any:
    return found.messages, found.newest_message


def newest(bench: Bench, request: Request) -> int:
    return bench.store.requests.find(request.session_id, request.id).newest_message


def a_change(name: str) -> Operation:
    return Operation(name, InboxKind.METADATA, {"key": "colour", "value": "red"})


def test_messages_are_shown_with_their_numbers(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    assert (shown(bench, request), newest(bench, request)) == ([], 0)
    bench.message("stop it")
    bench.store.sessions.act(bench.session, a_change("colour"), operation_transition)
    bench.message("no, go on")
    bench.message("later", when="queue")
    assert shown(bench, request) == [(1, "stop it"), (2, "no, go on")], "what is queued is of another execution"
    found = bench.store.requests.find(bench.session, request.id)
    assert [each.session_id for each in found.messages] == [bench.session] * 2
    assert all(each.at_ms > 0 and each.operation_id for each in found.messages)


def test_a_message_that_came_before_the_step_asked_is_shown_as_well(bench: Bench) -> None:
    claimed, request = bench.claim(), a_request(bench)
    bench.message("the model has not read it")
    wait(bench, claimed, open_requests(bench, claimed, request))
    assert shown(bench, request) == [(1, "the model has not read it")]


def test_an_answer_is_compared_with_the_newest_message(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    bench.message("one")
    bench.message("two")
    for seen in (0, 1):
        with pytest.raises(MessagesUnseen, match=rf"message 2, and the answer names {seen} .*seen=2") as refused:
            approve(bench, request, seen=seen)
        assert (refused.value.newest, refused.value.seen, refused.value.session_id) == (2, seen, bench.session)
    with pytest.raises(InvalidInput, match="seen: the newest message has the number 2"):
        approve(bench, request, seen=3)
    assert control(bench, "phase") == ["wait"]
    assert "request_answered" not in events(bench)
    assert bench.store.requests.find(bench.session, request.id).status is RequestStatus.OPEN
    assert approve(bench, request, seen=2).outcome == "woken"


def test_without_a_number_nothing_is_compared_and_nothing_more_is_read(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    bench.message("one")
    bench.spy.sent.clear()
    approve(bench, request)
    assert bench.spy.points == [Points.ANSWER_READ, Points.ANSWER_JOURNAL, Points.ANSWER_EXEC]
    (journal,) = [commands for name, commands in bench.spy.sent if name == Points.ANSWER_JOURNAL]
    assert [command[0] for command in journal] == ["HGETALL"]


def test_a_number_costs_no_further_round_trip(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    bench.spy.sent.clear()
    approve(bench, request, seen=0)
    assert bench.spy.points == [Points.ANSWER_READ, Points.ANSWER_JOURNAL, Points.ANSWER_EXEC]


def test_a_message_between_look_and_write_refuses_the_answer(bench: Bench) -> None:
    request, other = a_request(bench), bench.another()
    ask(bench, request)
    bench.spy.before(
        Points.ANSWER_EXEC, lambda: other.sessions.act(bench.session, an_operation("do not"), operation_transition)
    )
    with pytest.raises(MessagesUnseen, match="message 1"):
        approve(bench, request, seen=0)
    assert shown(bench, request) == [(1, "do not")]


def test_an_answer_between_look_and_write_of_a_message_lets_it_come_behind(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    bench.spy.before(Points.ACT_PUSH, lambda: approve(bench, request, seen=0))
    bench.message("do not")
    leg = bench.claim()
    assert leg.loaded.journal.open_requests == ()
    commit_leg(bench, leg)
    assert [m.content for m in bench.store.sessions.load(bench.session).state.store.section().messages][-1] == "do not"


def test_a_number_is_never_used_twice(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    for name in ("one", "two", "three"):
        bench.message(name, name)
    bench.store.sessions.withdraw(bench.session, "three")
    assert newest(bench, request) == 3
    bench.message("four", "four")
    assert shown(bench, request) == [(2, "one"), (3, "two"), (4, "four")]
    with pytest.raises(MessagesUnseen):
        approve(bench, request, seen=3)
    for name in ("one", "two", "four"):
        bench.store.sessions.withdraw(bench.session, name)
    assert (shown(bench, request), newest(bench, request)) == ([], 4)
    bench.message("five", "five")
    with pytest.raises(MessagesUnseen, match="message 5"):
        approve(bench, request, seen=4)
    assert approve(bench, request, seen=5).outcome == "woken"


def test_a_queued_message_that_is_to_steer_is_a_new_one_and_one_to_be_queued_is_gone(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    bench.message("queued", "queued", when="queue")
    bench.message("first", "first")
    bench.set_mode("queued", MessageMode.STEER)
    assert {text for _, text in shown(bench, request)} == {"first", "queued"}
    with pytest.raises(MessagesUnseen):
        approve(bench, request, seen=1)
    bench.set_mode("first", MessageMode.QUEUE)
    assert [text for _, text in shown(bench, request)] == ["queued"]
    assert newest(bench, request) == 2
    bench.set_mode("first", MessageMode.STEER)
    with pytest.raises(MessagesUnseen):
        approve(bench, request, seen=2)
    assert approve(bench, request, seen=3).outcome == "woken"


def test_the_numbers_of_a_step_begin_anew(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    bench.message("one", "one")
    bench.message("two", "two")
    bench.store.sessions.withdraw(bench.session, "two")
    approve(bench, request, seen=2)
    commit_leg(bench, bench.claim())
    assert control(bench, "inbox_gone", "inbox_bytes") == ["", ""]
    later = a_request(bench, step=2)
    ask(bench, later, step=2)
    assert (shown(bench, later), newest(bench, later)) == ([], 0)


def test_the_same_answer_again_is_known_whatever_has_come_since(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    approve(bench, request, operation="op", seen=0)
    bench.message("too late")
    assert approve(bench, request, operation="op", seen=0).outcome == "again"
    with pytest.raises(RequestNotOpen):
        approve(bench, request, seen=0)
    found = bench.store.requests.find(bench.session, request.id)
    assert (found.messages, found.newest_message) == ((), 0), "it waits for nobody's answer"


@pytest.mark.parametrize("lost", [False, True])
def test_a_request_that_demands_it_is_answered_with_a_number_only(bench: Bench, lost: bool) -> None:
    careful, other = a_request(bench, needs_seen=True), a_request(bench, 1)
    ask(bench, careful, other)
    with pytest.raises(InvalidInput, match=f"seen: request {careful.id}"):
        approve(bench, careful)
    with pytest.raises(InvalidInput, match="seen"):
        answer(bench, {other.id: Approve(), careful.id: Approve()})
    assert len(bench.store.requests.page(RequestFilter(session_id=bench.session)).requests) == 2
    assert approve(bench, other).outcome == "woken"
    if lost:
        bench.spy.lose(Points.ANSWER_EXEC)
    assert approve(bench, careful, seen=0).requests == (careful.id,)


def test_messages_to_the_sessions_above_count_as_well(bench: Bench) -> None:
    order = child_request(bench)
    wait_for_children(bench, bench.claim(), order)
    root = bench.session
    with as_child(bench, order):
        request = a_request(bench)
        ask(bench, request)
        bench.message("to the child")
        child = bench.session
    bench.message("to the root")
    found = bench.store.requests.find(child, request.id)
    assert {(m.session_id, m.text) for m in found.messages} == {(child, "to the child"), (root, "to the root")}
    assert [m.number for m in found.messages] == [1, 2]
    (listed,) = [r for r in bench.store.requests.page(RequestFilter(session_id=root, tree=True)).requests
                 if r.summary.id == request.id]  # fmt: skip
    assert seen_of(listed) == seen_of(found)
    with as_child(bench, order):
        with pytest.raises(MessagesUnseen, match="message 2"):
            approve(bench, request, seen=1)
        bench.spy.before(Points.ANSWER_EXEC, lambda: bench.another().sessions.act(
            root, an_operation("stop it"), operation_transition
        ))  # fmt: skip
        with pytest.raises(MessagesUnseen, match="message 3"):
            approve(bench, request, seen=2)
        assert approve(bench, request, seen=3).outcome == "woken"


def test_an_inbox_that_is_damaged_hides_no_request_and_refuses_the_number(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    bench.database("RPUSH", bench.store.context.keys(bench.session).inbox, b"no operation")
    assert shown(bench, request) == []
    with pytest.raises(StateUnreadable):
        approve(bench, request, seen=0)
    assert control(bench, "phase") == ["wait"]
    bench.database("DEL", bench.store.context.keys(bench.session).inbox)


def test_a_listing_has_the_beginnings_of_long_messages(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    bench.message("x" * 5000)
    (listed,) = bench.store.requests.page(RequestFilter(session_id=bench.session)).requests
    assert (len(listed.messages[0].text), listed.messages[0].text[-1]) == (200, "…")
    assert bench.store.requests.find(bench.session, request.id).messages[0].text == "x" * 5000


def test_an_empty_inbox_of_everybody_is_one_read(bench: Bench) -> None:
    bench.spy.sent.clear()
    bench.store.requests.page(RequestFilter(to="nobody has this name"))
    assert Points.REQUESTS_LATER not in bench.spy.points


@pytest.mark.parametrize("seed", range(4))
def test_the_number_counts_the_messages_that_have_come_whatever_is_taken_out(bench: Bench, seed: int) -> None:
    chance, came = random.Random(seed), 0
    order = child_request(bench)
    wait_for_children(bench, bench.claim(), order)
    root = bench.session
    with as_child(bench, order):
        child, request = bench.session, a_request(bench)
        ask(bench, request)
    waiting: dict[str, list[str]] = {"steer": [], "queue": []}
    for number in range(30):
        act = chance.choice(("to child", "to root", "to root", "queue", "withdraw", "promote", "demote"))
        bench.session, name = child if act == "to child" else root, f"m{number}"
        if act.startswith("to "):
            bench.message(name, name)
            came += 1
            if act == "to root":
                waiting["steer"].append(name)
        elif act == "queue":
            bench.message(name, name, when="queue")
            waiting["queue"].append(name)
        elif act == "withdraw" and (mode := chance.choice(("steer", "queue"))) and waiting[mode]:
            bench.store.sessions.withdraw(root, waiting[mode].pop(chance.randrange(len(waiting[mode]))))
        elif act == "promote" and waiting["queue"]:
            waiting["steer"].append(waiting["queue"].pop(0))
            bench.set_mode(waiting["steer"][-1], MessageMode.STEER)
            came += 1
        elif act == "demote" and waiting["steer"]:
            waiting["queue"].append(waiting["steer"].pop(0))
            bench.set_mode(waiting["queue"][-1], MessageMode.QUEUE)
        found = bench.store.requests.find(child, request.id)
        assert found.newest_message == came
        assert {m.operation_id for m in found.messages if m.session_id == root} == set(waiting["steer"])
    bench.session = child
    with pytest.raises(MessagesUnseen):
        approve(bench, request, seen=came - 1)
    assert approve(bench, request, seen=came).outcome == "woken"
    bench.session = root
