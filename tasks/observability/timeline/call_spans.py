"""Spans of tool calls, of what they asked for, of the children that they started, and of their lost runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ....worker.moments import moment, unix_ms
from ....worker.state.execution.answers import AnswerVerb
from ....worker.state.execution.requests import RequestKind, RequestStatus
from ....worker.state.execution.tool_calls import ToolExecution
from ....worker.state.values.canonical import is_same_json
from ....worker.state.values.frozen import thaw
from ....worker.store.event_records import Event, EventType
from ....worker.tools.identity import idempotency_key
from .attempts import Attempt, AttemptEnd, StepSource
from .known_calls import KnownCall, KnownRequest
from .model_calls import describe_loss
from .values import Span, SpanKind, SpanOutcome

_NOTE_CHARS: Final = 300
_VALUE_CHARS: Final = 60
_MOST_CHANGES: Final = 3
_OUTCOMES: Final[Mapping[RequestStatus, SpanOutcome]] = {
    RequestStatus.OPEN: SpanOutcome.OPEN,
    RequestStatus.ANSWERED: SpanOutcome.ANSWERED,
    RequestStatus.USED: SpanOutcome.ANSWERED,
    RequestStatus.DENIED: SpanOutcome.ANSWERED,
    RequestStatus.EXPIRED: SpanOutcome.EXPIRED,
    RequestStatus.PASSED_ON: SpanOutcome.EXPIRED,
    RequestStatus.CANCELLED: SpanOutcome.CANCELLED,
}
_VERBS: Final[Mapping[AnswerVerb, str]] = {
    AnswerVerb.APPROVE: "approved",
    AnswerVerb.DENY: "denied",
    AnswerVerb.ANSWER: "answered",
    AnswerVerb.COMPLETE: "completed",
    AnswerVerb.FAIL: "failed",
    AnswerVerb.PASS_ON: "passed on to another addressee",
    AnswerVerb.CANCEL: "cancelled",
}


@dataclass(frozen=True, slots=True)
class ChildFacts:
    """The facts about children that the events of their parent tell, by the child's session.

    Attributes:
        agents: Names of their agents.
        ends: Data of the events of their ends.
    """

    agents: Mapping[str, str] = field(default_factory=dict[str, str])
    ends: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])

    @classmethod
    def of(cls, events: Sequence[Event]) -> ChildFacts:
        """Read the events of a parent."""
        agents = {_name(each): str(each.data.get("agent", "")) for each in events if each.type == "child_started"}
        return cls(agents, {_name(each): each.data for each in events if each.type == EventType.CHILD_ENDED})


def _name(event: Event) -> str:
    return str(event.data.get("session", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpans:
    """Makes the spans of the calls of one step.

    Attributes:
        effects: Effect classes of the agent's tools, by name.
    """

    source: StepSource
    attempts: Sequence[Attempt]
    children: ChildFacts
    effects: Mapping[str, str]

    def of(self, call: KnownCall) -> Iterator[Span]:
        """The spans of a call, its own first; none of one that is not known to have begun."""
        start_ms = call.start_ms
        if start_ms is None:
            return
        span_id = f"{self.source.number}.t{call.index}"
        children = [each for each in call.requests if each.kind is RequestKind.CHILD]
        single = children[0] if len(children) == 1 else None
        yield self._call(call, span_id, start_ms, single)
        yield from self._lost(call, span_id)
        for each in call.requests:
            if each.kind is not RequestKind.CHILD:
                yield self._request(each, call, span_id)
            elif single is None:
                yield self._child(each, call, span_id)

    def _call(self, call: KnownCall, span_id: str, start_ms: int, child: KnownRequest | None) -> Span:
        result = call.result
        end_ms, outcome, note = self._end_of(call)
        cost, tokens = (None, None) if child is None else self._used_by(child)
        agent = "" if child is None else self.children.agents.get(child.child, "")
        return Span(
            id=span_id,
            kind=SpanKind.TOOL if child is None else SpanKind.CHILD,
            name=agent or call.used.name,
            note=_cut(note or ("the recorded result of an equal call" if _is_cached(result) else "")),
            start_ms=start_ms,
            end_ms=None if end_ms is None else max(start_ms, end_ms),
            outcome=outcome,
            tokens=tokens,
            cost=cost,
            session=None if child is None else child.child,
            request=None if child is None else child.id,
            data=self._data_of(call, start_ms) if self.source.with_data else None,
        )

    def _end_of(self, call: KnownCall) -> tuple[int | None, SpanOutcome | None, str]:
        """When a call ended, with its outcome, and why it has no value."""
        result = call.result
        if result is not None:
            return unix_ms(result.completed_at), SpanOutcome(result.outcome.value), result.error_message()
        newest = call.requests[-1] if call.requests else None
        outcome = None if newest is None else self._outcome_by_answer(newest)
        if outcome is not None and newest is not None:
            return newest.answered_ms, outcome, newest.reason
        return self.source.ended_ms, None, ""

    def _outcome_by_answer(self, newest: KnownRequest) -> SpanOutcome | None:
        """The outcome that an answer gives to a call without a record; None where the call runs or asks again."""
        if newest.kind is RequestKind.APPROVAL and newest.verb is AnswerVerb.DENY:
            return SpanOutcome.BLOCKED
        if newest.kind is RequestKind.EXTERNAL and newest.verb is AnswerVerb.COMPLETE:
            return SpanOutcome.OK
        if newest.kind is RequestKind.EXTERNAL and newest.verb in (AnswerVerb.FAIL, AnswerVerb.DENY):
            return SpanOutcome.ERROR
        is_result = newest.request is not None and newest.request.child is not None and newest.request.child.is_result
        return self._outcome_of_child(newest) if is_result else None

    def _used_by(self, child: KnownRequest) -> tuple[float | None, int | None]:
        """Cost and tokens of a child and of those below it, as far as its end told them."""
        if child.child_end is not None:
            return child.child_end.cost, child.child_end.usage.total
        data = self.children.ends.get(child.child, {})
        cost, tokens = data.get("cost"), data.get("tokens")
        return (
            float(cost) if isinstance(cost, int | float) else None,
            tokens if isinstance(tokens, int) else None,
        )

    def _child(self, child: KnownRequest, call: KnownCall, parent: str) -> Span:
        cost, tokens = self._used_by(child)
        return Span(
            id=f"{parent}.r{child.round}",
            kind=SpanKind.CHILD,
            parent=parent,
            name=self.children.agents.get(child.child, "") or call.used.name,
            note=_cut(child.reason),
            start_ms=child.asked_ms,
            end_ms=child.answered_ms if child.answered_ms is not None else self.source.ended_ms,
            outcome=self._outcome_of_child(child),
            tokens=tokens,
            cost=cost,
            session=child.child,
            request=child.id,
        )

    def _outcome_of_child(self, child: KnownRequest) -> SpanOutcome | None:
        if child.verb is None:
            return None
        if child.verb is not AnswerVerb.COMPLETE:
            return SpanOutcome.CANCELLED
        end = child.child_end
        data = self.children.ends.get(child.child, {})
        status = end.status.value if end is not None else str(data.get("status", ""))
        return SpanOutcome.ERROR if status == "failed" else SpanOutcome.OK if status else None

    def _request(self, request: KnownRequest, call: KnownCall, parent: str) -> Span:
        data = _request_data(request, call) if self.source.with_data else None
        return Span(
            id=f"{parent}.r{request.round}",
            kind=SpanKind.REQUEST,
            parent=parent,
            name=request.kind.value,
            note=_cut(_describe_request(request, call)),
            start_ms=request.asked_ms,
            end_ms=request.answered_ms if request.answered_ms is not None else self.source.ended_ms,
            outcome=_OUTCOMES[request.status],
            request=request.id,
            data=data,
        )

    def _lost(self, call: KnownCall, parent: str) -> Iterator[Span]:
        """The runs of a call that ended with their worker."""
        for number, attempt in enumerate(self.attempts, 1):
            begun_ms = attempt.begun.get(call.index)
            if attempt.end is AttemptEnd.LOST and begun_ms is not None:
                yield Span(
                    id=f"{parent}.l{number}",
                    kind=SpanKind.LOST,
                    parent=parent,
                    name=call.used.name,
                    note=describe_loss(attempt, number),
                    start_ms=begun_ms,
                    end_ms=None if attempt.end_ms is None else max(begun_ms, attempt.end_ms),
                    outcome=SpanOutcome.LOST,
                    data={"attempt": number, "worker": attempt.worker},
                )

    def _data_of(self, call: KnownCall, start_ms: int) -> dict[str, Any]:
        result, used = call.result, call.used
        asked = used if call.asked is None else call.asked
        known = [(n, each) for n, each in enumerate(self.attempts, 1) if each.holds(start_ms)]
        number, attempt = known[-1] if known else (None, None)
        error = None if result is None else result.error_info()
        return {
            "call_id": used.id,
            "args": thaw(asked.args),
            "approved_args": None if is_same_json(used.args, asked.args) else thaw(used.args),
            "value": thaw(result.value) if result is not None else call.requests[-1].value if call.requests else None,
            "error": None if error is None else {"kind": error.kind, "message": error.message},
            "effect": self.effects.get(used.name),
            "key": self._key(call),
            "cached": _is_cached(result),
            "attempt": number,
            "worker": None if attempt is None else attempt.worker,
            "resolutions": [_resolution(each, call) for each in call.requests if each.verb is not None],
        }

    def _key(self, call: KnownCall) -> str:
        execution, used = self.source.execution, call.used
        return idempotency_key(execution.execution_id, self.source.number, call.index, used.name, used.args)


def _is_cached(result: ToolExecution | None) -> bool:
    return result is not None and result.idempotent_cache_hit


def _describe_request(request: KnownRequest, call: KnownCall) -> str:
    """Say of whom something was asked, and what came: "approved by ann with cents=4 instead of 5: less"."""
    if request.verb is None:
        return f"asked of {request.to}" if request.to else "asked of anybody"
    by = f" by {request.by}" if request.by else ""
    if request.status is RequestStatus.EXPIRED:
        by = " at its expiry"
    is_approved = request.kind is RequestKind.APPROVAL and request.verb is AnswerVerb.APPROVE
    edited = _describe_changes(call) if is_approved else ""
    why = request.note or request.reason
    return f"{_VERBS[request.verb]}{by}{edited}{f': {why}' if why else ''}"


def _describe_changes(call: KnownCall) -> str:
    """Say which arguments were approved differently from what was asked; "" where none was."""
    asked, used = (call.used if call.asked is None else call.asked).args, call.used.args
    if isinstance(asked, str) or isinstance(used, str):
        return ""
    changes = [
        f"{name}={_brief(used[name])}{f' instead of {_brief(asked[name])}' if name in asked else ''}"
        for name in used
        if name not in asked or not is_same_json(asked[name], used[name])
    ]
    changes += [f"no {name}" for name in asked if name not in used]
    if not changes:
        return ""
    more = f" and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
    return f" with {', '.join(changes[:_MOST_CHANGES])}{more}"


def _brief(value: Any) -> str:
    text = json.dumps(thaw(value), ensure_ascii=False, default=str)
    return text if len(text) <= _VALUE_CHARS else f"{text[: _VALUE_CHARS - 1]}…"


def _resolution(request: KnownRequest, call: KnownCall) -> dict[str, Any]:
    assert request.verb is not None
    is_approval = request.kind is RequestKind.APPROVAL and request.verb is AnswerVerb.APPROVE
    is_edited = is_approval and call.asked is not None and not is_same_json(call.used.args, call.asked.args)
    edited = thaw(call.used.args) if is_edited else None
    return {
        "request": request.id,
        "kind": request.kind.value,
        "by": request.by or None,
        "verb": request.verb.value,
        "status": request.status.value,
        "note": request.note or None,
        "reason": request.reason or None,
        "at": _time(request.answered_ms),
        "args": request.args or edited,
    }


def _request_data(request: KnownRequest, call: KnownCall) -> dict[str, Any]:
    full = request.request
    return {
        "to": request.to,
        "text": None if full is None else full.text,
        "args": thaw((call.asked or call.used).args if full is None else full.args),
        "expires_at": None if full is None else _time(full.expires_at_ms),
        "resolutions": [] if request.verb is None else [_resolution(request, call)],
    }


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else moment(at_ms).isoformat()


def _cut(text: str) -> str:
    return text if len(text) <= _NOTE_CHARS else f"{text[: _NOTE_CHARS - 1]}…"
