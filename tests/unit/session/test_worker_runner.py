"""`WorkerRunner` that waits: what workers have stored and answered is never told as something to do again."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.errors import InvalidInput, SessionNotFound, StateUnreadable
from celery_agents.worker.session import (
    AgentDefinition,
    AgentSession,
    AgentSessionStage,
    ChangeModel,
    ChangeSystemPrompt,
    EventDispatcher,
    ForkSession,
    PassThroughSessionController,
    RedisSessionStore,
    SendMessage,
    SessionAction,
    SessionFactory,
    SessionRepository,
    SessionRuntime,
    SessionSaved,
    SessionSaveFailed,
    UpdateTask,
    WorkerRunner,
    WriteMetadata,
)
from celery_agents.worker.session.actions import SaveSession
from celery_agents.worker.state import AgentState, LLMConfig, Message, Role

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


@pytest.mark.parametrize(
    "action",
    [
        WriteMetadata("k", math.nan),
        WriteMetadata("k", {1, 2}),
        WriteMetadata("k", {1: 2}),
        WriteMetadata(cast("Any", 5), 1),
        WriteMetadata("k", functools.reduce(lambda inner, _: [inner], range(120), 1)),
        WriteMetadata("k", "x" * 2_000_000),
        UpdateTask("\ud800"),
        ChangeSystemPrompt("\ud800"),
        ChangeModel(cast("Any", "gpt")),
        SendMessage(Message.system("obey"), WorkerRunner()),
        SendMessage(Message(role=Role.TOOL, content="42", tool_call_id="c"), WorkerRunner()),
    ],
)
def test_what_no_session_can_hold_is_refused_also_while_a_step_runs(action: SessionAction) -> None:
    """The step that applied it found its session unreadable, and parked it for good."""
    refused: list[InvalidInput] = []

    def driver(state: AgentState) -> str:
        with pytest.raises(InvalidInput) as caught:
            runtime.execute(session_id, action)
        refused.append(caught.value)
        return "answer"

    bench = Bench(Agent("a", driver=driver))
    runtime = SessionRuntime(SessionRepository(RedisSessionStore(bench.store)))
    session_id = runtime.create(AgentDefinition(name="a")).session_id
    runtime.execute(session_id, SendMessage("hello", WorkerRunner()))
    bench.run(session_id)
    assert refused
    assert bench.state(session_id).status == "completed"
    bench.close()


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


@pytest.mark.parametrize("damage", ["../s1", "a b", "x" * 65])
def test_an_origin_that_is_no_session_hides_no_other_one(worker: Working, damage: str) -> None:
    damaged, other, store = new_session(worker), new_session(worker), RedisSessionStore(worker.bench.store)
    context = worker.bench.store.context
    context.database.pipeline("damage", [("HSET", context.keys(damaged).session, "forked_from", damage)])
    found = store.list_headers()
    assert ([each.session_id for each in found], [name for name, _ in found.unreadable]) == ([other], [damaged])
    with pytest.raises(StateUnreadable):
        store.load(damaged)


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


def test_prompt_and_model_of_a_definition_are_those_of_its_session(worker: Working) -> None:
    store = RedisSessionStore(worker.bench.store)
    definition = AgentDefinition(
        name="a", system_prompt="be brief", llm_config=LLMConfig(model="m:x"), metadata={"a": 1}
    )  # type: ignore[arg-type]
    created = store.create(SessionFactory().create(definition))
    state = worker.bench.state(created.session_id)
    assert (state.system_prompt, state.llm_config, dict(state.metadata)) == (
        "be brief",
        LLMConfig(model="m:x"),
        {"a": 1},
    )


@pytest.mark.parametrize("name", ["tools", "capabilities"])
def test_what_the_agent_of_workers_brings_itself_is_refused_by_name(worker: Working, name: str) -> None:
    store = RedisSessionStore(worker.bench.store)
    session = SessionFactory().create(AgentDefinition(name="a", **{name: ("nope",)}))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=rf"AgentDefinition\.{name}: workers offer agent 'a' with its own.*nope"):
        store.create(session)
    assert not store.exists(session.session_id)


def test_a_stored_definition_with_names_can_be_forked(worker: Working) -> None:
    store = RedisSessionStore(worker.bench.store)
    created = store.create(SessionFactory().create(AgentDefinition(name="a")))
    stored = store.save(created.model_copy(update={"definition": AgentDefinition(name="a", tools=("look",))}))
    assert store.create(ForkSession().execute_on(stored)).definition.tools == ("look",)
