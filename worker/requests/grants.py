"""Remembered approvals: a grant lets later calls of a tool run without asking again.

A grant covers one tool and one addressee: whoever approved it answers for the requests that would have gone to the
same addressee, and for no others. Grants are parts of the state: they are listed, revoked and forked with the session.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Final

from ..state.agent_state import AgentState
from ..state.execution.answers import Remember
from ..state.parts.state_part import PartItem, PartScope, StatePart

MAX_GRANTS: Final = 100
"""Grants of one session, and of one execution; a further one replaces the oldest."""


class Grant(PartItem):
    """One remembered approval.

    Attributes:
        id: The id of the request that was approved.
        tool: The tool that may be called.
        to: The addressee whose requests are covered; None: those to anybody.
        by: The person who approved.
        note: The note of the approval.
        at_ms: The time of the approval (Redis ms).
        lasts: "execution" or "session".
    """

    id: str
    tool: str
    to: str | None = None
    by: str = ""
    note: str = ""
    at_ms: int = 0
    lasts: Remember = Remember.SESSION


class SessionGrants(StatePart):
    """Grants that last as long as the session."""

    part_name: ClassVar[str] = "approval-grants"
    scope: ClassVar[PartScope] = PartScope.SESSION
    grants: tuple[Grant, ...] = ()


class ExecutionGrants(StatePart):
    """Grants that last as long as the execution."""

    part_name: ClassVar[str] = "approval-grants-now"
    scope: ClassVar[PartScope] = PartScope.EXECUTION
    grants: tuple[Grant, ...] = ()


_KINDS: Final[tuple[type[SessionGrants] | type[ExecutionGrants], ...]] = (SessionGrants, ExecutionGrants)


def grants_of(state: AgentState) -> tuple[Grant, ...]:
    """All grants that count now, oldest first in each kind."""
    return tuple(grant for kind in _KINDS if state.has_part(kind) for grant in state.part(kind).grants)


def find_grant(state: AgentState, tool: str, to: str | None) -> Grant | None:
    """The grant that covers a call of this tool which would be asked of this addressee; None without one."""
    return next((each for each in grants_of(state) if (each.tool, each.to) == (tool, to)), None)


def with_grant(state: AgentState, grant: Grant, now: datetime) -> AgentState:
    """The state with a grant; unchanged when it has it already."""
    kind = ExecutionGrants if grant.lasts is Remember.EXECUTION else SessionGrants
    part = state.part(kind)
    if any(each.id == grant.id for each in part.grants):
        return state
    return state.with_part(part.replace(grants=(*part.grants, grant)[-MAX_GRANTS:]), now=now)


def without_grant(state: AgentState, grant_id: str, now: datetime) -> AgentState:
    """The state without a grant; unchanged when it has none of this id."""
    for kind in _KINDS:
        if not state.has_part(kind):
            continue
        part = state.part(kind)
        kept = tuple(each for each in part.grants if each.id != grant_id)
        if kept == part.grants:
            continue
        state = state.with_part(part.replace(grants=kept), now=now) if kept else state.without_part(kind, now=now)
    return state
