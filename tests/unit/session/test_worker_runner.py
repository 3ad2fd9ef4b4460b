"""`WorkerRunner` that waits: what workers have stored and answered is never told as something to do again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.errors import SessionNotFound
from celery_agents.worker.session import (
    AgentDefinition,
    AgentSession,
    AgentSessionStage,
    EventDispatcher,
    PassThroughSessionController,
    RedisSessionStore,
    SendMessage,
    SessionFactory,
    SessionRepository,
    SessionRuntime,
    SessionSaved,
    SessionSaveFailed,
    WorkerRunner,
)
from celery_agents.worker.session.actions import SaveSession
from celery_agents.worker.state import AgentState, Role

from support.engine import Bench


@dataclass
class Working:
    """A worker that runs what the runner submits, before the runner begins to wait."""

    bench: Bench
    events: list[Any] = field(default_factory=list[Any])

    def run(self, session: AgentSession, state: AgentState, save: SaveSession) -> AgentSession:
        def save_and_work(started: AgentSession) -> AgentSession:
            saved = save(started)
            self.bench.run(saved.session_id)
            return saved

        return WorkerRunner(self.bench.store, timeout=10).run(session, state, save_and_work)

    def runtime(self, at: AgentSessionStage, change: Callable[[AgentSession], AgentSession]) -> SessionRuntime:
        """A runtime whose controller calls this at a stage, and whose saves are noted."""

        class Controller(PassThroughSessionController):
            def on_stage(self, stage: AgentSessionStage, session: AgentSession) -> AgentSession:
                return change(session) if stage is at else session

        events = EventDispatcher("test")
        for kind in (SessionSaved, SessionSaveFailed):
            events.add_listener(kind, self.events.append)
        return SessionRuntime(SessionRepository(RedisSessionStore(self.bench.store)), events, Controller())


@pytest.fixture
def worker() -> Any:
    bench = Bench(Agent("a", driver=lambda state: f"answer to {state.messages[-1].content}"))
    yield Working(bench)
    bench.close()


def new_session(worker: Working) -> str:
    created = SessionFactory().create(AgentDefinition(name="a"))
    return RedisSessionStore(worker.bench.store).create(created).session_id


def users(worker: Working, session_id: str) -> list[str]:
    return [each.content for each in worker.bench.state(session_id).messages if each.role is Role.USER]


@pytest.mark.parametrize("stage", [AgentSessionStage.AFTER_ACTION, AgentSessionStage.BEFORE_SAVE])
def test_what_others_write_before_the_closing_save_is_no_conflict(worker: Working, stage: AgentSessionStage) -> None:
    def write(session: AgentSession) -> AgentSession:
        worker.bench.write_metadata(session.session_id, "elsewhere", 1)
        return session

    session_id = new_session(worker)
    answered = worker.runtime(stage, write).execute(session_id, SendMessage("hello", worker))
    assert answered.state.final_response == "answer to hello"
    assert users(worker, session_id) == ["hello"]
    assert worker.bench.state(session_id).metadata["elsewhere"] == 1


def test_changes_of_a_controller_are_made_on_the_newer_session(worker: Working) -> None:
    written: list[int] = []

    def change(session: AgentSession) -> AgentSession:
        if not written:
            written.append(1)
            worker.bench.write_metadata(session.session_id, "elsewhere", 1)
        return session.with_state(session.state.with_metadata("controlled", True))

    session_id = new_session(worker)
    answered = worker.runtime(AgentSessionStage.BEFORE_SAVE, change).execute(session_id, SendMessage("hello", worker))
    assert dict(worker.bench.state(session_id).metadata) == {"elsewhere": 1, "controlled": True}
    assert answered.state == worker.bench.state(session_id)
    assert [type(event) for event in worker.events] == [SessionSaved]


@pytest.mark.parametrize("changes", [True, False])
def test_the_next_message_does_not_turn_the_answer_into_an_error(worker: Working, changes: bool) -> None:
    def send(session: AgentSession) -> AgentSession:
        worker.bench.send(session.session_id, "the next")
        return session.with_state(session.state.with_metadata("controlled", True)) if changes else session

    session_id = new_session(worker)
    answered = worker.runtime(AgentSessionStage.AFTER_ACTION, send).execute(session_id, SendMessage("hello", worker))
    assert answered.state.final_response == "answer to hello"
    assert users(worker, session_id) == ["hello", "the next"]
    assert [type(event) for event in worker.events] == ([SessionSaveFailed] if changes else []) + [SessionSaved]


def test_a_session_that_was_deleted_meanwhile_is_told(worker: Working) -> None:
    session_id = new_session(worker)
    store = RedisSessionStore(worker.bench.store)

    def delete(session: AgentSession, state: AgentState, save: SaveSession) -> AgentSession:
        def save_and_delete(started: AgentSession) -> AgentSession:
            saved = save(started)
            worker.bench.run(saved.session_id)
            return saved

        ended = WorkerRunner(worker.bench.store).run(session, state, save_and_delete)
        store.delete(session_id)
        return SessionRepository(store).load(ended.session_id)

    class Deleting:
        run = staticmethod(delete)

    with pytest.raises(SessionNotFound):
        SessionRuntime(SessionRepository(store)).execute(session_id, SendMessage("hello", Deleting()))
