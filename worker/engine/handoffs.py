"""Handoffs: a call that changes the session's agent is recorded here, and the step's commit carries it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from ..state.agent_state import AgentState
from ..state.execution.tool_calls import ToolOutcome
from ..store.event_records import EventType, NewEvent
from ..store.records import NextState
from ..tools.handoff import Handoff, supports_handoff
from .call_records import CallTimes, PlannedCall, record_call
from .child_context import context_messages
from .request_opening import RequestOpener
from .run import Run
from .services import EngineServices

MAX_HANDOFFS: Final = 10
"""Handoffs of one execution."""


class Handoffs:
    """Records calls that hand the session over, and refuses those that lead nowhere."""

    def __init__(self, services: EngineServices, opener: RequestOpener) -> None:
        self._services = services
        self._opener = opener

    def record(self, run: Run, planned: Sequence[PlannedCall]) -> tuple[Run, list[PlannedCall]]:
        """Record the handoffs among these calls.

        Returns:
            The run; and the calls that this worker runs.
        """
        if run.ending.is_stopping:
            return run, list(planned)
        rest: list[PlannedCall] = []
        for each in planned:
            if not supports_handoff(each.tool):
                rest.append(each)
                continue
            name, why = each.tool.handoff.name, self._refusal(run, each.tool.handoff)
            if why:
                run = self._opener.refuse(run, each, why)
            else:
                times = CallTimes.at(run.redis_ms(self._services.monotonic()))
                record = record_call(run, each, ToolOutcome.OK, times, value=f"The agent {name} goes on from here.")
                run = run.with_record(each.index, record)
        return run, rest

    def find(self, run: Run) -> Run:
        """The run with the agent and the queue that its handoff leads to, where it has one."""
        handoff = find_handoff(run)
        if handoff is None:
            return run
        return run.changed(next_agent=(handoff.name, self._services.store.registry.queue_of(handoff.name) or ""))

    def _refusal(self, run: Run, handoff: Handoff) -> str:
        """Why a handoff is refused, for the model; "" where it is not."""
        before = (*run.execution.handed_over_by, run.agent.name)
        if find_handoff(run) is not None:
            return "this step hands the session over already"
        if handoff.name == run.agent.name:
            return f"{handoff.name} is the agent that has the session"
        if handoff.name in before:
            return f"{handoff.name} has had the session before ({' → '.join(before)}); answer yourself"
        if len(run.execution.handed_over_by) >= MAX_HANDOFFS:
            return f"an execution may be handed over {MAX_HANDOFFS} times"
        if self._services.store.registry.queue_of(handoff.name) is None:
            return f"no worker has ever offered an agent {handoff.name}"
        return ""


def find_handoff(run: Run) -> Handoff | None:
    """The handoff among the recorded calls of a step; None without one."""
    if not run.agent.toolset.can_hand_over:
        return None
    for _, record in sorted(run.obtained.records.items()):
        tool = run.agent.toolset.get(record.execution.tool_call.name)
        if record.execution.outcome is ToolOutcome.OK and supports_handoff(tool):
            return tool.handoff
    return None


def hand_over(run: Run, next_state: NextState, now: datetime) -> NextState:
    """The next state with another agent, where the step hands its session over and the execution goes on."""
    handoff, execution = find_handoff(run), next_state.state.execution
    if handoff is None or run.next_agent is None or execution is None:
        return next_state
    if execution.status.is_terminal() or execution.execution_id != run.ref.execution_id:
        return next_state
    state = next_state.state.with_context_and_execution(
        next_state.state.context, execution.with_handoff(run.agent.name)
    )
    event = NewEvent(
        type=EventType.AGENT_CHANGED,
        execution_id=run.ref.execution_id,
        step=run.ref.step,
        data={"agent": handoff.name, "by": run.agent.name},
    )
    state = _with_context(state, handoff, now)
    return replace(next_state, state=state, events=(*next_state.events, event), agent=run.next_agent)


def _with_context(state: AgentState, handoff: Handoff, now: datetime) -> AgentState:
    """The state with the messages that the other agent sees."""
    rule = handoff.context
    if rule == "all":
        return state
    last = context_messages(state, "last")
    return state.with_messages(last, now=now) if last else state
