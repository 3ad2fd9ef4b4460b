"""`InlineRunner`: the engine in the calling process, for sessions whose store has no workers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable
from typing import Final

from ...config.settings import Settings
from ..agent import Agent, AgentRegistry
from ..concurrency.event_loop import EventLoopThread
from ..concurrency.tool_threads import ToolThreads
from ..engine import EngineServices, StepRunner
from ..engine.leases import LeaseKeeper
from ..engine.outcome import Done, Outcome, RetryLater
from ..errors import ActionRefused, ConfigurationError
from ..state.agent_state import AgentState
from ..store.records import NextState, StepRef
from ..store.store import Store, memory_store
from .actions import SaveSession
from .registry import CapabilityRegistry
from .values import AgentDefinition, AgentSession

_FINGERPRINT: Final = "inline"


class InlineRunner:
    """Runs executions to their end in the calling process, with the same engine as the workers.

    The session's store gets the session after every step, so that a process that is killed loses the step it was in,
    and nothing older. Within that step nothing is journaled: when it runs again, its model call and its tools are
    called again, with the same idempotency keys. Agents that ask people or other agents need workers.

    Args:
        agents: Agents that are written in Python, looked up by the definition's name.
        capabilities: Makes agents of definitions without one; None: an empty registry.
        settings: None: the defaults; the environment is not read.
    """

    def __init__(
        self,
        agents: Iterable[Agent] = (),
        capabilities: CapabilityRegistry | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._agents = {agent.name: agent for agent in agents}
        self._capabilities = capabilities or CapabilityRegistry()
        self._settings = settings or Settings.build()

    def run(self, session: AgentSession, state: AgentState, save: SaveSession) -> AgentSession:
        """Run the execution of `state`; see `SessionRunner.run`.

        Raises:
            ActionRefused: The agent asks a person or another agent, or the step cannot be run. Earlier steps are
                saved.
            ConfigurationError: The definition names what is not registered, or what the given agent does not have.
            Exception: Whatever `save` raises; the execution ends there.
        """
        agent = self._agent_of(session.definition, state)
        with self._engine(agent) as (store, runner):
            store.sessions.submit(session.session_id, agent.name, _FINGERPRINT, lambda _: NextState(state))
            while True:
                state = self._run_step(session, runner, store)
                session = session.with_state(state)
                if state.status is not None and state.status.is_terminal():
                    return session
                session = save(session)

    def _agent_of(self, definition: AgentDefinition, state: AgentState) -> Agent:
        agent = self._agents.get(definition.name)
        if agent is None:
            return self._capabilities.build(definition, state.llm_config)
        _check_names(definition, agent)
        return agent

    @contextlib.contextmanager
    def _engine(self, agent: Agent) -> Generator[tuple[Store, StepRunner]]:
        store, loop = memory_store(self._settings), EventLoopThread()
        keeper = LeaseKeeper(store, self._settings)
        services = EngineServices(store=store, settings=self._settings, keeper=keeper, loop=loop, threads=ToolThreads())
        keeper.start()
        try:
            yield store, StepRunner(services, AgentRegistry([agent]), worker="inline")
        finally:
            keeper.close()
            services.connections.close()
            loop.close()
            store.close()

    def _run_step(self, session: AgentSession, runner: StepRunner, store: Store) -> AgentState:
        """Run the step that is due, and once more after each delay; the state afterwards."""
        while True:
            state = store.sessions.load(session.session_id).state
            execution = state.execution
            assert execution is not None
            ref = StepRef(
                session_id=session.session_id,
                execution_id=execution.execution_id,
                step=execution.step_count + 1,
                retries=execution.retries,
            )
            outcome = runner.run_step(ref)
            if isinstance(outcome, Done):
                return store.sessions.load(session.session_id).state
            if not isinstance(outcome, RetryLater):
                raise _refusal(session, outcome)
            time.sleep(outcome.seconds)


def _check_names(definition: AgentDefinition, agent: Agent) -> None:
    """Refuse names of a definition that the agent given to the runner does not have."""
    tools, capabilities = {tool.name for tool in agent.toolset}, ", ".join(definition.capabilities)
    if definition.tools and set(definition.tools) != tools:
        raise ConfigurationError(
            f"agent {agent.name!r}: its definition names the tools {', '.join(definition.tools)}, and the agent given "
            f"to the runner has {', '.join(sorted(tools)) or 'none'}; name the same ones, or leave tools out"
        )
    if capabilities:
        raise ConfigurationError(
            f"agent {agent.name!r}: its definition names the capabilities {capabilities} of a CapabilityRegistry, and "
            "the agent given to the runner has its own. Leave capabilities out"
        )


def _refusal(session: AgentSession, outcome: Outcome) -> Exception:
    summary = getattr(outcome, "summary", "") or getattr(outcome, "reason", "")
    return ActionRefused(
        f"A step of session {session.session_id!r} cannot be finished in this process ({type(outcome).__name__}: "
        f"{summary}). Agents that wait for answers need the Redis store and workers."
    )
