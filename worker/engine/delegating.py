"""Calls that give work to other agents: as children, with a reservation for each, or by handing the session over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from ..errors import InvalidInput
from ..moments import moment
from ..redaction import describe_exception
from ..state.agent_state import AgentState
from ..state.execution.budget import ExecutionBudget
from ..state.execution.children import ChildOrder, child_ids
from ..state.execution.requests import MAX_REQUESTS_PER_STEP, Request, RequestKind
from ..state.execution.reservations import BudgetWish, Shortage, reserve
from ..state.execution.tool_calls import ToolOutcome
from ..store.event_records import EventType, NewEvent
from ..store.records import NextState
from ..tools.approval import milliseconds_of
from ..tools.delegation import Delegation, NeedsChildren, is_delegating
from ..tools.handoff import Handoff, supports_handoff
from .call_records import CallTimes, PlannedCall, record_call
from .child_calls import context_messages, left_for_children, shared_with_children
from .request_opening import RequestOpener
from .run import Run
from .services import EngineServices

Wanted = tuple[PlannedCall, Delegation]


class Delegator:
    """Opens the requests of a step for children."""

    def __init__(self, services: EngineServices, opener: RequestOpener) -> None:
        self._services = services
        self._opener = opener

    def open(self, run: Run, planned: Sequence[PlannedCall]) -> tuple[Run, list[PlannedCall]]:
        """Open the requests of calls that other agents work on.

        Returns:
            The run, with the errors of calls that cannot be delegated; and the calls that this worker runs.
        """
        local_calls = [each for each in planned if not is_delegating(each.tool)]
        if run.ending.is_stopping or len(local_calls) == len(planned):
            return run, list(planned)
        wanted: list[Wanted] = []
        for each in planned:
            if is_delegating(each.tool):
                try:
                    self._check_depth(run)
                    wanted.append((each, self._check_delegation(each.tool.delegate(each.bound))))
                except InvalidInput as error:
                    run = self._opener.refuse(run, each, str(error))
        budgets = self._reserve(run, wanted)
        requests: list[tuple[PlannedCall, Request]] = []
        for (each, delegation), budget in zip(wanted, budgets, strict=True):
            if isinstance(budget, Shortage):
                run = self._opener.refuse(run, each, f"{delegation.agent}: {budget.message}")
                continue
            try:
                requests.append((each, self._request(run, each, delegation, budget)))
            except InvalidInput as error:  # of the arguments
                run = self._opener.refuse(run, each, str(error))
        return self._opener.open(run, requests), local_calls

    def open_spawned(self, run: Run, planned: PlannedCall, needs: NeedsChildren) -> Run:
        """Open the requests for the children that a running tool wants, all or none."""
        room = MAX_REQUESTS_PER_STEP - len(run.journal.all_requests)
        if len(needs.delegations) > room:
            return self._opener.refuse(run, planned, f"a step makes {MAX_REQUESTS_PER_STEP} requests at most")
        try:
            self._check_depth(run)
            wanted = [(planned, self._check_delegation(each)) for each in needs.delegations]
            requests: list[tuple[PlannedCall, Request]] = []
            for (_, delegation), budget in zip(wanted, self._reserve(run, wanted), strict=True):
                if isinstance(budget, Shortage):
                    return self._opener.refuse(run, planned, f"{delegation.agent}: {budget.message}")
                group = f"{planned.index}.{needs.group}"
                order = self._request(run, planned, delegation, budget, group=group, ahead=len(requests))
                requests.append((planned, order))
        except Exception as error:  # noqa: BLE001 - values that the tool gave
            return self._opener.refuse(run, planned, describe_exception(error).message)
        return self._opener.open(run, requests)

    def _check_depth(self, run: Run) -> None:
        """Refuse a child below the deepest level. It is checked before anything is looked up."""
        if run.depth >= run.max_depth:
            advice = f"agent {run.agent.name} at depth {run.depth} may start no agents; do the work without."
            raise InvalidInput("depth", run.depth, advice)

    def _check_delegation(self, delegation: Delegation) -> Delegation:
        """Refuse a prompt that is no message, and an agent named at run time that no worker has ever registered."""
        size, most = len(delegation.prompt.encode(errors="replace")), self._services.settings.max_message_bytes
        if size > most:
            advice = f"it may have {most} bytes (CELERY_AGENTS_MAX_MESSAGE_BYTES); give a shorter one."
            raise InvalidInput("prompt", f"{size} bytes", advice)
        if not delegation.is_declared and self._services.store.registry.queue_of(delegation.agent) is None:
            known = ", ".join(sorted(self._services.store.registry.agents())) or "none"
            raise InvalidInput("agent", delegation.agent, f"there is no such agent; agents: {known}.")
        return delegation

    def _reserve(self, run: Run, wanted: Sequence[Wanted]) -> list[ExecutionBudget | Shortage]:
        now = moment(self._services.redis_ms(run))
        wishes = [BudgetWish(delegation.budget, delegation.limits) for _, delegation in wanted]
        left = left_for_children(run, now)
        return reserve(left, wishes, now, shared=shared_with_children(run, left)) if wishes else []

    def _request(
        self,
        run: Run,
        planned: PlannedCall,
        delegation: Delegation,
        budget: ExecutionBudget,
        *,
        group: str | None = None,
        ahead: int = 0,
    ) -> Request:
        place = (planned.index, len(run.journal.requests.get(planned.index, ())) + ahead)
        session_id, execution_id = child_ids(run.ref.session_id, run.ref.execution_id, run.ref.step, place)
        names = [key for key in delegation.merge if isinstance(key, str)]
        order = ChildOrder(
            session_id=session_id,
            execution_id=execution_id,
            agent=delegation.agent,
            prompt=delegation.prompt,
            budget=budget,
            on_failure=delegation.on_failure,
            join=delegation.join,
            group=group or "",
            is_result=group is None,
            depth=run.depth + 1,
            merge=tuple(names),
            merge_parts=tuple(key.part_name for key in delegation.merge if not isinstance(key, str)),
        )
        return self._opener.make_request(
            run,
            planned,
            RequestKind.CHILD,
            ahead=ahead,
            text=f"The agent {delegation.agent} works on it.",
            after_ms=milliseconds_of(delegation.timeout),
            child=order,
            options=delegation.context if group is not None else None,
        )


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
                times = CallTimes.at(self._services.redis_ms(run))
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
    """The next state with another agent, where the step hands its session over and the execution continues."""
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
    last = context_messages(state.messages, "last")
    return state.with_messages(last, now=now) if last else state
