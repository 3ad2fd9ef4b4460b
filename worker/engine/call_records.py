"""Records of tool calls: what the journal and the step keep of a call, and the model sees."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...config.settings import Settings
from ..flow.concurrency import limits_of_tool
from ..hooks import HookPoint
from ..known_secrets import redact_known, redact_known_in
from ..moments import moment
from ..state.execution.tool_calls import ToolCall, ToolExecution, ToolOutcome
from ..state.values.error_info import ErrorInfo
from ..state.values.frozen import FrozenDict, freeze, thaw
from ..state.values.ids import ToolExecutionId
from ..store.journal import BeginRecord
from ..tools.approval import Approval, LaterResult
from ..tools.effect import Effect
from ..tools.protocol import Tool
from ..tools.results import DEFAULT_MAX_RESULT_CHARS, UnusableResult, to_json_value
from .run import Run
from .run_values import CallRecord

log = logging.getLogger(__name__)

MOST_REASON_CHARS: Final = 4_000
"""Of the reason by which a hook blocks a call, and of the error that a hook gives it."""
_MARKER_CHARS: Final = 200
_KIND_CHARS: Final = 64


@dataclass(frozen=True, kw_only=True)
class RequestedCall:
    """A call that an answer asks for.

    Attributes:
        index: Its place among the calls of the answer, from 0.
    """

    index: int
    call: ToolCall


@dataclass(frozen=True, kw_only=True)
class PlannedCall(RequestedCall):
    """A call that may run: bound to its tool, its arguments valid.

    Attributes:
        key: Its idempotency key.
        timeout: Seconds it may take.
    """

    tool: Tool
    bound: Mapping[str, Any]
    key: str
    timeout: float

    @property
    def is_pure(self) -> bool:
        """Whether running it again is free."""
        return self.tool.effect is Effect.PURE

    @property
    def is_sequential(self) -> bool:
        """Whether it may run only while no other call of the answer runs."""
        return getattr(self.tool, "sequential", False)

    @property
    def limited_by(self) -> Sequence[str]:
        """The concurrency limits that its tool names."""
        return limits_of_tool(self.tool)

    @property
    def arguments(self) -> FrozenDict | None:
        """The arguments as a JSON object, which a model may leave out where there are none; None for other text."""
        args = self.call.args
        if isinstance(args, str):
            return None if args.strip() else FrozenDict()
        return args

    @property
    def approval(self) -> Approval:
        """Whether the tool itself wants calls to be approved; a tool of another kind may not say, which is never."""
        return getattr(self.tool, "approval", "never")

    @property
    def later(self) -> LaterResult | None:
        """The terms of a result that a service brings; None for a tool that returns its result."""
        return getattr(self.tool, "later", None)

    @property
    def defers(self) -> bool:
        """Whether the tool may put its result off while it runs."""
        return getattr(self.tool, "defers", False)


@dataclass(frozen=True, slots=True)
class CallTimes:
    """When a call began and ended (Redis ms)."""

    began_ms: int
    ended_ms: int

    @classmethod
    def at(cls, now_ms: int) -> CallTimes:
        """Times of a call that took no time, or did not run."""
        return cls(now_ms, now_ms)


def _result_value(tool: Tool | None, returned: Any, settings: Settings) -> Any:
    """Convert a call's result to the form that is stored: JSON, of bounded size, without secrets of this process.

    Raises:
        UnusableResult: It has no JSON form.
    """
    return to_json_value(
        returned,
        _most_chars(tool, settings),
        limit_bytes=settings.max_result_bytes,
        keeps_secrets=keeps_secrets(tool),
    )


def _most_chars(tool: Tool | None, settings: Settings) -> int:
    """Characters of a result that are kept."""
    chars = DEFAULT_MAX_RESULT_CHARS if tool is None else tool.max_result_chars
    return settings.max_result_chars if chars == DEFAULT_MAX_RESULT_CHARS else chars


def keeps_secrets(tool: Tool | None) -> bool:
    """Whether a tool gives secrets away on purpose."""
    return getattr(tool, "returns_secrets", False)  # no member that a tool of one's own must have


def record_call(
    run: Run,
    requested: RequestedCall,
    outcome: ToolOutcome,
    times: CallTimes,
    *,
    value: Any = None,
    error: ErrorInfo | None = None,
) -> CallRecord:
    """Record what came of a call."""
    execution = ToolExecution(
        id=ToolExecutionId.following(run.ref.execution_id, run.ref.step, requested.index),
        tool_call=requested.call,
        outcome=outcome,
        value=value,
        error=error,
        started_at=moment(times.began_ms),
        completed_at=moment(times.ended_ms),
        index=requested.index,
    )
    return CallRecord(execution=execution)


def record_value(
    run: Run, requested: RequestedCall, value: Any, times: CallTimes, settings: Settings, came: str = "the tool has run"
) -> CallRecord:
    """Record a call that has ended with a value; an error where that has no JSON form.

    Args:
        came: How the value came, for the error.
    """
    tool = requested.tool if isinstance(requested, PlannedCall) else run.agent.toolset.get(requested.call.name)
    try:
        stored = _result_value(tool, value, settings)
    except UnusableResult as error:
        problem = ErrorInfo(kind="unusable_result", message=f"{came}, but {error}")
        return record_error(run, requested, problem, times)
    return record_call(run, requested, ToolOutcome.OK, times, value=stored)


def run_hooks_after(run: Run, record: CallRecord, settings: Settings) -> CallRecord:
    """Run the hooks after a call, which may change its result within the limits of results."""
    stack = run.agent.hook_stack
    if not stack.at(HookPoint.AFTER_TOOL):
        return record
    execution = record.execution
    response = run.obtained.response
    context = run.hook_context(
        HookPoint.AFTER_TOOL, run.state, tool_call=execution.tool_call, tool_execution=execution, response=response
    )
    context = stack.run(context)
    signal = record.signal or next(iter(context.stop_signals), None)
    changed = context.tool_execution or execution
    if changed is not execution:
        try:
            changed = limit_execution(run, changed, settings)
        except UnusableResult as error:  # as what a hook behind a call raises itself
            log.warning("a hook behind a call of session %s: its change is dropped: %s", run.ref.session_id, error)
            changed = execution
    return CallRecord(execution=changed, signal=signal)


def limit_execution(run: Run, made: ToolExecution, settings: Settings) -> ToolExecution:
    """The record of a call that a hook has made, within the limits of results and errors, and without secrets."""
    tool = run.agent.toolset.get(made.tool_call.name)
    value = _limit_value(tool, made.value, settings)
    if not keeps_secrets(tool):
        clean = redact_known_in(value)
        value = value if clean == thaw(value) else freeze(clean)
    error = _limit_error(made.error)
    return made if value is made.value and error is made.error else made.with_outcome_of(value, error)


def _limit_value(tool: Tool | None, value: Any, settings: Settings) -> Any:
    """The value that a hook gives for a result, cut as a result is; one that was cut before stays as it is."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    chars = _most_chars(tool, settings) + _MARKER_CHARS
    is_small = len(text) <= chars and len(text.encode()) <= settings.max_result_bytes + _MARKER_CHARS
    return value if is_small else _result_value(tool, value, settings)


def _limit_error(error: ErrorInfo | None) -> ErrorInfo | None:
    if error is None:
        return None
    details = to_json_value(dict(error.details), MOST_REASON_CHARS)
    changes: dict[str, Any] = {
        "kind": redact_known(error.kind)[:_KIND_CHARS],
        "message": redact_known(error.message)[:MOST_REASON_CHARS],
        "details": details if isinstance(details, Mapping) else {"beginning": details},
    }
    limited = error.model_copy(update=changes)
    return error if limited == error else limited


def record_known(run: Run, requested: RequestedCall, known: ToolExecution) -> CallRecord:
    """Record a call whose result a hook knows already: the tool does not run."""
    record = record_call(
        run, requested, known.outcome, CallTimes.at(run.claim.now_ms), value=known.value, error=known.error
    )
    return CallRecord(execution=record.execution.as_cache_hit())


def record_error(run: Run, requested: RequestedCall, error: ErrorInfo, times: CallTimes) -> CallRecord:
    """Record a call that failed, or that cannot run; the error's message is for the model."""
    return record_call(run, requested, ToolOutcome.ERROR, times, error=error)


def record_not_run(run: Run, requested: RequestedCall, now_ms: int, why: str = "") -> CallRecord:
    """Record a call that did not run.

    Args:
        why: For the model; "" where the execution ends.
    """
    error = ErrorInfo(kind="not_run", message=why) if why else None
    return record_call(run, requested, ToolOutcome.NOT_RUN, CallTimes.at(now_ms), error=error)


def record_unknown(run: Run, requested: RequestedCall, why: str, times: CallTimes) -> CallRecord:
    """Record a call of which it is unknown whether its effect happened."""
    error = ErrorInfo(kind="unknown", message=why)
    return record_call(run, requested, ToolOutcome.UNKNOWN, times, error=error)


def record_elsewhere(run: Run, requested: RequestedCall, times: CallTimes) -> CallRecord:
    """Record a call that continues elsewhere, of an execution that ends: the end of the call stays unknown."""
    return record_unknown(run, requested, "the execution was ended while the call went on elsewhere", times)


def record_stopped(run: Run, requested: RequestedCall, now_ms: int, begun: BeginRecord | None) -> CallRecord:
    """Record a call of an execution that ends: not run, or of unknown outcome where an effect may have begun."""
    if begun is None:
        return record_not_run(run, requested, now_ms)
    return record_unknown(run, requested, "the execution was ended during the call", CallTimes.at(now_ms))
