"""Closes open requests for the worker: at expiry, under a stop, after a failed start."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, assert_never

from ..concurrency import fibers
from ..redaction import describe_exception
from ..state.execution.answers import AnswerRecord, AnswerVerb, withdrawal
from ..state.execution.requests import ExpiryAction, Request, RequestKind
from ..state.execution.signals import StopReason
from ..state.execution.tool_calls import ToolOutcome
from ..state.values.frozen import thaw
from .asked_calls import find_expiry_failure, read_memo
from .run import Run
from .services import EngineServices

log = logging.getLogger(__name__)

_VALUE_VERBS: Final = {RequestKind.QUESTION: AnswerVerb.ANSWER, RequestKind.EXTERNAL: AnswerVerb.COMPLETE}
_ABANDON_SECONDS: Final = 5.0
_CRASHED: Final = "a worker ended while the call was started, and no result came"


class RequestCloser:
    """Closes open requests by an answer of the worker. An answer that came in between stays."""

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self._steps = services.store.steps

    def close(self, run: Run) -> Run:
        """Close expired requests, under a stop all, and for a message that interrupts those whose call has not begun.

        An expiry whose rule is to fail fails the execution.
        """
        if not run.ending.is_stopping:
            run = self._close_expired(run)
            failure = find_expiry_failure(run)
            run = run if failure is None else run.failing(failure, StopReason.ERROR_FORBADE)
        if run.ending.is_stopping:
            return self.cancel_open(run)
        return self._withdraw(run) if run.lease.is_cut else run

    def _withdraw(self, run: Run) -> Run:
        """Close the open requests of calls that have not begun anywhere: a message came first."""
        journal, record = run.journal, withdrawal(self._services.redis_ms(run))
        waiting = [each for each in journal.open_requests if each.child is None and not each.has_begun]
        begun = {*journal.begun, *journal.started_calls, *run.obtained.started}
        return self.close_with(run, {each.id: record for each in waiting if each.index not in begun})

    def cancel_open(self, run: Run) -> Run:
        """Close every open request: the execution ends, and no answer is taken any more. Children end by themselves."""
        now_ms = self._services.redis_ms(run)
        asked = [each for each in run.journal.open_requests if each.child is None]
        for each in asked:
            self._abandon(run, each)
        return self.close_with(run, {each.id: AnswerRecord(verb=AnswerVerb.CANCEL, at_ms=now_ms) for each in asked})

    def _abandon(self, run: Run, request: Request) -> None:
        """Tell a tool whose call continues elsewhere that its result is not needed any more; it does what it can."""
        abandon = getattr(run.agent.toolset.get(request.tool), "abandon", None)
        memo = read_memo(request)
        if abandon is None or memo is None:
            return
        try:
            fibers.result(self._services.loop.submit(lambda: abandon(run.state, thaw(memo)), _ABANDON_SECONDS))
        except Exception as error:  # noqa: BLE001 - the other side may be away, and the stop continues
            log.warning(
                "%s could not be told that its call is stopped: %s", request.tool, describe_exception(error).message
            )

    def close_failed_starts(self, run: Run) -> Run:
        """Close requests of calls that could not be started; one that may have been started waits for its expiry.

        The answer's value is the outcome that the call gets: an error, or unknown.
        """
        records: dict[str, AnswerRecord] = {}
        for request in run.journal.open_requests:
            started = run.obtained.started.get(request.index)
            if request.kind is not RequestKind.EXTERNAL or started is None:
                continue
            outcome, error = started.execution.outcome, started.execution.error
            if outcome is ToolOutcome.OK or (outcome is ToolOutcome.UNKNOWN and request.expires_at_ms is not None):
                continue
            reason = error.message if error is not None else _CRASHED
            records[request.id] = AnswerRecord(
                verb=AnswerVerb.FAIL, value=outcome.value, reason=reason, at_ms=self._services.redis_ms(run)
            )
        return self.close_with(run, records)

    def _close_expired(self, run: Run) -> Run:
        now_ms = self._services.redis_ms(run)
        expired = [each for each in run.journal.open_requests if each.child is None and each.is_expired(now_ms)]
        records = {each.id: _expiry_record(each, now_ms) for each in expired}
        following = [each.passed_on(now_ms) for each in expired if each.on_expiry.then is ExpiryAction.PASS_ON]
        return self.close_with(run, records, following)

    def close_with(self, run: Run, records: Mapping[str, AnswerRecord], opens: Sequence[Request] = ()) -> Run:
        """Answer open requests, by id, in one transaction that the claim guards.

        Args:
            opens: The next rounds of requests that are passed on.
        """
        if not records:
            return run
        close = partial(self._steps.close_requests, run.claim, records, opens=opens)
        stored = self._services.ask_store(run, close, "an expiry or a stop")
        places = {each.id: each.place for each in run.journal.all_requests}
        journal = run.journal.with_answers({places[name]: record for name, record in stored.items() if name in places})
        passed_on = {place for place, record in journal.answers.items() if record.verb is AnswerVerb.PASS_ON}
        opened = [each for each in opens if (each.index, each.round - 1) in passed_on]
        return run.with_journal(journal.with_requests(opened) if opened else journal)


def _expiry_record(request: Request, now_ms: int) -> AnswerRecord:
    """The record that an expiry rule produces."""
    rule = request.on_expiry
    fields: dict[str, Any] = {"at_ms": now_ms, "by_expiry": True}
    match rule.then:
        case ExpiryAction.DENY:
            return AnswerRecord(verb=AnswerVerb.DENY, reason="nobody answered in time", **fields)
        case ExpiryAction.APPROVE:
            return AnswerRecord(verb=AnswerVerb.APPROVE, **fields)
        case ExpiryAction.VALUE:
            return AnswerRecord(verb=_VALUE_VERBS.get(request.kind, AnswerVerb.ANSWER), value=rule.value, **fields)
        case ExpiryAction.FAIL:
            reason = f"nobody answered the request about {request.tool} in time"
            return AnswerRecord(verb=AnswerVerb.FAIL, reason=reason, **fields)
        case ExpiryAction.PASS_ON:
            return AnswerRecord(verb=AnswerVerb.PASS_ON, reason=f"passed on to {rule.to}", **fields)
        case _ as never:
            assert_never(never)
