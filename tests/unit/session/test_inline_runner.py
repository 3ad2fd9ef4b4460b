"""`InlineRunner` and the actions that run an agent: the workers' engine in the calling process."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_agents import Agent, LLMConfig, tool
from celery_agents.testing import CallTool, script
from celery_agents.worker.errors import ActionRefused, ConfigurationError, SessionConflict
from celery_agents.worker.session import (
    AgentDefinition,
    AgentSession,
    CapabilityRegistry,
    ClearSession,
    ContinueExecution,
    FileSessionStore,
    InlineRunner,
    InMemorySessionStore,
    SendMessage,
    SessionFactory,
    SessionRepository,
    SessionRuntime,
    SessionStore,
    SuspendSession,
)
from celery_agents.worker.state import ExecutionStatus


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStore:
    return InMemorySessionStore() if request.param == "memory" else FileSessionStore(tmp_path)


class ProcessDied(BaseException):
    """Raised in a tool where the process would have ended."""


def make_runtime(store: SessionStore, agent: Agent) -> tuple[SessionRuntime, str]:
    repository = SessionRepository(store)
    session = repository.create(SessionFactory().create(agent))
    return SessionRuntime(repository), session.session_id


def test_a_message_runs_to_its_answer_and_is_saved_after_every_step(store: SessionStore) -> None:
    versions: list[int] = []

    @tool(effect="pure")
    def look(word: str) -> str:
        """Look up."""
        versions.append(SessionRepository(store).load(session_id).version)
        return word.upper()

    agent = Agent("a", driver=script(CallTool("look", word="x"), CallTool("look", word="y"), "done"), tools=[look])
    runtime, session_id = make_runtime(store, agent)
    session = runtime.execute(session_id, SendMessage("go", InlineRunner([agent])))
    assert (session.state.final_response, session.state.status) == ("done", ExecutionStatus.COMPLETED)
    assert versions == [1, 2]
    assert session.version == 4
    assert runtime.get_session(session_id) == session


def test_messages_follow_each_other_in_one_conversation(store: SessionStore) -> None:
    agent = Agent("a", driver=lambda state: f"{len(state.messages)} messages")
    runtime, session_id = make_runtime(store, agent)
    runner = InlineRunner([agent])
    runtime.execute(session_id, SendMessage("one", runner))
    session = runtime.execute(session_id, SendMessage("two", runner))
    assert session.state.final_response == "3 messages"
    assert session.state.execution_count == 2
    cleared = runtime.execute(session_id, ClearSession())
    assert (cleared.state.messages, cleared.state.execution, cleared.state.execution_count) == ((), None, 2)


def test_after_a_cut_off_step_the_execution_goes_on_where_it_was_saved(store: SessionStore) -> None:
    calls: list[str] = []
    dies = [True]

    @tool(effect="pure")
    def first() -> str:
        """The first."""
        calls.append("first")
        return "1"

    @tool(effect="pure")
    def second() -> str:
        """The second."""
        calls.append("second")
        if dies:
            dies.pop()
            raise ProcessDied
        return "2"

    agent = Agent(
        "a",
        driver=lambda state: [CallTool("first"), CallTool("second"), "done"][len(state.steps)],
        tools=[first, second],
    )
    runtime, session_id = make_runtime(store, agent)
    runner = InlineRunner([agent])
    with pytest.raises(ProcessDied):
        runtime.execute(session_id, SendMessage("go", runner))
    with pytest.raises(ActionRefused, match="ContinueExecution"):
        runtime.execute(session_id, SendMessage("more", runner))
    session = runtime.execute(session_id, ContinueExecution(runner))
    assert session.state.final_response == "done"
    assert calls == ["first", "second", "second"]
    assert [message.content for message in session.state.store.section("messages").messages].count("go") == 1
    with pytest.raises(ActionRefused, match="unfinished"):
        runtime.execute(session_id, ContinueExecution(runner))


def test_a_session_that_is_not_active_takes_no_message(store: SessionStore) -> None:
    agent = Agent("a", driver=script("never"))
    runtime, session_id = make_runtime(store, agent)
    for change in (AgentSession.suspended, AgentSession.completed, AgentSession.failed, AgentSession.deleted):
        stored = store.save(change(runtime.get_session(session_id)))
        with pytest.raises(ActionRefused, match="ResumeSession"):
            runtime.execute(session_id, SendMessage("go", InlineRunner([agent])))
        assert store.load(session_id) == stored


def test_a_session_that_is_saved_or_deleted_during_a_step_is_not_overwritten(store: SessionStore) -> None:
    @tool(effect="pure")
    def suspend() -> str:
        """Suspend from elsewhere."""
        SessionRuntime(SessionRepository(store)).execute(session_id, SuspendSession())
        return "ok"

    agent = Agent("a", driver=script(CallTool("suspend"), "never"), tools=[suspend])
    runtime, session_id = make_runtime(store, agent)
    with pytest.raises(SessionConflict):
        runtime.execute(session_id, SendMessage("go", InlineRunner([agent])))
    stored = runtime.get_session(session_id)
    assert (stored.version, stored.status, stored.state.messages) == (2, "suspended", ())


def test_a_definition_is_built_from_registered_names(store: SessionStore) -> None:
    @tool(effect="pure")
    def look() -> str:
        """Look."""
        return "seen"

    registry = CapabilityRegistry()
    registry.register_tool(look)
    registry.register_driver("scripted", script(CallTool("look"), "done"))
    definition = AgentDefinition(name="a", llm_config=LLMConfig(model="scripted"), tools=("look",))
    runtime = SessionRuntime(SessionRepository(store))
    session = runtime.create(definition)
    done = runtime.execute(session.session_id, SendMessage("go", InlineRunner(capabilities=registry)))
    assert done.state.final_response == "done"
    assert done.definition == definition


@pytest.mark.parametrize(
    ("definition", "advice"),
    [
        (AgentDefinition(name="a"), "llm_config"),
        (AgentDefinition(name="a", llm_config=LLMConfig(model="m"), tools=("x",)), "no tool 'x'"),
        (AgentDefinition(name="a", llm_config=LLMConfig(model="m"), capabilities=("x",)), "no capability 'x'"),
    ],
)
def test_a_name_that_is_not_registered_is_named_and_nothing_is_saved(
    definition: AgentDefinition, advice: str, store: SessionStore
) -> None:
    runtime = SessionRuntime(SessionRepository(store))
    session = runtime.create(definition)
    with pytest.raises(ConfigurationError, match=advice):
        runtime.execute(session.session_id, SendMessage("go", InlineRunner()))
    assert store.load(session.session_id) == session
