"""Opens the requests of a step, and journals them before anything waits for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from ..errors import InvalidInput
from ..known_secrets import redact_known_in
from ..moments import moment, unix_ms
from ..redaction import describe_exception, redact
from ..requests.answers import FREE_TEXT, QUESTIONS, check_values
from ..requests.grants import find_grant
from ..state.execution.answers import AnswerRecord, AnswerVerb
from ..state.execution.requests import (
    BEGUN,
    CLOCK,
    MAX_REQUEST_BYTES,
    MAX_REQUESTS_PER_STEP,
    ExpiryAction,
    OnExpiry,
    Request,
    RequestKind,
    WhileWaiting,
    arguments_digest,
    request_id,
)
from ..state.execution.tool_calls import ToolOutcome
from ..state.values.error_info import ErrorInfo
from ..state.values.frozen import FrozenDict
from ..tools.approval import LaterResult, milliseconds_of, stored_rule
from ..tools.needs import NeedsAnswer, NeedsApproval, NeedsReply, NeedsResult, NeedsTime
from ..tools.protocol import Tool
from .asked_calls import MEMO, TIMER
from .call_records import (
    CallTimes,
    PlannedCall,
    RequestedCall,
    keeps_secrets,
    record_call,
    record_error,
    record_unknown,
)
from .decisions import CallDecision, PolicyVerdict, decide_about, may_ask
from .endings import user_stop_signal
from .request_closing import RequestCloser
from .run import Run
from .run_values import CallRecord
from .services import EngineServices

MAX_ROUNDS: Final = 16
"""Requests that one call may make one after another."""

MAX_ROUNDS_BEGUN: Final = 48
"""The same for a call whose effect continues elsewhere, and that only looks for its end."""


class RequestOpener:
    """Asks the policies about calls, and opens the requests of a step."""

    def __init__(self, services: EngineServices, closer: RequestCloser) -> None:
        self._services = services
        self._closer = closer
        self._steps = services.store.steps

    def decide(self, run: Run, planned: Sequence[PlannedCall]) -> tuple[Run, list[PlannedCall]]:
        """Ask the policies about calls without a decision, and open the requests that they want.

        Returns:
            The run, with the records of calls that may not run; and the calls that may run.
        """
        if run.ending.is_stopping:
            return run, list(planned)
        decided = self._decisions(run, planned)
        if not decided:
            return run, list(planned)
        run = run.with_journal(run.journal.with_decisions(self._journal_refusals(run, decided)))
        requests: list[tuple[PlannedCall, Request]] = []
        for each in (each for each in planned if each.index in decided):
            decision = decided[each.index]
            if (stored := run.journal.decisions.get(each.index)) is not None:  # the first one stored counts
                decision = CallDecision.from_journal(each.index, stored)
            if decision.verdict is PolicyVerdict.ASK:
                requests.append((each, self._approval_request(run, replace(each, call=decision.call), decision)))
            else:
                run = run.with_record(each.index, _record_decision(run, each, decision, self._services.redis_ms(run)))
        run = self.open(run, requests)
        may_run = [each for each in planned if each.index not in run.obtained.records]
        return run, may_run if run.ending.is_stopping else [each for each in may_run if each.index not in decided]

    def open_later(self, run: Run, planned: Sequence[PlannedCall]) -> Run:
        """Open the requests of calls whose results a service brings, together with their begin records."""
        wanted: list[tuple[PlannedCall, Request]] = []
        for each, later in ((each, each.later) for each in planned if each.later is not None):
            try:
                wanted.append((each, self.make_request(run, each, RequestKind.EXTERNAL, **_later_fields(later))))
            except InvalidInput as error:
                run = self.refuse(run, each, str(error))
        return self.open(run, wanted, begins={each.index: round(each.timeout * 1000) for each, _ in wanted})

    def open_needed(self, run: Run, planned: PlannedCall, needs: NeedsReply) -> Run:
        """Open the request that a tool has asked for; it takes the begin record of the call back."""
        if planned.later is not None:
            advice = (
                "a tool whose result comes later cannot ask; declare it with approval=… or ask in a tool of its own"
            )
            return self.refuse(run, planned, advice)
        most = MAX_ROUNDS_BEGUN if needs.has_begun else MAX_ROUNDS
        if len(run.journal.requests.get(planned.index, ())) >= most:
            why = f"the tool asked {most} times and never went on"
            return self.refuse(run, planned, why, has_begun=needs.has_begun)
        try:
            request = self._needed_request(run, planned, needs)
        except Exception as error:  # noqa: BLE001 - values that the tool gave
            return self.refuse(run, planned, describe_exception(error).message, has_begun=needs.has_begun)
        run = self.open(run, [(planned, request)])
        is_open = any(each.id == request.id for each in run.journal.open_requests)
        return self._approve_by_grant(run, request, needs) if is_open and isinstance(needs, NeedsApproval) else run

    def _approve_by_grant(self, run: Run, request: Request, needs: NeedsApproval) -> Run:
        """Answer the approval that a tool has asked for, where a person has approved it for later calls, too."""
        grant = find_grant(run.state, request.tool, needs.ask.to)
        if grant is None:
            return run
        note = f"remembered from {grant.id}"
        record = AnswerRecord(verb=AnswerVerb.APPROVE, by=grant.by, note=note, at_ms=self._services.redis_ms(run))
        return self._closer.close_with(run, {request.id: record})

    def record_started(self, run: Run) -> Run:
        """Journal which calls services have now, so that no worker starts them again."""
        known = run.journal.started_calls
        records = run.obtained.started.items()
        started = {index for index, record in records if record.execution.outcome is ToolOutcome.OK}
        new = started - known
        if not new:
            return run
        self._services.ask_store(run, lambda: self._steps.record_started_calls(run.claim, new), "a started call")
        return run.with_journal(replace(run.journal, started_calls=known | new))

    # --- decisions --------------------------------------------------------------------------------------------

    def _decisions(self, run: Run, planned: Sequence[PlannedCall]) -> dict[int, CallDecision]:
        """Decisions, other than to run, about calls that have asked for nothing and were not begun."""
        decided: dict[int, CallDecision] = {}
        journal = run.journal
        has_acted = {*journal.requests, *journal.begun}
        for each in (each for each in planned if each.index not in has_acted):
            stored = journal.decisions.get(each.index)
            if stored is not None:
                decided[each.index] = CallDecision.from_journal(each.index, stored)
            elif may_ask(run, each) and (decision := decide_about(run, each)) is not None:
                decided[each.index] = decision
        return decided

    def _journal_refusals(self, run: Run, decided: Mapping[int, CallDecision]) -> Mapping[int, bytes]:
        """Journal decisions that end their call. A decision to ask is its request, which holds it all."""
        new = {
            index: decision.to_json()
            for index, decision in decided.items()
            if decision.verdict is not PolicyVerdict.ASK and index not in run.journal.decisions
        }
        if not new:
            return {}
        return self._services.ask_store(run, lambda: self._steps.record_decisions(run.claim, new), "a decision")

    def _approval_request(self, run: Run, planned: PlannedCall, decision: CallDecision) -> Request:
        fields: dict[str, Any] = {"text": decision.text or f"May {decision.tool} be called with these arguments?"}
        if decision.edits:
            fields |= {"edits_allowed": True, "answer_schema": _edit_schema(planned.tool)}
        return self.make_request(
            run, planned, RequestKind.APPROVAL, needs_seen=decision.seen, while_waiting=decision.while_waiting,
            args=decision.args, to=decision.to, after_ms=decision.after_ms, on_expiry=decision.on_expiry, **fields,
        )  # fmt: skip

    # --- requests ---------------------------------------------------------------------------------------------

    def _needed_request(self, run: Run, planned: PlannedCall, needs: NeedsReply) -> Request:
        match needs:
            case NeedsApproval():
                ask = needs.ask
                fields: dict[str, Any] = {
                    "text": ask.text or f"May {planned.call.name} go on?", "options": _memo(needs.memo) or None,
                }  # fmt: skip
                if ask.edits:
                    fields |= {"edits_allowed": True, "answer_schema": _edit_schema(planned.tool)}
                return self.make_request(
                    run, planned, RequestKind.APPROVAL, needs_seen=ask.seen,
                    while_waiting=WhileWaiting(ask.while_waiting),
                    to=ask.to, after_ms=milliseconds_of(ask.expires), on_expiry=stored_rule(ask.on_expiry), **fields,
                )  # fmt: skip
            case NeedsAnswer():
                return self._question(run, planned, needs)
            case NeedsTime():
                return self._timer(run, planned, needs)
            case NeedsResult():
                return self.make_request(
                    run, planned, RequestKind.EXTERNAL,
                    text=needs.text or "A service brings the result.",
                    after_ms=milliseconds_of(needs.expires), options={BEGUN: True, **_memo(needs.memo)},
                )  # fmt: skip
            case _:
                raise InvalidInput("raise", type(needs), "raise NeedsApproval or NeedsAnswer.")

    def _timer(self, run: Run, planned: PlannedCall, needs: NeedsTime) -> Request:
        now_ms = self._services.redis_ms(run)
        until = needs.until if isinstance(needs.until, datetime) else moment(now_ms) + needs.until
        when = f"{planned.call.name} goes on at {until.isoformat(timespec='seconds')}"
        options = {TIMER: until.isoformat(), **({BEGUN: True} if needs.has_begun else {}), **_memo(needs.memo)}
        return self.make_request(
            run, planned, RequestKind.APPROVAL,
            text=f"{redact(needs.why)}; {when}" if needs.why else when,
            to=CLOCK, after_ms=max(1, unix_ms(until) - now_ms),
            on_expiry=OnExpiry(then=ExpiryAction.APPROVE), options=options,
        )  # fmt: skip

    def _question(self, run: Run, planned: PlannedCall, needs: NeedsAnswer) -> Request:
        fields: dict[str, Any] = {
            "text": needs.prompt, "to": needs.to, "after_ms": milliseconds_of(needs.expires),
            "while_waiting": WhileWaiting(needs.while_waiting),
        }  # fmt: skip
        more: dict[str, Any] = {**({BEGUN: True} if needs.has_begun else {}), **_memo(needs.memo)}
        if needs.questions is not None:
            items = [item.model_dump(mode="json", exclude_defaults=True) for item in needs.questions.items]
            fields["options"] = {QUESTIONS: items, FREE_TEXT: needs.questions.allow_free_text, **more}
        elif needs.schema is not None:
            fields["answer_schema"] = FrozenDict(needs.schema)
            fields["options"] = more or None
        rule = stored_rule(needs.on_expiry)
        request = self.make_request(run, planned, RequestKind.QUESTION, on_expiry=rule, **fields)
        if rule.then is not ExpiryAction.VALUE:
            return request
        # In the form in which an answer would be stored: it is not checked later.
        rule = OnExpiry(then=ExpiryAction.VALUE, value=check_values(request, rule.value))
        return self.make_request(run, planned, RequestKind.QUESTION, on_expiry=rule, **fields)

    def make_request(
        self, run: Run, planned: PlannedCall, kind: RequestKind, *, ahead: int = 0, **fields: Any
    ) -> Request:
        """Make the next request of a call.

        Args:
            ahead: Requests of the call that are opened together with this one, before it.
        Raises:
            InvalidInput: The arguments are no JSON object.
        """
        args = fields.pop("args", planned.arguments)
        if args is None:
            raise InvalidInput("args", None, "a call that asks takes its arguments as one JSON object.")
        now_ms, after_ms = self._services.redis_ms(run), fields.pop("after_ms", None)
        place = _next_place(run, planned, ahead)
        ref = run.ref
        return Request(
            id=request_id(ref.execution_id, ref.step, place, planned.call.name, args),
            kind=kind,
            session_id=ref.session_id,
            agent=run.loaded.agent,
            execution_id=ref.execution_id,
            step=ref.step,
            index=planned.index,
            round=place[1],
            tool=planned.call.name,
            call_id=planned.call.id,
            args=args,
            digest=arguments_digest(planned.call.name, args),
            asked_at_ms=now_ms,
            expires_at_ms=None if after_ms is None else now_ms + after_ms,
            **fields,
        )

    def open(
        self, run: Run, wanted: Sequence[tuple[PlannedCall, Request]], begins: Mapping[int, int] | None = None
    ) -> Run:
        """Journal requests, without secrets; those that are too long or too many become errors that the model reads."""
        fitting: list[Request] = []
        room = MAX_REQUESTS_PER_STEP - len(run.journal.all_requests)
        for planned, asked in wanted:
            request = _without_secrets(planned, asked)
            size = len(request.to_json())
            if size > MAX_REQUEST_BYTES:
                advice = f"the request would have {size} bytes, and {MAX_REQUEST_BYTES} are allowed; pass less"
                run = self.refuse(run, planned, advice, has_begun=request.has_begun)
            elif len(fitting) >= room:
                advice = f"a step makes {MAX_REQUESTS_PER_STEP} requests at most"
                run = self.refuse(run, planned, advice, has_begun=request.has_begun)
            else:
                fitting.append(request)
        if not fitting:
            return run
        kept = {each.index: timeout for each in fitting if (timeout := (begins or {}).get(each.index)) is not None}
        journal = partial(self._steps.open_requests, run.claim, fitting, begins=kept)
        opened = self._services.ask_store(run, journal, "a request")
        run = run.with_journal(run.journal.with_requests(opened.requests)) if opened.requests else run
        if opened.is_interrupted:
            run.lease.cut()
        return run if opened.cancel is None else run.stopping(user_stop_signal())

    def refuse(self, run: Run, planned: PlannedCall, why: str, *, has_begun: bool = False) -> Run:
        """Record a call that cannot ask; the model reads why.

        Args:
            has_begun: Its effect continues elsewhere, and its end will not be known.
        """
        times = CallTimes.at(self._services.redis_ms(run))
        if has_begun:
            record = record_unknown(run, planned, f"nobody can wait for it: {why}", times)
            return run.with_record(planned.index, record)
        error = ErrorInfo(kind="request_refused", message=f"the call did not run: {why}")
        return run.with_record(planned.index, record_error(run, planned, error, times))


def next_request_id(run: Run, planned: PlannedCall) -> str:
    """The id that the next request of a call will have, if it asks about the arguments with which it runs."""
    ref, args = run.ref, planned.arguments or FrozenDict()
    return request_id(ref.execution_id, ref.step, _next_place(run, planned), planned.call.name, args)


def _next_place(run: Run, planned: PlannedCall, ahead: int = 0) -> tuple[int, int]:
    return planned.index, len(run.journal.requests.get(planned.index, ())) + ahead


def _record_decision(run: Run, planned: PlannedCall, decision: CallDecision, now_ms: int) -> CallRecord:
    requested = RequestedCall(index=planned.index, call=decision.call)
    if decision.verdict is PolicyVerdict.ERROR:
        return record_error(run, requested, ErrorInfo(kind="policy", message=decision.reason), CallTimes.at(now_ms))
    why = ErrorInfo(kind="denied", message=f"The call is not allowed: {decision.reason}")
    return record_call(run, requested, ToolOutcome.BLOCKED, CallTimes.at(now_ms), error=why)


def _edit_schema(tool: Tool) -> FrozenDict:
    """JSON Schema of arguments that a person changes; a tool of another party gives one that is safe to apply."""
    return FrozenDict(getattr(tool, "edit_schema", None) or tool.parameters)


def _without_secrets(planned: PlannedCall, request: Request) -> Request:
    """The request without secrets of this process, unless the tool gives them on purpose."""
    return request if keeps_secrets(planned.tool) else request.with_texts(redact_known_in)


def _memo(memo: Any) -> dict[str, Any]:
    """The option that holds what a call leaves for its next run."""
    return {} if memo is None else {MEMO: memo}


def _later_fields(later: LaterResult) -> dict[str, Any]:
    return {
        "text": "A service brings the result.",
        "after_ms": milliseconds_of(later.expires),
        "on_expiry": stored_rule(later.on_expiry),
    }
