"""Says in one sentence why a session waits: for a person, a slot, a worker, the provider, a lease that has to end.

The sentence is that of the first rule that applies. A further reason is a function `(WaitingSession) -> str | None` in
`RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ...worker.errors import SessionNotFound, StateUnreadable
from ...worker.flow.concurrency import is_concurrency
from ...worker.flow.values import AT_PROVIDER
from ...worker.state.execution.requests import MAX_REQUESTS_PER_STEP, RequestKind, RequestSummary
from ...worker.store.children.trees import TreeNode
from ...worker.store.event_records import Event, EventType
from ...worker.store.requests.records import RequestFilter
from ...worker.store.session_records import Header, SessionState, StepFacts
from ...worker.store.store import Store
from .next_try import describe_next_try, read_time
from .request_reasons import describe_age, describe_requests, describe_time

_EVENTS_READ: Final = 5
_ACTIVE: Final = frozenset({SessionState.PENDING, SessionState.IN_PROGRESS, SessionState.WAITING, SessionState.PARKED})


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingChild:
    """A child that has not ended, as its parent's reason names it.

    Attributes:
        is_stuck: No worker can continue it: it is parked, or no worker offers its agent.
        reason: Why it has not ended yet.
    """

    session_id: str
    agent: str
    is_stuck: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingSession:
    """A session whose execution has not ended, with everything that may hold it back.

    Attributes:
        step: What the store knows of the step that it waits for.
        events: Its newest events, the oldest of them first.
        workers: Facts of the live workers, by name.
        requests: The open requests of a step that waits.
        children: Why the children that it waits for have not ended, those that no worker can run first.
    """

    header: Header
    step: StepFacts
    events: Sequence[Event]
    workers: Mapping[str, Mapping[str, Any]]
    requests: Sequence[RequestSummary] = ()
    children: Sequence[WaitingChild] = ()

    @property
    def offering(self) -> list[Mapping[str, Any]]:
        """Facts of the live workers that offer the session's agent."""
        return [facts for facts in self.workers.values() if self.header.agent in facts["agents"]]

    def seconds_until(self, moment_ms: int) -> float:
        """Seconds from Redis's time to a moment."""
        return max(0.0, (moment_ms - self.step.now_ms) / 1000)


def waiting_reason(store: Store, header: Header, workers: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Say why a session has not ended yet, and until when it waits; "" for one that waits for nothing.

    Args:
        workers: Facts of the live workers where they are known already. None: they are read.
    Returns:
        Where the stored data of the session are damaged, what is wrong with them.
    """
    if header.status not in _ACTIVE:
        return ""
    try:
        step = store.sessions.step_facts(header.session_id)
        session = WaitingSession(
            header=header,
            step=step,
            events=store.sessions.latest_events(header.session_id, _EVENTS_READ),
            workers=store.registry.workers() if workers is None else workers,
        )
        if step.phase == "wait":
            session = _with_requests(store, session)
    except SessionNotFound:
        return ""
    except StateUnreadable as error:
        return str(error)
    return next((reason for rule in RULES if (reason := rule(session))), "")


def tree_reasons(store: Store, tree: TreeNode) -> dict[str, str]:
    """Say why the sessions of a tree have not ended yet, or have failed, by their ids; see `waiting_reason`."""
    workers = store.registry.workers()
    return {
        node.session_id: waiting_reason(store, node.header, workers) or ending_reason(store, node.header)
        for node in tree.walk()
    }


def ending_reason(store: Store, header: Header) -> str:
    """Say why a session failed or was stopped, or what is wrong with its stored data; "" for any other."""
    if header.status not in (SessionState.FAILED, SessionState.STOPPED):
        return ""
    try:
        result = store.sessions.outcome(header.session_id, header.execution_id)
    except StateUnreadable as error:
        return str(error)
    if result is None:
        return ""
    last_error = result.errors[-1] if result.errors and header.status is SessionState.FAILED else ""
    return last_error or result.stop_message or str(result.stop_reason or "")


def _explain_parking(session: WaitingSession) -> str | None:
    if session.step.phase != "parked":
        return None
    last = next((event for event in reversed(session.events) if event.type == EventType.PARKED), None)
    why = f": {last.data.get('reason', '')}" if last is not None else ""
    return f"it is parked{why}; mend the cause, then retry it"


def _explain_hold(session: WaitingSession) -> str | None:
    hold, now_ms = session.header.hold, session.step.now_ms
    if hold is None or session.step.is_stopping:
        return None
    by = f" by {hold.by}" if hold.by else ""
    until = describe_time(hold.until_ms, now_ms)
    return f"suspended{by} {describe_age(now_ms - hold.since_ms)} ago: {_end(hold.reason)} Resume it before {until}"


def _explain_requests(session: WaitingSession) -> str | None:
    if session.step.phase != "wait":
        return None
    if not session.requests:
        return "it waits for the answer of a person or a child"
    return describe_requests(session.requests, session.step.now_ms)


def _explain_children(session: WaitingSession) -> str | None:
    if session.step.phase != "wait" or not session.children:
        return None
    people = [each for each in session.requests if each.kind is not RequestKind.CHILD]
    first = session.children[0]
    if people and not first.is_stuck:
        return None
    more = len(session.children) - 1 + len(people)
    others = f"; and for {more} more" if more else ""
    return f"waits for agent {first.agent} (session {first.session_id}): {first.reason or 'it works'}{others}"


def _explain_claim(session: WaitingSession) -> str | None:
    """A worker has the step, or had it and is gone."""
    step = session.step
    if not step.claimed:
        return None
    if step.lease_ms is None:
        due_in = "" if step.due_ms is None else f" within {session.seconds_until(step.due_ms):.0f} s"
        return f"step {step.step}: worker {step.worker} is gone or cut off; another one takes the step over{due_in}"
    silent_ms = session.workers.get(step.worker, {}).get("lease_ms", 0) - step.lease_ms
    if silent_ms > step.lease_ms:  # it renews its lease at least twice in the lease's life
        return (
            f"step {step.step}: worker {step.worker} was not heard of for {silent_ms / 1000:.0f} s; another one takes "
            f"the step over {step.lease_ms / 1000:.0f} s from now"
        )
    if step.is_stopping:
        return f"step {step.step}: worker {step.worker} was asked to stop it"
    return _explain_provider(session) or f"step {step.step} runs on worker {step.worker}"


def _explain_provider(session: WaitingSession) -> str | None:
    """The worker that has the step pauses after a failed model call."""
    last = session.events[-1] if session.events else None
    if last is None or last.type != EventType.MODEL_CALL_FAILED or last.step != session.step.step:
        return None
    next_try_ms = read_time(last.data.get("next_try_ms"))
    if next_try_ms is None or next_try_ms < session.step.now_ms:
        return None
    when = describe_next_try(next_try_ms, session.step.now_ms)
    return f"step {last.step} waits for the provider, next try {when}: {_end(str(last.data.get('message', '')))}"


def _explain_delay(session: WaitingSession) -> str | None:
    step = session.step
    if step.not_before_ms <= step.now_ms:
        return None
    when = describe_next_try(step.not_before_ms, step.now_ms)
    if step.put_off == AT_PROVIDER:
        return f"step {step.step} is {step.reason}; next look {when}"
    if is_concurrency(step.put_off):
        return f"step {step.step} waits for its turn: {_end(step.reason)}"
    if step.put_off:
        return f"step {step.step} waits, next try {when}: {_end(step.reason)}"
    if not step.delays:
        return f"step {step.step} begins {when}"
    return f"step {step.step} was delayed, next try {when}: {_end(step.reason or 'no reason was given')}"


def _explain_missing_worker(session: WaitingSession) -> str | None:
    if not session.workers:
        return "no worker is alive; start one: celery-agents worker --agents MODULE"
    if not session.offering:
        return f"no live worker offers agent {session.header.agent!r}; start one that imports it"
    return None


def _explain_missing_slot(session: WaitingSession) -> str | None:
    workers = session.offering
    slots, running = sum(facts["slots"] for facts in workers), sum(facts["running"] for facts in workers)
    if all(facts["draining"] for facts in workers):
        return "every worker that offers its agent is ending; start another one"
    return f"it waits for a slot: {running} of {slots} are busy" if running >= slots else None


def _explain_queue(session: WaitingSession) -> str | None:
    step = session.step
    due_in = "" if step.due_ms is None else f"; it is looked at again in {session.seconds_until(step.due_ms):.0f} s"
    return f"step {step.step} waits for a worker to take its message{due_in}"


RULES: Final[tuple[Callable[[WaitingSession], str | None], ...]] = (
    _explain_parking,
    _explain_hold,
    _explain_children,
    _explain_requests,
    _explain_claim,
    _explain_delay,
    _explain_missing_worker,
    _explain_missing_slot,
    _explain_queue,
)
"""The reasons, the first that applies decides."""


def _with_requests(store: Store, session: WaitingSession) -> WaitingSession:
    """The session with what it waits for: open requests, and the children that have been made."""
    found = store.requests.page(RequestFilter(session_id=session.header.session_id), limit=MAX_REQUESTS_PER_STEP)
    orders = [each.request.child for each in found.requests if each.request is not None]
    children = [_child(store, order.session_id, session.workers) for order in orders if order is not None]
    made = [child for child in children if child is not None]
    return replace(
        session,
        requests=tuple(each.summary for each in found.requests),
        children=sorted(made, key=lambda child: not child.is_stuck),
    )


def _child(store: Store, session_id: str, workers: Mapping[str, Mapping[str, Any]]) -> WaitingChild | None:
    """A child with its own reason; None for one that is not made yet or has ended."""
    try:
        header = store.sessions.header(session_id)
    except SessionNotFound:
        return None
    if header.status not in _ACTIVE:
        return None
    reason = waiting_reason(store, header, workers)
    is_offered = any(header.agent in facts["agents"] for facts in workers.values())
    is_stuck = header.status is SessionState.PARKED or not is_offered
    return WaitingChild(session_id=session_id, agent=header.agent, is_stuck=is_stuck, reason=reason)


def _end(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
