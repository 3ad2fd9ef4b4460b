"""The tool calls of a step as they are known: of its record, or of the journal of a step that is not committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from ....worker.drivers.journaled_calls import read_calls
from ....worker.moments import unix_ms
from ....worker.state.execution.answers import AnswerRecord, AnswerVerb, RequestResolution
from ....worker.state.execution.children import ChildEnd, child_ids
from ....worker.state.execution.requests import Request, RequestKind, RequestStatus
from ....worker.state.execution.steps import AgentStep
from ....worker.state.execution.tool_calls import ToolCall, ToolExecution
from ....worker.state.values.frozen import FrozenDict, thaw
from ....worker.store.journal import Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRequest:
    """A request of a call, with its answer.

    Attributes:
        asked_ms, answered_ms: Redis's time; `answered_ms` None while it is open.
        verb: None while it is open.
        args: What was approved in place of the arguments; None where nothing was edited, or it is not known.
        value: The result that a service brought; None for none, and where it is not known.
        request: In full; None where its step is committed.
        child: The child session; "" for a request of another kind.
        child_end: How that ended; None while it goes on, and where its step is committed.
    """

    id: str
    kind: RequestKind
    round: int
    to: str | None
    asked_ms: int
    answered_ms: int | None = None
    status: RequestStatus = RequestStatus.OPEN
    verb: AnswerVerb | None = None
    by: str = ""
    note: str = ""
    reason: str = ""
    args: Mapping[str, Any] | None = None
    value: Any = None
    request: Request | None = None
    child: str = ""
    child_end: ChildEnd | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCall:
    """A tool call.

    Attributes:
        asked: The call as the model has asked for it; None: not known.
        used: The call that runs: with the arguments of hooks and approvals.
        result: Its record; None while it goes on.
        begun_ms: When it began, where it has no record (Redis ms); None: not known, or it has not.
        requests: What it has asked for, by round.
    """

    index: int
    asked: ToolCall | None
    used: ToolCall
    result: ToolExecution | None = None
    begun_ms: int | None = None
    requests: tuple[KnownRequest, ...] = ()

    @property
    def start_ms(self) -> int | None:
        """When it began or asked first; None: not known, or it has not."""
        asked = [each.asked_ms for each in self.requests]
        if self.result is not None:
            return unix_ms(self.result.started_at)
        return min([*asked, *([] if self.begun_ms is None else [self.begun_ms])], default=None)

    @property
    def first_sign_ms(self) -> int | None:
        """The earliest time at which the answer that asks for it must have been there; None: not known."""
        asked = [each.asked_ms for each in self.requests]
        return min([*asked, *([] if self.start_ms is None else [self.start_ms])], default=None)


def calls_of_record(step: AgentStep, session_id: str, execution_id: str) -> tuple[KnownCall, ...]:
    """The calls of a committed step, in the order of the answer."""
    asked = dict(enumerate(step.inference_response.tool_calls))
    return tuple(
        KnownCall(
            index=each.index,
            asked=asked.get(each.index),
            used=each.tool_call,
            result=each,
            requests=tuple(
                _of_resolution(found, child_ids(session_id, execution_id, step.number, (each.index, found.round))[0])
                for found in each.resolutions
            ),
        )
        for each in step.tool_executions
    )


def _of_resolution(found: RequestResolution, child: str) -> KnownRequest:
    return KnownRequest(
        id=found.request_id,
        kind=found.kind,
        round=found.round,
        to=found.to,
        asked_ms=found.asked_at_ms,
        answered_ms=found.at_ms,
        status=found.status,
        verb=found.verb,
        by=found.by,
        note=found.note,
        reason=found.reason,
        child=child if found.kind is RequestKind.CHILD else "",
    )


def calls_of_journal(journal: Journal) -> tuple[KnownCall, ...]:
    """The calls of a step that is not committed, as far as the journal names them."""
    asked = {} if journal.answer is None else dict(enumerate(read_calls(journal.answer)))
    return tuple(_calls_of_journal(journal, asked))


def _calls_of_journal(journal: Journal, asked: Mapping[int, ToolCall]) -> Iterator[KnownCall]:
    for index in sorted({*asked, *journal.begun, *journal.results, *journal.requests}):
        rounds = journal.requests.get(index, ())
        result = _read_result(journal, index)
        newest = rounds[-1] if rounds else None
        is_started = newest is not None and newest.kind is RequestKind.EXTERNAL and not newest.has_begun
        if result is not None and is_started:
            result = None  # it says how the call was started, whose result a service brings
        begun = journal.begun.get(index)
        yield KnownCall(
            index=index,
            asked=asked.get(index),
            used=_used(index, result, newest, asked),
            result=result,
            begun_ms=None if begun is None else begun.at_ms,
            requests=tuple(_of_request(each, journal.answer_to(each)) for each in rounds),
        )


def _used(index: int, result: ToolExecution | None, newest: Request | None, asked: Mapping[int, ToolCall]) -> ToolCall:
    if result is not None:
        return result.tool_call
    if newest is not None:
        return ToolCall(id=newest.call_id, name=newest.tool, args=newest.args)
    return asked.get(index) or ToolCall(id=f"call_{index}", name="", args={})


def _read_result(journal: Journal, index: int) -> ToolExecution | None:
    raw = journal.results.get(index)
    if raw is None:
        return None
    try:
        return ToolExecution.from_dict(from_json(raw)["execution"])
    except (ValidationError, ValueError, KeyError, TypeError):
        return None  # the step's worker will say so


def _of_request(request: Request, answer: AnswerRecord | None) -> KnownRequest:
    edited = answer is not None and answer.verb is AnswerVerb.APPROVE and isinstance(answer.value, FrozenDict)
    known = KnownRequest(
        id=request.id,
        kind=request.kind,
        round=request.round,
        to=request.to,
        asked_ms=request.asked_at_ms,
        request=request,
        child=request.child.session_id if request.child is not None else "",
    )
    if answer is None:
        return known
    return replace(
        known,
        answered_ms=answer.at_ms,
        status=answer.status,
        verb=answer.verb,
        by=answer.by,
        note=answer.note,
        reason=answer.reason,
        args=thaw(answer.value) if edited else None,
        value=thaw(answer.value) if request.kind is RequestKind.EXTERNAL else None,
        child_end=_read_end(request, answer),
    )


def _read_end(request: Request, answer: AnswerRecord) -> ChildEnd | None:
    if request.child is None:
        return None
    try:
        return answer.child_end()
    except ValidationError:
        return None
