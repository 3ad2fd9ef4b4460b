"""Labels: each session is found by its own, in the order of all, whatever happens to it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from celery_agents.tasks.client.listing import Filter, read_page
from celery_agents.worker.errors import InvalidInput, SessionNotFound, StateUnreadable
from celery_agents.worker.state import RequestKind
from celery_agents.worker.store import Store
from celery_agents.worker.store.database import Database
from celery_agents.worker.store.labels import is_member
from celery_agents.worker.store.sessions import listing

from support.asking import a_request, ask
from support.store import Bench, step_transition
from support.wait import wait_until


def found(store: Store, **wanted: Any) -> list[str]:
    return [header.session_id for header in read_page(store, Filter(**wanted), 3, None)]


def index_of(bench: Bench) -> list[bytes]:
    shards = bench.store.context.shards
    reads = [("ZRANGE", shard.labels, 0, -1) for shard in shards]
    return [member for members in bench.spy.inner.pipeline("test", reads) for member in members]


def new_session(bench: Bench, session: str, labels: dict[str, str]) -> str:
    bench.session, bench.execution = session, f"e{session}"
    bench.submit(labels=labels)
    return session


def end(bench: Bench) -> None:
    bench.commit(bench.claim(), final=True)


def test_sessions_are_found_by_all_the_labels_that_are_asked_for(database: Database) -> None:
    bench = Bench(database)
    one = new_session(bench, "s1", {"customer": "42", "tier": "gold"})
    two = new_session(bench, "s2", {"customer": "42"})
    new_session(bench, "s3", {"customer": "421"})
    new_session(bench, "s4", {"customer": "4"})
    new_session(bench, "s5", {})
    assert sorted(found(bench.store, labels={"customer": "42"})) == [one, two]
    assert found(bench.store, labels={"customer": "42", "tier": "gold"}) == [one]
    assert found(bench.store, labels={"tier": "gold"}, status="failed") == []
    assert found(bench.store, labels={"customer": "42", "tier": "tin"}) == []
    assert bench.store.sessions.header(one).labels == {"customer": "42", "tier": "gold"}
    assert bench.store.sessions.load(two).labels == {"customer": "42"}


@pytest.mark.parametrize("most", [20_000, 0])
def test_the_order_is_that_of_all_and_pages_follow_each_other(
    database: Database, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_MOST_READ", most)  # the index of labels, or that of all sessions
    bench = Bench(database)
    for number in range(11):
        new_session(bench, f"s{number}", {"parity": str(number % 2)})
    everything = found(bench.store)
    odd = [name for name in everything if int(name[1:]) % 2]
    assert found(bench.store, labels={"parity": "1"}) == odd
    newest = bench.store.sessions.header(odd[2]).updated_ms
    until = [name for name in odd if bench.store.sessions.header(name).updated_ms <= newest]
    assert found(bench.store, labels={"parity": "1"}, newest_ms=newest) == until


def test_labels_are_changed_one_by_one_and_none_removes_one(database: Database) -> None:
    bench = Bench(database)
    bench.submit(labels={"a": "1", "b": "2"})
    assert bench.store.sessions.label(bench.session, {"b": None, "c": "3"}) == {"a": "1", "c": "3"}
    assert found(bench.store, labels={"b": "2"}) == []
    assert found(bench.store, labels={"a": "1", "c": "3"}) == [bench.session]
    assert all(map(is_member, index_of(bench)))
    version = bench.store.sessions.header(bench.session).version
    bench.spy.lose("label.exec")
    assert bench.store.sessions.label(bench.session, {"a": "x=y z"}) == {"a": "x=y z", "c": "3"}
    assert found(bench.store, labels={"a": "x=y z"}) == [bench.session]
    assert bench.store.sessions.header(bench.session).version == version, "a running step goes on"
    end(bench)
    assert found(bench.store, labels={"c": "3"}) == [bench.session]


def test_too_many_labels_and_labels_of_no_session_change_nothing(database: Database) -> None:
    bench = Bench(database)
    bench.submit(labels={f"k{number}": "v" for number in range(16)})
    before = index_of(bench)
    with pytest.raises(InvalidInput, match=r"at most 16.*17 labels"):
        bench.store.sessions.label(bench.session, {"one": "more"})
    with pytest.raises(SessionNotFound):
        bench.store.sessions.label("nobody", {"one": "more"})
    assert index_of(bench) == before
    bench.store.sessions.label(bench.session, {"k0": None, "one": "more"})
    assert len(index_of(bench)) == 32


def test_a_deleted_session_and_an_expired_one_leave_nothing_in_the_index(database: Database) -> None:
    bench = Bench(database, retention_seconds=1)
    kept = new_session(bench, "s1", {"a": "1"})
    new_session(bench, "s2", {"a": "1", "b": "2"})
    end(bench)
    new_session(bench, "s22", {"a": "1"})
    bench.session = "s2"
    bench.store.sessions.delete("s2")
    assert sorted(index_of(bench)) == [b"=a=1\ns1", b"=a=1\ns22", b"@s1\na=1", b"@s22\na=1"]
    bench.session, bench.execution = "s22", "es22"
    end(bench)
    keys = bench.store.context.keys("s22")
    wait_until(lambda: not bench.database("EXISTS", keys.session), "the session has expired", 10)
    assert found(bench.store, labels={"a": "1"}) == [kept], "an expired one is not listed"
    bench.store.housekeeping.prune()
    assert sorted(index_of(bench)) == [b"=a=1\ns1", b"@s1\na=1"]


def test_the_dead_list_forgets_what_names_a_session_and_nothing_else(database: Database) -> None:
    bench = Bench(database)
    for name in ("s1", "s11", "s2"):
        new_session(bench, name, {})
        bench.store.steps.park(bench.ref(), f"broken: {name}")
    assert bench.store.housekeeping.forget_dead(["s11", "s2"]) == 2
    assert [entry["session"] for entry in bench.store.housekeeping.list_dead()] == ["s1"]
    assert bench.store.housekeeping.forget_dead(["s2"]) == 0
    for name in ("s1", "s11", "s2"):
        bench.store.sessions.delete(name)


def test_a_fork_has_the_labels_of_its_source(database: Database) -> None:
    bench = Bench(database)
    bench.submit(labels={"a": "1"})
    end(bench)
    fork = f"{bench.session}.{0:032x}"
    bench.store.sessions.fork(bench.session, fork)
    assert sorted(found(bench.store, labels={"a": "1"})) == [bench.session, fork]


def test_random_changes_leave_the_index_as_the_labels_say(database: Database) -> None:
    dice = random.Random(7)
    bench = Bench(database)
    names = [new_session(bench, f"s{number}", {}) for number in range(4)]
    known: dict[str, dict[str, str]] = {name: {} for name in names}
    for _ in range(60):
        name, key = dice.choice(names), dice.choice(["a", "b", "aa"])
        value = dice.choice([None, "1", "2", "11"])
        known[name].pop(key, None)
        known[name] |= {key: value} if value is not None else {}
        assert bench.store.sessions.label(name, {key: value}) == known[name]
    members = {f"={k}={v}\n{name}".encode() for name, labels in known.items() for k, v in labels.items()}
    members |= {f"@{name}\n{k}={v}".encode() for name, labels in known.items() for k, v in labels.items()}
    assert set(index_of(bench)) == members


def test_damaged_labels_are_named_and_hide_no_other_session(database: Database) -> None:
    bench = Bench(database)
    bench.submit(labels={"a": "1"})
    whole, broken = bench.session, new_session(bench, "broken", {"a": "1"})
    bench.database("HSET", bench.store.context.keys(broken).session, "labels", b'{"a": 7}')
    assert found(bench.store, labels={"a": "1"}) == [whole]
    assert "labels" in (bench.store.sessions.header(broken).problem or "")
    with pytest.raises(StateUnreadable, match="labels"):
        bench.store.sessions.label(broken, {"b": "2"})


def test_sessions_are_found_by_what_was_said_by_their_error_and_by_what_they_wait_for(database: Database) -> None:
    bench = Bench(database)
    failed = new_session(bench, "s1", {"a": "1"})
    claimed = bench.claim()
    transition = step_transition(claimed, final=True, failed=True)
    bench.store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=False)
    (error,) = bench.store.sessions.last_errors([bench.store.sessions.header(failed)]).values()
    waiting = new_session(bench, "s2", {"a": "1"})
    ask(bench, a_request(bench))
    kind = a_request(bench).kind
    other = next(each for each in (RequestKind.APPROVAL, RequestKind.QUESTION) if each is not kind)
    assert found(bench.store, error=error.upper()[1:-1]) == [failed]
    assert found(bench.store, error="another error") == []
    assert found(bench.store, waits_for=kind.value) == [waiting]
    assert found(bench.store, waits_for=kind.value, labels={"a": "2"}) == []
    assert found(bench.store, waits_for=other.value) == []
    assert sorted(found(bench.store, text="FIRST")) == [failed, waiting]
    assert found(bench.store, text="first", error=error) == [failed]
    assert found(bench.store, text="second") == []
