"""Moving sessions to the archive, restoring, reading and deleting them, on every store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from celery_agents.tasks.client.listing import Filter, read_page
from celery_agents.worker.archive.rows import RowState, Search
from celery_agents.worker.engine import operation_transition, retry_transition
from celery_agents.worker.errors import (
    IdempotencyMismatch,
    SessionArchived,
    SessionConflict,
    SessionNotFound,
    StateUnreadable,
)
from celery_agents.worker.moments import LAST_MS
from celery_agents.worker.store.archiving.documents import Document
from celery_agents.worker.store.archiving.moving import Archiver, MoveOutcome
from celery_agents.worker.store.database import Database
from celery_agents.worker.store.labels import sessions_range
from celery_agents.worker.store.live.streams import StreamPosition
from celery_agents.worker.store.requests.records import RequestFilter
from celery_agents.worker.store.sessions.past_reads import StepAddress
from celery_agents.worker.store.sessions.whole_sessions import Copy

from support.archive_lab import ArchiveLab
from support.points import Points
from support.random_past import Past
from support.store import Bench, an_operation
from support.store_client import StoreClient
from support.wait import wait_until

pytestmark = pytest.mark.leaves_keys("sessions that ended stay until the archive has them")


@pytest.mark.parametrize("seed", range(4))
def test_a_document_holds_every_key_byte_for_byte(lab: ArchiveLab, seed: int) -> None:
    lab.bench.submit(labels={"customer": "42", "ü": "1"})
    past = Past(lab.bench, seed)
    for _ in range(2):
        steps = past.dice.randrange(2, 6)
        for number in range(1, steps + 1):
            past.random_step(number, final=number == steps)
            past.act()
        ended = lab.bench.execution
        lab.bench.execution = lab.bench.message("next").execution_id
    past.random_step(1, final=True)
    before, document = lab.everything(), lab.document()
    assert document is not None
    assert document.control[b"phase"] == b"end"
    stored = document.to_bytes()
    assert Document.from_bytes("s", stored) == document
    assert lab.document() == document
    assert lab.move() is MoveOutcome.MOVED
    assert lab.bench.database("HGETALL", lab.names.session)[::2] in (
        [b"created", b"archived"],
        [b"archived", b"created"],
    )
    state = lab.store.sessions.load(lab.session).state
    assert state == past.saved[f"{lab.bench.execution}:1"]
    past.bench.store = lab.store  # states of all steps are read from the document
    past.check(*(name for name in past.saved if name.startswith(ended)))
    assert lab.store.archived is not None
    assert lab.store.archived.restore(lab.session)
    after = lab.everything()
    assert after == before
    again = lab.document()
    assert again is not None
    assert again.to_bytes() == stored
    past.check()


def test_a_failed_session_is_retried_from_the_archive_as_if_it_had_stayed(lab: ArchiveLab) -> None:
    lab.end(failed=True)
    journal = lab.names.journal(lab.bench.execution, 2)
    lab.bench.database("HSET", journal, "x:note", b"\x00\xffbytes")
    assert lab.bench.database("PTTL", journal) == -1
    before = lab.everything()
    assert before["failed"]
    assert lab.move() is MoveOutcome.MOVED
    assert lab.bench.database("EXISTS", journal) == 0
    assert lab.bench.database("ZSCORE", lab.names.shard.failed, lab.session) is None
    applied = lab.store.sessions.retry(lab.session, retry_transition(None))
    assert applied.execution_id == lab.bench.execution
    assert lab.bench.database("HGET", journal, "x:note") == b"\x00\xffbytes"
    lab.bench.claim(2)


def test_only_what_has_ended_moves(lab: ArchiveLab) -> None:
    bench = lab.bench
    bench.submit()
    assert lab.move() is MoveOutcome.STAYS
    claimed = bench.claim()
    assert lab.move() is MoveOutcome.STAYS
    bench.commit(claimed, final=True)
    bench.database("HSET", lab.names.ctl, "phase", "parked")
    assert lab.move() is MoveOutcome.STAYS
    bench.database("HSET", lab.names.ctl, "phase", "end")
    bench.database("HSET", lab.names.session, "session_status", "suspended")
    assert lab.move() is MoveOutcome.STAYS
    bench.database("HSET", lab.names.session, "session_status", "active")
    assert lab.archive.facts().sessions == 0
    assert lab.move() is MoveOutcome.MOVED
    assert lab.archiver.move("nobody") is MoveOutcome.STAYS


def test_a_session_with_a_callback_to_make_stays(lab: ArchiveLab) -> None:
    lab.end(notify={"task": "done"})
    assert lab.move() is MoveOutcome.STAYS
    (note,) = lab.bench.database("ZRANGEBYSCORE", lab.names.shard.callbacks, "-inf", "+inf")
    lab.bench.database("ZREM", lab.names.shard.callbacks, note)
    assert lab.move() is MoveOutcome.MOVED


def test_what_moves_leaves_nothing_but_its_mark(lab: ArchiveLab) -> None:
    lab.end(labels={"customer": "42"})
    assert lab.bench.database("PTTL", lab.names.session) == -1
    assert lab.move() is MoveOutcome.MOVED
    shard = lab.names.shard
    for index in (shard.sessions, shard.due, shard.failed, shard.ending, shard.children):
        assert lab.bench.database("ZSCORE", index, lab.session) is None
    assert lab.bench.database("ZRANGEBYLEX", shard.labels, *sessions_range("customer", "42")) == []
    for key in (lab.names.ctl, lab.names.events, lab.names.steps(lab.bench.execution)):
        assert not lab.bench.database("EXISTS", key), key
    assert 0 < lab.bench.database("PTTL", lab.names.session) <= lab.bench.settings.retention_seconds * 1000  # type: ignore[operator]
    row = lab.archive.row(lab.key)
    assert row is not None
    assert row.state is RowState.VALID
    assert row.mark.encode() == lab.bench.database("HGET", lab.names.session, "archived")


def test_a_repeated_submit_is_answered_by_the_mark(lab: ArchiveLab) -> None:
    lab.end(fingerprint="mine")
    lab.move()
    bench = lab.bench
    again = bench.submit(fingerprint="mine", execution="another")
    assert (again.outcome, again.execution_id) == ("again", bench.execution)
    with pytest.raises(IdempotencyMismatch):
        bench.submit(fingerprint="other")
    with pytest.raises(SessionConflict, match="exists"):
        bench.store.sessions.create(lab.session, lab.store.sessions.load(lab.session))


def test_a_process_without_the_archive_is_told_what_to_set(lab: ArchiveLab) -> None:
    lab.end()
    lab.move()
    for call in (bench_header, bench_message):
        with pytest.raises(SessionArchived, match="CELERY_AGENTS_ARCHIVE_URL"):
            call(lab.bench)


def bench_header(bench: Bench) -> object:
    return bench.store.sessions.header(bench.session)


def bench_message(bench: Bench) -> object:
    return bench.message("next")


def reads_of(lab: ArchiveLab) -> dict[str, Callable[[], Any]]:
    """Every read of one session, by a name."""
    sessions, name, execution = lab.store.sessions, lab.session, lab.bench.execution
    return {
        "header": lambda: sessions.header(name),
        "load": lambda: sessions.load(name),
        "record": lambda: sessions.record(name, execution),
        "records": lambda: sessions.records(name),
        "outcome": lambda: sessions.outcome(name, execution),
        "joined": lambda: sessions.read_joined(name, "op-first"),
        "events": lambda: sessions.events(name),
        "latest": lambda: sessions.latest_events(name, 3),
        "state": lambda: sessions.state_at(name, StepAddress(1)),
        "parts": lambda: sessions.parts_at(name, StepAddress(1)),
        "request": lambda: sessions.request_at(name, StepAddress(1)),
        "later": lambda: sessions.steps_after(name, StepAddress(1)),
        "rewind": lambda: sessions.find_rewind(name, "op-first", "asked"),
        "requests": lambda: lab.store.requests.page(RequestFilter(session_id=name)),
        "event": lambda: lab.store.live.event_at(name, sessions.events(name)[0].id),
        "followed": lambda: lab.store.live.keep_followed(name),
        "headers": lambda: sessions.headers_of([name]),
        "follow": lambda: lab.store.live.follow({name: StreamPosition()}),
        "watch": lambda: sessions.watch(name, "0", 1),
        "waiting": lambda: sessions.read_waiting(name),
        "execution": lambda: replace(sessions.execution(name, 1, 10), now_ms=0),
        "messages": lambda: sessions.messages(name, 0, 10),
        "outline": lambda: sessions.outline(name),
        "summaries": lambda: sessions.summaries([name]),
        "matching": lambda: sessions.find_matching(name[:4]),
        "tree": lambda: lab.store.trees.tree(name),
        "link": lambda: lab.store.trees.link(name),
        "committed": lambda: lab.store.live.committed_texts(name, [(execution, 1)]),
    }


def test_every_read_of_an_archived_session_gives_what_it_gave_before(lab: ArchiveLab) -> None:
    lab.end(labels={"customer": "42"})
    reads = reads_of(lab)
    before = {each: read() for each, read in reads.items()}
    assert lab.move() is MoveOutcome.MOVED
    after = {each: read() for each, read in reads.items()}
    assert after == before
    assert lab.bench.database("HGET", lab.names.session, "version") is None  # nothing was restored for it
    (listed,) = lab.store.sessions.headers_of([lab.session])
    assert listed.is_archived
    assert listed.labels == {"customer": "42"}
    assert listed.agent == "agent"


def read_on_the_way(lab: ArchiveLab, read: Callable[[], Any], *, is_moved: bool) -> dict[str, Any]:
    """Read again and again, with the session moved or restored meanwhile: before each of the round trips once.

    Returns:
        What was read otherwise than before, or the error, by the name of the round trip.
    """
    spy, wrong = lab.bench.spy, dict[str, Any]()
    before = read()

    def place(*, in_archive: bool) -> None:
        if in_archive:
            assert lab.move() is MoveOutcome.MOVED
        else:
            lab.restore()

    for trips in range(100):
        places: list[int] = []

        def change(places: list[int] = places) -> None:
            place(in_archive=is_moved)
            places.append(len(spy.sent))

        if is_moved == (lab.bench.database("HGET", lab.names.session, "version") is None):
            place(in_archive=not is_moved)
        spy.after(trips, change)
        try:
            after = read()
        except SessionNotFound as error:
            after = error
        spy.after_trips = None
        if not places:
            assert trips > 0
            return wrong
        if after != before:
            wrong[spy.points[places[0]]] = after
    raise AssertionError("it has no end")


@pytest.mark.parametrize("is_moved", [False, True], ids=["restored", "moved"])
def test_every_read_gives_what_it_gave_before_whenever_the_session_changes_its_place(
    lab: ArchiveLab, is_moved: bool
) -> None:
    lab.end(labels={"customer": "42"})
    for name, read in reads_of(lab).items():
        assert read_on_the_way(lab, read, is_moved=is_moved) == {}, name


@pytest.mark.parametrize("is_moved", [False, True], ids=["restored", "moved"])
def test_costs_count_each_session_once_whenever_one_changes_its_place(lab: ArchiveLab, is_moved: bool) -> None:
    lab.end(labels={"customer": "42"})
    client = StoreClient(lab.store)
    assert client.costs().total.executions == 1
    for by in ("agent", "label:customer"):
        assert read_on_the_way(lab, lambda by=by: client.costs(by=by), is_moved=is_moved) == {}


@pytest.mark.parametrize("is_moved", [False, True], ids=["restored", "moved"])
@pytest.mark.parametrize(
    "wanted", [Filter(), Filter(labels={"customer": "42"}), Filter(status="completed", text="first")], ids=str
)
def test_a_listing_has_each_session_once_whenever_one_changes_its_place(
    lab: ArchiveLab, wanted: Filter, is_moved: bool
) -> None:
    lab.end(labels={"customer": "42"})

    def listed() -> list[tuple[str, int]]:
        return [(each.session_id, each.updated_ms) for each in read_page(lab.store, wanted, 10, None).items]

    assert len(listed()) == 1
    assert read_on_the_way(lab, listed, is_moved=is_moved) == {}


def test_an_unreadable_session_keeps_no_other_from_the_pages_before_the_archive_s(lab: ArchiveLab) -> None:
    names = ["old", "middle", "new"]
    for lab.bench.session in names:
        lab.end()
        time.sleep(0.002)
    lab.bench.session = "old"
    assert lab.move() is MoveOutcome.MOVED
    lab.bench.database("HSET", lab.store.context.keys("new").session, "version", "x")
    assert [each.session_id for each in read_page(lab.store, Filter(), 1, None)] == names[::-1]


def test_a_session_that_goes_on_while_it_is_listed_comes_in_its_order(lab: ArchiveLab) -> None:
    name = lab.session
    for trips in range(100):
        names = [f"{name}-{trips}-{each}" for each in ("old", "new")]
        for lab.bench.session in names:
            lab.end(labels={"trip": str(trips)})
            time.sleep(0.002)
        old = lab.bench.session = names[0]
        assert lab.move() is MoveOutcome.MOVED
        lab.bench.spy.after(
            trips, lambda old=old: lab.store.sessions.act(old, an_operation("on"), operation_transition)
        )
        found = read_page(lab.store, Filter(labels={"trip": str(trips)}), 10, None).items
        went_on, lab.bench.spy.after_trips = lab.bench.spy.after_trips is None, None
        assert sorted(each.session_id for each in found) == sorted(names)
        assert [each.updated_ms for each in found] == sorted((each.updated_ms for each in found), reverse=True)
        if not went_on:
            assert trips > 3
            return
    raise AssertionError("it has no end")


def test_costs_of_an_archived_fork_count_with_its_own_labels(lab: ArchiveLab) -> None:
    lab.end(labels={"customer": "42"})
    source, fork = lab.session, f"{lab.session}.{0:032x}"
    time.sleep(0.002)  # steps of the millisecond of a copy count for both
    lab.store.sessions.fork(source, fork, Copy(change=lambda it, parts: (replace(it, labels={}), parts)))
    lab.bench.session = fork
    lab.bench.execution = lab.bench.message("go on").execution_id
    lab.bench.commit(lab.bench.claim(), final=True)
    for name in (source, fork):
        lab.bench.session = name
        assert lab.move() is MoveOutcome.MOVED
    found = {each.name: each.executions for each in StoreClient(lab.store).costs(by="label:customer").sums}
    assert found == {"42": 1, "": 1}


def test_a_message_to_an_archived_session_restores_it_and_starts_an_execution(lab: ArchiveLab) -> None:
    lab.end()
    lab.move()
    operation = an_operation("and now?")
    applied = lab.store.sessions.act(lab.session, operation, operation_transition)
    assert applied.outcome == "started"
    assert lab.store.sessions.act(lab.session, operation, operation_transition).outcome == "again"
    lab.bench.execution = applied.execution_id
    lab.bench.commit(lab.bench.claim(), final=True)
    assert lab.move() is MoveOutcome.MOVED
    state = lab.store.sessions.load(lab.session).state
    assert [message.content for message in state.store.section().messages if message.role == "user"] == [
        "first",
        "and now?",
    ]


def test_a_session_with_a_held_queue_moves_with_it(lab: ArchiveLab) -> None:
    lab.bench.submit()
    claimed = lab.bench.claim()
    lab.bench.message("one", "q1", when="queue")
    lab.bench.message("two", "q2", when="queue")
    lab.bench.commit(claimed, failed=True)
    before, waiting = lab.everything(), lab.store.sessions.read_waiting(lab.session)
    assert lab.move() is MoveOutcome.MOVED
    assert lab.store.sessions.read_waiting(lab.session) == waiting
    assert lab.bench.database("EXISTS", lab.names.next) == 0
    lab.restore()
    assert (lab.everything(), lab.bench.queue) == (before, (["q1", "q2"], "failed"))
    assert lab.move() is MoveOutcome.MOVED
    released = lab.store.sessions.release_queue(lab.session, "release", operation_transition)
    assert released.outcome == "started"
    assert lab.bench.queue == (["q2"], "")


def test_a_row_is_replaced_when_both_have_been_seen_for_long_enough(database: Database, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    lab = ArchiveLab(database, url, archive_settle_seconds=3600)
    lab.end()
    lab.move()
    lab.restore()
    assert lab.row_state(lab.key) is RowState.PENDING
    assert lab.move() is MoveOutcome.MOVED  # as it was: the row is its row
    assert lab.row_state(lab.key) is RowState.VALID
    lab.restore()
    lab.bench.database("HSET", lab.names.session, "updated", 1)
    for _ in range(3):
        assert lab.move() is MoveOutcome.LATER
    assert lab.row_state(lab.key) is RowState.PENDING
    quick = ArchiveLab(database, url, archive_settle_seconds=0.2)
    quick.bench.session = lab.session
    assert quick.move() is MoveOutcome.LATER
    quick.bench.database("HSET", lab.names.session, "updated", 2)
    assert quick.move() is MoveOutcome.LATER
    wait_until(lambda: quick.move() is MoveOutcome.MOVED, "both have been as they are for long enough", 10)


@pytest.mark.parametrize("point", ["document.lists", "archive.check"])
@pytest.mark.parametrize("has_message", [False, True])
def test_no_mover_replaces_the_row_of_another_that_was_quicker(
    lab: ArchiveLab, point: str, *, has_message: bool
) -> None:
    lab.end()

    def move() -> None:
        if has_message:
            lab.bench.execution = lab.bench.message("and now?").execution_id
            lab.bench.commit(lab.bench.claim(), final=True)
        assert Archiver(lab.archiver.context, lab.archive).move(lab.session) is MoveOutcome.MOVED

    lab.bench.spy.before(point, move)
    assert lab.move() is not MoveOutcome.MOVED
    assert len(lab.store.sessions.load(lab.session).state.messages) > 0


def test_a_session_that_changes_while_it_is_stored_stays(lab: ArchiveLab) -> None:
    lab.end()
    lab.bench.spy.before("archive.read", lambda: lab.bench.message("meanwhile"))
    assert lab.move() is MoveOutcome.LATER
    assert lab.bench.store.sessions.header(lab.session).status == "pending"
    assert lab.row_state(lab.key) is RowState.PENDING
    assert lab.archiver.finish_pending() == 0
    assert list(lab.store.archived.search(Search())) == []  # type: ignore[union-attr]


def test_a_session_that_changes_at_the_last_moment_stays(lab: ArchiveLab) -> None:
    lab.end()
    lab.bench.spy.before("archive.exec", lambda: lab.bench.message("meanwhile"))
    assert lab.move() is MoveOutcome.LATER
    assert lab.bench.store.sessions.header(lab.session).status == "pending"


def test_a_deletion_with_another_version_is_refused(lab: ArchiveLab) -> None:
    lab.end()
    version = lab.store.sessions.header(lab.session).version
    lab.move()
    with pytest.raises(SessionConflict):
        lab.store.sessions.delete(lab.session, version=version + 1)
    assert lab.store.sessions.delete(lab.session, version=version).outcome == "changed"


def test_a_mark_without_its_row_is_said(lab: ArchiveLab) -> None:
    lab.end()
    lab.move()
    lab.archive.bury(lab.key, expires_ms=1)
    lab.archive.forget(2)
    with pytest.raises(StateUnreadable, match="backup"):
        lab.store.sessions.header(lab.session)


def test_a_message_reaches_a_session_that_the_mover_takes_again_as_soon_as_it_is_restored(lab: ArchiveLab) -> None:
    lab.end()
    lab.move()
    spy, moved = lab.bench.spy, list[MoveOutcome]()
    spy.before(Points.ACT_READ, lambda: spy.before(Points.ACT_READ, lambda: moved.append(lab.move())))
    sent = lab.store.sessions.act(lab.session, an_operation("more"), operation_transition)
    assert (sent.outcome, moved) == ("started", [MoveOutcome.MOVED])


def test_two_clients_that_restore_at_once_restore_once(lab: ArchiveLab) -> None:
    lab.end()
    lab.move()
    before = lab.store.sessions.load(lab.session)
    assert lab.store.archived is not None
    lab.bench.spy.before("restore.exec", lambda: lab.restore())
    assert lab.store.archived.restore(lab.session)
    assert lab.bench.store.sessions.load(lab.session) == before
    assert len(lab.bench.store.sessions.events(lab.session)) == len(lab.store.sessions.events(lab.session))


def test_sessions_that_others_have_ended_lose_their_time_to_live(lab: ArchiveLab) -> None:
    other = Bench(lab.bench.spy.inner)
    other.submit()
    other.commit(other.claim(), final=True)
    keys = other.store.context.keys(other.session)
    assert other.database("PTTL", keys.session) > 0
    assert lab.archiver.keep(keys.shard) == 1
    assert [other.database("PTTL", key) for key in (keys.session, keys.ctl, keys.events)] == [-1] * 3
    assert other.database("PTTL", keys.journal(other.execution, 1)) > 0
    assert lab.archiver.move(other.session) is MoveOutcome.MOVED


def test_children_move_after_their_parent(lab: ArchiveLab) -> None:
    lab.end()
    parent = lab.session
    lab.bench.session = f"{parent}.{'0' * 32}"
    lab.bench.execution = "e2"
    lab.end(execution="e2")
    link = b'{"session_id":"%b","execution_id":"e","step":1,"index":0,"round":0,"request_id":"r"}' % parent.encode()
    lab.bench.database("HSET", lab.names.session, "parent", link)
    lab.bench.database("ZADD", lab.names.shard.children, 0, lab.session)
    assert lab.move() is MoveOutcome.STAYS
    before = lab.store.trees.tree(parent)
    assert [each.session_id for each in before.children] == [lab.session]
    assert lab.archiver.move(parent) is MoveOutcome.MOVED
    assert lab.store.trees.tree(parent) == before
    assert lab.move() is MoveOutcome.MOVED
    assert lab.store.trees.tree(parent) == before
    assert [each.session_id for each in lab.store.trees.below(parent)] == [lab.session]
    assert lab.store.archived is not None
    lab.store.archived.restore(parent)
    assert lab.store.trees.tree(parent) == before


@pytest.mark.parametrize("above", ["{parent}", "{child}", None])
def test_links_that_are_damaged_hide_no_root_of_a_tree(lab: ArchiveLab, above: str | None) -> None:
    """Each of two moved sessions stands below the other, or the link cannot be read."""
    lab.end()
    parent, child = f"{lab.session}.{'0' * 32}", f"{lab.session}.{'1' * 32}"
    for execution, (name, other) in enumerate(((parent, child), (child, parent))):
        lab.bench.session, lab.bench.execution = name, f"e{execution}"
        lab.end(execution=lab.bench.execution)
        stands_below = other if above is None else above.format(parent=parent, child=child)
        link = {"session_id": stands_below, "execution_id": "e", "step": 1, "index": 0, "round": 0, "request_id": "r"}
        lab.bench.database("HSET", lab.names.session, "parent", "{" if above is None else json.dumps(link))
    assert lab.store.trees.roots([parent, child]).keys() == {parent, child}


def test_sessions_that_ended_long_ago_are_found(lab: ArchiveLab) -> None:
    lab.end()
    shard = lab.names.shard
    now_ms = lab.store.context.now_ms()
    assert lab.archiver.find_ended(shard, behind_ms=-1, until_ms=now_ms - 60_000) == ({}, None)
    found, _ = lab.archiver.find_ended(shard, behind_ms=-1, until_ms=now_ms + 60_000)
    assert lab.session in found


def test_an_archived_session_is_listed_by_its_facts(lab: ArchiveLab) -> None:
    lab.end(labels={"customer": "42"})
    lab.move()
    assert lab.store.archived is not None
    for wanted, count in (
        (Search(agent="agent"), 1), (Search(agent="other"), 0), (Search(labels={"customer": "42"}), 1),
        (Search(text="first"), 1), (Search(text="nothing"), 0), (Search(status="completed"), 1),
    ):  # fmt: skip
        assert len(list(lab.store.archived.search(wanted))) == count


def test_the_archive_forgets_after_its_days(database: Database, tmp_path: Path) -> None:
    lab = ArchiveLab(database, f"sqlite:///{tmp_path}/history.db", archive_days=1e-9)
    lab.end()
    lab.move()
    assert lab.archiver.forget() == 1
    assert lab.archive.facts().sessions == 0
    wait_until(lambda: not lab.bench.database("EXISTS", lab.names.session), "its mark is gone with its row")
    with pytest.raises(SessionNotFound):
        lab.store.sessions.header(lab.session)


@pytest.mark.parametrize(
    ("stored", "days"),
    [
        ({}, 30),
        ({"definition": '{"name":"agent","archive_days":3}'}, 3),
        ({"session_definition": '{"name":"agent","archive_days":2.5}'}, 2.5),
        ({"definition": '{"archive_days":3}', "session_definition": '{"name":"agent","archive_days":2.5}'}, 2.5),
        ({"definition": '{"archive_days":3}', "session_definition": '{"name":"agent","archive_days":null}'}, 3),
        ({"definition": '{"name":"agent","archive_days":1e12}'}, 1e12),  # no database has such a number of milliseconds
        ({"session_definition": '{"name":"agent","archive_days":1e305}'}, 1e12),
        ({"definition": f'{{"name":"agent","archive_days":{10**400}}}'}, 1e12),
    ],
)
def test_an_agent_says_after_how_many_days_its_sessions_are_forgotten(
    database: Database, tmp_path: Path, stored: dict[str, str], days: float
) -> None:
    lab = ArchiveLab(database, f"sqlite:///{tmp_path}/history.db", archive_days=30)
    lab.end()
    for name, value in stored.items():
        lab.bench.database("HSET", lab.names.session, name, value)
    updated_ms = int(lab.bench.database("HGET", lab.names.session, "updated"))
    lab.move()
    (row,) = lab.archive.sessions_of(lab.session)
    assert row.session.expires_ms == min(updated_ms + round(days * 86_400_000), LAST_MS)
    life_ms = lab.bench.database("PTTL", lab.names.session)
    assert 0 < life_ms <= min(days, 7) * 86_400_000  # the mark goes with the row


def test_a_rewound_session_moves_and_one_in_the_archive_is_rewound(lab: ArchiveLab) -> None:
    bench = lab.bench
    bench.submit()
    bench.commit(bench.claim(), text="first")
    bench.commit(bench.claim(2), final=True, text="second")
    assert lab.move() is MoveOutcome.MOVED
    sessions, address = lab.store.sessions, f"{bench.execution}:1"
    past = sessions.state_at(lab.session, StepAddress(1, bench.execution))
    version = sessions.header(lab.session).version
    assert sessions.rewind(lab.session, past, address, version=version) == version + 1
    assert bench.database("EXISTS", lab.names.ctl) == 1, "it is in Redis again"
    state = sessions.load(lab.session).state
    assert lab.move() is MoveOutcome.MOVED
    assert sessions.load(lab.session).state == state
    assert sessions.header(lab.session).status == "idle"
