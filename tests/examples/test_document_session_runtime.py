"""The document "Session Runtime" (InstructorPHP): its examples in Python, in memory and in files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from celery_agents import LLMConfig
from celery_agents.testing import script
from celery_agents.worker.errors import SessionConflict, SessionNotFound
from celery_agents.worker.session import (
    AgentDefinition,
    AgentSession,
    AgentSessionStage,
    CapabilityRegistry,
    ChangeModel,
    ChangeSystemPrompt,
    ClearSession,
    EventDispatcher,
    FileSessionStore,
    ForkSession,
    InlineRunner,
    InMemorySessionStore,
    ResumeSession,
    SendMessage,
    SessionActionExecuted,
    SessionFactory,
    SessionHookStack,
    SessionId,
    SessionInfoList,
    SessionRepository,
    SessionRuntime,
    SessionSaveFailed,
    SessionStatus,
    SessionStore,
    SuspendSession,
    UpdateTask,
    WriteMetadata,
)

DEFINITION = AgentDefinition(
    name="assistant",
    description="A helpful general assistant",
    system_prompt="You are a helpful assistant. Be concise and accurate.",
    llm_config=LLMConfig(model="scripted"),
)


class CustomStore:
    """The store of the document that a user writes, around another one."""

    def __init__(self) -> None:
        self._inner = InMemorySessionStore()

    def create(self, session: AgentSession) -> AgentSession:
        return self._inner.create(session)

    def save(self, session: AgentSession) -> AgentSession:
        return self._inner.save(session)

    def load(self, session_id: str) -> AgentSession | None:
        return self._inner.load(session_id)

    def exists(self, session_id: str) -> bool:
        return self._inner.exists(session_id)

    def delete(self, session_id: str) -> None:
        self._inner.delete(session_id)

    def list_headers(self) -> SessionInfoList:
        return self._inner.list_headers()


@dataclass(frozen=True)
class ArchiveSession:
    """The custom action of the document."""

    archive_reason: str

    def execute_on(self, session: AgentSession) -> AgentSession:
        state = session.state.with_metadata("archive_reason", self.archive_reason)
        return session.with_state(state).completed()


class AutoSuspend:
    """The controller of the document."""

    def on_stage(self, stage: AgentSessionStage, session: AgentSession) -> AgentSession:
        match stage:
            case AgentSessionStage.BEFORE_SAVE:
                return session.suspended()
            case _:
                return session


@pytest.fixture(params=["memory", "file", "custom"])
def repo(request: pytest.FixtureRequest, tmp_path: Path) -> SessionRepository:
    stores: dict[str, SessionStore] = {
        "memory": InMemorySessionStore(),
        "file": FileSessionStore(tmp_path / "sessions"),
        "custom": CustomStore(),
    }
    return SessionRepository(stores[request.param])


def created(repo: SessionRepository) -> AgentSession:
    return repo.create(SessionFactory().create(DEFINITION))


def test_the_quick_start(repo: SessionRepository) -> None:
    runtime = SessionRuntime(repo, EventDispatcher("session-runtime"))
    session = repo.create(SessionFactory().create(DEFINITION))
    capabilities = CapabilityRegistry()
    capabilities.register_driver("scripted", script("4"))
    loop = InlineRunner(capabilities=capabilities)
    updated = runtime.execute(session.session_id, SendMessage("What is 2 + 2?", loop))
    state = updated.state
    assert state.final_response == "4"
    assert state.system_prompt == DEFINITION.system_prompt


def test_the_runtime_reads_without_writing(repo: SessionRepository) -> None:
    runtime, session = SessionRuntime(repo), created(repo)
    assert [each.session_id for each in runtime.list_sessions()] == [session.session_id]
    assert runtime.get_session_info(session.session_id).version == 1
    assert runtime.get_session(session.session_id).version == 1
    with pytest.raises(SessionNotFound):
        runtime.get_session(SessionId.generate())


def test_a_session_id_is_a_value_with_a_generator() -> None:
    session_id = SessionId.generate()
    assert session_id == SessionId(str(session_id))
    assert session_id != SessionId.generate()


def test_the_built_in_actions(repo: SessionRepository) -> None:
    runtime, session_id = SessionRuntime(repo), created(repo).session_id
    assert runtime.execute(session_id, SuspendSession()).status is SessionStatus.SUSPENDED
    assert runtime.execute(session_id, ResumeSession()).status is SessionStatus.ACTIVE
    runtime.execute(session_id, ChangeSystemPrompt("You are concise and direct. Respond in bullet points."))
    runtime.execute(session_id, ChangeModel(LLMConfig(model="openai:gpt-4o")))
    runtime.execute(session_id, WriteMetadata("ticket_id", "OPS-142"))
    runtime.execute(session_id, WriteMetadata("priority", "high"))
    runtime.execute(session_id, UpdateTask("Refactor the authentication module"))
    state = runtime.get_session(session_id).state
    assert state.system_prompt == "You are concise and direct. Respond in bullet points."
    assert state.llm_config is not None
    assert state.llm_config.model == "openai:gpt-4o"
    assert state.metadata == {
        "ticket_id": "OPS-142", "priority": "high", "task": "Refactor the authentication module",
    }  # fmt: skip
    cleared = runtime.execute(session_id, ClearSession())
    assert (cleared.session_id, cleared.definition, cleared.state.messages) == (session_id, DEFINITION, ())


def test_a_fork_has_its_source_as_parent(repo: SessionRepository) -> None:
    runtime, session_id = SessionRuntime(repo), created(repo).session_id
    source = runtime.get_session(session_id)
    forked = ForkSession().execute_on(source)
    assert not repo.exists(forked.session_id)
    forked = repo.create(forked)
    assert forked.info.parent_id == session_id
    assert forked.session_id != session_id


def test_of_two_saves_of_a_version_the_second_is_a_conflict(repo: SessionRepository) -> None:
    session = created(repo)
    assert session.version == 1
    assert repo.save(session).version == 2
    with pytest.raises(SessionConflict):
        repo.save(session)
    with pytest.raises(SessionConflict):
        repo.create(session)


def test_the_controller_of_the_document_suspends_after_each_action(repo: SessionRepository) -> None:
    hooks = SessionHookStack.empty().with_controller(AutoSuspend(), priority=100)
    session_id = created(repo).session_id
    for controller in (hooks, AutoSuspend()):
        runtime = SessionRuntime(repo, EventDispatcher(), controller)
        assert runtime.execute(session_id, ResumeSession()).status is SessionStatus.SUSPENDED


def test_the_listeners_of_the_document(repo: SessionRepository) -> None:
    lines: list[str] = []
    events = EventDispatcher()
    events.add_listener(
        SessionActionExecuted,
        lambda e: lines.append(
            f"Session {e.session_id}: {e.action} executed, version {e.before_version} -> {e.after_version}"
        ),
    )
    events.add_listener(SessionSaveFailed, lambda e: lines.append(f"Session {e.session_id}: save failed"))
    session = created(repo)

    class SavedMeanwhile:
        def execute_on(self, session: AgentSession) -> AgentSession:
            repo.save(session)
            return session

    with pytest.raises(SessionConflict):
        SessionRuntime(repo, events).execute(session.session_id, SavedMeanwhile())
    assert lines == [
        f"Session {session.session_id}: SavedMeanwhile executed, version 1 -> 1",
        f"Session {session.session_id}: save failed",
    ]


def test_the_custom_action_of_the_document(repo: SessionRepository) -> None:
    archived = SessionRuntime(repo).execute(created(repo).session_id, ArchiveSession("Ticket resolved"))
    assert (archived.status, archived.state.metadata["archive_reason"]) == (SessionStatus.COMPLETED, "Ticket resolved")
