"""The tool calls of a step: each begun at most as its effect class allows, each result journaled.

`pure` calls have no record: running one again is free. Of the others a record says that the call begins before it does,
and its result follows when it has ended; the last results may travel with the commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from ...config.settings import Settings
from ..concurrency import fibers
from ..concurrency.event_loop import EventLoopThread
from ..concurrency.tool_threads import Threads
from ..errors import ClaimLost, StoreUnavailable
from ..hooks import HookPoint
from ..redaction import describe_exception, redact
from ..state import ErrorInfo, StopReason, ToolCall, ToolOutcome
from ..store import BeginRecord, BeginResult, Store
from ..tools import (
    Effect,
    InvalidArguments,
    LookupResult,
    LookupStatus,
    UnusableResult,
    idempotency_key,
    to_json_value,
)
from .call_records import PlannedCall, hook_context, interrupted_call, record, refused, unknown, with_record
from .interruptions import given_back, interrupted, user_stop
from .leases import LeaseKeeper
from .outcome import RetryLater, TakenOver
from .run import CallRecord, Run
from .tool_call_runner import ToolCallRunner

_LOOKUP_AGAIN_SECONDS: Final = 2.0
_REDIS_PAUSE_SECONDS: Final = 0.2


class ToolCalls:
    """The step's tool calls: what may be made is planned here, `ToolCallRunner` makes it."""

    def __init__(
        self,
        store: Store,
        keeper: LeaseKeeper,
        loop: EventLoopThread,
        settings: Settings,
        threads: Threads,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = fibers.sleep,
    ) -> None:
        self._store = store
        self._keeper = keeper
        self._settings = settings
        self._monotonic = monotonic
        self._sleep = sleep
        self._maker = ToolCallRunner(store, keeper, loop, threads, monotonic=monotonic)

    def call(self, run: Run) -> Run:
        """Make the calls that the answer asks for, or adopt what is journaled of them."""
        if run.response is None or not run.response.tool_calls:
            return run
        adopted = {index: CallRecord.stored(index, raw) for index, raw in run.loaded.journal.results.items()}
        try:
            run, planned = self._planned(run, adopted)
        except Exception as error:  # noqa: BLE001 - a hook of the user's
            run, planned = self._unplanned(run.failing(describe_exception(error), StopReason.ERROR_FORBADE), adopted)
        run, fresh = self._after_crash(run, planned)
        width = run.agent.max_parallel_tools or self._settings.max_parallel_tools
        for start in range(0, len(fresh), width):
            if run.decided is not None:
                return run
            batch = fresh[start : start + width]
            run = self._batch(run, batch, is_final=start + width >= len(fresh))
        return run

    # --- what is to be called -----------------------------------------------------------------------------------

    def _planned(self, run: Run, adopted: Mapping[int, CallRecord]) -> tuple[Run, list[PlannedCall]]:
        """Journaled results are adopted; what cannot be called becomes an error that the model can read."""
        assert run.response is not None
        planned: list[PlannedCall] = []
        for index, call in enumerate(run.response.tool_calls):
            if index in adopted:
                run = with_record(run, index, adopted[index])
                continue
            ready = self._plan(run, index, call)
            if isinstance(ready, CallRecord):
                run = with_record(run, index, ready)
            else:
                planned.append(ready)
        return run, planned

    def _unplanned(self, run: Run, adopted: Mapping[int, CallRecord]) -> tuple[Run, list[PlannedCall]]:
        """A hook in front of the calls raised: what an earlier attempt obtained is kept, the rest is not run."""
        assert run.response is not None
        for index, call in enumerate(run.response.tool_calls):
            begun = run.loaded.journal.begun.get(index)
            made = adopted.get(index) or interrupted_call(run, self._now_ms(run), index, call, begun)
            run = with_record(run, index, made)
        return run, []

    def _plan(self, run: Run, index: int, call: ToolCall) -> PlannedCall | CallRecord:
        if run.agent.hook_stack.at(HookPoint.BEFORE_TOOL):
            context = run.agent.hook_stack.run(hook_context(run, HookPoint.BEFORE_TOOL, call))
            call = context.tool_call or call
            if context.blocked is not None:
                why = ErrorInfo(kind="blocked", message=redact(context.blocked))
                return record(run, self._now_ms(run), index, call, ToolOutcome.BLOCKED, error=why)
        tool = run.agent.toolset.get(call.name)
        if tool is None:
            names = ", ".join(run.agent.toolset.names()) or "none"
            message = redact(f"There is no tool {call.name!r:.100}. Tools: {names}.")
            return refused(run, self._now_ms(run), index, call, "unknown_tool", message)
        try:
            bound = tool.bind(call.args)
        except InvalidArguments as error:
            return refused(run, self._now_ms(run), index, call, "invalid_arguments", redact(str(error)))
        key = idempotency_key(run.ref.execution_id, run.ref.step, index, call.name, call.args)
        seconds = tool.timeout or run.agent.tool_timeout or self._settings.tool_timeout_seconds
        return PlannedCall(index, call, tool, bound, key, min(seconds, max(0.001, self._keeper.time_left(run.held))))

    # --- calls that an earlier attempt began and did not end ----------------------------------------------------

    def _after_crash(self, run: Run, planned: Sequence[PlannedCall]) -> tuple[Run, list[PlannedCall]]:
        fresh: list[PlannedCall] = []
        for each in planned:
            begun = run.loaded.journal.begun.get(each.index)
            if run.forbidden:
                run = with_record(run, each.index, self._unfinished(run, each, begun))
            elif begun is None or each.tool.effect in (Effect.PURE, Effect.KEYED):
                fresh.append(each)
            elif each.tool.effect is Effect.LOOKUP:
                run, again = self._looked_up(run, each, begun)
                fresh += again
            else:
                why = "a worker ended during the call"
                run = with_record(run, each.index, unknown(run, self._now_ms(run), each, why))
            if run.decided is not None:
                return run, []
        return run, fresh

    def _unfinished(self, run: Run, each: PlannedCall, begun: BeginRecord | None) -> CallRecord:
        """A call of an execution that is being ended."""
        return interrupted_call(run, self._now_ms(run), each.index, each.call, None if each.is_pure else begun)

    def _looked_up(self, run: Run, each: PlannedCall, begun: BeginRecord) -> tuple[Run, list[PlannedCall]]:
        """Ask the tool whether the effect happened; "no" is believed only when the call cannot be running any more."""
        try:
            answer = self._maker.look_up(run, each)
        except Exception as error:  # noqa: BLE001 - the tool's own code
            answer = LookupResult.unknown(describe_exception(error).message)
        now_ms = self._now_ms(run)
        match answer.status:
            case LookupStatus.HAPPENED:
                return with_record(run, each.index, self._found(run, each, answer)), []
            case LookupStatus.UNKNOWN:
                why = redact(answer.reason) or "its lookup cannot tell"
                return with_record(run, each.index, unknown(run, now_ms, each, why)), []
            case LookupStatus.DID_NOT_HAPPEN:
                over_ms = begun.at_ms + begun.timeout_ms + round(self._settings.lookup_margin_seconds * 1000)
                if over_ms <= now_ms:
                    return run, [each]
                return self._later(run, each, (over_ms - now_ms) / 1000), []

    def _found(self, run: Run, each: PlannedCall, answer: LookupResult) -> CallRecord:
        """The effect of an earlier attempt, as the tool's lookup tells it."""
        now_ms = self._now_ms(run)
        try:
            value = to_json_value(answer.value, each.tool.max_result_chars)
        except UnusableResult as error:
            return refused(run, now_ms, each.index, each.call, "unusable_result", f"the tool has run, but {error}")
        return record(run, now_ms, each.index, each.call, ToolOutcome.OK, value)

    def _later(self, run: Run, each: PlannedCall, seconds: float) -> Run:
        seconds = min(seconds, _LOOKUP_AGAIN_SECONDS)
        publish = self._store.steps.release(run.claim, delay_ms=round(seconds * 1000), give_back=True)
        why = f"{each.call.name} may still be running elsewhere"
        return run.changed(decided=RetryLater(run.ref, seconds, why, publish))

    # --- the calls ----------------------------------------------------------------------------------------------

    def _batch(self, run: Run, batch: Sequence[PlannedCall], *, is_final: bool) -> Run:
        """Calls that run side by side. Where nothing may begin any more, they are recorded as not run."""
        if not run.forbidden:
            run = self._allowed(run)
        going: Sequence[PlannedCall] = ()
        if run.decided is None and not run.forbidden:
            run, going = self._begun(run, batch)
        if run.decided is not None:
            return run
        for each in batch:
            if each not in going and each.index not in run.records:
                begun = run.loaded.journal.begun.get(each.index)
                run = with_record(run, each.index, self._unfinished(run, each, begun))
        run = self._maker.make(run, going, is_final=is_final)
        return interrupted(run, self._store, self._keeper) if run.unfinished else run

    def _allowed(self, run: Run) -> Run:
        """The run as it is when a call may begin, else what becomes of it."""
        if self._keeper.is_fresh(run.held) or (run.held.interruption is None and self._keeper.confirm(run.held)):
            return run
        return interrupted(run, self._store, self._keeper)

    def _begun(self, run: Run, batch: Sequence[PlannedCall]) -> tuple[Run, Sequence[PlannedCall]]:
        """Record that the calls with effects begin, and learn which of them may."""
        timeouts = {each.index: round(each.timeout * 1000) for each in batch if not each.is_pure}
        if not timeouts:
            return run, batch
        again = [i for i in timeouts if i in run.loaded.journal.begun]
        try:
            begun = self._recorded(run, timeouts, again)
        except ClaimLost:
            return run.changed(decided=TakenOver(run.ref)), ()
        for index, raw in begun.results.items():
            run = with_record(run, index, CallRecord.stored(index, raw))
        if begun.cancel is not None:
            return run.stopping(user_stop()), ()
        if begun.others:  # somebody else ran this step meanwhile; the next claim reads the journal anew
            return given_back(run, self._store, "the journal was written by another claim"), ()
        allowed = self._allowed(run)
        going = [each for each in batch if each.is_pure or each.index in begun.mine]
        return allowed, () if allowed.decided is not None or allowed.forbidden else going

    def _recorded(self, run: Run, timeouts: Mapping[int, int], again: Collection[int]) -> BeginResult:
        """Record the beginnings; after a lost reply once more, since a record that bears this claim is its own."""
        while True:
            try:
                return self._store.steps.begin_calls(
                    run.claim, timeouts, run.latest_redis_ms(self._monotonic()), again=again
                )
            except StoreUnavailable:
                if run.held.interruption is not None or self._keeper.remaining(run.held) <= 0:
                    raise
                self._sleep(_REDIS_PAUSE_SECONDS)

    def _now_ms(self, run: Run) -> int:
        return run.redis_ms(self._monotonic())
