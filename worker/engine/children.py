"""Children of a step: which of them are made next, which are stopped, and when their failures end the step.

    stop    WATCH ctl, journal → t<i>:k<r>, end → EXEC · stop of each child · wait, for one lease at most

A child that was asked to stop answers with what it has obtained, like any other end.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final

from ..errors import ActionRefused, SessionNotFound, StateUnreadable, StoreFull, StoreUnavailable
from ..moments import moment
from ..redaction import describe_exception
from ..state.agent_state import AgentState
from ..state.conversation.messages import Message
from ..state.execution.answers import AnswerRecord, AnswerVerb
from ..state.execution.budget import ExecutionBudget
from ..state.execution.children import ChildFailure, ChildOrder, JoinRule, ParentLink
from ..state.execution.requests import Request
from ..state.execution.reservations import Shortage, cover, subtract
from ..state.execution.signals import StopReason
from ..state.values.error_info import ErrorInfo
from ..store.children.making import NO_CHILDREN, ChildPlan, NewChild
from ..store.housekeeping.registry import AgentQueues
from ..store.records import NextState
from .changed_budgets import find_unfit_children
from .child_calls import EndingRecord, find_failure, first_messages, is_won, left_for_children, shared_with_children
from .endings import user_stop_signal
from .request_closing import RequestCloser
from .run import Run
from .services import EngineServices
from .transitions import FirstExecution, first_state, stop_transition

log = logging.getLogger(__name__)

_ENDED: Final = "the execution has ended"
_LATE: Final = "the agent did not end in time"
_INTERRUPTED: Final = "a message interrupted the step"
_NOT_NEEDED: Final = "another agent was first"
_TOO_DEAR: Final = "the budget was lowered, and does not cover the agent any more"
_NO_END: Final = "the agent was stopped and gave no result"


class Children:
    """Decides about the children of a step."""

    def __init__(self, services: EngineServices, closer: RequestCloser) -> None:
        self._services = services
        self._closer = closer
        self._steps = services.store.steps
        self._queues = AgentQueues(lambda: services.store.registry, services.monotonic)

    def apply_rules(self, run: Run) -> Run:
        """Stop children that are no longer needed, and fail the execution if a failure rule says so."""
        if not run.journal.child_requests:
            return run
        # First: a late child that gives no end fails here, and its rule holds like that of any other.
        run = self.stop_unwanted(run)
        failure = None if run.ending.is_stopping else _find_failure(run)
        return run if failure is None else self.stop_unwanted(run.failing(failure, StopReason.ERROR_FORBADE))

    def stop_unwanted(self, run: Run) -> Run:
        """Stop the open children that are not wanted any more.

        The execution ends, a race is won, a message interrupts the step, they are late or too dear.
        """
        now_ms = self._services.redis_ms(run)
        unfit = find_unfit_children(run, moment(now_ms))
        reasons = {
            each.id: why for each in run.journal.open_children if (why := _why_unwanted(run, each, now_ms, unfit))
        }
        if not reasons:
            return run
        unwanted = [each for each in run.journal.open_children if each.id in reasons]
        over_ms = now_ms - round(self._services.settings.lease_seconds * 1000)
        closed: dict[str, AnswerRecord] = {}
        running: list[Request] = []
        for request in unwanted:
            stopped_ms = run.journal.stopped.get(request.place)
            if request.place not in run.journal.made:
                closed[request.id] = _without_end(request, reasons[request.id], now_ms)
            elif stopped_ms is not None and stopped_ms <= over_ms:
                # Asked again: a worker may have died between the note that it asks and the asking.
                run = self._stop_child(run, request)
                closed[request.id] = _without_end(request, _NO_END, now_ms)
            else:
                running.append(request)
        run = self._closer.close_with(run, closed)
        return self._stop(run, running) if running else run

    def plan(self, run: Run) -> tuple[Run, ChildPlan]:
        """The children that the next wait makes: as many as may work at the same time, in the order of the calls.

        Each is made only while its reservation is covered: siblings that ended may have used more than theirs, by the
        model calls that were in flight when they reached a limit. A child gets what is left then; where nothing is, it
        waits for those that still work, or is refused.

        Returns:
            The run, and the plan. The run does not wait where a child could not be prepared: its call has an error.
        """
        if run.ending.is_stopping:
            return run, ChildPlan(is_ending=True)
        opened = run.journal.open_children
        if not opened:
            return run, NO_CHILDREN
        unmade = [each for each in opened if each.place not in run.journal.made]
        new, refused = self._prepare(run, unmade, working=len(opened) - len(unmade))
        if refused:
            return self.refuse(run, refused).with_progress(is_waiting=False), NO_CHILDREN
        return run, ChildPlan(new=tuple(new), waits_for_all=len(new) == len(unmade) and _needs_all(run))

    def _prepare(self, run: Run, unmade: Sequence[Request], *, working: int) -> tuple[list[NewChild], dict[str, str]]:
        """Prepare the children that may work now; and say why others cannot be made at all."""
        left = shared_with_children(run, left_for_children(run, moment(self._services.redis_ms(run)), unmade))
        new: list[NewChild] = []
        refused: dict[str, str] = {}
        for request in unmade[: max(0, run.agent.max_children - working)]:
            granted = cover(_order_of(request).budget, left)
            if isinstance(granted, Shortage):
                if working or new:
                    break  # those that work may leave something
                refused[request.id] = f"{_order_of(request).agent}: {granted.message}"
                continue
            try:
                new.append(self._new_child(run, request, granted))
            except (StoreFull, StoreUnavailable):
                raise
            except Exception as error:  # noqa: BLE001 - a function of the user's chooses what the child sees
                refused[request.id] = f"its messages could not be chosen: {describe_exception(error).message}"
            else:
                left = subtract(left, granted)
        return new, refused

    def refuse(self, run: Run, refused: Mapping[str, str]) -> Run:
        """Answer the requests whose children cannot be made."""
        now_ms = self._services.redis_ms(run)
        records = {name: AnswerRecord(verb=AnswerVerb.FAIL, reason=why, at_ms=now_ms) for name, why in refused.items()}
        return self._closer.close_with(run, records)

    # --- stopping ---------------------------------------------------------------------------------------------

    def _stop(self, run: Run, requests: Sequence[Request]) -> Run:
        """Journal that children have to stop, and ask them to."""
        ending = None
        if run.ending.is_stopping:
            ending = EndingRecord.of(run.ending).to_json()
        places = [request.place for request in requests]
        known = run.journal.stopped
        if any(place not in known for place in places) or (ending is not None and run.journal.ending is None):
            stop = partial(self._steps.stop_children, run.claim, places, ending=ending)
            stopped = self._services.ask_store(run, stop, "a stop of children")
            run = run.with_journal(run.journal.with_stopped(stopped.at_ms, stopped.ending))
        for request in requests:
            run = self._stop_child(run, request)
        return run

    def _stop_child(self, run: Run, request: Request) -> Run:
        order = request.child
        assert order is not None
        stop = partial(self._services.store.sessions.stop, order.session_id, order.execution_id, stop_transition)
        try:
            stopped = self._services.ask_store(run, stop, "a stop of a child")
        except SessionNotFound:
            record = _without_end(request, "the session of the agent is gone", self._services.redis_ms(run))
            return self._closer.close_with(run, {request.id: record})
        except StateUnreadable as error:  # as one of a newer version; it is closed after a lease
            log.warning("child %s of session %s is not stopped: %s", order.session_id, run.ref.session_id, error)
            return run
        run = self._stop_below(run, order.session_id)
        # A parent that is woken meanwhile is this very step, which runs.
        if stopped.publish is None or stopped.publish.session_id != order.session_id:
            return run
        return run.changed(publish=(*run.publish, stopped.publish))

    def _stop_below(self, run: Run, session_id: str) -> Run:
        """Stop what a child has started, so that nothing of it works on while the child waits for a worker."""
        store, publish = self._services.store, run.publish
        for header in store.trees.active_below(session_id):
            stop = partial(store.sessions.stop, header.session_id, None, stop_transition)
            try:
                stopped = self._services.ask_store(run, stop, "a stop below a child")
            except (ActionRefused, SessionNotFound, StateUnreadable):
                continue  # it has ended or expired since it was listed, or cannot be read
            publish = (*publish, stopped.publish) if stopped.publish is not None else publish
        return run.changed(publish=publish)

    # --- making -----------------------------------------------------------------------------------------------

    def _new_child(self, run: Run, request: Request, budget: ExecutionBudget) -> NewChild:
        order = _order_of(request)
        parent, task_id = run.parent, run.ref.task_id
        link = ParentLink(
            session_id=run.ref.session_id,
            execution_id=run.ref.execution_id,
            step=run.ref.step,
            index=request.index,
            round=request.round,
            request_id=request.id,
            depth=order.depth,
            merge=order.merge,
            merge_parts=order.merge_parts,
            task_id=task_id,
            root_task_id=parent.root_task_id if parent is not None else f"{run.ref.execution_id}.1",
            root_execution_id=parent.root_execution_id if parent is not None else run.ref.execution_id,
            retries=run.execution.retries,
            max_depth=run.max_depth,
        )
        queue = self._queues.queue_of(order.agent)
        start = partial(_first_state, run, request, budget, first_messages(run, request, order.prompt))
        return NewChild(request=request, link=link, queue=queue, lane=run.ref.lane, start=start)


def _order_of(request: Request) -> ChildOrder:
    """The order of a request for a child."""
    assert request.child is not None
    return request.child


def _needs_all(run: Run) -> bool:
    """Whether the step can do nothing before each of its open requests, all of them children, is answered."""
    orders = [request.child for request in run.journal.open_requests]
    return all(
        order is not None and order.join is JoinRule.ALL and order.on_failure is not ChildFailure.FAIL_FAST
        for order in orders
    )


def _find_failure(run: Run) -> ErrorInfo | None:
    """The failure of a child that fails the execution now; None where none does."""
    is_last = not run.journal.open_children
    for request in run.journal.child_requests:
        rule = ChildFailure.TELL if request.child is None else request.child.on_failure
        if rule is ChildFailure.FAIL_FAST or (rule is ChildFailure.FAIL and is_last):
            failure = find_failure(run, request)
            if failure is not None:
                return failure
    return None


def _why_unwanted(run: Run, request: Request, now_ms: int, unfit: Collection[str]) -> str:
    """Why the result of a child is not needed any more; "" while it is.

    Args:
        unfit: Requests whose reservations do not fit into a lowered budget.
    """
    if run.ending.is_stopping:
        return _ENDED
    if request.is_expired(now_ms):
        return _LATE
    if is_won(run, request):
        return _NOT_NEEDED
    if run.lease.is_cut:
        return _INTERRUPTED
    # One that an earlier leg has asked to stop for this reason is among the stopped ones: the budget is saved by now.
    return _TOO_DEAR if request.id in unfit or request.place in run.journal.stopped else ""


def _without_end(request: Request, why: str, now_ms: int) -> AnswerRecord:
    """The answer for a child that gives none."""
    is_late = request.is_expired(now_ms)
    reason = _LATE if is_late else why
    return AnswerRecord(verb=AnswerVerb.CANCEL, reason=reason, at_ms=now_ms, by_expiry=is_late)


def adopt_ending(run: Run, raw: bytes) -> Run:
    """The run that ends for the reasons that an earlier leg has journaled."""
    ending = EndingRecord.from_json(raw)
    signals = ending.signals or (user_stop_signal(),)
    return run.stopping(*signals).with_ending(failure=ending.failure, status=ending.end_status)


# --- what a child begins with -----------------------------------------------------------------------------------


def _first_state(
    run: Run, request: Request, budget: ExecutionBudget, messages: Sequence[Message], now_ms: int
) -> NextState:
    order, now = _order_of(request), moment(now_ms)
    state = AgentState.fresh(parent_agent_id=run.state.agent_id, now=now)
    *earlier, message = messages
    if earlier:
        state = state.with_messages_added(earlier, now=now)
    # A child that has no share of a limit, since its parent has none, is limited like any other execution.
    execution = FirstExecution(
        order.execution_id, request.id, None if budget.is_empty() else budget,
        completion_window=run.execution.completion_window or run.agent.completion_window,
    )  # fmt: skip
    return first_state(state, message, execution, now)
