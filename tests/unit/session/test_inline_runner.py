"""`InlineRunner` and the actions that run an agent: the workers' engine in the calling process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from celery_agents import Agent, ExecutionBudget, LLMConfig, tool
from celery_agents.config.settings import Settings
from celery_agents.testing import CallTool, script
from celery_agents.worker.drivers import FunctionDriver
from celery_agents.worker.errors import ActionRefused, ConfigurationError, SessionConflict
from celery_agents.worker.session import (
    AgentDefinition,
    AgentSession,
    CapabilityRegistry,
    ChangeModel,
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

from support.smart import Asked


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


def test_a_session_goes_on_with_the_registered_driver_that_it_changes_to(store: SessionStore) -> None:
    registry = CapabilityRegistry()
    registry.register_driver("one", FunctionDriver(lambda state: "from one"))
    registry.register_driver("two", FunctionDriver(lambda state: "from two"))
    runner = InlineRunner(capabilities=registry)
    runtime = SessionRuntime(SessionRepository(store))
    session_id = runtime.create(AgentDefinition(name="a", llm_config=LLMConfig(model="one"))).session_id
    answers: list[str] = []
    for config in (None, LLMConfig(model="two"), LLMConfig(model="one"), LLMConfig(model="two"), None):
        runtime.execute(session_id, ChangeModel(config))
        answers.append(runtime.execute(session_id, SendMessage("go", runner)).state.final_response)
    assert answers == ["from one", "from two", "from one", "from two", "from one"]


def test_a_registered_driver_gets_settings_and_no_name_of_a_model(store: SessionStore) -> None:
    driver = Asked(["done"], repeat_last=True)
    registry = CapabilityRegistry()
    registry.register_driver("fast", driver)
    definition = AgentDefinition(name="a", llm_config=LLMConfig(model="fast", settings={"temperature": 0.5, "seed": 1}))  # type: ignore[arg-type]
    runtime = SessionRuntime(SessionRepository(store))
    session_id = runtime.create(definition).session_id
    runner = InlineRunner(capabilities=registry)
    runtime.execute(session_id, SendMessage("go", runner))
    runtime.execute(session_id, ChangeModel(LLMConfig(model="fast", settings={"seed": 2})))  # type: ignore[arg-type]
    runtime.execute(session_id, SendMessage("go", runner))
    assert [each.settings for each in driver.requests] == [
        LLMConfig(settings={"temperature": 0.5, "seed": 1}),  # type: ignore[arg-type]
        LLMConfig(settings={"seed": 2}),  # type: ignore[arg-type]
    ]
    runtime.execute(session_id, ChangeModel(LLMConfig(model="fast", base_url="http://localhost:9")))
    with pytest.raises(ConfigurationError, match="base_url has no effect on the registered driver 'fast'"):
        runtime.execute(session_id, SendMessage("go", runner))


def test_prompt_and_model_of_a_definition_hold_beside_a_given_agent(store: SessionStore) -> None:
    driver = Asked(["done"], repeat_last=True)
    agent = Agent("a", driver=driver, system_prompt="the agent's")
    definition = AgentDefinition(name="a", system_prompt="the definition's", llm_config=LLMConfig(model="m:x"))
    runtime = SessionRuntime(SessionRepository(store))
    for made in (definition, agent):
        runtime.execute(runtime.create(made).session_id, SendMessage("go", InlineRunner([agent])))
    asked = [(each.state.system_prompt, each.settings) for each in driver.requests]
    assert asked == [("the definition's", LLMConfig(model="m:x")), ("the agent's", None)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tools": ("nope",)}, "names the tools nope, and the agent given to the runner has look; name the same ones"),
        ({"tools": ("look", "nope")}, "names the tools look, nope"),
        ({"capabilities": ("planning",)}, "names the capabilities planning of .* Leave capabilities out"),
    ],
)
def test_what_a_given_agent_does_not_have_is_refused_by_name(
    fields: dict[str, Any], said: str, store: SessionStore
) -> None:
    @tool(effect="pure")
    def look() -> str:
        """Look."""
        return "seen"

    agent = Agent("a", driver=script("done"), tools=[look])
    runtime = SessionRuntime(SessionRepository(store))
    session = runtime.create(AgentDefinition(name="a", **fields))
    with pytest.raises(ConfigurationError, match=said):
        runtime.execute(session.session_id, SendMessage("go", InlineRunner([agent])))
    assert store.load(session.session_id) == session
    same = runtime.create(AgentDefinition(name="a", tools=("look",)))
    assert runtime.execute(same.session_id, SendMessage("go", InlineRunner([agent]))).state.final_response == "done"


@pytest.mark.parametrize("budget", [None, ExecutionBudget.unlimited()])
def test_the_default_limit_of_steps_holds_here_too(store: SessionStore, budget: ExecutionBudget | None) -> None:
    @tool(effect="pure")
    def look() -> str:
        """Look."""
        return "seen"

    agent = Agent("a", driver=lambda state: "done" if state.step_count == 5 else [CallTool("look")], tools=[look])
    runner = InlineRunner([agent], settings=Settings.build(default_max_steps=3))
    runtime = SessionRuntime(SessionRepository(store))
    session_id = runtime.create(AgentDefinition(name="a", budget=budget)).session_id
    state = runtime.execute(session_id, SendMessage("go", runner)).state
    assert (state.status, state.step_count) == (("stopped", 3) if budget is None else ("completed", 6))
