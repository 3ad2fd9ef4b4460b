"""Making tool calls: where the step runs, in threads beside it, or on the loop. What they raise becomes a record."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, cast

from .. import crash_points
from ..concurrency import fibers
from ..concurrency.event_loop import EventLoopThread, Exited
from ..concurrency.tool_threads import Threads
from ..errors import StoreFull, StoreUnavailable
from ..hooks import HookPoint
from ..redaction import describe_exception, redact
from ..state import ErrorInfo, StopSignal, ToolOutcome
from ..store import Store
from ..tools import LookupResult, StopExecution, ToolContext, UnusableResult, to_json_value
from .call_records import PlannedCall, hook_context, not_run, record, unknown, with_record
from .leases import Interruption, LeaseKeeper
from .run import CallRecord, Run, moment

_Future = concurrent.futures.Future[Any]

# How often the calls in flight are looked at while nothing ends, and while an interruption waits to be obeyed.
_LOOK_SECONDS: Final = 1.0
_LOOK_AGAIN_SECONDS: Final = 0.2
# After its deadline an async call has this long to end by its cancellation.
_LATE_SECONDS: Final = 0.5


class ToolCallRunner:
    """Runs the calls of one batch and journals what came of them."""

    def __init__(
        self,
        store: Store,
        keeper: LeaseKeeper,
        loop: EventLoopThread,
        threads: Threads,
        *,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._keeper = keeper
        self._loop = loop
        self._threads = threads
        self._monotonic = monotonic

    def make(self, run: Run, going: Sequence[PlannedCall], *, is_final: bool) -> Run:
        """Run the calls; results are journaled as they end, of the final batch the last one by the commit."""
        if not going:
            return run
        if len(going) == 1 and not going[0].tool.is_async:
            return self._ended(run, going[0], self._call_here(run, going[0]), with_commit=is_final)
        return self._side_by_side(run, going, is_final=is_final)

    def look_up(self, run: Run, each: PlannedCall) -> LookupResult:
        """Ask a tool whether the effect of an earlier attempt happened."""
        lookup = each.tool.lookup
        assert lookup is not None
        answer = fibers.run_in_thread(lookup, each.key, self._context(run, each))
        if isinstance(answer, LookupResult):
            return answer
        return fibers.result(self._loop.submit(lambda: answer, each.timeout))

    def _call_here(self, run: Run, each: PlannedCall) -> CallRecord:
        """A single plain function runs in the step's own thread.

        One that takes too long has its outcome journaled in its absence, and its claim is given back: another worker
        goes on from there, and what the function returns one day counts for nothing.
        """
        held, started_ms = run.held, self._now_ms(run)
        late = f"no result within {each.timeout:g} s"

        def give_up() -> None:
            self._store.steps.record_results(
                run.claim, {each.index: self._too_late(run, each, late, started_ms).to_json()}
            )

        held.given_up = give_up
        held.call_ends = self._monotonic() + each.timeout
        held.stuck_since = self._monotonic()
        try:
            context = self._context(run, each)
            return self._made(run, each, lambda: fibers.run_in_thread(each.tool.call, context, each.bound), started_ms)
        finally:
            held.call_ended()

    def _side_by_side(self, run: Run, going: Sequence[PlannedCall], *, is_final: bool) -> Run:
        started_ms, began = self._now_ms(run), self._monotonic()
        futures: dict[_Future, PlannedCall] = {self._start(run, each): each for each in going}
        for future in futures:
            run.held.on_interrupt(future.cancel)
        waiting = set(futures)
        ends = {future: began + each.timeout + _LATE_SECONDS for future, each in futures.items()}
        while waiting:
            done, waiting = self._threads.wait(waiting, self._patience(run, min(ends[future] for future in waiting)))
            for future in sorted(done, key=lambda ended: futures[ended].index):
                each = futures[future]
                made = self._made(run, each, future.result, started_ms)
                run = self._noted(run, each, made, with_commit=is_final and not waiting)
            now = self._monotonic()
            ended = not done and run.held.interruption is not None
            left = {future for future in waiting if ended or now >= ends[future]}
            run = self._left_behind(run, {future: futures[future] for future in left}, started_ms)
            waiting -= left
        return run

    def _patience(self, run: Run, ends: float) -> float:
        if run.held.interruption is not None:
            return _LOOK_AGAIN_SECONDS
        return max(0.05, min(_LOOK_SECONDS, ends - self._monotonic()))

    def _start(self, run: Run, each: PlannedCall) -> _Future:
        context = self._context(run, each)
        if each.tool.is_async:
            return self._loop.submit(lambda: cast("Awaitable[Any]", each.tool.call(context, each.bound)), each.timeout)
        return self._threads.submit(each.tool.call, context, each.bound)

    def _made(self, run: Run, each: PlannedCall, call: Callable[[], Any], started_ms: int) -> CallRecord:
        """What came of a call, whatever it raised."""
        signal: StopSignal | None = None
        try:
            returned = call()
        except StopExecution as stop:
            returned, signal = stop.result, _signal_of(stop, each)
        except concurrent.futures.CancelledError:
            return self._cut_short(run, each, "the call was cancelled", started_ms)
        except TimeoutError as error:
            if each.tool.is_async and not str(error):
                return self._cut_short(run, each, f"no result within {each.timeout:g} s", started_ms)
            return self._failed(run, each, describe_exception(error), started_ms)
        except (Exception, SystemExit, GeneratorExit) as error:  # noqa: BLE001 - the tool's own code
            raised = error.__cause__ if isinstance(error, Exited) else None
            return self._failed(run, each, describe_exception(raised or error), started_ms)
        try:
            value = to_json_value(returned, each.tool.max_result_chars)
        except UnusableResult as error:
            problem = ErrorInfo(kind="unusable_result", message=f"the tool has run, but {error}")
            failed = self._failed(run, each, problem, started_ms)
            return CallRecord(execution=failed.execution, signal=signal)
        made = record(run, self._now_ms(run), each.index, each.call, ToolOutcome.OK, value, started_ms=started_ms)
        return CallRecord(execution=made.execution, signal=signal)

    def _failed(self, run: Run, each: PlannedCall, error: ErrorInfo, started_ms: int) -> CallRecord:
        now_ms = self._now_ms(run)
        return record(run, now_ms, each.index, each.call, ToolOutcome.ERROR, error=error, started_ms=started_ms)

    def _cut_short(self, run: Run, each: PlannedCall, why: str, started_ms: int) -> CallRecord:
        """Ended in the middle, by an interruption or because it took too long."""
        if each.is_pure and run.held.interruption is not None:
            return not_run(run, self._now_ms(run), each)
        return self._too_late(run, each, why, started_ms)

    def _too_late(self, run: Run, each: PlannedCall, why: str, started_ms: int) -> CallRecord:
        """Of an effect nobody knows whether it happened."""
        if not each.is_pure:
            return unknown(run, self._now_ms(run), each, why, started_ms)
        return self._failed(run, each, ErrorInfo(kind="timeout", message=why), started_ms)

    def _left_behind(self, run: Run, rest: Mapping[_Future, PlannedCall], started_ms: int) -> Run:
        """Plain functions that do not end: their threads go on, their results count for nothing."""
        for future, each in sorted(rest.items(), key=lambda item: item[1].index):
            if not each.tool.is_async:
                self._keeper.abandon(future)
            made = self._cut_short(run, each, f"no result within {each.timeout:g} s", started_ms)
            run = self._noted(run, each, made, with_commit=False)
        return run

    def _noted(self, run: Run, each: PlannedCall, made: CallRecord, *, with_commit: bool) -> Run:
        """A call that was cut short for another worker to finish has not ended: its begin record is all it leaves."""
        cut_short = made.execution.outcome in (ToolOutcome.UNKNOWN, ToolOutcome.NOT_RUN)
        if cut_short and run.held.interruption not in (None, Interruption.CANCEL, Interruption.LIMIT):
            return run.changed(unfinished=True)
        return self._ended(run, each, made, with_commit=with_commit)

    def _ended(self, run: Run, each: PlannedCall, made: CallRecord, *, with_commit: bool) -> Run:
        """Journal the result now, or let the commit do it."""
        crash_points.at("c5")
        if run.agent.hook_stack.at(HookPoint.AFTER_TOOL):
            context = hook_context(run, HookPoint.AFTER_TOOL, made.execution.tool_call)
            shaped = run.agent.hook_stack.run(context.changed(tool_execution=made.execution)).tool_execution
            made = CallRecord(execution=shaped or made.execution, signal=made.signal)
        run = with_record(run, each.index, made)
        if each.is_pure:
            return run
        run = run.changed(unjournaled=run.unjournaled.with_record(each.index, made))
        if with_commit:
            return run
        try:
            self._store.steps.record_results(run.claim, run.unjournaled)
            return run.journaled()
        except (StoreFull, StoreUnavailable):
            return run  # the commit tries again, as long as the step may live

    def _context(self, run: Run, each: PlannedCall) -> ToolContext:
        held = run.held
        return ToolContext(
            session_id=run.ref.session_id,
            execution_id=run.ref.execution_id,
            step=run.ref.step,
            index=each.index,
            idempotency_key=each.key,
            deadline=moment(self._now_ms(run)) + timedelta(seconds=each.timeout),
            cancelled=lambda: held.interruption is not None,
            ask=lambda key, request: run.ask_model(f"t{each.index}.{key}", request),
        )

    def _now_ms(self, run: Run) -> int:
        return run.redis_ms(self._monotonic())


def _signal_of(stop: StopExecution, each: PlannedCall) -> StopSignal:
    signal = stop.signal
    return StopSignal(
        reason=signal.reason, message=redact(signal.message), context=signal.context, source=each.call.name
    )
