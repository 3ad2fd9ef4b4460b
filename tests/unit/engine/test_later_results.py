"""Results that a service brings later: tokens, crashes while the work is started, failures and expiries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from celery_agents.worker.drivers import CallTool
from celery_agents.worker.engine import Done, Waiting
from celery_agents.worker.requests import TokenPurpose, TokenSigner
from celery_agents.worker.state import (
    Approve,
    Complete,
    Fail,
    ToolCall,
    ToolOutcome,
)
from celery_agents.worker.tools import (
    Effect,
    LaterResult,
    ToolContext,
    UseValue,
    tool,
)

from support.engine import Bench, WorkerDied, calling, shown

NewBench = Callable[..., Bench]
SECRET = "not-a-secret-but-long-enough"
MINUTE = timedelta(minutes=1)


class Address(BaseModel):
    street: str
    floor: int = 0


def outcomes(bench: Bench, session_id: str) -> list[ToolOutcome]:
    return [made.outcome for made in bench.state(session_id).steps[0].tool_executions]


def paying(done: list[int], **options: Any) -> Any:
    @tool(effect="unsafe", **options)
    def pay(cents: int) -> str:
        """Pay."""
        done.append(cents)
        return f"{cents} paid"

    return pay


def waiting(bench: Bench) -> str:
    session_id = bench.submit()
    (outcome,) = bench.run(session_id)
    assert isinstance(outcome, Waiting)
    return session_id


# --- results that come later ----------------------------------------------------------------------------------------------


def starting(tokens: list[str], effect: Any = "keyed", **options: Any) -> Any:
    @tool(effect=effect, result="later", **options)
    def render(ctx: ToolContext, scene: str) -> str:
        """Render elsewhere."""
        tokens.append(ctx.completion_token)
        return "job 7"

    return render


def test_a_service_completes_a_call_with_its_token(new_bench: NewBench) -> None:
    tokens: list[str] = []
    bench = new_bench(calling(CallTool("render", scene="a"), tools=[starting(tokens)]), token_secret=SECRET)
    session_id = waiting(bench)
    request = bench.open_request(session_id)
    claims = TokenSigner(SECRET).read(tokens[0], TokenPurpose.COMPLETE, bench.clock.now_ms())
    assert (claims.session_id, claims.request_id) == (session_id, request.id)
    bench.answer(session_id, {claims.request_id: Complete({"file": "a.png"})})
    bench.run(session_id)
    assert shown(bench, session_id) == ['{"file":"a.png"}']
    assert len(tokens) == 1


def test_a_call_that_a_person_has_approved_has_the_result_that_its_service_brings(new_bench: NewBench) -> None:
    tokens: list[str] = []
    render = starting(tokens, approval="always")
    bench = new_bench(calling(CallTool("render", scene="a"), tools=[render]), token_secret=SECRET)
    session_id = waiting(bench)
    assert tokens == []
    bench.answer(session_id, Approve())
    bench.run(session_id)
    assert len(tokens) == 1
    bench.answer(session_id, Complete("there"))
    bench.run(session_id)
    assert (shown(bench, session_id), len(tokens)) == (["there"], 1)


@pytest.mark.parametrize(
    ("rule", "text", "status"), [(UseValue({"file": None}), '{"file":null}', "completed"), ("fail", "", "failed")]
)
def test_a_later_result_that_never_comes_is_a_given_value_or_the_end(
    new_bench: NewBench, rule: Any, text: str, status: str
) -> None:
    render = starting([], expires=MINUTE, on_expiry=rule)
    bench = new_bench(calling(CallTool("render", scene="a"), tools=[render]), token_secret=SECRET)
    session_id = waiting(bench)
    bench.clock.go_on(60)
    bench.run(session_id)
    assert bench.record(session_id).status == status
    assert text in shown(bench, session_id)[0]


@pytest.mark.parametrize("expires", [None, MINUTE])
def test_a_service_fails_a_call_and_a_service_that_says_nothing_expires(
    new_bench: NewBench, expires: timedelta | None
) -> None:
    tokens: list[str] = []
    render = starting(tokens, expires=expires)
    bench = new_bench(calling(CallTool("render", scene="a"), tools=[render]), token_secret=SECRET)
    session_id = waiting(bench)
    if expires is None:
        bench.answer(session_id, Fail("no such scene"))
    else:
        bench.clock.go_on(60)
    bench.run(session_id)
    assert outcomes(bench, session_id) == [ToolOutcome.ERROR]
    assert ("no such scene" if expires is None else "No result came in time") in shown(bench, session_id)[0]


def test_asking_for_a_token_without_a_secret_is_an_error_that_says_what_to_set(new_bench: NewBench) -> None:
    tokens: list[str] = []
    bench = new_bench(calling(CallTool("render", scene="a"), tools=[starting(tokens)]))
    session_id = bench.submit()
    bench.run(session_id)
    assert outcomes(bench, session_id) == [ToolOutcome.ERROR]
    assert "CELERY_AGENTS_TOKEN_SECRET" in shown(bench, session_id)[0]
    assert bench.record(session_id).status == "completed"


@pytest.mark.parametrize(
    ("effect", "expires", "starts"), [("keyed", None, 2), ("unsafe", MINUTE, 1), ("unsafe", None, 1)]
)
def test_a_start_that_a_crash_interrupted_is_closed_by_its_answer_or_by_its_effect_class(
    new_bench: NewBench, effect: str, expires: timedelta | None, starts: int
) -> None:
    tokens: list[str] = []

    @tool(effect=effect, result="later", expires=expires)  # type: ignore[call-overload]
    def render(ctx: ToolContext) -> str:
        """Render elsewhere; the first worker dies after that."""
        tokens.append(ctx.completion_token)
        if len(tokens) == 1:
            raise WorkerDied
        return "job"

    bench = new_bench(calling(CallTool("render"), tools=[render]), token_secret=SECRET)
    session_id = bench.submit()
    bench.worker_died(session_id)
    outcome = bench.step(session_id)
    assert len(set(tokens)) == 1, "the token is the same after a crash"
    assert len(tokens) == starts
    if effect == "unsafe" and expires is None:  # nobody would ever know
        assert isinstance(outcome, Done)
        assert outcomes(bench, session_id) == [ToolOutcome.UNKNOWN]
        return
    assert isinstance(outcome, Waiting)
    bench.answer(session_id, Complete("there"))
    bench.run(session_id)
    assert shown(bench, session_id) == ["there"]
    assert len(tokens) == starts


def test_a_call_that_a_service_has_is_not_started_again_in_a_later_leg(new_bench: NewBench) -> None:
    tokens: list[str] = []
    paid: list[int] = []
    calls = (CallTool("render", scene="a"), CallTool("pay", cents=1))
    agent = calling(*calls, tools=[starting(tokens), paying(paid, approval="always")])
    bench = new_bench(agent, token_secret=SECRET)
    session_id = waiting(bench)
    later, approval = bench.open_requests(session_id)
    bench.answer(session_id, {approval.id: Approve()})
    assert isinstance(bench.step(session_id, bench.another_worker(agent)), Waiting)
    bench.answer(session_id, {later.id: Complete("x")})
    bench.run(session_id)
    assert (len(tokens), paid) == (1, [1])


def test_a_result_that_comes_before_the_step_waits_is_taken(new_bench: NewBench) -> None:
    benches: list[Bench] = []

    @tool(effect="keyed", result="later")
    def render(ctx: ToolContext) -> str:
        """Render so fast that the service answers before the start returns."""
        claims = TokenSigner(SECRET).read(ctx.completion_token, TokenPurpose.COMPLETE, 0)
        benches[0].answer(claims.session_id, {claims.request_id: Complete("fast")})
        return "job"

    bench = new_bench(calling(CallTool("render"), tools=[render]), token_secret=SECRET)
    benches.append(bench)
    session_id = bench.submit()
    assert all(isinstance(outcome, Done) for outcome in bench.run(session_id))
    assert shown(bench, session_id) == ["fast"]


def test_a_save_beside_a_leg_that_waits_is_kept_when_an_answer_lets_it_go_on(new_bench: NewBench) -> None:
    paid: list[int] = []
    benches: list[Bench] = []

    @tool(effect="keyed", result="later")
    def render(ctx: ToolContext) -> str:
        """Save the session, and answer the sibling, while this leg runs."""
        bench = benches[0]
        bench.save_beside(ctx.session_id, lambda state: state.with_metadata("beside", True))
        claims = TokenSigner(SECRET).read(ctx.completion_token, TokenPurpose.COMPLETE, 0)
        bench.answer(ctx.session_id, {claims.request_id: Complete("there")})
        return "started"

    agent = calling(CallTool("render"), CallTool("pay", cents=1), tools=[render, paying(paid, approval="always")])
    bench = new_bench(agent, token_secret=SECRET)
    benches.append(bench)
    session_id = waiting(bench)
    bench.answer(session_id, Approve())
    bench.run(session_id)
    assert (shown(bench, session_id), paid) == (["there", "1 paid"], [1])
    assert bench.state(session_id).metadata["beside"] is True


def test_a_job_that_a_service_has_is_unknown_when_the_leg_that_started_it_is_stopped(new_bench: NewBench) -> None:
    benches: list[Bench] = []

    @tool(effect="keyed", result="later")
    def render(ctx: ToolContext) -> str:
        """Start, while a person stops the session."""
        benches[0].stop(ctx.session_id)
        return "started"

    bench = new_bench(calling(CallTool("render"), tools=[render]), token_secret=SECRET)
    benches.append(bench)
    session_id = bench.submit()
    bench.run(session_id)
    assert outcomes(bench, session_id) == [ToolOutcome.UNKNOWN]
    assert bench.record(session_id).status == "stopped"


def test_a_call_without_arguments_can_ask_and_one_with_other_text_is_refused(new_bench: NewBench) -> None:
    @dataclass(frozen=True)
    class Raw:
        """A tool that takes any text, of another kind than `@tool` makes."""

        name: str = "raw"
        description: str = "Take any text."
        effect: Effect = Effect.KEYED
        parameters: Any = field(default_factory=lambda: {"type": "object"})
        timeout: float | None = None
        lookup: Any = None
        max_result_chars: int = 1000
        is_async: bool = False
        later: Any = field(default_factory=LaterResult)

        def bind(self, args: Any) -> dict[str, Any]:
            return {"args": args}

        def call(self, ctx: ToolContext, bound: Any) -> str:
            return f"started with {ctx.completion_token[:3]}"

    calls = [ToolCall(id="a", name="raw", args=""), ToolCall(id="b", name="raw", args="some text")]
    bench = new_bench(calling(*calls, tools=[Raw()]), token_secret=SECRET)
    session_id = waiting(bench)
    bench.answer(session_id, Complete("there"))
    bench.run(session_id)
    there, refused = shown(bench, session_id)
    assert there == "there"
    assert "one JSON object" in refused
