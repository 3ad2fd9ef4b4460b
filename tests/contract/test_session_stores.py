"""The contract of `SessionStore`: in memory, in files, and in the stores of the workers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_agents.config.settings import Settings
from celery_agents.worker.errors import SessionConflict, SessionNotFound
from celery_agents.worker.session import (
    AgentDefinition,
    AgentSession,
    FileSessionStore,
    ForkSession,
    InMemorySessionStore,
    RedisSessionStore,
    SessionFactory,
    SessionStatus,
    SessionStore,
)
from celery_agents.worker.store.store import memory_store, redis_store

STORES: dict[str, Callable[[Path], SessionStore]] = {
    "memory": lambda _: InMemorySessionStore(),
    "file": lambda folder: FileSessionStore(folder / "sessions"),
    "the workers' store in memory": lambda _: RedisSessionStore(memory_store(Settings.build())),
}


@pytest.fixture(params=[*STORES, "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SessionStore]:
    if request.param != "redis":
        yield STORES[request.param](tmp_path)
        return
    with contextlib.closing(
        redis_store(Settings.build(redis_url=request.getfixturevalue("redis_url")), name="contract")
    ) as opened:
        yield RedisSessionStore(opened)


def new_session(name: str = "assistant", session_id: str | None = None) -> AgentSession:
    return SessionFactory().create(AgentDefinition(name=name), session_id=session_id)


def test_a_created_session_has_version_1_and_is_read_back_whole(store: SessionStore) -> None:
    session = new_session()
    session = session.with_state(session.state.with_user_message("hello").with_metadata("ticket", {"id": [1, None]}))
    created = store.create(session)
    assert created.version == 1
    assert store.load(created.session_id) == created
    assert store.exists(created.session_id)


def test_a_session_that_exists_cannot_be_created_again(store: SessionStore) -> None:
    created = store.create(new_session(session_id="s1"))
    with pytest.raises(SessionConflict, match="exists already") as caught:
        store.create(new_session(session_id="s1"))
    assert (caught.value.expected, caught.value.stored) == (0, 1)
    assert store.load("s1") == created


def test_only_version_0_can_be_created(store: SessionStore) -> None:
    session = new_session(session_id="s1")
    with pytest.raises(SessionConflict, match="version 3"):
        store.create(session.reconstitute(3, session.info.created_at))
    assert not store.exists("s1")


def test_each_save_adds_1_to_the_version(store: SessionStore) -> None:
    session = store.create(new_session())
    for version in (2, 3, 4):
        session = store.save(session)
        assert session.version == version
    assert store.load(session.session_id) == session


def test_a_stale_save_is_refused_with_both_versions_and_changes_nothing(store: SessionStore) -> None:
    stale = store.create(new_session(session_id="s1"))
    saved = store.save(stale)
    with pytest.raises(SessionConflict, match="you have version 1, stored is 2") as caught:
        store.save(stale.suspended())
    assert (caught.value.expected, caught.value.stored) == (1, 2)
    assert store.load("s1") == saved


def test_a_save_never_brings_a_deleted_session_back(store: SessionStore) -> None:
    session = store.create(new_session(session_id="s1"))
    store.delete("s1")
    store.delete("s1")
    with pytest.raises(SessionNotFound):
        store.save(session)
    assert store.load("s1") is None
    assert not store.exists("s1")
    assert store.list_headers().count == 0


def test_a_missing_session_is_not_found_whatever_its_version(store: SessionStore) -> None:
    session = new_session()
    with pytest.raises(SessionNotFound):
        store.save(session.reconstitute(7, session.info.created_at))
    assert store.load(session.session_id) is None


def test_a_list_holds_every_status_and_can_be_filtered(store: SessionStore) -> None:
    store.create(new_session("first"))
    store.create(new_session("second").suspended())
    store.create(new_session("second").deleted())
    found = store.list_headers()
    assert found.count == len(list(found)) == 3
    assert found.filter_by_agent_name("second").count == 2
    assert found.filter_by_status(SessionStatus.SUSPENDED).filter_by_agent_name("first").first is None
    first = found.filter_by_status(SessionStatus.SUSPENDED).first
    assert first is not None
    assert first.agent_name == "second"


def test_a_fork_is_kept_under_an_id_below_its_source_and_outlives_it(store: SessionStore) -> None:
    source = store.create(new_session(session_id="s1"))
    fork = store.create(ForkSession().execute_on(source))
    again = store.create(ForkSession().execute_on(fork))
    store.delete("s1")
    assert store.load(fork.session_id) == fork
    assert (fork.info.parent_id, again.info.parent_id) == ("s1", fork.session_id)
    assert again.session_id.startswith("s1.")


def test_of_threads_that_save_one_version_exactly_one_wins(store: SessionStore) -> None:
    session = store.create(new_session(session_id="s1"))
    for _ in range(25):
        wins: list[AgentSession] = []
        conflicts: list[SessionConflict] = []
        start = threading.Barrier(2)

        def save(
            session: AgentSession = session,
            wins: list[AgentSession] = wins,
            conflicts: list[SessionConflict] = conflicts,
            start: threading.Barrier = start,
        ) -> None:
            start.wait()
            try:
                wins.append(store.save(session))
            except SessionConflict as error:
                conflicts.append(error)

        threads = [threading.Thread(target=save) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(wins), len(conflicts)) == (1, 1)
        assert conflicts[0].stored == conflicts[0].expected + 1
        session = wins[0]
