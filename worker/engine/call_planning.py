"""Planning of a step's tool calls: adopts what is journaled of them, and binds those that are still to run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Final, assert_never

from ..concurrency.fibers import bounded
from ..hooks import HookPoint
from ..recent import Recent
from ..redaction import describe_exception, redact
from ..state.execution.execution import ExecutionState
from ..state.execution.steps import StepExecution
from ..state.execution.tool_calls import ToolCall, ToolExecution, ToolOutcome
from ..state.values.canonical import canonical_digest, is_same_json
from ..state.values.error_info import ErrorInfo
from ..tools.arguments import InvalidArguments
from ..tools.identity import idempotency_key
from ..tools.stop import StopExecution
from .asked_calls import (
    Finished,
    ReadyToRun,
    StillOpen,
    adopt_result,
    classify_call,
    has_later_result,
    has_outside_result,
    is_superseded,
    record_impossible,
)
from .call_records import (
    MOST_REASON_CHARS,
    CallTimes,
    PlannedCall,
    RequestedCall,
    limit_execution,
    record_known,
    record_stopped,
    run_hooks_after,
)
from .child_calls import find_open_child
from .decisions import CallDecision
from .run import Run
from .run_values import CallRecord
from .services import EngineServices


class CallPlanner:
    """Turns the calls that an answer asks for into planned calls."""

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self._recorded = RecordedResults()

    def adopt_results(self, run: Run) -> Run:
        """Adopt the journaled results; those that only say how a call was started are kept apart.

        Raises:
            StateUnreadable: One of them is damaged.
        """
        superseded: dict[int, bytes] = {}
        for index, raw in sorted(run.journal.results.items()):
            if index in run.obtained.records or index in run.obtained.started:
                continue
            record = CallRecord.from_journal(index, raw)
            if is_superseded(run, index, record):
                superseded[index] = raw
            else:
                run = adopt_result(run, index, record)
        return self._drop_results(run, superseded) if superseded else run

    def _drop_results(self, run: Run, results: Mapping[int, bytes]) -> Run:
        steps = self._services.store.steps
        self._services.ask_store(run, lambda: steps.drop_results(run.claim, results), "a call")
        return run.with_journal(run.journal.without_results(results))

    def plan(self, run: Run) -> tuple[Run, list[PlannedCall]]:
        """Bind the calls that have no result; a call that cannot run becomes an error for the model.

        Raises:
            StopExecution: A hook before a call ends the execution.
            Exception: Any other exception of a hook before a call.
        """
        assert run.obtained.response is not None
        planned: list[PlannedCall] = []
        limit = self._services.settings.max_calls
        for index, call in enumerate(run.obtained.response.tool_calls):
            if index in run.obtained.records:
                continue
            ready = self._plan_call(run, index, call) if index < limit else self._refuse_surplus(run, index, call)
            if isinstance(ready, PlannedCall):
                ready = self._recorded.find(run, ready) or ready
            if isinstance(ready, CallRecord):
                run = run.with_record(index, ready)
            elif ready is not None and not repeats_one_of(ready, planned):  # a repetition gets the first one's record
                planned.append(ready)
        return run, planned

    def record_without_running(self, run: Run) -> Run:
        """Record the calls without a result as answered or as not run: nothing may begin.

        Calls whose children have not ended are left out.
        """
        assert run.obtained.response is not None
        for index, call in enumerate(run.obtained.response.tool_calls):
            if index not in run.obtained.records and not self._has_open_child(run, index):
                run = run.with_record(index, self._record_stopped(run, index, call))
        return run

    def _has_open_child(self, run: Run, index: int) -> bool:
        """Whether a child of the call was asked to stop and has not ended."""
        rounds = run.journal.requests.get(index)
        return bool(rounds) and find_open_child(run, rounds[-1]) is not None and rounds[-1].child is not None

    def _record_stopped(self, run: Run, index: int, call: ToolCall) -> CallRecord:
        standing = classify_call(run, index, self._services.settings)
        match standing:
            case Finished(record):
                return record
            case ReadyToRun(approved):
                call = approved
            case None | StillOpen():
                pass
            case _ as never:
                assert_never(never)
        requested = RequestedCall(index=index, call=call)
        return record_stopped(run, requested, self._services.redis_ms(run), run.journal.begun.get(index))

    def _plan_call(self, run: Run, index: int, call: ToolCall) -> PlannedCall | CallRecord | None:
        """Plan a call; None if it still waits and needs no action."""
        standing = classify_call(run, index, self._services.settings)
        match standing:
            case None:
                return self._plan_new_call(run, index, call)
            case Finished(record):
                if not has_outside_result(run, index):
                    return record
                return run_hooks_after(run, record, self._services.settings)
            case ReadyToRun(approved):
                return self._bind(run, RequestedCall(index=index, call=approved))
            case StillOpen(request):
                # A crash may have come before the call was started; its effect class decides what happens now.
                was_started = index in run.obtained.started or index in run.journal.started_calls
                if was_started or index not in run.journal.begun or not has_later_result(run, index):
                    return None
                asked = ToolCall(id=request.call_id, name=request.tool, args=request.args)
                return self._bind(run, RequestedCall(index=index, call=asked))
            case _ as never:
                assert_never(never)

    def _plan_new_call(self, run: Run, index: int, call: ToolCall) -> PlannedCall | CallRecord:
        """Plan a call that has asked for nothing; the hooks before it run, unless its decision is journaled."""
        decided = run.journal.decisions.get(index)
        if decided is not None:
            return self._bind(run, RequestedCall(index=index, call=CallDecision.from_journal(index, decided).call))
        if run.agent.hook_stack.at(HookPoint.BEFORE_TOOL):
            context = run.hook_context(HookPoint.BEFORE_TOOL, run.state, tool_call=call, response=run.obtained.response)
            context = run.agent.hook_stack.run(context)
            if context.stop_signals:
                raise StopExecution.of(context.stop_signals[0])
            settings, changed = self._services.settings, context.tool_call or call
            if changed is not call and len(changed.to_json()) > settings.max_answer_bytes:
                advice = f"more than {settings.max_answer_bytes} bytes (CELERY_AGENTS_MAX_ANSWER_BYTES)"
                why = f"A hook gave the call arguments of {advice}."
                return self._refuse(run, RequestedCall(index=index, call=call), "invalid_arguments", why)
            call = changed
            if context.tool_execution is not None and context.blocked is None:
                requested = RequestedCall(index=index, call=call)
                return record_known(run, requested, limit_execution(run, context.tool_execution, settings))
            if context.blocked is not None:
                why = ErrorInfo(kind="blocked", message=redact(context.blocked)[:MOST_REASON_CHARS])
                requested = RequestedCall(index=index, call=call)
                return record_impossible(run, requested, ToolOutcome.BLOCKED, why, self._times_now(run))
        return self._bind(run, RequestedCall(index=index, call=call))

    def _bind(self, run: Run, requested: RequestedCall) -> PlannedCall | CallRecord:
        index, call = requested.index, requested.call
        assert run.obtained.response is not None
        tool = run.agent.toolset.of_answer(run.obtained.response).get(call.name)
        if tool is None:
            names = ", ".join(run.agent.toolset.names()) or "none"
            message = redact(f"There is no tool {call.name!r:.100}. Tools: {names}.")
            return self._refuse(run, requested, "unknown_tool", message)
        try:
            bound = bounded(tool.bind, call.args)
        except InvalidArguments as error:
            return self._refuse(run, requested, "invalid_arguments", redact(str(error)))
        except Exception as error:  # noqa: BLE001 - a check of the tool's own
            return self._refuse(run, requested, "invalid_arguments", describe_exception(error).message)
        key = idempotency_key(run.ref.execution_id, run.ref.step, index, call.name, call.args)
        seconds = tool.timeout or run.agent.tool_timeout or self._services.settings.tool_timeout_seconds
        timeout = min(seconds, self._services.keeper.call_timeout(run.lease))
        return PlannedCall(index=index, call=call, tool=tool, bound=bound, key=key, timeout=timeout)

    def _refuse_surplus(self, run: Run, index: int, call: ToolCall) -> CallRecord:
        """Refuse a call beyond the limit; the model reads that it did not run."""
        limit = self._services.settings.max_calls
        message = f"Not run: one answer may hold {limit} calls. Ask for the others in the next step."
        return self._refuse(run, RequestedCall(index=index, call=call), "too_many_calls", message)

    def _refuse(self, run: Run, requested: RequestedCall, kind: str, message: str) -> CallRecord:
        error = ErrorInfo(kind=kind, message=message)
        return record_impossible(run, requested, ToolOutcome.ERROR, error, self._times_now(run))

    def _times_now(self, run: Run) -> CallTimes:
        return CallTimes.at(self._services.redis_ms(run))


_CACHED_EXECUTIONS: Final = 64


class RecordedResults:
    """Finds the recorded results of idempotent tools.

    It keeps an index of the last executions it was asked about, so that a call does not walk over all steps; what it
    forgets it reads again from the state.
    """

    def __init__(self) -> None:
        self._indexes = Recent[str, _Index](_CACHED_EXECUTIONS)
        self._lock = Lock()

    def find(self, run: Run, planned: PlannedCall) -> CallRecord | None:
        """The record of a call whose result is known already; None where the tool has to run."""
        if not is_idempotent(planned):
            return None
        found = _in_this_step(run, planned) or self._in_earlier_steps(run.execution, planned)
        return None if found is None else record_known(run, planned, found)

    def _in_earlier_steps(self, execution: ExecutionState, planned: PlannedCall) -> ToolExecution | None:
        with self._lock:
            index = self._indexes.get(execution.execution_id)
            if index is None or not index.is_beginning_of(execution.step_executions):
                index = self._indexes.put(execution.execution_id, _Index())
            index.read(execution.step_executions)
            return index.results.get(_key(planned.call))


class _Index:
    """The successful calls of the first steps of an execution, the newest of equal ones."""

    def __init__(self) -> None:
        self.results: dict[str, ToolExecution] = {}
        self._read = 0
        self._last: StepExecution | None = None

    def is_beginning_of(self, steps: Sequence[StepExecution]) -> bool:
        """Tell whether the steps that were read are the first ones of these."""
        if self._last is None:
            return True
        return len(steps) >= self._read and steps[self._read - 1].claim == self._last.claim

    def read(self, steps: Sequence[StepExecution]) -> None:
        """Read the steps that are new."""
        for each in steps[self._read :]:
            for execution in each.step.tool_executions:
                if execution.outcome is ToolOutcome.OK:
                    self.results[_key(execution.tool_call)] = execution
            self._last = each
        self._read = len(steps)


def is_idempotent(planned: PlannedCall) -> bool:
    """Tell whether a recorded result of the call's tool may be given again; tools of other kinds may not say."""
    return bool(getattr(planned.tool, "idempotent", False))


def repeats_one_of(planned: PlannedCall, others: Iterable[PlannedCall]) -> bool:
    """Tell whether the result of one of these calls will be that of this call, too."""
    if not is_idempotent(planned):
        return False
    return any(_is_same(planned.call, each.call) for each in others)


def _in_this_step(run: Run, planned: PlannedCall) -> ToolExecution | None:
    executions = (run.obtained.records[index].execution for index in sorted(run.obtained.records))
    return next((each for each in executions if _is_same(each.tool_call, planned.call)), None)


def _is_same(one: ToolCall, other: ToolCall) -> bool:
    return one.name == other.name and is_same_json(one.args, other.args)


def _key(call: ToolCall) -> str:
    return canonical_digest([call.name, call.args])
