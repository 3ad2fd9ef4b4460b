"""Live text in the store: who may write it, when it is void, what readers get in which order, and how long it lives."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.store import Attempt, Claimed, Event, LiveDelta, NewDelta, StreamPosition
from celery_agents.worker.store.live.streams import FOLLOWED_MS, moved_on

from support.store import Bench

pytestmark = pytest.mark.leaves_keys("executions are left in their middle")


def text(value: str, offset: int = 0, *, part: str = "text", call: int = 1) -> NewDelta:
    return NewDelta(call=call, part=part, offset=offset, text=value)


def write(bench: Bench, claimed: Claimed, *deltas: NewDelta) -> int:
    attempt = Attempt(claimed.claim, claimed.loaded.legs)
    return bench.store.live.write({attempt: deltas})


def read(bench: Bench, position: StreamPosition | None = None) -> list[Any]:
    at = position or StreamPosition()
    return bench.store.live.follow({bench.session: at}).get(bench.session, [])


def texts(bench: Bench) -> list[str]:
    return [entry.text for entry in read(bench) if isinstance(entry, LiveDelta)]


def voided(bench: Bench) -> list[Any]:
    return [dict(each.data) for each in bench.store.sessions.events(bench.session) if each.type == "attempt_voided"]


def test_readers_get_each_piece_with_its_place_and_the_events_in_order(bench: Bench) -> None:
    claimed = bench.claim()
    time.sleep(0.002)
    data = NewDelta(call=0, part="t2", offset=0, data=b'{"done":3}')
    assert write(bench, claimed, text("Hello"), text(" you", 5), data) == 3
    time.sleep(0.002)
    bench.commit(claimed)
    entries = read(bench)
    kinds = [str(entry.type) if isinstance(entry, Event) else entry.part for entry in entries]
    assert kinds[-5:] == ["execution_started", "text", "text", "t2", "step_committed"]
    first, second, third = (entry for entry in entries if isinstance(entry, LiveDelta))
    assert (first.text, first.offset, second.text, second.offset) == ("Hello", 0, " you", 5)
    assert (third.data, third.call, third.text) == ({"done": 3}, 0, "")
    assert {(each.execution_id, each.step, each.attempt) for each in (first, second, third)} == {
        (bench.execution, 1, claimed.claim.id)
    }


def test_one_read_of_many_sessions_brings_few_entries_of_each_and_the_next_the_rest(bench: Bench) -> None:
    claimed = bench.claim()
    time.sleep(0.002)  # of the same millisecond text and events have no order
    write(bench, claimed, *(text("x", number, part=f"t{number}") for number in range(6)))
    whole = read(bench)
    others = {f"other-{number}": StreamPosition() for number in range(1_500)}
    at, found = StreamPosition(), list[Any]()
    while page := bench.store.live.follow({bench.session: at, **others}).get(bench.session, []):
        assert len(page) <= 2
        for entry in page:
            at = moved_on(at, entry)
        found += page
    assert [each.id for each in found] == [each.id for each in whole]
    assert len(found) >= 8


def test_a_reader_comes_back_to_where_it_was_by_a_cursor(bench: Bench) -> None:
    claimed = bench.claim()
    write(bench, claimed, text("one"), text("two", 3))
    position, seen = StreamPosition(), list[Any]()
    for entry in read(bench):
        seen.append(entry)
        position = StreamPosition.read(moved_on(position, entry).cursor)
        rest = read(bench, position)
        assert seen + rest == read(bench)
    assert StreamPosition.read("17-3") == StreamPosition("17-3", "0"), "an event's id is a cursor without live text"
    assert StreamPosition.read(f"1-{2**64 - 1}").event == f"1-{2**64 - 1}"
    for wrong in ("", "x", "1-1+", "1-1+2-2+3-3", "-1", f"1-{2**64}", f"1-1+1-{2**64}", "\u0967-0"):
        with pytest.raises(InvalidInput, match="cursor"):
            StreamPosition.read(wrong)


def test_many_entries_come_in_pages_and_none_is_lost_or_doubled(bench: Bench) -> None:
    claimed = bench.claim()
    for start in range(0, 900, 90):
        write(bench, claimed, *(text("x", start + number) for number in range(90)))
    position, found = StreamPosition(), list[Any]()
    while page := read(bench, position):
        for entry in page:
            position = moved_on(position, entry)
        found += page
    offsets = [entry.offset for entry in found if isinstance(entry, LiveDelta)]
    assert offsets == list(range(900))


def test_an_attempt_that_was_taken_over_writes_no_more_and_is_void(bench: Bench) -> None:
    first = bench.claim()
    write(bench, first, text("half of a sen"))
    bench.end_lease(first.claim)
    second = bench.claim()
    assert voided(bench) == [{"attempt": first.claim.id, "call": 0, "keeps_answer": False}]
    assert write(bench, first, text("tence", 13)) == 0
    assert write(bench, second, text("the whole")) == 1
    assert write(bench, first, text("tence", 13)) == 0
    assert texts(bench) == ["half of a sen", "the whole"]
    bench.end_lease(second.claim)
    third = bench.claim()
    assert [each["attempt"] for each in voided(bench)] == [first.claim.id, second.claim.id]
    bench.end_lease(third.claim)
    bench.claim()
    assert len(voided(bench)) == 2, "an attempt that has written nothing has nothing void"


def test_an_answer_in_the_journal_keeps_its_text(bench: Bench) -> None:
    first = bench.claim()
    write(bench, first, text("the answer"))
    bench.store.steps.record_answer(first.claim, b"raw")
    bench.end_lease(first.claim)
    bench.claim()
    assert voided(bench) == [{"attempt": first.claim.id, "call": 0, "keeps_answer": True}]


def test_the_text_of_the_step_before_is_not_void(bench: Bench) -> None:
    first = bench.claim()
    write(bench, first, text("done"))
    bench.commit(first)
    second = bench.claim(2)
    bench.end_lease(second.claim)
    bench.claim(2)
    assert voided(bench) == []


def test_a_commit_that_overtakes_the_text_does_not_lose_it(bench: Bench) -> None:
    early = bench.claim()
    write(bench, early, text("on"))
    bench.commit(early)
    assert write(bench, early, text("e", 2)) == 1
    late = bench.claim(2)
    bench.commit(late)
    assert write(bench, late, text("two")) == 1, "its first piece comes after the commit"
    third = bench.claim(3)
    write(bench, third, text("three"))
    assert write(bench, early, text("!", 3)) == 0
    assert texts(bench) == ["on", "e", "two", "three"]


def test_steps_of_one_claim_that_were_all_faster_than_their_text_keep_it(bench: Bench) -> None:
    first = bench.claim()
    second = bench.commit(first, keep_claim=True).carried
    third = bench.commit(second, keep_claim=True).carried
    assert third is not None
    assert write(bench, first, text("one")) == 1
    assert write(bench, second, text("two")) == 1
    assert write(bench, third, text("three")) == 1
    assert write(bench, first, text("!", 3)) == 1, "it is committed, whoever writes now"


def test_live_text_lives_for_minutes_and_is_capped(database: Any) -> None:
    bench = Bench(database, live_kept=100, live_seconds=300.0)
    bench.submit()
    claimed = bench.claim()
    write(bench, claimed, *(text("x", number) for number in range(600)))
    live = bench.store.context.keys(bench.session).live
    assert 290_000 <= bench.database("PTTL", live) <= 300_000
    assert len(bench.database("XRANGE", live, "-", "+")) <= 300
    bench.commit(claimed, final=True)
    assert bench.database("PTTL", live) <= 300_000, "the retention of the session is not its"


def test_live_text_is_capped_by_bytes_and_large_pieces_of_one_session_cost_no_other_its_text(database: Any) -> None:
    bench = Bench(database, live_bytes=1_000_000)
    bench.submit()
    large = bench.claim()
    other = Bench(database, live_bytes=1_000_000)
    other.submit()
    small = other.claim()
    write(other, small, *(text("x", number) for number in range(600)))
    attempts = {Attempt(large.claim, large.loaded.legs): [text("漢" * 5_000, 5_000 * number) for number in range(600)]}
    bench.store.live.write({**attempts, Attempt(small.claim, small.loaded.legs): [text("x", 600)]})
    kept = bench.database("XRANGE", bench.store.context.keys(bench.session).live, "-", "+")
    assert 30 <= len(kept) <= 200, "of 9 MB about one is kept"
    assert len(other.database("XRANGE", other.store.context.keys(other.session).live, "-", "+")) == 601


def test_nobody_writes_text_of_a_session_that_is_gone(bench: Bench) -> None:
    claimed = bench.claim()
    keys = bench.store.context.keys(bench.session)
    bench.database("DEL", keys.session, keys.ctl)
    assert write(bench, claimed, text("x")) == 0
    assert bench.database("EXISTS", keys.live, keys.ctl, keys.session) == 0


# --- who watches ------------------------------------------------------------------------------------------------------


def test_a_claim_a_carried_claim_and_a_heartbeat_say_who_watches(bench: Bench) -> None:
    first = bench.claim()
    assert first.loaded.followed_until_ms == 0
    assert bench.store.steps.renew([first.claim])[0].followed_until_ms == 0
    assert bench.store.live.keep_followed(bench.session)
    until = bench.store.steps.renew([first.claim])[0].followed_until_ms
    assert 0.9 * FOLLOWED_MS <= until - first.claim.now_ms <= 1.1 * FOLLOWED_MS
    carried = bench.commit(first, keep_claim=True).carried
    assert carried.loaded.followed_until_ms == until
    bench.commit(carried)
    assert bench.claim(3).loaded.followed_until_ms == until


def test_many_readers_of_a_session_write_one_mark(bench: Bench) -> None:
    bench.store.live.keep_followed(bench.session)
    bench.spy.sent.clear()
    for _ in range(5):
        assert bench.store.live.keep_followed(bench.session)
    assert set(bench.spy.points) == {"live.followed"}


def test_watching_a_session_that_is_not_there_leaves_no_key(bench: Bench) -> None:
    assert not bench.store.live.keep_followed(f"gone-{uuid.uuid4().hex}")


def test_a_mark_of_a_reader_changes_no_claim_and_no_commit(bench: Bench) -> None:
    claimed = bench.claim()
    bench.spy.before("commit.exec", lambda: bench.store.live.keep_followed(bench.session))
    assert bench.commit(claimed).version == 2


# --- committed text ---------------------------------------------------------------------------------------------------


def test_the_text_of_a_committed_step_is_read_alone(bench: Bench) -> None:
    bench.commit(bench.claim(), text="first answer")
    bench.commit(bench.claim(2), text="second answer", final=True)
    steps = [(bench.execution, 1), (bench.execution, 2), (bench.execution, 3), ("other", 1)]
    assert bench.store.live.committed_texts(bench.session, steps) == ["first answer", "second answer", None, None]
