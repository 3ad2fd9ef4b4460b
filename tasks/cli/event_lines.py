"""Events of a job as lines for people. Pure: the time of the first event counts as the beginning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ...worker.moments import moment
from ...worker.store.history_losses import describe_loss
from ..observability.next_try import describe_next_try, read_time
from .views import one_line, plural

if TYPE_CHECKING:
    from ...worker.store.event_records import Event


_STEP_BEGINS: Final = ("execution_started", "step_recovered", "step_resumed", "step_retried", "execution_resumed")
_CUT_SHORT: Final = ("length", "content_filter", "error")
_WIDEST: Final = 300
_NOUNS: Final = {
    "approval": "an approval", "question": "an answer", "external": "a result", "child": "a child session",
}  # fmt: skip
ANSWERS: Final = {
    "approve": "approved", "deny": "denied", "answer": "answered", "complete": "completed", "fail": "failed",
    "pass_on": "passed on", "cancel": "cancelled",
}  # fmt: skip
# Errors of a description whose data another program has stored.
_UNREADABLE: Final = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError)


class EventLines:
    """Writes the events of one job as lines, with the seconds since its first event."""

    def __init__(self) -> None:
        self._beginning_ms: int | None = None

    def line(self, event: Event, label: str = "") -> str | None:
        """Describe an event in a line, after a label; None when it says nothing to people."""
        self._beginning_ms = self._beginning_ms or event.at_ms
        try:
            describe = _DESCRIPTIONS.get(event.type)
            text = event.type.replace("_", " ") if describe is None else describe(event)
        except _UNREADABLE:
            text = f"{event.type}: its data cannot be read"
        if text is None:
            return None
        passed = max(0, event.at_ms - self._beginning_ms) / 1000
        return f"{passed:7.2f} s  {label}{one_line(text, _WIDEST)}"

    def status(self, event: Event) -> str | None:
        """Say what runs after the event; None when that has not changed."""
        if event.type == "step_committed":
            return f"step {event.step + 1}" if event.data.get("tools") else None
        if event.type in ("step_delayed", "model_call_failed"):
            try:
                return f"step {event.step} waits; next try {_next_try(event)}"
            except _UNREADABLE:
                return None
        if event.type == "execution_waiting":
            return f"step {event.step} waits for an answer"
        if event.type == "execution_suspended":
            return "suspended"
        return f"step {event.step}" if event.type in _STEP_BEGINS else None


def describe_tools(tools: Iterable[Mapping[str, Any]]) -> str:
    """List tool calls like `read_file ×3, file_note (error)`, in the order of the first call of each."""
    names = [
        f"{tool['name']}{'' if tool.get('outcome', 'ok') == 'ok' else ' (' + tool['outcome'] + ')'}" for tool in tools
    ]
    return ", ".join(name if number == 1 else f"{name} ×{number}" for name, number in Counter(names).items())


def _describe_commit(event: Event) -> str:
    parts = [describe_tools(event.data.get("tools", ())) or "answers"]
    if event.data.get("tokens"):
        parts.append(plural(event.data["tokens"], "token"))
    return f"step {event.step}: {' · '.join(parts)}"


def _describe_recovery(event: Event) -> str:
    data = event.data
    return f"step {event.step}: carried on by {data.get('worker', 'another worker')}, attempt {data.get('attempt')}"


def _describe_failed_call(event: Event) -> str:
    why = str(event.data.get("message") or event.data.get("kind", ""))
    return f"step {event.step}: the model call failed; next try {_next_try(event)}: {why}"


def _describe_delay(event: Event) -> str:
    return f"step {event.step}: delayed; next try {_next_try(event)}: {event.data.get('reason', '')}"


def _describe_opened(event: Event) -> str:
    data = event.data
    to = f" of {data['to']}" if data.get("to") else ""
    until = f", until {_clock(data['expires_at_ms'])}" if data.get("expires_at_ms") else ""
    what = _NOUNS.get(data.get("kind", ""), "an answer")
    return f"step {event.step}: asks for {what}{to}: {data.get('call', '')}{until}"


def _describe_closed(event: Event) -> str:
    data = event.data
    what = ANSWERS.get(data.get("verb", ""), data.get("verb", ""))
    expired = " at its expiry" if event.type == "request_expired" else ""
    return f"step {event.step}: {data.get('tool', '')} was {what}{_by(event)}{expired}"


def _describe_child(event: Event) -> str:
    data = event.data
    if event.type == "child_started":
        return f"step {event.step}: {data['tool']} starts agent {data['agent']}, session {data['session']}"
    numbers = [plural(data["steps"], "step")] + ([f"${data['cost']:.4f}"] if data.get("cost") else [])
    return f"step {event.step}: {data['tool']} has ended: {data['status']}, {', '.join(numbers)}"


def _by(event: Event) -> str:
    """The words for who did it; none where that is not known."""
    return f" by {event.data['by']}" if event.data.get("by") else ""


def _describe_arrival(event: Event) -> str:
    if "placed" not in event.data:
        return "a message arrived; the running step goes first"
    return f"a message arrived, and is {event.data['placed']}"


def _describe_waiting(event: Event) -> str:
    requests = event.data.get("requests") or ()
    return f"waiting for {plural(len(requests), 'answer')}" if requests else "waiting for a person"


def _describe_resumed(event: Event) -> str:
    cause, by = event.data.get("cause", ""), event.data.get("by", "")
    return f"goes on{f' ({cause})' if cause else ''}{f', by {by}' if by else ''}"


def _describe_budget(event: Event) -> str:
    limits = [f"{name} {limit}" for name, limit in event.data["budget"].items() if limit is not None]
    return f"budget changed{_by(event)}: {', '.join(limits) or 'no limits'}"


def _clock(at_ms: int) -> str:
    return f"{moment(at_ms):%Y-%m-%d %H:%M} UTC"


def _next_try(event: Event) -> str:
    next_try_ms = read_time(event.data.get("next_try_ms", event.at_ms))
    if next_try_ms is None:
        raise ValueError("the time of the next try is none")
    return describe_next_try(next_try_ms, event.at_ms)


def _describe_end(event: Event) -> str:
    data = event.data
    numbers = [plural(data["steps"], "step")] if data.get("steps") else []
    numbers += [plural(data["tokens"], "token")] if data.get("tokens") else []
    numbers += [f"${data['cost']:.4f}"] if data.get("cost") else []
    why = data.get("error") or (data.get("reason") if data.get("status") == "stopped" else None)
    if why is None and data.get("finish_reason") in _CUT_SHORT:
        why = f"the answer was cut short: {data['finish_reason']}"
    status = data.get("status", "ended")
    if not numbers:
        return f"{status}: {why}" if why else str(status)
    return f"{status}: {', '.join(numbers)}{f' ({why})' if why else ''}"


def _describe_capability(event: Event) -> str:
    data = event.data
    version = f", version {data['version']}" if data.get("version") else ""
    return f"step {event.step}: {data.get('type', 'a capability reports')}{version}"


_DESCRIPTIONS: Final[Mapping[str, Callable[[Event], str | None]]] = {
    "execution_submitted": lambda event: None,
    "execution_started": lambda event: "started",
    "step_committed": _describe_commit,
    "step_recovered": _describe_recovery,
    "history_lost": lambda event: describe_loss(event.data),
    "step_delayed": _describe_delay,
    "step_resumed": lambda event: f"step {event.step}: tried again by {event.data.get('worker', 'a worker')}",
    "model_call_failed": _describe_failed_call,
    "session_saved": lambda event: f"the session was saved as version {event.data.get('version')}",
    "attempt_voided": lambda event: f"step {event.step}: what an attempt has written is void",
    "step_retried": lambda event: f"step {event.step} is tried again",
    "message_received": _describe_arrival,
    "message_joined": lambda event: "a message joined",
    "message_undelivered": lambda event: f"a message was {event.data.get('reason', 'taken back')}{_by(event)}",
    "queue_held": lambda event: f"held: {plural(event.data.get('messages', 0), 'queued message')}",
    "queue_released": lambda event: f"the queued messages follow again{_by(event)}",
    "execution_waiting": _describe_waiting,
    "execution_resumed": _describe_resumed,
    "execution_suspended": lambda event: f"suspended{_by(event)}: {event.data.get('reason', '')}",
    "budget_changed": _describe_budget,
    "rewound": lambda event: f"rewound to step {str(event.data.get('to', '')).rpartition(':')[2]}",
    "request_opened": _describe_opened,
    "request_answered": _describe_closed,
    "request_expired": _describe_closed,
    "request_cancelled": lambda event: None,
    "execution_completed": _describe_end,
    "execution_stopped": _describe_end,
    "execution_failed": _describe_end,
    "waiting_for_worker": lambda event: f"waits for a worker that offers agent {event.data.get('agent', '')}",
    "worker_found": lambda event: "a worker that offers the agent has started",
    "unreadable": lambda event: f"an event cannot be read: {event.data.get('reason', '')}",
    "stop_requested": lambda event: f"a stop was requested by {event.data.get('by', '')}",
    "metadata_refused": lambda event: f"metadata {event.data.get('key', '')} found no room and was dropped",
    "child_started": _describe_child,
    "child_ended": _describe_child,
    "agent_changed": lambda event: f"step {event.step}: agent {event.data['agent']} goes on with the session",
    "capability": _describe_capability,
    "parked": lambda event: f"parked: {event.data.get('reason', '')}",
}
