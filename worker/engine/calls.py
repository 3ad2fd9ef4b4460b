"""The tool calls of a step: each begun at most as its effect class allows, each result journaled.

`pure` calls have no record: running one again is free. Of the others a record says that the call begins before it does,
and its result follows when it has ended; the last results may travel with the commit.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from ...config.settings import Settings
from .. import crash_points
from ..errors import ClaimLost, StoreFull
from ..hooks import HookContext, HookPoint
from ..redaction import describe_exception, redact
from ..state import ErrorInfo, StopSignal, ToolCall, ToolExecution, ToolExecutionId, ToolOutcome
from ..store import Begun, StepStore
from ..tools import (
    Effect,
    InvalidArguments,
    LookupStatus,
    StopExecution,
    Tool,
    ToolContext,
    UnusableResult,
    idempotency_key,
    to_json_value,
)
from .event_loop import EventLoopThread
from .inference import user_stop
from .leases import Interruption, LeaseKeeper
from .outcome import PutOffUntil, TakenOver
from .run import CallRecord, Run, moment
from .tool_threads import Threads

_LOOKUP_AGAIN_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Planned:
    """A call that may be made: bound to its tool, its arguments valid."""

    index: int
    call: ToolCall
    tool: Tool[..., Any]
    bound: Mapping[str, Any]
    key: str
    timeout: float


class Calls:
    """The step's tool calls."""

    def __init__(
        self,
        store: StepStore,
        keeper: LeaseKeeper,
        loop: EventLoopThread,
        settings: Settings,
        threads: Threads,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._keeper = keeper
        self._loop = loop
        self._settings = settings
        self._monotonic = monotonic
        self._threads = threads

    def call(self, run: Run) -> Run:
        """Make the calls that the answer asks for, or adopt what is journaled of them."""
        if run.response is None or not run.response.tool_calls:
            return run
        run = run.changed(records=self._journaled(run))
        planned: list[Planned] = []
        for index, call in enumerate(run.response.tool_calls):
            if index in run.records:
                continue
            ready = self._plan(run, index, call)
            if isinstance(ready, CallRecord):
                run = _with(run, index, ready)
            else:
                planned.append(ready)
        run, fresh = self._after_crash(run, planned)
        width = run.agent.max_parallel_tools or self._settings.max_parallel_tools
        for start in range(0, len(fresh), width):
            if run.decided is not None:
                return run
            run = self._batch(run, fresh[start : start + width])
        return run

    # --- before a call ----------------------------------------------------------------------------------------

    def _journaled(self, run: Run) -> dict[int, CallRecord]:
        return {i: CallRecord.from_json(raw) for i, raw in run.loaded.journal.results.items()}

    def _plan(self, run: Run, index: int, call: ToolCall) -> Planned | CallRecord:
        """Bind the call; what cannot be bound becomes an error that the model can read."""
        tool = run.agent.toolset.get(call.name)
        if tool is None:
            names = ", ".join(run.agent.toolset.names()) or "none"
            return self._refused(run, index, call, "unknown_tool", f"There is no tool {call.name!r}. Tools: {names}.")
        if run.agent.hook_stack.at(HookPoint.BEFORE_TOOL):
            context = run.agent.hook_stack.run(self._hook(run, HookPoint.BEFORE_TOOL, tool_call=call))
            call = context.tool_call or call
            if context.blocked is not None:
                blocked = ErrorInfo(kind="blocked", message=redact(context.blocked))
                return CallRecord(execution=self._execution(run, index, call, ToolOutcome.BLOCKED, error=blocked))
        try:
            bound = tool.bind(call.args)
        except InvalidArguments as error:
            return self._refused(run, index, call, "invalid_arguments", redact(str(error)))
        key = idempotency_key(run.ref.execution_id, run.ref.step, index, call.name, call.args)
        seconds = tool.timeout or run.agent.tool_timeout or self._settings.tool_timeout_seconds
        return Planned(index, call, tool, bound, key, min(seconds, max(0.001, self._keeper.remaining(run.held))))

    def _refused(self, run: Run, index: int, call: ToolCall, kind: str, message: str) -> CallRecord:
        error = ErrorInfo(kind=kind, message=message)
        return CallRecord(execution=self._execution(run, index, call, ToolOutcome.ERROR, error=error))

    def _after_crash(self, run: Run, planned: Sequence[Planned]) -> tuple[Run, list[Planned]]:
        """Calls that an earlier attempt began and did not end, by the class of the tool."""
        fresh: list[Planned] = []
        for each in planned:
            begun = run.loaded.journal.begun.get(each.index)
            if run.forbidden:
                run = _with(run, each.index, self._not_begun(run, each, begun))
            elif begun is None or begun.claim == run.claim.id or each.tool.effect in (Effect.PURE, Effect.KEYED):
                fresh.append(each)
            elif each.tool.effect is Effect.LOOKUP:
                run, again = self._looked_up(run, each, begun)
                fresh += again
            else:
                run = _with(run, each.index, self._unknown(run, each, "a worker ended during the call"))
            if run.decided is not None:
                return run, []
        return run, fresh

    def _not_begun(self, run: Run, each: Planned, begun: Begun | None) -> CallRecord:
        if begun is not None and each.tool.effect is not Effect.PURE:
            return self._unknown(run, each, "the execution was ended during the call")
        return CallRecord(execution=self._execution(run, each.index, each.call, ToolOutcome.NOT_RUN))

    def _unknown(self, run: Run, each: Planned, why: str) -> CallRecord:
        error = ErrorInfo(kind="unknown", message=why)
        return CallRecord(execution=self._execution(run, each.index, each.call, ToolOutcome.UNKNOWN, error=error))

    def _looked_up(self, run: Run, each: Planned, begun: Begun) -> tuple[Run, list[Planned]]:
        """Ask the tool whether the effect happened; "no" is believed only when the call cannot be running any more."""
        lookup = each.tool.lookup
        assert lookup is not None
        try:
            answer: Any = lookup(each.key, self._context(run, each))
            if hasattr(answer, "__await__"):
                answer = self._loop.submit(lambda: answer, each.timeout).result()
        except Exception as error:  # noqa: BLE001 - the tool's own code
            return _with(run, each.index, self._unknown(run, each, describe_exception(error).message)), []
        if answer.status is LookupStatus.HAPPENED:
            value = to_json_value(answer.value, each.tool.max_result_chars)
            return _with(
                run,
                each.index,
                CallRecord(execution=self._execution(run, each.index, each.call, ToolOutcome.OK, value)),
            ), []
        if answer.status is LookupStatus.UNKNOWN:
            return _with(
                run, each.index, self._unknown(run, each, redact(answer.reason) or "its lookup cannot tell")
            ), []
        over_ms = begun.at_ms + begun.timeout_ms + round(self._settings.lookup_margin_seconds * 1000)
        left_ms = over_ms - self._now_ms(run)
        if left_ms <= 0:
            return run, [each]
        seconds = min(left_ms / 1000, _LOOKUP_AGAIN_SECONDS)
        publish = self._store.release(run.claim, delay_ms=round(seconds * 1000), give_back=True)
        waiting = PutOffUntil(run.ref, seconds, f"{each.call.name} may still be running elsewhere", publish)
        return run.changed(decided=waiting), []

    # --- the calls --------------------------------------------------------------------------------------------

    def _batch(self, run: Run, batch: Sequence[Planned]) -> Run:
        run, allowed = self._begin(run, batch)
        if run.decided is not None:
            return run
        for each in batch:
            if each.index not in allowed and each.index not in run.records:
                run = _with(run, each.index, self._not_begun(run, each, None))
        going = [each for each in batch if each.index in allowed]
        if len(going) == 1 and not going[0].tool.is_async:
            return self._ended(run, going[0], self._call_here(run, going[0]), is_last=True)
        return self._side_by_side(run, going)

    def _begin(self, run: Run, batch: Sequence[Planned]) -> tuple[Run, frozenset[int]]:
        """Which calls of the batch may run; the effectful ones are recorded as begun."""
        if not self._may_begin(run):
            return self._after_interruption(run), frozenset()
        pure = frozenset(each.index for each in batch if each.tool.effect is Effect.PURE)
        timeouts = {each.index: round(each.timeout * 1000) for each in batch if each.index not in pure}
        if not timeouts:
            return run, pure
        again = [i for i in timeouts if i in run.loaded.journal.begun]
        try:
            begun = self._store.begin_calls(run.claim, timeouts, self._now_ms(run), again=again)
        except ClaimLost:
            return run.changed(decided=TakenOver(run.ref)), frozenset()
        for index, raw in begun.results.items():
            run = _with(run, index, CallRecord.from_json(raw))
        if begun.cancel is not None:
            return run.stopping(user_stop()), frozenset()
        if begun.others:  # somebody else holds or held this step meanwhile: the journal is read anew by the next claim
            return run.changed(decided=TakenOver(run.ref)), frozenset()
        if not self._keeper.is_fresh(run.held):
            return self._after_interruption(run), frozenset()
        return run, pure | begun.mine

    def _may_begin(self, run: Run) -> bool:
        return not run.forbidden and self._keeper.is_fresh(run.held)

    def _after_interruption(self, run: Run) -> Run:
        """Nothing new begins. A stop commits what there is; otherwise another worker carries the step on."""
        match run.held.interruption:
            case Interruption.CANCEL:
                return run.stopping(user_stop())
            case Interruption.DRAIN:
                publish = self._store.release(run.claim, delay_ms=None, give_back=True)
                return run.changed(decided=PutOffUntil(run.ref, 0.0, "this worker drains", publish))
            case Interruption.DEADLINE:
                publish = self._store.release(run.claim, delay_ms=None, give_back=False)
                return run.changed(decided=PutOffUntil(run.ref, 0.0, "the step reached its deadline", publish))
            case Interruption.LOST | None:
                if self._keeper.confirm(run.held):
                    return run
                return run.changed(decided=TakenOver(run.ref)) if not run.forbidden else run

    def _call_here(self, run: Run, each: Planned) -> CallRecord:
        """A single plain function runs in the step's own thread; one that does not react is given up with its step."""
        run.held.stuck_since = self._monotonic()
        deadline = run.held.deadline
        run.held.deadline = min(deadline, self._monotonic() + each.timeout)
        try:
            return self._made(run, each, lambda: each.tool.call(self._context(run, each), each.bound))
        finally:
            run.held.stuck_since = None
            run.held.deadline = deadline

    def _side_by_side(self, run: Run, going: Sequence[Planned]) -> Run:
        """Run the calls at once; journal each as it ends, the last with the commit."""
        started = {each.index: self._now_ms(run) for each in going}
        futures = {self._start(run, each): each for each in going}
        for future in futures:
            run.held.on_interrupt(future.cancel)
        waiting = set(futures)
        deadline = self._monotonic() + max((each.timeout for each in going), default=0.0)
        while waiting:
            done, waiting = self._threads.wait(
                waiting, 0.2 if run.held.interruption else max(0.05, min(1.0, deadline - self._monotonic()))
            )
            for future in sorted(done, key=lambda f: futures[f].index):
                each = futures[future]
                run = self._ended(run, each, self._result(run, each, future, started[each.index]), is_last=not waiting)
            overdue = self._monotonic() >= deadline + 0.5 or (run.held.interruption is not None and not done)
            if waiting and overdue:
                return self._left_behind(run, [futures[future] for future in waiting])
        if run.held.interruption is not None:
            return self._after_interruption(run)
        return run

    def _start(self, run: Run, each: Planned) -> concurrent.futures.Future[Any]:
        context = self._context(run, each)
        if each.tool.is_async:
            return self._loop.submit(lambda: each.tool.call(context, each.bound), each.timeout)
        return self._threads.submit(each.tool.call, context, each.bound)

    def _result(self, run: Run, each: Planned, future: concurrent.futures.Future[Any], started_ms: int) -> CallRecord:
        return self._made(run, each, future.result, started_ms)

    def _made(self, run: Run, each: Planned, call: Callable[[], Any], started_ms: int | None = None) -> CallRecord:
        """What came of a call, whatever it raised."""
        started = started_ms if started_ms is not None else self._now_ms(run)
        signal: StopSignal | None = None
        try:
            value = to_json_value(call(), each.tool.max_result_chars)
            execution = self._execution(run, each.index, each.call, ToolOutcome.OK, value, started_ms=started)
        except StopExecution as stop:
            signal = stop.signal
            value = to_json_value(stop.result, each.tool.max_result_chars)
            execution = self._execution(run, each.index, each.call, ToolOutcome.OK, value, started_ms=started)
        except concurrent.futures.CancelledError:
            execution = self._cut_short(run, each, "the call was cancelled", started)
        except TimeoutError as error:
            if each.tool.is_async and not str(error):
                execution = self._cut_short(run, each, f"no result within {each.timeout:g} s", started)
            else:
                execution = self._raised(run, each, error, started)
        except UnusableResult as error:
            problem = ErrorInfo(kind="unusable_result", message=f"the tool has run, but {error}")
            execution = self._execution(
                run, each.index, each.call, ToolOutcome.ERROR, error=problem, started_ms=started
            )
        except Exception as error:  # noqa: BLE001 - the tool's own code
            execution = self._raised(run, each, error, started)
        except (SystemExit, RecursionError, MemoryError) as error:
            execution = self._raised(run, each, error, started)
        return CallRecord(execution=execution, signal=signal)

    def _raised(self, run: Run, each: Planned, error: BaseException, started_ms: int) -> ToolExecution:
        return self._execution(
            run, each.index, each.call, ToolOutcome.ERROR, error=describe_exception(error), started_ms=started_ms
        )

    def _cut_short(self, run: Run, each: Planned, why: str, started_ms: int) -> ToolExecution:
        """Ended in the middle: of an effect nobody knows whether it happened."""
        outcome = ToolOutcome.ERROR if each.tool.effect is Effect.PURE else ToolOutcome.UNKNOWN
        error = ErrorInfo(kind="interrupted", message=why)
        return self._execution(run, each.index, each.call, outcome, error=error, started_ms=started_ms)

    def _left_behind(self, run: Run, rest: Iterable[Planned]) -> Run:
        """Plain functions that do not end: their threads go on, their results count for nothing."""
        for each in rest:
            record = CallRecord(
                execution=self._cut_short(run, each, f"no result within {each.timeout:g} s", self._now_ms(run))
            )
            run = self._ended(run, each, record, is_last=False)
        return self._after_interruption(run) if run.held.interruption is not None else run

    def _ended(self, run: Run, each: Planned, record: CallRecord, *, is_last: bool) -> Run:
        """Journal the result; of the call that ends last the commit does it."""
        crash_points.at("c5")
        if run.agent.hook_stack.at(HookPoint.AFTER_TOOL):
            context = self._hook(run, HookPoint.AFTER_TOOL, tool_call=record.execution.tool_call)
            shaped = run.agent.hook_stack.run(context.changed(tool_execution=record.execution)).tool_execution
            record = CallRecord(execution=shaped or record.execution, signal=record.signal)
        run = _with(run, each.index, record)
        if each.tool.effect is Effect.PURE:
            return run
        raw = record.to_json()
        if is_last:
            return run.changed(unjournaled={**run.unjournaled, each.index: raw})
        try:
            self._store.record_results(run.claim, {each.index: raw})
            return run
        except StoreFull:
            return run.changed(unjournaled={**run.unjournaled, each.index: raw})

    # --- small things -----------------------------------------------------------------------------------------

    def _context(self, run: Run, each: Planned) -> ToolContext:
        held = run.held
        return ToolContext(
            session_id=run.ref.session_id,
            execution_id=run.ref.execution_id,
            step=run.ref.step,
            index=each.index,
            idempotency_key=each.key,
            deadline=moment(self._now_ms(run)) + timedelta(seconds=each.timeout),
            cancelled=lambda: held.interruption is not None,
        )

    def _now_ms(self, run: Run) -> int:
        """Redis's time, carried on by this machine's own clock since the claim."""
        return run.claim.now_ms + round((self._monotonic() - run.taken) * 1000)

    def _execution(
        self,
        run: Run,
        index: int,
        call: ToolCall,
        outcome: ToolOutcome,
        value: Any = None,
        *,
        error: ErrorInfo | None = None,
        started_ms: int | None = None,
    ) -> ToolExecution:
        now_ms = self._now_ms(run)
        return ToolExecution(
            id=ToolExecutionId(f"{run.ref.execution_id}-{run.ref.step}-{index}"[-64:].lstrip("-_")),
            tool_call=call,
            outcome=outcome,
            value=value,
            error=error,
            started_at=moment(now_ms if started_ms is None else started_ms),
            completed_at=moment(now_ms),
            index=index,
        )

    def _hook(self, run: Run, point: HookPoint, *, tool_call: ToolCall) -> HookContext:
        ref = run.ref
        return HookContext(point, ref.session_id, ref.execution_id, ref.step, run.state, tool_call=tool_call)


def _with(run: Run, index: int, record: CallRecord) -> Run:
    signals = (record.signal,) if record.signal is not None else ()
    records = {**run.records, index: record}
    return run.changed(records=records, signals=(*run.signals, *signals))
