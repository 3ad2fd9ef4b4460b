"""Packed entries on every store: new stores have them, older ones after an upgrade, and readers see no difference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from celery_agents.worker.errors import ActionRefused, ClaimLost, StateUnreadable, StoreForbidden
from celery_agents.worker.state import Message
from celery_agents.worker.store import Store
from celery_agents.worker.store.database import Command, Database, Reply
from celery_agents.worker.store.packing import step_spans, unpack

from support.store import Bench, fleet_of

pytestmark = pytest.mark.leaves_keys("executions go on")

TEXT = "the refund of the third of May, as the customer has asked for in a letter " * 20
OLD, NEW_BUILD = {"schema": 3}, {"schema": 4}


def entries(bench: Bench) -> tuple[list[bytes], list[bytes]]:
    """The entries of the list of messages, and of that of steps."""
    keys = bench.store.context.keys(bench.session)
    lists = keys.section("messages", 0), keys.steps(bench.execution)
    messages, steps = (bench.database("LRANGE", each, 0, -1) for each in lists)
    return messages, steps


def head(bench: Bench) -> Any:
    return json.loads(bench.database("HGET", bench.store.context.keys(bench.session).session, "head"))


def stored(database: Database) -> bytes:
    return database.pipeline("test", [("GET", fleet_of(database).shards)])[0]


def an_old_store(database: Database) -> Bench:
    database.pipeline("test", [("SET", fleet_of(database).shards, "3")])
    bench = Bench(database)
    bench.submit()
    return bench


def is_plain(found: list[bytes]) -> bool:
    return all(entry.startswith(b"{") for entry in found)


def read_all(bench: Bench, store: Store) -> list[Any]:
    """What each reader says of the session."""
    sessions, session = store.sessions, bench.session
    return [
        sessions.load(session).state.to_dict(),
        [message.to_dict() for message in sessions.messages(session, 1, 2).messages],
        sessions.outline(session).to_dict(),
        [step.to_dict() for step in sessions.execution(session, 2, 5).steps],
        sessions.summaries([session])[session],
        store.live.committed_texts(session, [(bench.execution, 1), (bench.execution, 2), (bench.execution, 9)]),
    ]


def test_a_new_store_holds_what_is_said_once(bench: Bench) -> None:
    for number in (1, 2):
        bench.commit(bench.claim(number), text=TEXT)
    messages, steps = entries(bench)
    assert [step_spans(step) != () for step in steps] == [True, True]
    assert sum(map(len, messages + steps)) < len(TEXT)
    assert head(bench)["state"]["schema_version"] == 4, "a build that reads no packed entries refuses the session"
    state = bench.store.sessions.load(bench.session).state
    assert (state.schema_version, state.to_dict()["schema_version"]) == (1, 1)
    assert [message.content for message in state.store.section().messages] == ["first", TEXT, TEXT]


def test_readers_see_no_difference_and_an_upgrade_changes_nothing_for_them(database: Database) -> None:
    bench = an_old_store(database)
    for number in (1, 2, 3):
        bench.commit(bench.claim(number), text=f"{TEXT} {number}")
    assert is_plain([*entries(bench)[0], *entries(bench)[1]])
    assert head(bench)["state"]["schema_version"] == 1
    before = read_all(bench, bench.another())
    assert bench.store.housekeeping.upgrade() is True
    assert stored(database) == b"3 packed"
    assert read_all(bench, bench.another()) == before
    bench.commit(bench.claim(4), text=f"{TEXT} 4")
    messages, steps = entries(bench)
    assert (is_plain(messages[:4]), is_plain(messages[4:])) == (True, False)
    assert (is_plain(steps[:3]), is_plain(steps[3:])) == (True, False)
    found = read_all(bench, bench.another())
    assert [step["step"]["number"] for step in found[3]] == [2, 3, 4]
    assert found[3][:2] == before[3][:2]
    assert found[-1] == before[-1]
    assert bench.store.housekeeping.upgrade() is False


def test_an_upgrade_is_refused_while_workers_live_that_read_no_packed_entries(database: Database) -> None:
    bench = an_old_store(database)
    for number in range(7):
        bench.store.registry.register(f"old-{number}", OLD, {})
    bench.store.registry.register("new", NEW_BUILD, {})
    with pytest.raises(ActionRefused, match=r"old-0, old-1, .*old-4 and 2 more\. Stop them"):
        bench.store.housekeeping.upgrade()
    assert stored(database) == b"3"
    for number in range(7):
        bench.store.registry.unregister(f"old-{number}")
    assert bench.store.housekeeping.upgrade()
    bench.store.registry.unregister("new")


def test_an_upgrade_that_the_store_refuses_can_be_asked_for_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, pipeline = an_old_store(database), database.pipeline

    def refuse_upgrade(point: str, commands: Sequence[Command]) -> list[Reply]:
        if point == "upgrade":
            raise StoreForbidden("Redis refuses this user")
        return pipeline(point, commands)

    with monkeypatch.context() as refusing:
        refusing.setattr(database, "pipeline", refuse_upgrade)
        with pytest.raises(StoreForbidden):
            bench.store.housekeeping.upgrade()
    assert bench.store.housekeeping.upgrade()
    assert stored(database) == b"3 packed"


def test_workers_notice_an_upgrade_when_they_register(database: Database) -> None:
    bench = an_old_store(database)
    other = bench.another()
    bench.store.housekeeping.upgrade()
    assert not other.context.layout.packs
    other.registry.register("new", NEW_BUILD, {})
    assert other.context.layout.packs
    other.registry.unregister("new")


def test_a_process_that_has_not_noticed_goes_on_in_the_form_of_the_session(database: Database) -> None:
    bench = an_old_store(database)
    other = bench.another()
    bench.store.housekeeping.upgrade()
    bench.commit(bench.claim(), text=TEXT)
    bench.store = other
    bench.commit(bench.claim(2), text=TEXT)
    assert head(bench)["state"]["schema_version"] == 4
    assert not is_plain(entries(bench)[1][1:])


def test_without_compression_messages_are_plain_and_a_step_takes_no_room_for_them(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    bench.commit(bench.claim(), text=TEXT)
    plain = Bench(database, compression=False)
    plain.session, plain.execution = bench.session, bench.execution
    plain.commit(plain.claim(2), text=TEXT)
    messages, steps = entries(bench)
    assert [is_plain([message]) for message in messages] == [True, False, True]
    assert [bool(step_spans(step)) for step in steps] == [True, True]
    assert max(map(len, steps)) < len(TEXT) / 4
    assert head(bench)["state"]["schema_version"] == 4
    contents = [each.content for each in bench.another().sessions.load(bench.session).state.store.section().messages]
    assert contents == ["first", TEXT, TEXT]


def test_a_commit_is_recognised_after_the_next_execution_and_without_its_messages(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    claimed = bench.claim()
    bench.commit(claimed, final=True, text=TEXT)
    bench.execution = bench.message("the next execution").execution_id
    bench.commit(bench.claim(), final=True, text=TEXT)
    loaded = bench.store.sessions.load(bench.session)
    state = loaded.state.with_messages([Message.user("something else")])
    bench.store.sessions.save(bench.session, replace(loaded, state=state))
    assert bench.commit(claimed, final=True, text=TEXT).again
    impostor = replace(claimed, claim=replace(claimed.claim, id="another"))
    with pytest.raises(ClaimLost):
        bench.commit(impostor, final=True, text=TEXT)


def test_a_damaged_entry_is_named_and_the_others_are_read(bench: Bench) -> None:
    bench.commit(bench.claim(), text=TEXT)
    bench.commit(bench.claim(2), text=TEXT)
    keys = bench.store.context.keys(bench.session)
    _, (first, second) = entries(bench)
    bench.database("DEL", keys.steps(bench.execution))
    bench.database("RPUSH", keys.steps(bench.execution), first, second[:-3])
    with pytest.raises(StateUnreadable, match=r"steps\[1\]"):
        bench.another().sessions.load(bench.session)
    with pytest.raises(StateUnreadable, match=r"steps\[1\]"):
        bench.store.sessions.execution(bench.session, 1, 5)
    assert bench.store.live.committed_texts(bench.session, [(bench.execution, 1), (bench.execution, 2)]) == [TEXT, None]


def test_a_process_that_has_the_beginning_reads_the_steps_of_another_one(cached_bench: Bench) -> None:
    bench = cached_bench
    bench.commit(bench.claim(), text=TEXT)
    bench.step_elsewhere(2)
    bench.step_elsewhere(3)
    state = bench.claim(4).loaded.state
    assert state.to_dict() == bench.another().sessions.load(bench.session).state.to_dict()
    assert [unpack(entry)[:1] for entry in entries(bench)[0]] == [b"{"] * 4
