"""Steps that ask and wait, by hand: for the contract tests of waiting, answering and holding."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from celery_agents.worker.engine.applied_step import start_execution
from celery_agents.worker.engine.arrivals import apply_at_end, apply_to_running
from celery_agents.worker.moments import moment
from celery_agents.worker.requests import check_answer
from celery_agents.worker.state import (
    AgentStep,
    AnswerNote,
    AnswerRecord,
    Approve,
    ErrorInfo,
    ExecutionBudget,
    ExecutionStatus,
    GivenAnswer,
    InferenceResponse,
    OnExpiry,
    Request,
    RequestKind,
    ToolCall,
    ToolExecution,
    ToolOutcome,
    arguments_digest,
    request_id,
)
from celery_agents.worker.store import (
    AnswerAction,
    AnswerResult,
    Claimed,
    Header,
    Journal,
    NextState,
    RefusedWait,
    Snapshot,
    StoredWait,
    Transition,
    WaitResult,
)

from .store import Bench

ANSWER = b"the model's answer"
HOUR_MS = 3_600_000


def a_request(bench: Bench, index: int = 0, *, step: int = 1, round: int = 0, **values: Any) -> Request:
    """A request for an approval of `refund(cents=<index>)`, with other values where the test needs them."""
    args = values.pop("args", {"cents": index})
    defaults = {"kind": RequestKind.APPROVAL, "asked_at_ms": now_ms(bench), "text": "May it?"}
    given = {**defaults, "call_id": f"call-{step}-{index}", **values}
    return Request(
        id=request_id(bench.execution, step, (index, round), "refund", args),
        session_id=bench.session,
        agent="agent",
        execution_id=bench.execution,
        step=step,
        index=index,
        round=round,
        tool="refund",
        args=args,
        digest=arguments_digest("refund", args),
        **given,
    )


def now_ms(bench: Bench) -> int:
    """Redis's time."""
    return bench.store.housekeeping.now_ms()


def soon(bench: Bench, seconds: float = 3600.0) -> int:
    """A Redis time so far from now; negative: it has passed."""
    return now_ms(bench) + round(seconds * 1000)


def waiting_transition(claimed: Claimed, requests: tuple[Request, ...]) -> Transition:
    """The stored state with its execution started and waiting."""

    def transition(snapshot: Snapshot) -> NextState:
        now = moment(snapshot.now_ms)
        state = start_execution(snapshot.state, ExecutionBudget.unlimited(), moment(claimed.loaded.started_ms))
        if state.status is ExecutionStatus.WAITING:
            state = state.with_execution_resumed(now=moment(claimed.claim.now_ms))
        return NextState(state.with_execution_waiting([each.summarize() for each in requests], now=now))

    return transition


def open_requests(bench: Bench, claimed: Claimed, *requests: Request, **options: Any) -> Journal:
    """Journal an answer of the model and requests of its calls; the journal as the step knows it then."""
    bench.store.steps.record_answer(claimed.claim, ANSWER)
    opened = bench.store.steps.open_requests(claimed.claim, requests, **options)
    return claimed.loaded.journal.with_requests(opened.requests)


def try_to_wait(
    bench: Bench, claimed: Claimed, seen: Journal, results: Mapping[int, bytes] | None = None
) -> WaitResult:
    """Wait for what is open."""
    transition = waiting_transition(claimed, seen.open_requests)
    return bench.store.steps.wait(claimed.claim, claimed.loaded, transition, seen=seen, results=results or {})


def wait(bench: Bench, claimed: Claimed, seen: Journal, results: Mapping[int, bytes] | None = None) -> StoredWait:
    """Wait for what is open; nothing hinders it."""
    waited = try_to_wait(bench, claimed, seen, results)
    assert isinstance(waited, StoredWait), waited
    return waited


def refused_wait(bench: Bench, claimed: Claimed, seen: Journal) -> RefusedWait:
    """Try to wait; something hinders it."""
    waited = try_to_wait(bench, claimed, seen)
    assert isinstance(waited, RefusedWait), waited
    return waited


def ask(bench: Bench, *requests: Request, step: int = 1) -> StoredWait:
    """Claim a step, and let it wait for these requests."""
    claimed = bench.claim(step)
    return wait(bench, claimed, open_requests(bench, claimed, *(requests or (a_request(bench, step=step),))))


def answer(
    bench: Bench, answers: Mapping[str, GivenAnswer], *, by: str = "ann", operation: str | None = None, **options: Any
) -> AnswerResult:
    """Answer requests of the session."""
    about = AnswerNote(operation_id=operation or uuid.uuid4().hex, by=by)
    return bench.store.requests.answer(
        bench.session, AnswerAction(answers, about, **{"check": check_answer, **options})
    )


def approve(bench: Bench, request: Request, **options: Any) -> AnswerResult:
    """Approve a request."""
    return answer(bench, {request.id: Approve()}, **options)


def leg_transition(claimed: Claimed, *, final: bool = False, failed: bool = False) -> Transition:
    """A woken step that ends with the resolutions of its requests, and stops where a stop was asked for."""

    def transition(snapshot: Snapshot) -> NextState:
        now, journal = moment(snapshot.now_ms), claimed.loaded.journal
        state = start_execution(snapshot.state, ExecutionBudget.unlimited(), now)
        if state.status is ExecutionStatus.WAITING:
            state = state.with_execution_resumed(now=moment(claimed.claim.now_ms))
        calls = [_record(journal, index, now) for index in sorted(journal.requests)]
        response = InferenceResponse(content="text", tool_calls=tuple(each.tool_call for each in calls))
        step = AgentStep.from_inference(response, calls, number=claimed.claim.ref.step)
        state = state.with_current_step(step, now=now)
        if failed:
            state = state.with_failure(ErrorInfo(kind="broken", message="broken"), now=now)
        elif final or snapshot.cancel is not None:
            state = state.with_execution_completed(claim=claimed.claim.id, now=now)
        else:
            state = state.with_current_step_completed(claim=claimed.claim.id, now=now)
        has_ended = state.status is not ExecutionStatus.IN_PROGRESS
        arrivals = apply_at_end(state, snapshot, now) if has_ended else apply_to_running(state, snapshot, now)
        return arrivals.save(NextState(state, ended=state if arrivals.state is not state and has_ended else None))

    return transition


def commit_leg(bench: Bench, claimed: Claimed, *, keep_claim: bool = False, **options: bool) -> Any:
    """Commit a woken step."""
    return bench.store.steps.commit(
        claimed.claim, claimed.loaded, leg_transition(claimed, **options), results={}, keep_claim=keep_claim
    )


def failing_transition(claimed: Claimed) -> Transition:
    """A woken step that fails without a step of the execution: its journal stays for a retry."""

    def transition(snapshot: Snapshot) -> NextState:
        now = moment(snapshot.now_ms)
        state = snapshot.state.with_execution_resumed(now=moment(claimed.claim.now_ms))
        return NextState(state.with_failure(ErrorInfo(kind="broken", message="broken"), now=now), keep_journal=True)

    return transition


def header(bench: Bench) -> Header:
    """What a listing shows of the session."""
    return bench.store.sessions.header(bench.session)


def control(bench: Bench, *names: str) -> list[str]:
    """Control fields as they are stored; "" for one that is not."""
    values = bench.database("HMGET", bench.store.context.keys(bench.session).ctl, *names)
    return [(value or b"").decode() for value in values]


def indexed(bench: Bench) -> list[str]:
    """Ids of the session's requests in the index of open ones."""
    entries = bench.database("ZRANGEBYSCORE", bench.shard.requests, "-inf", "+inf")
    summaries = [entry for entry in entries if bench.session.encode() in entry]
    return [summary.split(b'"')[3].decode() for summary in summaries]


def events(bench: Bench) -> list[str]:
    """Types of the session's events, in order."""
    return [event.type for event in bench.store.sessions.events(bench.session)]


def denial(bench: Bench, **values: Any) -> AnswerRecord:
    """What a leg journals for a request that expired."""
    return AnswerRecord(
        **{"verb": "deny", "reason": "nobody answered", "at_ms": now_ms(bench), "by_expiry": True} | values
    )


def on_expiry(then: str, **values: Any) -> OnExpiry:
    """What an expiry answers."""
    return OnExpiry(then=then, **values)


def _record(journal: Journal, index: int, now: Any) -> ToolExecution:
    request = journal.requests[index][0]
    call = ToolCall(id=request.call_id, name=request.tool, args=request.args)
    return ToolExecution(
        tool_call=call,
        outcome=ToolOutcome.OK,
        value="done",
        started_at=now,
        completed_at=now,
        index=index,
        resolutions=journal.resolutions(index),
    )
