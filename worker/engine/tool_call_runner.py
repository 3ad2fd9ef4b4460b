"""Runs tool calls in the step's own thread, in other threads, or on the loop; what they raise becomes a record."""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, cast

from .. import crash_points
from ..concurrency import fibers
from ..drivers.protocol import AuxiliaryRequest
from ..errors import ClaimLost
from ..known_secrets import redact_known
from ..moments import moment
from ..redaction import describe_exception, place_of, redact
from ..requests.tokens import TokenClaims, TokenPurpose, TokenSigner
from ..state.execution.answers import MESSAGE_CAME_FIRST
from ..state.execution.signals import StopSignal
from ..state.execution.tool_calls import ToolOutcome
from ..state.values.error_info import ErrorInfo
from ..tools.context import ToolContext
from ..tools.delegation import NeedsChildren
from ..tools.effect import LookupResult
from ..tools.needs import NeedsReply, OutcomeUnknown
from ..tools.replies import Replies
from ..tools.stop import FailExecution, StopExecution
from .asked_calls import count_past_timers, has_later_result, read_memos, read_replies
from .call_records import (
    CallTimes,
    PlannedCall,
    keeps_secrets,
    record_elsewhere,
    record_error,
    record_not_run,
    record_unknown,
    record_value,
    run_hooks_after,
)
from .child_calls import read_spawned_ends
from .delegating import Delegator
from .leases import Interruption
from .outcome import TakenOver
from .request_opening import RequestOpener, next_request_id
from .run import Run
from .run_values import CallRecord
from .services import EngineServices

log = logging.getLogger(__name__)

_Future = concurrent.futures.Future[Any]

# How often calls in flight are checked while none ends, and how often while an interruption waits to be obeyed.
_CHECK_SECONDS: Final = 1.0
_CHECK_INTERRUPTED_SECONDS: Final = 0.2
_SHORTEST_WAIT_SECONDS: Final = 0.05
# After its deadline an async call has this long to end by its cancellation.
_LATE_SECONDS: Final = 0.5


class ToolCallRunner:
    """Runs the calls of one batch and journals what came of them."""

    def __init__(self, services: EngineServices, opener: RequestOpener, delegator: Delegator) -> None:
        self._services = services
        self._opener = opener
        self._delegator = delegator
        self._signer = TokenSigner(services.settings.token_secret)
        self._steps = services.store.steps
        self._keeper = services.keeper
        self._loop = services.loop
        self._threads = services.threads
        self._settings = services.settings
        self._monotonic = services.monotonic

    def run_calls(self, run: Run, calls: Sequence[PlannedCall], *, is_final: bool) -> Run:
        """Run the calls. Each result is journaled when its call ends; the last one of the final batch by the commit."""
        if not calls:
            return run
        if len(calls) == 1 and not calls[0].tool.is_async:
            return self._add_record(run, calls[0], self._run_in_step(run, calls[0]), with_commit=is_final)
        return self._run_side_by_side(run, calls, is_final=is_final)

    def look_up(self, run: Run, planned: PlannedCall) -> LookupResult:
        """Ask a tool whether the effect of an earlier attempt happened."""
        lookup = planned.tool.lookup
        assert lookup is not None
        answer = fibers.run_users_code(lookup, planned.key, self._tool_context(run, planned))
        if isinstance(answer, LookupResult):
            return answer
        return fibers.result(self._loop.submit(lambda: answer, planned.timeout))

    def _run_in_step(self, run: Run, planned: PlannedCall) -> CallRecord | NeedsReply:
        """Run a single plain function in the step's own thread.

        When it takes too long, the lease keeper journals that outcome and gives the claim back: another worker
        continues from there, and what the function returns later is not used.
        """
        lease, began_ms = run.lease, self._services.redis_ms(run)

        def journal_timeout() -> None:
            record = self._record_timeout(run, planned, began_ms)
            self._steps.record_results(run.claim, {planned.index: record.to_json()})

        lease.on_give_up = journal_timeout
        lease.call_deadline = self._monotonic() + planned.timeout
        lease.blocked_since = self._monotonic()
        try:
            context = self._tool_context(run, planned)
            return self._record_outcome(
                run, planned, lambda: fibers.run_users_code(planned.tool.call, context, planned.bound), began_ms
            )
        finally:
            lease.end_call()

    def _run_side_by_side(self, run: Run, calls: Sequence[PlannedCall], *, is_final: bool) -> Run:
        began_ms, began = self._services.redis_ms(run), self._monotonic()
        futures: dict[_Future, PlannedCall] = {self._start(run, planned): planned for planned in calls}
        for future, planned in futures.items():
            run.lease.on_interrupt(future.cancel)
            if planned.is_pure and planned.tool.is_async:
                run.lease.on_cut(future.cancel)
        waiting = set(futures)
        deadlines = {future: began + planned.timeout + _LATE_SECONDS for future, planned in futures.items()}
        while waiting:
            until = min(deadlines[future] for future in waiting)
            done, waiting = self._threads.wait(waiting, self._seconds_to_wait(run, until))
            for future in sorted(done, key=lambda ended: futures[ended].index):
                planned = futures[future]
                self._services.concurrency.leave_call(run, planned)
                record = self._record_outcome(run, planned, future.result, began_ms)
                run = self._add_if_ended(run, planned, record, with_commit=is_final and not waiting)
            now = self._monotonic()
            all_late = not done and run.lease.interruption is not None
            late = {future for future in waiting if all_late or now >= deadlines[future]}
            for future in late:
                if not futures[future].tool.is_async:
                    self._keeper.abandon(future, deadlines[future])
                    self._services.concurrency.outlive(run, futures[future], future)
            run = self._leave(run, [futures[future] for future in late], began_ms)
            waiting -= late
        return run

    def _seconds_to_wait(self, run: Run, until: float) -> float:
        if run.lease.interruption is not None:
            return _CHECK_INTERRUPTED_SECONDS
        return max(_SHORTEST_WAIT_SECONDS, min(_CHECK_SECONDS, until - self._monotonic()))

    def _start(self, run: Run, planned: PlannedCall) -> _Future:
        context, tool = self._tool_context(run, planned), planned.tool
        if tool.is_async:
            return self._loop.submit(lambda: cast("Awaitable[Any]", tool.call(context, planned.bound)), planned.timeout)
        return self._threads.submit(tool.call, context, planned.bound)

    # --- from what a call returned or raised to its record ----------------------------------------------------

    def _record_outcome(
        self, run: Run, planned: PlannedCall, get_result: Callable[[], Any], began_ms: int
    ) -> CallRecord | NeedsReply:
        signal: StopSignal | None = None
        try:
            returned = get_result()
        except NeedsReply as needs:
            return needs
        except StopExecution as stop:
            returned, signal = stop.result, stop.signal_from(planned.call.name)
        except FailExecution as failure:
            return record_error(run, planned, failure.error, self._times(run, began_ms))
        except concurrent.futures.CancelledError:
            return self._record_interrupted(run, planned, "the call was cancelled", began_ms)
        except (Exception, GeneratorExit) as error:  # noqa: BLE001 - the tool's own code
            return self._record_raised(run, planned, error, began_ms)
        finally:
            run.live.end_tool(planned.index)
        record = record_value(run, planned, returned, self._times(run, began_ms), self._settings)
        return record if signal is None else CallRecord(execution=record.execution, signal=signal)

    def _record_raised(self, run: Run, planned: PlannedCall, error: BaseException, began_ms: int) -> CallRecord:
        """Record a call that raised an exception without special meaning."""
        if isinstance(error, OutcomeUnknown):
            return record_unknown(run, planned, redact(str(error)), self._times(run, began_ms))
        if isinstance(error, TimeoutError) and planned.tool.is_async and not str(error):
            return self._record_interrupted(run, planned, _late_message(planned), began_ms)
        raised = (error.__cause__ if isinstance(error, fibers.ExitAttempt) else None) or error
        described = describe_exception(raised)
        name, session = planned.call.name, run.ref.session_id
        log.info("tool %s of session %s raised %s%s", name, session, described.message, place_of(raised))
        return record_error(run, planned, described, self._times(run, began_ms))

    def _record_interrupted(self, run: Run, planned: PlannedCall, why: str, began_ms: int) -> CallRecord:
        """Record a call that ended in the middle, by an interruption or because it took too long."""
        if planned.is_pure and run.lease.interruption is not None:
            return record_not_run(run, planned, self._services.redis_ms(run))
        if planned.is_pure and run.lease.is_cut:
            return record_not_run(run, planned, self._services.redis_ms(run), MESSAGE_CAME_FIRST)
        return self._record_timeout(run, planned, began_ms, why)

    def _record_timeout(self, run: Run, planned: PlannedCall, began_ms: int, why: str | None = None) -> CallRecord:
        message, times = why or _late_message(planned), self._times(run, began_ms)
        if not planned.is_pure:  # the effect may have happened
            return record_unknown(run, planned, message, times)
        return record_error(run, planned, ErrorInfo(kind="timeout", message=message), times)

    # --- from a record to the run and the journal -------------------------------------------------------------

    def _leave(self, run: Run, late: Collection[PlannedCall], began_ms: int) -> Run:
        """Continue without calls that do not end: their threads run on, and their results are not used."""
        for planned in sorted(late, key=lambda each: each.index):
            record = self._record_interrupted(run, planned, _late_message(planned), began_ms)
            run = self._add_if_ended(run, planned, record, with_commit=False)
        return run

    def _add_if_ended(
        self, run: Run, planned: PlannedCall, record: CallRecord | NeedsReply, *, with_commit: bool
    ) -> Run:
        """Add the record of a call, unless another worker has to finish it: then only its begin record stays."""
        if isinstance(record, NeedsReply):
            return self._add_record(run, planned, record, with_commit=with_commit)
        was_cut_short = record.execution.outcome in (ToolOutcome.UNKNOWN, ToolOutcome.NOT_RUN)
        if was_cut_short and run.lease.interruption not in (None, Interruption.CANCEL, Interruption.LIMIT):
            return run.with_progress(has_unfinished_calls=True)
        return self._add_record(run, planned, record, with_commit=with_commit)

    def _add_record(self, run: Run, planned: PlannedCall, record: CallRecord | NeedsReply, *, with_commit: bool) -> Run:
        """Run the hooks after the call, and journal its result now or leave it to the commit."""
        crash_points.at("c5")
        if isinstance(record, NeedsReply):
            return self._add_request(run, planned, record)
        if has_later_result(run, planned.index):  # it was started; a service brings the result
            return self._opener.record_started(run.with_started(planned.index, record))
        record = run_hooks_after(run, record, self._settings)
        run = run.with_record(planned.index, record)
        if planned.is_pure:
            return run
        run = run.with_unjournaled(planned.index, record)
        if with_commit:
            return run
        return self._services.try_to_journal_results(run)  # the commit tries again, as long as the step may live

    def _add_request(self, run: Run, planned: PlannedCall, needs: NeedsReply) -> Run:
        """Open the request that a tool has asked for; where that is not possible, the call has a record instead."""
        if run.outcome is not None:
            return run
        try:
            if isinstance(needs, NeedsChildren):
                run = self._delegator.open_spawned(run, planned, needs)
            else:
                run = self._opener.open_needed(run, planned, needs)
        except ClaimLost:  # not raised here: other calls of the batch still run, and their results are journaled
            return run.decide(TakenOver(run.ref))
        # One that an attempt with a lost reply has opened may have its answer, which is read when it is closed.
        is_open = any(each.index == planned.index and each.child is None for each in run.journal.open_requests)
        if run.ending.is_stopping and planned.index not in run.obtained.records and not is_open:
            run = run.with_record(planned.index, self._record_unasked(run, planned, needs))
        if planned.index not in run.obtained.records or planned.is_pure:
            return run
        return run.with_unjournaled(planned.index, run.obtained.records[planned.index])

    def _record_unasked(self, run: Run, planned: PlannedCall, needs: NeedsReply) -> CallRecord:
        """Record a call that would wait, of an execution that ends: one that has begun elsewhere is unknown."""
        if not needs.has_begun:
            return record_not_run(run, planned, self._services.redis_ms(run))
        return record_elsewhere(run, planned, CallTimes.at(self._services.redis_ms(run)))

    def _tool_context(self, run: Run, planned: PlannedCall) -> ToolContext:
        lease, monotonic = run.lease, self._services.monotonic
        ends_at = monotonic() + planned.timeout
        return ToolContext(
            session_id=run.ref.session_id,
            execution_id=run.ref.execution_id,
            step=run.ref.step,
            index=planned.index,
            idempotency_key=planned.key,
            deadline=moment(self._services.redis_ms(run)) + timedelta(seconds=planned.timeout),
            cancelled=lambda: lease.interruption is not None or (planned.is_pure and lease.is_cut),
            ask=lambda key, request: run.ask_model(
                f"t{planned.index}.{key}", request if keeps_secrets(planned.tool) else _without_secrets(request)
            ),
            replies=self._replies(run, planned),
            state=run.state,
            calls=run.obtained.response.tool_calls if run.obtained.response is not None else (),
            emitter=lambda value: run.live.emit_of_tool(planned.index, value),
            provider=run.obtained.response.provider if run.obtained.response is not None else None,
            is_repeated=planned.index in run.journal.begun,
            max_result_bytes=self._settings.max_result_bytes,
            remaining=lambda: ends_at - monotonic(),
        )

    def _replies(self, run: Run, planned: PlannedCall) -> Replies:
        rounds = run.journal.requests.get(planned.index)
        if not rounds:
            return Replies(make_token=partial(self._sign, run, planned)) if planned.defers else Replies()
        return Replies(
            received=read_replies(run, planned.index),
            make_token=partial(self._sign, run, planned) if planned.defers or planned.later is not None else None,
            past_timers=count_past_timers(run, planned.index),
            children=read_spawned_ends(run, planned.index),
            memos=read_memos(run, planned.index),
        )

    def _sign(self, run: Run, planned: PlannedCall, purpose: TokenPurpose) -> str:
        """Make the token of the request that waits for the call's result, or of the one that the call will make."""
        rounds = run.journal.requests.get(planned.index, ())
        name = next_request_id(run, planned) if planned.defers else rounds[-1].id
        return self._signer.sign(TokenClaims(session_id=run.ref.session_id, request_id=name, purpose=purpose))

    def _times(self, run: Run, began_ms: int) -> CallTimes:
        return CallTimes(began_ms, self._services.redis_ms(run))


def _without_secrets(request: AuxiliaryRequest | str) -> AuxiliaryRequest | str:
    """Remove the secrets of this process from a question to a model: the provider must not get them, either."""
    if isinstance(request, str):
        return redact_known(request)
    return replace(
        request,
        messages=tuple(each.with_content(redact_known(each.content)) for each in request.messages),
        system_prompt=redact_known(request.system_prompt),
    )


def _late_message(planned: PlannedCall) -> str:
    return f"no result within {planned.timeout:g} s"
