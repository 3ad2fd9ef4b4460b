"""Rows of the archive: each write names the revision that its writer has read, and a tombstone is passed by none."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from celery_agents.worker.archive.rows import CostBy, RowState, Search, StoredRow
from celery_agents.worker.archive.sql_archive import Archive
from celery_agents.worker.errors import SessionNotFound, StateUnreadable

from support.archives import cost, entry, key

PENDING, VALID, TOMBSTONE = RowState.PENDING, RowState.VALID, RowState.TOMBSTONE


def test_a_session_is_stored_as_pending_and_becomes_valid(archive: Archive) -> None:
    assert archive.row(key()) is None
    assert archive.store(entry(mark="m1"), seen=0) == 1
    assert archive.row(key()) == StoredRow(1, PENDING, "m1")
    assert archive.make_valid(key(), seen=1)
    assert archive.row(key()) == StoredRow(2, VALID, "m1")
    assert not archive.make_valid(key(), seen=2), "it is not pending"


def test_a_document_comes_back_byte_for_byte(archive: Archive) -> None:
    random.seed(7)
    for number, document in enumerate((b"", b"\0", b"a" * 3_000_000, random.randbytes(100_000), bytes(range(256)))):
        assert archive.store(entry(f"s{number}", document=document), seen=0) == 1
        row, found = archive.document(key(f"s{number}"))
        assert found == document
        assert row == StoredRow(1, PENDING, "mark")
    assert archive.sessions_of("s2")[0].session.size < 3_000, "it is compressed"


def test_a_writer_that_is_late_is_refused_and_changes_nothing(archive: Archive) -> None:
    assert archive.store(entry(mark="first"), seen=0) == 1
    assert archive.store(entry(mark="second", document=b"second"), seen=1) == 2
    assert archive.store(entry(mark="late", document=b"late"), seen=1) is None
    assert archive.store(entry(mark="late", document=b"late"), seen=0) is None
    assert not archive.make_valid(key(), seen=1)
    assert archive.document(key()) == (StoredRow(2, PENDING, "second"), b"second")


def test_a_writer_that_has_read_a_row_which_is_gone_is_refused(archive: Archive) -> None:
    assert archive.store(entry(), seen=3) is None
    assert archive.row(key()) is None


def test_a_row_that_is_stored_again_has_nothing_left_of_the_first(archive: Archive) -> None:
    first = entry(text="oranges", error="bitter", labels={"a": "1", "b": "2"}, costs=(cost("e1"), cost("e2")))
    archive.store(first, seen=0)
    archive.store(entry(text="lemons", labels={"a": "3"}, costs=(cost("e3"),)), seen=1)
    (found,) = archive.search(Search(text="lemons")).sessions
    assert found.session.labels == {"a": "3"}
    for gone in (Search(text="oranges"), Search(error="bitter"), Search(labels={"a": "1"}), Search(labels={"b": "2"})):
        assert archive.search(gone).sessions == ()


def test_no_row_passes_a_tombstone(archive: Archive) -> None:
    archive.store(entry(text="words", labels={"a": "1"}, costs=(cost(),)), seen=0)
    archive.bury(key(), expires_ms=5_000)
    assert archive.row(key()) == StoredRow(2, TOMBSTONE, "")
    for seen in (0, 1, 2):
        assert archive.store(entry(), seen=seen) is None
    assert not archive.make_valid(key(), seen=2)
    with pytest.raises(SessionNotFound):
        archive.document(key())
    assert archive.search(Search()).sessions == archive.search(Search(text="words")).sessions == ()
    assert archive.sessions_of("s1") == []
    assert archive.facts().size == 0


def test_a_tombstone_is_made_also_where_there_is_no_row(archive: Archive) -> None:
    archive.bury(key(), expires_ms=5_000)
    assert archive.row(key()) == StoredRow(1, TOMBSTONE, "")
    assert archive.store(entry(), seen=0) is None
    archive.bury(key(), expires_ms=6_000)
    assert archive.row(key()) == StoredRow(2, TOMBSTONE, ""), "again"


def test_a_session_that_has_the_id_of_a_deleted_one_has_a_row_of_its_own(archive: Archive) -> None:
    archive.bury(key(created_ms=1), expires_ms=5_000)
    assert archive.store(entry(created_ms=2, mark="second"), seen=0) == 1
    assert archive.store(entry(created_ms=3, mark="third"), seen=0) == 1
    assert [(each.name, each.session.mark) for each in archive.sessions_of("s1")] == [
        ("s1", "third"),
        ("s1@2", "second"),
    ]
    assert [each.name for each in archive.search(Search()).sessions] == ["s1", "s1@2"]
    archive.bury(key(created_ms=3), expires_ms=5_000)
    assert [each.name for each in archive.sessions_of("s1")] == ["s1"], "the one that is left has the id"


def test_rows_whose_time_is_over_are_forgotten_and_no_others(archive: Archive) -> None:
    archive.store(entry("stays"), seen=0)
    archive.store(entry("later", expires_ms=2_001), seen=0)
    archive.store(entry("over", expires_ms=2_000, text="words", costs=(cost(),), labels={"a": "1"}), seen=0)
    archive.bury(key("buried"), expires_ms=1_999)
    assert archive.forget(2_000) == 2
    assert archive.forget(2_000) == 0
    assert [archive.row(key(name)) is None for name in ("stays", "later", "over", "buried")] == [
        False,
        False,
        True,
        True,
    ]
    assert archive.search(Search(text="words")).sessions == archive.search(Search(labels={"a": "1"})).sessions == ()
    assert archive.store(entry("buried"), seen=0) == 1, "the id is free again"


def test_no_row_is_forgotten_that_is_stored_at_the_same_moment(opened: Callable[[], Archive]) -> None:
    """A session that was restored in its last hour has ended again: its row has another time."""
    mover, worker = opened(), opened()
    barrier = threading.Barrier(2, timeout=30)
    names = [f"s{number}" for number in range(40)]

    def forget() -> None:
        for _ in names:
            barrier.wait()
            worker.forget(2_000)

    thread, stored = threading.Thread(target=forget), list[str]()
    thread.start()
    for name in names:
        mover.store(entry(name, expires_ms=1_000), seen=0)
        barrier.wait()
        if mover.store(entry(name, expires_ms=9_000), seen=1) is not None:
            stored.append(name)
    thread.join()
    assert [name for name in stored if mover.row(key(name)) is None] == []


def test_any_number_of_ids_is_looked_for(archive: Archive) -> None:
    archive.store(entry("s7"), seen=0)
    assert [each.name for each in archive.of_ids([f"s{number}" for number in range(70_000)])] == ["s7"]


def test_pending_rows_are_found(archive: Archive) -> None:
    for name in ("a", "b", "c"):
        archive.store(entry(name), seen=0)
    archive.make_valid(key("b"), seen=1)
    assert [each.name for each in archive.pending()] == ["a", "c"]
    assert [each.name for each in archive.pending(limit=1)] == ["a"]
    facts = archive.facts()
    assert (facts.sessions, facts.pending, facts.tombstones) == (3, 2, 0)


def test_of_two_writers_one_is_refused(opened: Callable[[], Archive]) -> None:
    """Two movers at the same moment, again and again: each revision is given once."""
    archives = (opened(), opened())
    given: list[int] = []
    barrier = threading.Barrier(2, timeout=30)

    def write(archive: Archive) -> None:
        for number in range(20):
            barrier.wait()
            name, seen = f"s{number // 4}", number % 4
            revision = archive.store(entry(name, document=b"x" * 5_000), seen=seen)
            if revision is not None:
                given.append(4 * (number // 4) + revision)
            barrier.wait()

    threads = [threading.Thread(target=write, args=(each,)) for each in archives]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == list(range(1, 21))


def test_a_deletion_and_a_writer_at_the_same_moment_leave_a_tombstone(opened: Callable[[], Archive]) -> None:
    mover, deleter = opened(), opened()
    barrier = threading.Barrier(2, timeout=30)
    names = [f"s{number}" for number in range(25)]

    def move() -> None:
        for name in names:
            barrier.wait()
            mover.store(entry(name), seen=0)

    thread = threading.Thread(target=move)
    thread.start()
    for name in names:
        barrier.wait()
        deleter.bury(key(name), expires_ms=5_000)
    thread.join()
    rows = [mover.row(key(name)) for name in names]
    assert {row.state for row in rows if row is not None} == {TOMBSTONE}
    assert None not in rows


def test_texts_that_a_database_refuses_are_stored_without_what_it_refuses(archive: Archive) -> None:
    archive.store(entry(error="a\0b \ud83d c", agent="ä", first_words="x" * 500, text="nul\0here \ud800 end"), seen=0)
    (found,) = archive.search(Search(text="end")).sessions
    assert found.session.error == "a�b ? c"
    assert (found.session.agent, len(found.session.first_words)) == ("ä", 200)


def test_counts_that_no_column_holds_stay_at_the_largest(archive: Archive) -> None:
    archive.store(entry(tokens=2**65, costs=(cost("e1", tokens=2**65), cost("e2", tokens=2**65))), seen=0)
    assert archive.sessions_of("s1")[0].session.tokens == 2**53


def test_all_facts_come_back(archive: Archive) -> None:
    stored = entry(
        reason="completed", error="none", execution_id="e9", parent_id="root", forked_from="other", version=12,
        first_words="Hello", labels={"customer": "42"}, steps=7, tokens=99, cost=0.25, expires_ms=77,
    )  # fmt: skip
    archive.store(stored, seen=0)
    (found,) = archive.sessions_of("s1")
    assert found.session.size > 0
    assert {name: getattr(found.session, name) for name in stored.session.__slots__ if name != "size"} == {
        name: getattr(stored.session, name) for name in stored.session.__slots__ if name != "size"
    }


def test_a_damaged_document_is_named_and_the_others_are_listed(
    archive: Archive, damage: Callable[[str, bytes], None]
) -> None:
    archive.store(entry("good"), seen=0)
    archive.store(entry("bad", document=b"0123456789" * 1_000), seen=0)
    whole = archive.document(key("bad"))[1]
    for body in (
        b"",
        b"no zstd",
        b"\x28\xb5\x2f\xfd",
        _pack(whole)[:-3],
        _pack(whole) + b"x",
        _pack(whole[:-1]),
        _pack(b"\0" * 50_000_000),
    ):
        damage("bad", body)
        with pytest.raises(StateUnreadable, match="the document of session bad@1 in the archive: it is damaged"):
            archive.document(key("bad"))
    assert archive.document(key("good"))[1] == b"everything"
    assert len(archive.search(Search()).sessions) == 2


def _pack(document: bytes) -> bytes:
    from celery_agents.worker.archive.documents import pack

    return pack(document)


def test_models_of_any_name_are_stored_and_added_up(archive: Archive) -> None:
    """PostgreSQL refuses what is too long for an index, and of all databases none takes a model of an execution twice."""
    long = "".join(random.Random(1).choices("abcdefghijklmnop", k=5_000))
    models = (long, f"{long} ", "a\0", "a\ufffd", "a\ud800")
    assert archive.store(entry(costs=tuple(cost(model=each) for each in models)), seen=0) == 1
    sums = {each.name: each for each in archive.costs(CostBy.MODEL)}
    assert {name: each.steps for name, each in sums.items()} == {long[:200]: 4, "a\ufffd": 4, "a?": 2}
    assert sums[long[:200]].executions == 1


def test_a_session_that_its_database_refuses_is_told_from_an_archive_that_is_away(archive: Archive) -> None:
    twice = entry(execution_id="e\0", costs=(cost(cost=None),))
    with pytest.raises(StateUnreadable, match="its database refuses a value"):
        archive.store(twice, seen=0)
    assert archive.store(entry(), seen=0) == 1
