"""The tool calls of a step: each begins at most as often as its effect class allows, and each result is journaled.

A `pure` call has no begin record: running it again is free. For every other call a record says that it begins before it
does, and its result follows when it has ended; the last results may travel with the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from ..errors import ClaimLost, StoreUnavailable
from ..hooks import HookPoint
from ..redaction import describe_exception, redact
from ..state import ErrorInfo, StopReason, ToolCall, ToolOutcome
from ..store import BeginRecord, BeginResult
from ..tools import (
    Effect,
    InvalidArguments,
    LookupResult,
    LookupStatus,
    UnusableResult,
    idempotency_key,
    to_json_value,
)
from .call_records import (
    CallTimes,
    PlannedCall,
    RequestedCall,
    record_call,
    record_error,
    record_stopped,
    record_unknown,
)
from .interruptions import give_back, resolve_interruption, user_stop_signal
from .outcome import TakenOver
from .releases import release_and_retry
from .run import CallRecord, Run
from .services import EngineServices
from .tool_call_runner import ToolCallRunner

_LOOKUP_AGAIN_SECONDS: Final = 2.0
_REDIS_PAUSE_SECONDS: Final = 0.2


class ToolCalls:
    """Plans and begins the step's tool calls; `ToolCallRunner` runs them."""

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self._store = services.store
        self._keeper = services.keeper
        self._settings = services.settings
        self._runner = ToolCallRunner(services)

    def call(self, run: Run) -> Run:
        """Run the calls that the answer asks for, or adopt what is journaled of them."""
        if run.outcome is not None or run.response is None or not run.response.tool_calls:
            return run
        run = self._call(run)
        if self._services.observer is not None and run.records:
            self._services.observer.tools_called(run)
        return run

    def _call(self, run: Run) -> Run:
        journaled = {index: CallRecord.from_journal(index, raw) for index, raw in run.loaded.journal.results.items()}
        try:
            run, planned = self._plan_calls(run, journaled)
        except Exception as error:  # noqa: BLE001 - a hook of the user's
            run = run.failing(describe_exception(error), StopReason.ERROR_FORBADE)
            run, planned = self._record_without_running(run, journaled), []
        run, fresh = self._resolve_begun_calls(run, planned)
        width = run.agent.max_parallel_tools or self._settings.max_parallel_tools
        for start in range(0, len(fresh), width):
            if run.outcome is not None:
                return run
            batch = fresh[start : start + width]
            run = self._run_batch(run, batch, is_final=start + width >= len(fresh))
        return run

    # --- which calls may run ----------------------------------------------------------------------------------

    def _plan_calls(self, run: Run, journaled: Mapping[int, CallRecord]) -> tuple[Run, list[PlannedCall]]:
        """Adopt journaled results, and bind the other calls; a call that cannot run becomes an error for the model."""
        assert run.response is not None
        planned: list[PlannedCall] = []
        for index, call in enumerate(run.response.tool_calls):
            if index in journaled:
                run = run.with_record(index, journaled[index])
                continue
            ready = self._plan_call(run, index, call)
            if isinstance(ready, CallRecord):
                run = run.with_record(index, ready)
            else:
                planned.append(ready)
        return run, planned

    def _record_without_running(self, run: Run, journaled: Mapping[int, CallRecord]) -> Run:
        """Keep what an earlier attempt obtained, and record the other calls as not run: a hook before them raised."""
        assert run.response is not None
        for index, call in enumerate(run.response.tool_calls):
            begun = run.loaded.journal.begun.get(index)
            requested = RequestedCall(index=index, call=call)
            record = journaled.get(index) or record_stopped(run, requested, self._now_ms(run), begun)
            run = run.with_record(index, record)
        return run

    def _plan_call(self, run: Run, index: int, call: ToolCall) -> PlannedCall | CallRecord:
        if run.agent.hook_stack.at(HookPoint.BEFORE_TOOL):
            context = run.hook_context(HookPoint.BEFORE_TOOL, run.state, tool_call=call)
            context = run.agent.hook_stack.run(context)
            call = context.tool_call or call
            if context.blocked is not None:
                why = ErrorInfo(kind="blocked", message=redact(context.blocked))
                requested = RequestedCall(index=index, call=call)
                return record_call(run, requested, ToolOutcome.BLOCKED, self._times_now(run), error=why)
        requested = RequestedCall(index=index, call=call)
        tool = run.agent.toolset.get(call.name)
        if tool is None:
            names = ", ".join(run.agent.toolset.names()) or "none"
            message = redact(f"There is no tool {call.name!r:.100}. Tools: {names}.")
            return self._refuse(run, requested, "unknown_tool", message)
        try:
            bound = tool.bind(call.args)
        except InvalidArguments as error:
            return self._refuse(run, requested, "invalid_arguments", redact(str(error)))
        key = idempotency_key(run.ref.execution_id, run.ref.step, index, call.name, call.args)
        seconds = tool.timeout or run.agent.tool_timeout or self._settings.tool_timeout_seconds
        timeout = min(seconds, max(0.001, self._keeper.time_left(run.lease)))
        return PlannedCall(index=index, call=call, tool=tool, bound=bound, key=key, timeout=timeout)

    def _refuse(self, run: Run, requested: RequestedCall, kind: str, message: str) -> CallRecord:
        return record_error(run, requested, ErrorInfo(kind=kind, message=message), self._times_now(run))

    # --- calls that an earlier attempt began and did not end --------------------------------------------------

    def _resolve_begun_calls(self, run: Run, planned: Sequence[PlannedCall]) -> tuple[Run, list[PlannedCall]]:
        """Decide by the effect class whether a begun call runs again; the list holds all calls that may run."""
        fresh: list[PlannedCall] = []
        for each in planned:
            begun = run.loaded.journal.begun.get(each.index)
            if run.is_stopping:
                run = run.with_record(each.index, self._record_stopped(run, each, begun))
            elif begun is None or each.tool.effect in (Effect.PURE, Effect.KEYED):
                fresh.append(each)
            elif each.tool.effect is Effect.LOOKUP:
                run, again = self._look_up(run, each, begun)
                fresh += again
            else:
                why = "a worker ended during the call"
                run = run.with_record(each.index, record_unknown(run, each, why, self._times_now(run)))
            if run.outcome is not None:
                return run, []
        return run, fresh

    def _record_stopped(self, run: Run, planned: PlannedCall, begun: BeginRecord | None) -> CallRecord:
        return record_stopped(run, planned, self._now_ms(run), None if planned.is_pure else begun)

    def _look_up(self, run: Run, planned: PlannedCall, begun: BeginRecord) -> tuple[Run, list[PlannedCall]]:
        """Ask the tool whether the effect happened; believe "no" only when the call cannot be running any more."""
        try:
            answer = self._runner.look_up(run, planned)
        except Exception as error:  # noqa: BLE001 - the tool's own code
            answer = LookupResult.unknown(describe_exception(error).message)
        now_ms = self._now_ms(run)
        match answer.status:
            case LookupStatus.HAPPENED:
                return run.with_record(planned.index, self._record_lookup(run, planned, answer)), []
            case LookupStatus.UNKNOWN:
                why = redact(answer.reason) or "its lookup cannot tell"
                return run.with_record(planned.index, record_unknown(run, planned, why, CallTimes.at(now_ms))), []
            case LookupStatus.DID_NOT_HAPPEN:
                # The worker that began the call may still be in it, until the call's timeout is over.
                over_ms = begun.at_ms + begun.timeout_ms + round(self._settings.lookup_margin_seconds * 1000)
                if over_ms <= now_ms:
                    return run, [planned]
                return self._look_up_later(run, planned, (over_ms - now_ms) / 1000), []

    def _record_lookup(self, run: Run, planned: PlannedCall, answer: LookupResult) -> CallRecord:
        """Record the effect of an earlier attempt, as the tool's lookup describes it."""
        try:
            value = to_json_value(answer.value, planned.tool.max_result_chars)
        except UnusableResult as error:
            return self._refuse(run, planned, "unusable_result", f"the tool has run, but {error}")
        return record_call(run, planned, ToolOutcome.OK, self._times_now(run), value=value)

    def _look_up_later(self, run: Run, planned: PlannedCall, seconds: float) -> Run:
        why = f"{planned.call.name} may still be running elsewhere"
        seconds = min(seconds, _LOOKUP_AGAIN_SECONDS)
        return run.decide(release_and_retry(self._store, run.claim, why, delay_seconds=seconds))

    # --- the calls --------------------------------------------------------------------------------------------

    def _run_batch(self, run: Run, batch: Sequence[PlannedCall], *, is_final: bool) -> Run:
        """Run calls side by side; those that may not begin any more are recorded as not run."""
        if not run.is_stopping:
            run = self._check_interruption(run)
        going: Sequence[PlannedCall] = ()
        if run.outcome is None and not run.is_stopping:
            run, going = self._begin_calls(run, batch)
        if run.outcome is not None:
            return run
        for planned in batch:
            if planned not in going and planned.index not in run.records:
                begun = run.loaded.journal.begun.get(planned.index)
                run = run.with_record(planned.index, self._record_stopped(run, planned, begun))
        run = self._runner.run_calls(run, going, is_final=is_final)
        return resolve_interruption(run, self._services) if run.has_unfinished_calls else run

    def _check_interruption(self, run: Run) -> Run:
        """Return the run as it is when a call may begin, otherwise a stopping or decided one."""
        lease = run.lease
        if self._keeper.is_fresh(lease) or (lease.interruption is None and self._keeper.confirm(lease)):
            return run
        return resolve_interruption(run, self._services)

    def _begin_calls(self, run: Run, batch: Sequence[PlannedCall]) -> tuple[Run, Sequence[PlannedCall]]:
        """Journal that the calls with effects begin, and return those that may run."""
        timeouts = {planned.index: round(planned.timeout * 1000) for planned in batch if not planned.is_pure}
        if not timeouts:
            return run, batch
        again = [index for index in timeouts if index in run.loaded.journal.begun]
        try:
            begun = self._journal_beginnings(run, timeouts, again)
        except ClaimLost:
            return run.decide(TakenOver(run.ref)), ()
        for index, raw in begun.results.items():
            run = run.with_record(index, CallRecord.from_journal(index, raw))
        if begun.cancel is not None:
            return run.stopping(user_stop_signal()), ()
        if begun.others:  # another worker ran this step in between; the next claim reads the journal anew
            return give_back(run, self._store, "the journal was written by another claim"), ()
        # Asked again: the round trip of the begin records may have taken long.
        run = self._check_interruption(run)
        going = [planned for planned in batch if planned.is_pure or planned.index in begun.mine]
        return run, () if run.outcome is not None or run.is_stopping else going

    def _journal_beginnings(self, run: Run, timeouts: Mapping[int, int], again: Collection[int]) -> BeginResult:
        """Journal the beginnings; after a lost reply once more, since a record that bears this claim is its own."""
        while True:
            try:
                latest_ms = run.latest_redis_ms(self._services.monotonic())
                return self._store.steps.begin_calls(run.claim, timeouts, latest_ms, again=again)
            except StoreUnavailable:
                if run.lease.interruption is not None or self._keeper.remaining(run.lease) <= 0:
                    raise
                self._services.sleep(_REDIS_PAUSE_SECONDS)

    def _times_now(self, run: Run) -> CallTimes:
        return CallTimes.at(self._now_ms(run))

    def _now_ms(self, run: Run) -> int:
        return run.redis_ms(self._services.monotonic())
