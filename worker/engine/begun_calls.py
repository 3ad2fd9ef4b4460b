"""Calls that an earlier attempt began and did not end: the effect class of the tool decides what happens to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

from ..redaction import describe_exception, redact
from ..state import ErrorInfo, ToolOutcome
from ..store import BeginRecord
from ..tools import Effect, LookupResult, LookupStatus, StopExecution, UnusableResult
from .asked_calls import has_begun_elsewhere
from .call_records import (
    CallTimes,
    PlannedCall,
    record_call,
    record_error,
    record_stopped,
    record_unknown,
    result_value,
)
from .releases import release_and_retry
from .run import CallRecord, Run
from .services import EngineServices
from .tool_call_runner import ToolCallRunner

_LOOKUP_AGAIN_SECONDS: Final = 2.0


class BegunCalls:
    """Decides whether begun calls run again."""

    def __init__(self, services: EngineServices, runner: ToolCallRunner) -> None:
        self._services = services
        self._runner = runner

    def resolve(self, run: Run, planned: Sequence[PlannedCall]) -> tuple[Run, list[PlannedCall]]:
        """Decide by the effect class whether a begun call runs again; the list holds all calls that may run."""
        fresh: list[PlannedCall] = []
        for each in planned:
            begun = run.journal.begun.get(each.index)
            if run.is_stopping:
                run = run.with_record(each.index, self.record_stopped(run, each, begun))
            elif begun is None or has_begun_elsewhere(run, each.index):  # the call begins, or only goes on
                fresh.append(each)
            else:
                run, again = self._resolve_begun(run, each, begun)
                fresh += again
            if run.outcome is not None:
                return run, []
        return run, fresh

    def _resolve_begun(self, run: Run, planned: PlannedCall, begun: BeginRecord) -> tuple[Run, list[PlannedCall]]:
        match planned.tool.effect:
            case Effect.PURE | Effect.KEYED:
                return run, [planned]
            case Effect.LOOKUP:
                return self._look_up(run, planned, begun)
            case Effect.UNSAFE:
                why = "a worker ended during the call"
                return _with_outcome(run, planned, record_unknown(run, planned, why, self._times_now(run))), []
            case _ as never:
                assert_never(never)

    def record_stopped(self, run: Run, planned: PlannedCall, begun: BeginRecord | None) -> CallRecord:
        """Record a call that may not begin any more."""
        return record_stopped(run, planned, self._services.redis_ms(run), None if planned.is_pure else begun)

    def _look_up(self, run: Run, planned: PlannedCall, begun: BeginRecord) -> tuple[Run, list[PlannedCall]]:
        """Ask the tool whether the effect happened; believe "no" only when the call cannot be running any more."""
        try:
            answer = self._runner.look_up(run, planned)
        except StopExecution as stop:
            run = run.stopping(stop.signal_from(planned.call.name))
            answer = LookupResult.unknown("its lookup ended the execution")
        except Exception as error:  # noqa: BLE001 - the tool's own code
            answer = LookupResult.unknown(describe_exception(error).message)
        now_ms = self._services.redis_ms(run)
        match answer.status:
            case LookupStatus.HAPPENED:
                return _with_outcome(run, planned, self._record_lookup(run, planned, answer)), []
            case LookupStatus.UNKNOWN:
                why = redact(answer.reason) or "its lookup cannot tell"
                return _with_outcome(run, planned, record_unknown(run, planned, why, CallTimes.at(now_ms))), []
            case LookupStatus.DID_NOT_HAPPEN:
                # The worker that began the call may still be in it, until the call's timeout is over.
                margin_ms = round(self._services.settings.lookup_margin_seconds * 1000)
                over_ms = begun.at_ms + begun.timeout_ms + margin_ms
                if over_ms <= now_ms:
                    return run, [planned]
                return self._look_up_later(run, planned, (over_ms - now_ms) / 1000), []
            case _ as never:
                assert_never(never)

    def _record_lookup(self, run: Run, planned: PlannedCall, answer: LookupResult) -> CallRecord:
        """Record the effect of an earlier attempt, as the tool's lookup describes it."""
        try:
            value = result_value(planned.tool, answer.value, self._services.settings)
        except UnusableResult as error:
            problem = ErrorInfo(kind="unusable_result", message=f"the tool has run, but {error}")
            return record_error(run, planned, problem, self._times_now(run))
        return record_call(run, planned, ToolOutcome.OK, self._times_now(run), value=value)

    def _look_up_later(self, run: Run, planned: PlannedCall, seconds: float) -> Run:
        why = f"{planned.call.name} may still be running elsewhere"
        seconds = min(seconds, _LOOKUP_AGAIN_SECONDS)
        return run.decide(release_and_retry(self._services.store, run.claim, why, delay_seconds=seconds))

    def _times_now(self, run: Run) -> CallTimes:
        return CallTimes.at(self._services.redis_ms(run))


def _with_outcome(run: Run, planned: PlannedCall, record: CallRecord) -> Run:
    """The run with the record of a call, or of how it was started where a service brings its result."""
    if planned.later is not None:
        return run.with_started(planned.index, record)
    return run.with_record(planned.index, record)
