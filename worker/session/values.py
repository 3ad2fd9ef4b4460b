"""The values of a session: its definition, its header, its list, and the session itself.

A session is what an agent is (`AgentDefinition`), what it has done (`AgentState`), and a header with status and
version (`AgentSessionInfo`). All are immutable; a store gives a session its next version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field
from pydantic.functional_validators import BeforeValidator

from ..agent import Agent
from ..state.agent_state import AgentState
from ..state.conversation.context import LLMConfig
from ..state.execution.budget import ExecutionBudget
from ..state.values.field_types import Count, Text, UtcDatetime, default_from, utcnow
from ..state.values.frozen import FrozenDict
from ..state.values.ids import ChildSessionId, read_session_id
from ..state.values.ids import SessionId as SessionId  # noqa: PLC0414 - the package exports it
from ..state.values.value import Value

AnySessionId = Annotated[SessionId | ChildSessionId, BeforeValidator(read_session_id)]
"""The id of a session, chosen by a user or made for a fork."""


class SessionStatus(StrEnum):
    """The status of a session over all its executions; only an action or a controller changes it."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    DELETED = "deleted"


class AgentDefinition(Value):
    """The plain-data form of an agent, which is stored with each of its sessions.

    Attributes:
        name: How sessions are listed, and the agent that workers offer, or that `InlineRunner` looks for first.
        label: A name for people.
        system_prompt: The prompt of a new session. "": the agent's.
        llm_config: The model of a new session. None: the agent's.
        capabilities: Names in a `CapabilityRegistry`. Refused where workers or a given `Agent` bring their own.
        tools: Names in a `CapabilityRegistry`; where an `Agent` is given, those that it has. Refused with workers.
        budget: Limits of each execution that the runtime starts. None: none are given.
        metadata: Metadata of a new session.
        archive_days: The archive forgets a session so many days after its last change. None: as its agent or the
            setting has it.
    """

    name: Text
    description: Text = ""
    label: Text = ""
    system_prompt: Text = ""
    llm_config: LLMConfig | None = None
    capabilities: tuple[Text, ...] = ()
    tools: tuple[Text, ...] = ()
    budget: ExecutionBudget | None = None
    metadata: FrozenDict = FrozenDict()
    archive_days: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @classmethod
    def describing(cls, agent: Agent) -> Self:
        """The definition of an agent that is written in Python; `InlineRunner` has to be given the agent itself."""
        return cls(name=agent.name, description=agent.description, budget=agent.budget, archive_days=agent.archive_days)


class AgentSessionInfo(Value):
    """The header of a session, which a listing reads without the session's body.

    Attributes:
        version: 0 until a store has created it; each save adds 1.
        parent_id: The session that it was forked from; None for any other.
    """

    session_id: AnySessionId
    agent_name: Text
    status: SessionStatus = SessionStatus.ACTIVE
    version: Count = 0
    created_at: UtcDatetime = default_from(utcnow)
    updated_at: UtcDatetime = default_from(utcnow)
    parent_id: AnySessionId | None = None

    def with_status(self, status: SessionStatus) -> Self:
        """The same header with another status."""
        return self._with(status=status)

    def with_version(self, version: int, updated_at: datetime) -> Self:
        """The same header as a store keeps it after a write."""
        return self._with(version=version, updated_at=max(updated_at, self.updated_at))


class AgentSession(Value):
    """An agent's definition, its state and a header, as one value that a store keeps."""

    info: AgentSessionInfo
    definition: AgentDefinition
    state: AgentState

    @property
    def session_id(self) -> SessionId | ChildSessionId:
        """The id of the session."""
        return self.info.session_id

    @property
    def status(self) -> SessionStatus:
        """The status of the session; that of its last execution is `state.status`."""
        return self.info.status

    @property
    def version(self) -> int:
        """The version that the next save has to match."""
        return self.info.version

    def with_state(self, state: AgentState) -> Self:
        """The same session with another state. The status stays, whatever became of the execution."""
        return self._with(state=state)

    def with_status(self, status: SessionStatus) -> Self:
        """The same session with another status; every status may follow every other."""
        return self._with(info=self.info.with_status(status))

    def suspended(self) -> Self:
        """The session, suspended."""
        return self.with_status(SessionStatus.SUSPENDED)

    def resumed(self) -> Self:
        """The session, active again; also from completed, failed and deleted."""
        return self.with_status(SessionStatus.ACTIVE)

    def completed(self) -> Self:
        """The session, completed."""
        return self.with_status(SessionStatus.COMPLETED)

    def failed(self) -> Self:
        """The session, failed."""
        return self.with_status(SessionStatus.FAILED)

    def deleted(self) -> Self:
        """The session, marked as deleted. `SessionRepository.delete` removes it from its store."""
        return self.with_status(SessionStatus.DELETED)

    def reconstitute(self, version: int, updated_at: datetime) -> Self:
        """The session as a store keeps it after a write, with the version and the time of that write."""
        return self._with(info=self.info.with_version(version, updated_at))


@dataclass(frozen=True, slots=True)
class SessionInfoList:
    """Headers of sessions.

    Attributes:
        unreadable: Names of what a store could not read, each with the reason.
    """

    items: tuple[AgentSessionInfo, ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()

    def __iter__(self) -> Iterator[AgentSessionInfo]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def count(self) -> int:
        """Number of headers."""
        return len(self.items)

    @property
    def first(self) -> AgentSessionInfo | None:
        """The first header; None without any."""
        return self.items[0] if self.items else None

    def filter_by_status(self, status: SessionStatus) -> SessionInfoList:
        """The headers with this status."""
        return self._filter(lambda info: info.status is status)

    def filter_by_agent_name(self, name: str) -> SessionInfoList:
        """The headers of this agent's sessions."""
        return self._filter(lambda info: info.agent_name == name)

    def _filter(self, fits: Callable[[AgentSessionInfo], bool]) -> SessionInfoList:
        return SessionInfoList(tuple(filter(fits, self.items)), self.unreadable)
