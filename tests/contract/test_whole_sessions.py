"""Whole sessions in the workers' store: lost replies, what runs, and what a listing reads; on every store."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from celery_agents.worker.engine import operation_transition
from celery_agents.worker.errors import (
    ActionRefused,
    InvalidInput,
    SessionConflict,
    SessionDeleted,
    StateUnreadable,
)
from celery_agents.worker.session import RedisSessionStore
from celery_agents.worker.state import AgentState
from celery_agents.worker.store import StoredSession
from celery_agents.worker.store.database import Database

from support.points import Points
from support.store import Bench, an_operation


@pytest.fixture
def idle(database: Database) -> Bench:
    """A bench with a session that has no execution."""
    bench = Bench(database)
    bench.store.sessions.create(bench.session, StoredSession(agent="agent", state=AgentState.fresh(), definition=b"{}"))
    bench.spy.sent.clear()
    return bench


def whole(bench: Bench) -> StoredSession:
    return bench.store.sessions.load(bench.session)


def test_a_created_session_is_idle_and_takes_a_message(idle: Bench) -> None:
    assert (idle.store.sessions.header(idle.session).status, idle.due()) == ("idle", None)
    idle.execution = idle.message("hello").execution_id
    idle.commit(idle.claim(), final=True)
    assert whole(idle).state.final_response == "text"


def test_a_creation_and_a_save_whose_replies_are_lost_happen_once(database: Database) -> None:
    bench = Bench(database)
    bench.spy.lose(Points.CREATE_EXEC)
    made = bench.store.sessions.create(bench.session, StoredSession(agent="agent", state=AgentState.fresh()))
    assert made.session == whole(bench)
    bench.spy.lose(Points.SAVE_EXEC)
    saved = bench.store.sessions.save(bench.session, whole(bench))
    assert saved.session.version == whole(bench).version == 2


def test_the_stream_of_the_session_tells_each_save(idle: Bench) -> None:
    idle.store.sessions.save(idle.session, whole(idle))
    told = [(event.type, dict(event.data)) for event in idle.store.sessions.events(idle.session)]
    assert told == [("session_saved", {"status": "active", "version": version}) for version in (1, 2)]


@pytest.mark.parametrize("field", ["head", "session_status", "session_definition"])
def test_a_damaged_session_is_named_and_the_others_are_listed(idle: Bench, field: str) -> None:
    idle.store.sessions.create(f"{idle.session}-other", StoredSession(agent="agent", state=AgentState.fresh()))
    idle.database("HSET", idle.store.context.keys(idle.session).session, field, b"\xff" if field == "head" else b"none")
    store = RedisSessionStore(idle.store)
    with pytest.raises(StateUnreadable):
        store.load(idle.session)
    listed = store.list_headers()
    assert f"{idle.session}-other" in [info.session_id for info in listed]
    if field == "session_status":
        assert idle.session in dict(listed.unreadable)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "a:b", "a\nb", "x" * 200])
def test_a_bad_id_is_refused_before_anything_is_sent(idle: Bench, name: str) -> None:
    store = RedisSessionStore(idle.store)
    for verb in (store.load, store.exists, store.delete):
        with pytest.raises(InvalidInput):
            verb(name)
    assert not idle.spy.sent


def test_of_two_creations_one_is_refused_with_both_versions(idle: Bench) -> None:
    with pytest.raises(SessionConflict) as conflict:
        idle.store.sessions.create(idle.session, StoredSession(agent="agent", state=AgentState.fresh()))
    assert (conflict.value.expected, conflict.value.stored) == (0, 1)


@pytest.mark.leaves_keys("the execution runs")
def test_a_save_is_refused_while_an_execution_runs_and_after_it_for_its_version(idle: Bench) -> None:
    before = whole(idle)
    idle.execution = idle.message("hello").execution_id
    with pytest.raises(SessionConflict):
        idle.store.sessions.save(idle.session, before)
    with pytest.raises(ActionRefused, match="runs or waits"):
        idle.store.sessions.save(idle.session, whole(idle))


def test_a_session_that_changes_between_look_and_save_is_not_overwritten(idle: Bench) -> None:
    mine = whole(idle)
    idle.spy.before(Points.SAVE_EXEC, lambda: idle.another().sessions.save(idle.session, mine))
    with pytest.raises(SessionConflict) as conflict:
        idle.store.sessions.save(idle.session, mine)
    assert (conflict.value.expected, conflict.value.stored) == (1, 2)


def test_a_replaced_conversation_is_read_back_whatever_its_generation(idle: Bench) -> None:
    for number in range(3):
        state = AgentState.fresh().with_user_message(f"another {number}").with_user_message("and more")
        stored = whole(idle)
        idle.store.sessions.save(idle.session, StoredSession(agent="agent", state=state, version=stored.version))
        assert [each.content for each in whole(idle).state.messages] == [f"another {number}", "and more"]
    idle.execution = idle.message("hello").execution_id
    idle.commit(idle.claim(), final=True)
    assert len(whole(idle).state.store.section().messages) == 4
    idle.store.sessions.delete(idle.session)


def test_a_deleted_session_is_not_created_again(idle: Bench) -> None:
    idle.store.sessions.delete(idle.session)
    with pytest.raises(SessionDeleted):
        idle.store.sessions.create(idle.session, StoredSession(agent="agent", state=AgentState.fresh()))


@pytest.mark.leaves_keys("the execution is held")
def test_a_message_to_a_suspended_session_begins_nothing_until_the_resume(idle: Bench) -> None:
    stored = whole(idle)
    idle.store.sessions.save(
        idle.session, StoredSession(agent="agent", state=stored.state, status="suspended", version=1)
    )
    started = idle.store.sessions.act(idle.session, an_operation("hello"), operation_transition)
    idle.execution = started.execution_id
    assert started.publish is None
    assert idle.answer().reason == "held"
    resumed = idle.store.sessions.resume(idle.session)
    assert resumed.publish == idle.ref()
    idle.claim()
    assert idle.store.sessions.header(idle.session).session_status == "active"


@pytest.mark.parametrize("status", ["completed", "failed", "deleted"])
def test_an_ended_session_takes_no_message_but_metadata(idle: Bench, status: str) -> None:
    idle.store.sessions.save(
        idle.session, StoredSession(agent="agent", state=whole(idle).state, status=status, version=1)
    )
    before = idle.snapshot()
    with pytest.raises(ActionRefused, match=status):
        idle.message("hello")
    assert idle.snapshot() == before


def test_a_fork_has_all_lists_and_none_of_the_execution(bench: Bench) -> None:
    bench.commit(bench.claim())
    fork = f"{bench.session}.{uuid.uuid4().hex}"
    bench.store.sessions.fork(bench.session, fork)
    source, copied = whole(bench), bench.store.sessions.load(fork)
    assert copied.state.store == source.state.store
    assert (copied.state.execution, copied.forked_from, copied.version) == (None, bench.session, 1)
    bench.commit(bench.claim(2), final=True)
    assert copied == bench.store.sessions.load(fork)
    assert bench.store.trees.members(bench.session) == [], "a fork belongs to no tree"


def test_a_thousand_sessions_are_listed_without_reading_a_body(idle: Bench) -> None:
    for number in range(999):
        state = AgentState.fresh().with_user_message("a body " * 20)
        idle.store.sessions.create(f"{idle.session}-{number}", StoredSession(agent="agent", state=state))
    idle.spy.sent.clear()
    listed = RedisSessionStore(idle.store).list_headers()
    assert sum(info.session_id.startswith(idle.session) for info in listed) == 1000
    names = {command[0] for _, commands in idle.spy.sent for command in commands}
    read = {word for _, commands in idle.spy.sent for command in commands for word in command[2:]}
    assert names == {"ZREVRANGEBYSCORE", "HMGET"}
    assert not {"head", "session_definition"} & read
    assert len(idle.spy.sent) < 30


def test_a_parked_session_is_not_saved_since_its_execution_has_not_ended(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    bench.store.steps.park(bench.ref(), "nobody offers the agent")
    before = bench.snapshot()
    stored = whole(bench)
    with pytest.raises(ActionRefused, match="is parked: its execution has not ended"):
        bench.store.sessions.save(bench.session, replace(stored, state=stored.state.without_conversation()))
    assert bench.snapshot() == before
    bench.stop()
    stored = whole(bench)
    bench.store.sessions.save(bench.session, replace(stored, state=stored.state.without_conversation()))
    assert whole(bench).state.execution is None
