"""The tool calls of a step: each begins at most as often as its effect class allows, and each result is journaled.

A `pure` call has no begin record: running it again is free. For every other call a record says that it begins before it
does, and its result follows when it has ended; the last results may travel with the commit. Calls that need an answer
from outside leave the step waiting, after all the others have run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, assert_never

from ..errors import NotConfirmed, PutOff
from ..flow.values import REPLICAS
from ..redaction import describe_exception, redact
from ..state.execution.answers import MESSAGE_CAME_FIRST
from ..state.execution.signals import StopReason
from ..state.execution.tool_calls import ToolOutcome
from ..state.values.error_info import ErrorInfo
from ..store.journal import BeginRecord
from ..store.steps.journals import BeginResult
from ..tools.effect import Effect, LookupResult, LookupStatus
from ..tools.stop import StopExecution
from .asked_calls import (
    adopt_result,
    has_begun_elsewhere,
    has_later_result,
    is_superseded,
    may_have_begun,
    record_impossible,
)
from .call_planning import CallPlanner
from .call_records import (
    CallTimes,
    PlannedCall,
    record_not_run,
    record_stopped,
    record_unknown,
    record_value,
)
from .children import Children
from .delegating import Delegator, Handoffs
from .endings import OF_STORE, delay_step, give_back, put_off, resolve_interruption, user_stop_signal
from .flow_texts import describe_pause
from .request_closing import RequestCloser
from .request_opening import RequestOpener
from .run import Run
from .run_values import CallRecord
from .services import EngineServices
from .tool_call_runner import ToolCallRunner


class ToolCalls:
    """Plans and begins the step's tool calls; `ToolCallRunner` runs them."""

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self._store = services.store
        self._keeper = services.keeper
        self._settings = services.settings
        self._planner = CallPlanner(services)
        self._closer = RequestCloser(services)
        self._opener = RequestOpener(services, self._closer)
        self._children = Children(services, self._closer)
        self._delegator = Delegator(services, self._opener)
        self._handoffs = Handoffs(services, self._opener)
        self._runner = ToolCallRunner(services, self._opener, self._delegator)
        self._begun_calls = BegunCalls(services, self._runner)

    def call(self, run: Run) -> Run:
        """Run the calls that the answer asks for, or adopt what is journaled of them.

        Returns:
            The run with a record of each call; waiting, where calls need an answer and the others have run.
        """
        if run.outcome is not None or run.obtained.response is None or not run.obtained.response.tool_calls:
            return run
        run = self._handoffs.find(self._call(run.with_progress(is_waiting=False) if run.progress.is_waiting else run))
        if self._services.observer is not None and run.obtained.records:
            self._services.observer.tools_called(run)
        return run

    def _call(self, run: Run) -> Run:
        # Noted before what follows from it is done: a wait is refused to a step that was interrupted in between.
        run = run.with_progress(is_left_off=run.lease.is_cut)
        if run.journal.requests:
            run = self._children.apply_rules(self._closer.close(run))
        run, planned = self._plan(self._planner.adopt_results(run))
        while planned:
            run = self._run_planned(run, planned)
            if run.outcome is not None or (not run.journal.requests and _is_complete(run)):
                return run
            # A remembered approval, or an answer that came first, may have made a call ready that has just asked; and
            # a call that repeats another one of the answer gets its record.
            run, planned = (run, []) if run.progress.has_unfinished_calls else self._plan(run)
        return self._conclude(run) if run.journal.requests else run

    def _plan(self, run: Run) -> tuple[Run, list[PlannedCall]]:
        """The calls that are still to run; none where its execution has ended."""
        try:
            return self._planner.plan(run)
        except OF_STORE:
            raise
        except StopExecution as stop:
            return self._end(run.stopping(stop.signal)), []
        except Exception as error:  # noqa: BLE001 - a hook of the user's
            return self._end(run.failing(describe_exception(error), StopReason.ERROR_FORBADE)), []

    def _end(self, run: Run) -> Run:
        """Close what is open, and record the calls without a result as not run: the execution ends.

        Children are asked to stop. The step waits until they have ended, for one lease at most.
        """
        run = self._children.stop_unwanted(self._closer.cancel_open(run.stopping()))
        return self._planner.record_without_running(run).with_progress(is_waiting=bool(run.journal.open_requests))

    def _run_planned(self, run: Run, planned: Sequence[PlannedCall]) -> Run:
        """Decide about calls, and run those that may, in batches; those that have to ask leave requests."""
        run, planned = self._begun_calls.leave_others_off(run, planned)
        run, planned, paused = self._hold_paused(run, planned)
        try:
            run, planned = self._opener.decide(run, planned)
            run, planned = self._delegator.open(run, planned)
            run, planned = self._handoffs.record(run, planned)
        except StopExecution as stop:
            return self._end(run.stopping(stop.signal_from("policy")))
        run, fresh = self._begun_calls.resolve(run, planned)
        while fresh:
            run, full = self._run_in_batches(run, fresh, is_final=paused is None)
            if len(full) == len(fresh) and run.outcome is None:  # for none a holder was free
                full_limit = self._services.concurrency.stand(run, full[0])
                if full_limit is not None:
                    return put_off(self._keep_pure(run, planned), self._services, full_limit)
            fresh = full
        return run if paused is None or run.outcome is not None else put_off(run, self._services, paused)

    def _keep_pure(self, run: Run, planned: Sequence[PlannedCall]) -> Run:
        """Journal the pure calls that have run, before the step waits for a holder: run again, they would need it."""
        for each in planned:
            record = run.obtained.records.get(each.index)
            if each.is_pure and record is not None:
                run = run.with_unjournaled(each.index, record)
        return self._services.try_to_journal_results(run)

    def _run_in_batches(
        self, run: Run, calls: Sequence[PlannedCall], *, is_final: bool
    ) -> tuple[Run, list[PlannedCall]]:
        """Run those calls that a concurrency limit does not hold back, and give the others.

        Args:
            is_final: No other call follows these.
        """
        width, full = run.agent.max_parallel_tools or self._settings.max_parallel_tools, list[PlannedCall]()
        for start, end in _batches(calls, width):
            if run.outcome is not None:
                return run, []
            batch: Sequence[PlannedCall] = calls[start:end]
            if not run.ending.is_stopping:  # nothing begins then
                batch, more = self._services.concurrency.enter_calls(run, batch)
                full += more
            run = self._run_batch(run, batch, is_final=is_final and end >= len(calls) and not full)
            for each in batch:
                self._services.concurrency.leave_call(run, each)
        return run, full

    def _hold_paused(
        self, run: Run, planned: Sequence[PlannedCall]
    ) -> tuple[Run, Sequence[PlannedCall], PutOff | None]:
        """Take out the calls of paused tools; their pause puts the step off once the others have run, or is told."""
        gate = self._services.gate
        if not gate.view.pauses or run.ending.is_stopping:
            return run, planned, None
        now_ms, free, holds = self._services.redis_ms(run), list[PlannedCall](), None
        for each in planned:
            paused = gate.find_pause(now_ms, ("tool", each.call.name))
            if paused is None:
                free.append(each)
            elif paused.tell:
                error = ErrorInfo(kind="paused", message=redact(describe_pause(paused)))
                record = record_impossible(run, each, ToolOutcome.BLOCKED, error, CallTimes.at(now_ms))
                run = run.with_record(each.index, record)
            else:
                holds = gate.put_off_by(paused, now_ms)
        return run, free, holds

    # --- the calls --------------------------------------------------------------------------------------------

    def _run_batch(self, run: Run, batch: Sequence[PlannedCall], *, is_final: bool) -> Run:
        """Run calls side by side; those that may not begin any more are recorded as not run."""
        if not run.ending.is_stopping:
            run = self._check_interruption(run)
        run, batch = self._begun_calls.leave_others_off(run, batch)
        runnable: Sequence[PlannedCall] = ()
        if run.outcome is None and not run.ending.is_stopping:
            run, runnable = self._begin_or_put_off(run, batch)
        if run.outcome is not None:
            return run
        for planned in batch:
            has_record = planned.index in run.obtained.records or planned.index in run.obtained.started
            if planned not in runnable and not has_record:
                begun = run.journal.begun.get(planned.index)
                run = run.with_record(planned.index, self._begun_calls.record_stopped(run, planned, begun))
        run = self._runner.run_calls(run, runnable, is_final=is_final)
        if run.outcome is not None:
            return run
        return resolve_interruption(run, self._services) if run.progress.has_unfinished_calls else run

    def _check_interruption(self, run: Run) -> Run:
        """Return the run as it is when a call may begin, otherwise a stopping or decided one."""
        return run if self._keeper.is_fresh(run.lease) else resolve_interruption(run, self._services)

    def _begin_or_put_off(self, run: Run, batch: Sequence[PlannedCall]) -> tuple[Run, Sequence[PlannedCall]]:
        """Begin calls; while too few replicas would know of it, no call with effects begins."""
        try:
            return self._begin_calls(run, batch)
        except NotConfirmed as error:
            why = f"calls with effects wait for the replicas of Redis: {error.why}"
            return put_off(run, self._services, PutOff(why, _CONFIRM_AGAIN_SECONDS, REPLICAS)), ()

    def _begin_calls(self, run: Run, batch: Sequence[PlannedCall]) -> tuple[Run, Sequence[PlannedCall]]:
        """Journal that the calls with effects begin, and return those that may run."""
        new_later = [each for each in batch if each.later is not None and not has_later_result(run, each.index)]
        if new_later:  # their begin records come with their requests
            run = self._opener.open_later(run, new_later)
            if run.ending.is_stopping:
                return run, ()
            run, batch = self._begun_calls.leave_others_off(run, batch)
            batch = [each for each in batch if each.index not in run.obtained.records]
        asked = {each.index for each in new_later}
        effects = [each for each in batch if each.index not in asked and (not each.is_pure or each.later is not None)]
        if not effects:
            run = self._check_interruption(run) if new_later else run
            return run, () if run.outcome is not None or run.ending.is_stopping else batch
        timeouts = {each.index: round(each.timeout * 1000) for each in effects}
        again = [index for index in timeouts if index in run.journal.begun or has_begun_elsewhere(run, index)]
        looked_up = [each.index for each in effects if each.tool.effect is Effect.LOOKUP]
        asked_at = self._services.monotonic()
        begun = self._journal_beginnings(run, timeouts, again, looked_up)
        took = self._services.monotonic() - asked_at
        records = {index: CallRecord.from_journal(index, raw) for index, raw in begun.results.items()}
        is_late = any(is_superseded(run, index, record) for index, record in records.items())
        for index, record in records.items():
            run = adopt_result(run, index, record)
        if begun.cancel is not None:
            return run.stopping(user_stop_signal()), ()
        if begun.is_interrupted:
            run.lease.cut()
            run, batch = self._begun_calls.leave_others_off(run, batch)
        if begun.others or is_late:  # another worker wrote in between; the next claim reads the journal again
            return give_back(run, self._store, "the journal was written by another claim"), ()
        if looked_up and took > self._services.settings.lookup_margin_seconds / 2:
            # Their time counts from before that: who looks them up would believe too early that they did not happen.
            return give_back(run, self._store, f"the begin records took {took:.0f} s"), ()
        # Asked again: the round trip of the begin records may have taken long.
        run = self._check_interruption(run)
        runnable = [each for each in batch if each.index not in timeouts or each.index in begun.own]
        return run, () if run.outcome is not None or run.ending.is_stopping else runnable

    def _journal_beginnings(
        self, run: Run, timeouts: Mapping[int, int], again: Collection[int], looked_up: Collection[int]
    ) -> BeginResult:
        """Journal the beginnings; after a lost reply once more, since a record that bears this claim is its own."""

        def begin() -> BeginResult:
            latest_ms = run.latest_redis_ms(self._services.monotonic())
            return self._store.steps.begin_calls(run.claim, timeouts, latest_ms, again=again, looked_up=looked_up)

        # Nothing of these calls is lost when the step ends here.
        return self._services.ask_store(run, begin, "the beginning of a call", holds_something=False)

    # --- what is left open ------------------------------------------------------------------------------------

    def _conclude(self, run: Run) -> Run:
        """Close what can be closed, and say whether the step waits for the rest."""
        run = self._closer.close_failed_starts(self._opener.record_started(run))
        if _has_ended(run):
            return self._end(run)
        run, _ = self._planner.plan(run)
        records = run.obtained.records
        return run.with_progress(is_waiting=any(each.index not in records for each in run.journal.open_requests))


def _batches(calls: Sequence[PlannedCall], width: int) -> Iterator[tuple[int, int]]:
    """Divide calls into those that may run side by side: at most `width`, and a sequential one alone."""
    start = 0
    while start < len(calls):
        end = start + 1
        while not calls[start].is_sequential and end < min(start + width, len(calls)) and not calls[end].is_sequential:
            end += 1
        yield start, end
        start = end


def _is_complete(run: Run) -> bool:
    """Whether each call has its record, or another worker finishes what was cut short."""
    assert run.obtained.response is not None
    return run.progress.has_unfinished_calls or len(run.obtained.records) >= len(run.obtained.response.tool_calls)


def _has_ended(run: Run) -> bool:
    """Whether the execution ends with this step, so that no answer is needed any more."""
    if run.ending.is_stopping:
        return True
    return bool(run.ending.signals) and not run.execution.continuation.is_continuation_requested


_LOOKUP_AGAIN_SECONDS: Final = 2.0
_CONFIRM_AGAIN_SECONDS: Final = 2.0


class BegunCalls:
    """Decides whether begun calls run again."""

    def __init__(self, services: EngineServices, runner: ToolCallRunner) -> None:
        self._services = services
        self._runner = runner

    def leave_others_off(self, run: Run, planned: Sequence[PlannedCall]) -> tuple[Run, Sequence[PlannedCall]]:
        """Record calls that have not begun as not run, where a message interrupts the step, and give the others."""
        if not run.lease.is_cut or run.ending.is_stopping:
            return run, planned
        left, now_ms = list[PlannedCall](), self._services.redis_ms(run)
        for each in planned:
            if each.is_pure or not may_have_begun(run, each.index):
                run = run.with_record(each.index, record_not_run(run, each, now_ms, MESSAGE_CAME_FIRST))
            else:
                left.append(each)
        return run, left

    def resolve(self, run: Run, planned: Sequence[PlannedCall]) -> tuple[Run, list[PlannedCall]]:
        """Decide by the effect class whether a begun call runs again; the list holds all calls that may run."""
        fresh: list[PlannedCall] = []
        for each in planned:
            begun = run.journal.begun.get(each.index)
            if run.ending.is_stopping:
                run = run.with_record(each.index, self.record_stopped(run, each, begun))
            elif begun is None or has_begun_elsewhere(run, each.index):  # the call begins, or only continues
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
        if begun is None and has_begun_elsewhere(run, planned.index):
            return record_unknown(run, planned, "it was begun, and its end is not known", self._times_now(run))
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
                record = record_value(run, planned, answer.value, CallTimes.at(now_ms), self._services.settings)
                return _with_outcome(run, planned, record), []
            case LookupStatus.UNKNOWN:
                why = redact(answer.reason) or "its lookup cannot tell"
                return _with_outcome(run, planned, record_unknown(run, planned, why, CallTimes.at(now_ms))), []
            case LookupStatus.DID_NOT_HAPPEN:
                # The worker that began the call may still be in it, until the call's timeout is over.
                margin_ms = round(self._services.settings.lookup_margin_seconds * 1000)
                begun_ms = self._services.store.steps.begun_ms(run.claim, begun)
                over_ms = begun_ms + begun.timeout_ms + margin_ms
                if over_ms <= now_ms:
                    return run, [planned]
                return self._look_up_later(run, planned, (over_ms - now_ms) / 1000), []
            case _ as never:
                assert_never(never)

    def _look_up_later(self, run: Run, planned: PlannedCall, seconds: float) -> Run:
        why = f"{planned.call.name} may still be running elsewhere"
        seconds = min(seconds, _LOOKUP_AGAIN_SECONDS)
        return delay_step(run, self._services.store, why, seconds)

    def _times_now(self, run: Run) -> CallTimes:
        return CallTimes.at(self._services.redis_ms(run))


def _with_outcome(run: Run, planned: PlannedCall, record: CallRecord) -> Run:
    """The run with the record of a call, or of how it was started where a service brings its result."""
    if planned.later is not None:
        return run.with_started(planned.index, record)
    return run.with_record(planned.index, record)
