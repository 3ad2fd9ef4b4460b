"""`SessionRuntime`: the order of its stages and events, and what is stored when something fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from celery_agents.worker.errors import InvalidInput, SessionConflict, SessionNotFound
from celery_agents.worker.session import (
    AgentDefinition,
    AgentSession,
    AgentSessionStage,
    ChangeSystemPrompt,
    EventDispatcher,
    FileSessionStore,
    InMemorySessionStore,
    PassThroughSessionController,
    ResumeSession,
    SendMessage,
    SessionActionExecuted,
    SessionHookStack,
    SessionLoaded,
    SessionLoadFailed,
    SessionRepository,
    SessionRuntime,
    SessionSaved,
    SessionSaveFailed,
    SessionStatus,
    SessionStore,
    SuspendSession,
    UpdateTask,
    WorkerRunner,
    WriteMetadata,
)
from celery_agents.worker.state import ErrorInfo

KINDS = (SessionLoaded, SessionActionExecuted, SessionSaved, SessionLoadFailed, SessionSaveFailed)


@dataclass
class Recorder:
    """Notes stages and events in one list; at a stage it may raise, or change the session."""

    store: SessionStore
    notes: list[str] = field(default_factory=list[str])
    events: list[Any] = field(default_factory=list[Any])
    at: dict[AgentSessionStage, Callable[[AgentSession], AgentSession]] = field(default_factory=dict[Any, Any])

    def on_stage(self, stage: AgentSessionStage, session: AgentSession) -> AgentSession:
        self.notes.append(stage)
        return self.at[stage](session) if stage in self.at else session

    def note(self, event: object) -> None:
        self.notes.append(type(event).__name__)
        self.events.append(event)

    def runtime(self) -> SessionRuntime:
        dispatcher = EventDispatcher("test")
        for kind in KINDS:
            dispatcher.add_listener(kind, self.note)
        return SessionRuntime(SessionRepository(self.store), dispatcher, self)


@pytest.fixture(params=["memory", "file"])
def recorder(request: pytest.FixtureRequest, tmp_path: Path) -> Recorder:
    return Recorder(InMemorySessionStore() if request.param == "memory" else FileSessionStore(tmp_path))


def create(recorder: Recorder) -> tuple[SessionRuntime, str]:
    runtime = recorder.runtime()
    session_id = runtime.create(AgentDefinition(name="assistant")).session_id
    recorder.notes.clear()
    recorder.events.clear()
    return runtime, session_id


def fail(_: AgentSession) -> AgentSession:
    raise RuntimeError("no")


def mark(name: str) -> Callable[[AgentSession], AgentSession]:
    return lambda session: session.with_state(session.state.with_metadata(name, True))


class FailingAction:
    def execute_on(self, session: AgentSession) -> AgentSession:
        raise RuntimeError("no")


def test_execute_goes_through_its_stages_in_order(recorder: Recorder) -> None:
    runtime, session_id = create(recorder)
    runtime.execute(session_id, SuspendSession())
    assert recorder.notes == [
        "after_load", "SessionLoaded", "after_action", "before_save", "SessionActionExecuted", "after_save",
        "SessionSaved",
    ]  # fmt: skip


def test_create_goes_through_its_stages_in_order(recorder: Recorder) -> None:
    recorder.runtime().create(AgentDefinition(name="assistant"))
    assert recorder.notes == ["before_create", "before_save", "after_save", "after_create", "SessionSaved"]


def test_events_tell_status_and_version_before_the_save(recorder: Recorder) -> None:
    """F1: the version moves in the store only."""
    runtime, session_id = create(recorder)
    runtime.execute(session_id, SuspendSession())
    loaded, executed, saved = recorder.events
    assert loaded == SessionLoaded(session_id, 1, SessionStatus.ACTIVE)
    assert executed == SessionActionExecuted(
        session_id=session_id,
        action="SuspendSession",
        before_version=1,
        after_version=1,
        before_status=SessionStatus.ACTIVE,
        after_status=SessionStatus.SUSPENDED,
    )
    assert saved == SessionSaved(session_id, 2, SessionStatus.SUSPENDED)


@pytest.mark.parametrize("stage", [AgentSessionStage.AFTER_ACTION, AgentSessionStage.BEFORE_SAVE])
def test_a_controller_that_raises_before_the_save_stores_nothing_and_tells_nobody(
    recorder: Recorder, stage: AgentSessionStage
) -> None:
    """F2."""
    runtime, session_id = create(recorder)
    recorder.at[stage] = fail
    with pytest.raises(RuntimeError, match="no"):
        runtime.execute(session_id, SuspendSession())
    assert [type(event) for event in recorder.events] == [SessionLoaded]
    stored = recorder.store.load(session_id)
    assert stored is not None
    assert (stored.version, stored.status) == (1, SessionStatus.ACTIVE)


def test_an_action_that_raises_stores_nothing(recorder: Recorder) -> None:
    """F2."""
    runtime, session_id = create(recorder)
    with pytest.raises(RuntimeError, match="no"):
        runtime.execute(session_id, FailingAction())
    assert [type(event) for event in recorder.events] == [SessionLoaded]
    assert runtime.get_session_info(session_id).version == 1


def test_changes_after_the_save_are_in_the_returned_value_only(recorder: Recorder) -> None:
    """F3."""
    runtime, session_id = create(recorder)
    recorder.at[AgentSessionStage.AFTER_SAVE] = mark("late")
    assert runtime.execute(session_id, UpdateTask("x")).state.metadata["late"] is True
    assert "late" not in runtime.get_session(session_id).state.metadata
    assert runtime.get_session(session_id).state.metadata["task"] == "x"


def test_a_controller_that_raises_after_the_save_reports_a_failure_and_the_save_stays(recorder: Recorder) -> None:
    """F4."""
    runtime, session_id = create(recorder)
    recorder.at[AgentSessionStage.AFTER_SAVE] = fail
    with pytest.raises(RuntimeError):
        runtime.execute(session_id, SuspendSession())
    assert isinstance(recorder.events[-1], SessionSaveFailed)
    assert recorder.events[-1].error_type == "RuntimeError"
    assert runtime.get_session_info(session_id).status is SessionStatus.SUSPENDED


def test_changes_after_the_load_are_stored_by_execute_and_not_by_a_read(recorder: Recorder) -> None:
    """F5."""
    runtime, session_id = create(recorder)
    recorder.at[AgentSessionStage.AFTER_LOAD] = mark("seen")
    assert "seen" in runtime.get_session(session_id).state.metadata
    stored = recorder.store.load(session_id)
    assert stored is not None
    assert "seen" not in stored.state.metadata
    assert [type(event) for event in recorder.events] == [SessionLoaded]
    runtime.execute(session_id, UpdateTask("x"))
    stored = recorder.store.load(session_id)
    assert stored is not None
    assert "seen" in stored.state.metadata


def test_an_unknown_session_is_told_and_raised(recorder: Recorder) -> None:
    runtime, _ = create(recorder)
    with pytest.raises(SessionNotFound):
        runtime.execute("nobody", SuspendSession())
    (event,) = recorder.events
    assert isinstance(event, SessionLoadFailed)
    assert (event.session_id, event.error_type) == ("nobody", "SessionNotFound")


def test_a_conflict_is_told_and_raised_with_both_versions(recorder: Recorder) -> None:
    runtime, session_id = create(recorder)

    class SaveInBetween:
        def execute_on(self, session: AgentSession) -> AgentSession:
            recorder.store.save(session)
            return session.completed()

    with pytest.raises(SessionConflict) as caught:
        runtime.execute(session_id, SaveInBetween())
    assert (caught.value.expected, caught.value.stored) == (1, 2)
    assert recorder.events[-1].error_type == "SessionConflict"
    assert runtime.get_session_info(session_id).status is SessionStatus.ACTIVE


def test_every_status_can_be_resumed(recorder: Recorder) -> None:
    """F9."""
    runtime, session_id = create(recorder)
    for change in (AgentSession.completed, AgentSession.failed, AgentSession.deleted, AgentSession.suspended):
        recorder.store.save(change(runtime.get_session(session_id)))
        assert runtime.execute(session_id, ResumeSession()).status is SessionStatus.ACTIVE


def test_a_failed_execution_leaves_the_status_of_the_session(recorder: Recorder) -> None:
    """F10."""
    runtime, session_id = create(recorder)
    session = runtime.get_session(session_id)
    failed = session.with_state(session.state.with_failure(ErrorInfo(kind="unknown", message="no")))
    assert failed.status is SessionStatus.ACTIVE


def test_metadata_that_is_no_json_is_refused_and_nothing_is_stored(recorder: Recorder) -> None:
    runtime, session_id = create(recorder)
    with pytest.raises(InvalidInput, match="when"):
        runtime.execute(session_id, WriteMetadata("when", object()))
    assert runtime.get_session_info(session_id).version == 1


def test_controllers_run_by_priority_and_equal_ones_in_order_of_addition() -> None:
    order: list[str] = []

    class Named(PassThroughSessionController):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_stage(self, stage: AgentSessionStage, session: AgentSession) -> AgentSession:
            order.append(self.name)
            return session

    inner = SessionHookStack.empty().with_controller(Named("inner"))
    stack = SessionHookStack.empty().with_controller(Named("a")).with_controller(Named("b"))
    stack = stack.with_controller(Named("high"), priority=10).with_controller(inner, priority=-1)
    runtime = SessionRuntime(SessionRepository(InMemorySessionStore()), controllers=stack)
    session_id = runtime.create(AgentDefinition(name="a")).session_id
    order.clear()
    runtime.get_session(session_id)
    assert order == ["high", "a", "b", "inner"]


def test_a_listener_that_raises_stops_neither_the_action_nor_the_others(recorder: Recorder) -> None:
    dispatcher = EventDispatcher("test")
    dispatcher.add_listener(SessionSaved, lambda _: fail(None))  # type: ignore[arg-type]  # pyright: ignore
    dispatcher.add_listener(SessionSaved, recorder.note)
    runtime = SessionRuntime(SessionRepository(recorder.store), dispatcher)
    session = runtime.create(AgentDefinition(name="assistant"))
    assert recorder.notes == ["SessionSaved"]
    assert runtime.execute(session.session_id, SuspendSession()).version == 2


class Said:
    """A value with a text of its own."""

    def __str__(self) -> str:
        return "said"


@pytest.mark.parametrize("given", [None, ["one", "two"], {"a": 1}, b"bytes", 5, True, object()])
@pytest.mark.parametrize("action", [UpdateTask, ChangeSystemPrompt, lambda given: SendMessage(given, WorkerRunner())])
def test_what_is_no_text_is_refused_by_its_name_and_not_stored(recorder: Recorder, action: Any, given: Any) -> None:
    runtime, session_id = create(recorder)
    with pytest.raises(InvalidInput, match="give a text"):
        runtime.execute(session_id, action(given))
    assert runtime.get_session_info(session_id).version == 1


def test_a_value_with_a_text_of_its_own_is_a_text(recorder: Recorder) -> None:
    runtime, session_id = create(recorder)
    runtime.execute(session_id, UpdateTask(Said()))  # type: ignore[arg-type]
    runtime.execute(session_id, ChangeSystemPrompt(Said()))
    state = runtime.get_session(session_id).state
    assert (state.metadata["task"], state.system_prompt) == ("said", "said")
