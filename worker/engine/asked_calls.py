"""Tool calls that have made requests: what follows for them from the journaled answers.

These are functions of the journal alone, so that every leg of a step comes to the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, assert_never, cast

from ...config.settings import Settings
from ..errors import StateUnreadable
from ..moments import moment
from ..redaction import redact
from ..state.execution.answers import AnswerRecord, AnswerVerb
from ..state.execution.requests import Request, RequestKind
from ..state.execution.tool_calls import ToolCall, ToolOutcome
from ..state.values.error_info import ErrorInfo
from ..state.values.frozen import FrozenDict, thaw
from ..tools.replies import Memo, Reply
from .call_records import (
    CallTimes,
    RequestedCall,
    record_call,
    record_elsewhere,
    record_error,
    record_not_run,
    record_unknown,
    record_value,
)
from .child_calls import find_open_child, is_delegated, record_child
from .run import Run
from .run_values import CallRecord

TIMER: Final = "wait_until"
"""The option of an approval that the clock gives: its expiry approves, and the call continues."""


MEMO: Final = "memo"
"""The option in which a call leaves JSON for its next run."""


@dataclass(frozen=True, slots=True)
class StillOpen:
    """The call's newest request has no answer."""

    request: Request


@dataclass(frozen=True, slots=True)
class ReadyToRun:
    """The call may run, with the arguments that were approved."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class Finished:
    """The call does not run any more; this is its record."""

    record: CallRecord


AskedCall = StillOpen | ReadyToRun | Finished


def classify_call(run: Run, index: int, settings: Settings) -> AskedCall | None:
    """Classify a tool call by its newest request; None if it never made one.

    Raises:
        StateUnreadable: The journal names a further request that it does not hold.
    """
    rounds = run.journal.requests.get(index)
    if not rounds:
        return None
    request = rounds[-1]
    if request.child is not None:
        return _classify_child(run, request, settings)
    answer = run.journal.answer_to(request)
    return StillOpen(request) if answer is None else _classify_answered(run, request, answer, settings)


def _classify_answered(run: Run, request: Request, answer: AnswerRecord, settings: Settings) -> AskedCall:
    index = request.index
    if answer.verb is AnswerVerb.PASS_ON:
        raise StateUnreadable(f"journal t{index}:q{request.round + 1}", "the request was passed on and is not there")
    requested = RequestedCall(index=index, call=read_call(request))
    if request.kind is RequestKind.EXTERNAL:
        return Finished(_record_external(run, requested, request, answer, settings))
    if answer.verb is AnswerVerb.CANCEL:
        if request.has_begun:
            return Finished(record_elsewhere(run, requested, CallTimes(request.asked_at_ms, answer.at_ms)))
        return Finished(record_not_run(run, requested, answer.at_ms, answer.reason))
    if answer.verb is AnswerVerb.FAIL or (answer.verb is AnswerVerb.DENY and request.kind is RequestKind.APPROVAL):
        return Finished(_record_denied(run, requested, request, answer))
    return ReadyToRun(read_call(request, answer))


def _classify_child(run: Run, request: Request, settings: Settings) -> AskedCall:
    """Classify a call by its children: it runs, or has its result, when all of them have ended."""
    still_open = find_open_child(run, request)
    if still_open is not None:
        return StillOpen(still_open)
    answer = run.journal.answer_to(request)
    assert answer is not None
    if not is_delegated(run, request.index):
        return ReadyToRun(read_call(request))
    requested = RequestedCall(index=request.index, call=read_call(request))
    return Finished(record_child(run, requested, request, answer, settings))


def read_call(request: Request, answer: AnswerRecord | None = None) -> ToolCall:
    """The call of a request, with the arguments that were approved where they were edited."""
    edited = answer.value if answer is not None and answer.verb is AnswerVerb.APPROVE else None
    args = edited if isinstance(edited, FrozenDict) else request.args
    return ToolCall(id=request.call_id, name=request.tool, args=args)


def is_timer(request: Request) -> bool:
    """Whether the request only waits for a time."""
    return _read_option(request, TIMER) is not None


def read_memo(request: Request) -> Any:
    """The JSON that the call has left for its next run; None for nothing."""
    return _read_option(request, MEMO)


def has_begun_elsewhere(run: Run, index: int) -> bool:
    """Whether the effect of a call continues elsewhere, so that running the call again only looks for its end."""
    rounds = run.journal.requests.get(index)
    return bool(rounds) and rounds[-1].has_begun


def may_have_begun(run: Run, index: int) -> bool:
    """Whether an earlier run of a call with effects has begun, so that its effect may have happened."""
    return index in run.journal.begun or has_begun_elsewhere(run, index)


def _read_option(request: Request, name: str) -> Any:
    options: object = request.options
    return cast("Mapping[str, Any]", options).get(name) if isinstance(options, Mapping) else None


def record_impossible(
    run: Run, requested: RequestedCall, outcome: ToolOutcome, error: ErrorInfo, times: CallTimes
) -> CallRecord:
    """Record a call that cannot be made: unknown, where a worker that is lost had begun it."""
    if may_have_begun(run, requested.index):
        why = f"a worker ended during the call, and the next one cannot make it again ({error.kind})"
        return record_unknown(run, requested, why, times)
    return record_call(run, requested, outcome, times, error=error)


def has_later_result(run: Run, index: int) -> bool:
    """Whether the call was declared with a later result; its journaled result then says only how it was started.

    False for a call that has run and has said then that its result comes later.
    """
    rounds = run.journal.requests.get(index)
    return bool(rounds) and rounds[-1].kind is RequestKind.EXTERNAL and not rounds[-1].has_begun


def adopt_result(run: Run, index: int, record: CallRecord) -> Run:
    """Adopt the journaled result of a call, or the record of how it was started."""
    return run.with_started(index, record) if has_later_result(run, index) else run.with_record(index, record)


def has_outside_result(run: Run, index: int) -> bool:
    """Whether the result of this call follows from an answer: that of a service, or the end of a child."""
    rounds = run.journal.requests.get(index)
    return (bool(rounds) and rounds[-1].kind is RequestKind.EXTERNAL) or is_delegated(run, index)


def read_replies(run: Run, index: int) -> tuple[Reply, ...]:
    """The replies that a call has received, oldest first, without those of the clock and of closed rounds."""
    answered = _find_answers(run, index)
    return tuple(_make_reply(request, answer) for request, answer in answered if not is_timer(request))


def read_memos(run: Run, index: int) -> tuple[Memo, ...]:
    """The memos that a call has left for itself, oldest first, with the replies to what it asked."""
    return tuple(
        Memo(thaw(read_memo(request)), None if is_timer(request) else _make_reply(request, answer))
        for request, answer in _find_answers(run, index)
        if read_memo(request) is not None
    )


def _find_answers(run: Run, index: int) -> list[tuple[Request, AnswerRecord]]:
    """The requests of a call that were answered and not closed otherwise, oldest first, without those of children."""
    found: list[tuple[Request, AnswerRecord]] = []
    for request in run.journal.requests.get(index, ()):
        answer = run.journal.answer_to(request)
        if answer is None or request.child is not None or answer.verb in (AnswerVerb.PASS_ON, AnswerVerb.CANCEL):
            continue
        found.append((request, answer))
    return found


def _make_reply(request: Request, answer: AnswerRecord) -> Reply:
    return Reply(
        kind=request.kind,
        value=answer.value if answer.verb is AnswerVerb.ANSWER else None,
        refusal=_refusal(request, answer) if answer.verb is AnswerVerb.DENY else None,
        by=answer.by,
        note=answer.note,
        at=moment(answer.at_ms),
        schema=request.answer_schema or FrozenDict(),
    )


def count_past_timers(run: Run, index: int) -> int:
    """How many waits for a time of this call are over."""
    rounds = run.journal.requests.get(index, ())
    return sum(is_timer(each) and run.journal.answer_to(each) is not None for each in rounds)


def is_superseded(run: Run, index: int, record: CallRecord) -> bool:
    """Whether a call has asked since this run of it began and failed: a worker that was paused has journaled it late.

    The call runs from its start when its request is answered. The result of a run that did not fail always counts.
    """
    rounds = run.journal.requests.get(index, ())
    if not rounds or record.execution.outcome is ToolOutcome.OK or has_later_result(run, index):
        return False
    return record.execution.started_at < moment(rounds[-1].asked_at_ms)


def find_expiry_failure(run: Run) -> ErrorInfo | None:
    """The error of an expired request that fails the execution; None without one."""
    for request in run.journal.all_requests:
        answer = run.journal.answer_to(request)
        if answer is not None and answer.verb is AnswerVerb.FAIL and answer.by_expiry:
            return ErrorInfo(kind="request_expired", message=answer.reason)
    return None


def _record_denied(run: Run, requested: RequestedCall, request: Request, answer: AnswerRecord) -> CallRecord:
    why = ErrorInfo(kind="expired" if answer.by_expiry else "denied", message=_refusal(request, answer))
    times = CallTimes(request.asked_at_ms, answer.at_ms)
    return record_call(run, requested, ToolOutcome.BLOCKED, times, error=why)


def _refusal(request: Request, answer: AnswerRecord) -> str:
    """The reason of a denial, for the model."""
    if answer.by_expiry:
        what = "approved the call" if request.kind is RequestKind.APPROVAL else "answered"
        return f"Nobody {what} in time."
    what = "The call was denied" if request.kind is RequestKind.APPROVAL else "The person did not answer"
    return redact(f"{what}: {answer.reason}" if answer.reason else f"{what}.")


def _record_external(
    run: Run, requested: RequestedCall, request: Request, answer: AnswerRecord, settings: Settings
) -> CallRecord:
    times = CallTimes(request.asked_at_ms, answer.at_ms)
    match answer.verb:
        case AnswerVerb.COMPLETE:
            return record_value(run, requested, answer.value, times, settings, "the result came")
        case AnswerVerb.CANCEL:
            if request.has_begun or request.index in run.journal.begun or request.index in run.obtained.started:
                return record_unknown(run, requested, "the execution was ended before the result came", times)
            return record_not_run(run, requested, answer.at_ms)
        case AnswerVerb.DENY:
            return record_error(run, requested, ErrorInfo(kind="expired", message="No result came in time."), times)
        case AnswerVerb.FAIL | AnswerVerb.APPROVE | AnswerVerb.ANSWER | AnswerVerb.PASS_ON:
            return _record_failed_external(run, requested, answer, times)
        case _ as never:
            assert_never(never)


def _record_failed_external(run: Run, requested: RequestedCall, answer: AnswerRecord, times: CallTimes) -> CallRecord:
    """Record a failure that the service reported, or the way in which the call could not be started."""
    if answer.operation_id or answer.by_expiry:
        message = redact(answer.reason) or "the service reported a failure"
        return record_error(run, requested, ErrorInfo(kind="external", message=message), times)
    if answer.value == ToolOutcome.ERROR.value:
        return record_error(run, requested, ErrorInfo(kind="not_started", message=answer.reason), times)
    return record_unknown(run, requested, answer.reason, times)
