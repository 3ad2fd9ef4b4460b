"""Tools whose result comes later, after their effect: it goes on elsewhere, so nobody may call it not run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.requests import TokenPurpose, TokenSigner
from celery_agents.worker.state import AgentState, Complete, RequestKind
from celery_agents.worker.tools import NeedsReply, NeedsResult, NeedsTime, ToolContext, tool

from support.engine import Bench, calling


class ResultLater:
    """A tool that asks for this after its effect."""

    defers = True

    def __init__(self, make: Callable[[], NeedsReply]) -> None:
        self.make = make
        self.calls = 0
        self.before: Callable[[], object] = lambda: None
        self.context: ToolContext | None = None

        @tool(effect="unsafe")
        def start(ctx: ToolContext, scene: str = "") -> None:
            """Start a job elsewhere."""
            self.calls += 1
            self.context = ctx
            self.before()
            raise self.make()

        self._plain = start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


def agent_of(later: ResultLater) -> Agent:
    def model(state: AgentState) -> Any:
        return "done" if state.step_count else CallTool("start")

    return Agent(name="starter", driver=model, tools=[later])


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def run(bench: Bench, later: ResultLater, meanwhile: Callable[[str], object] = lambda _: None) -> str:
    agent = agent_of(later)
    bench.runner = bench.another_worker(agent)
    session = bench.submit("go", agent=agent)
    later.before = lambda: meanwhile(session)
    bench.run(session)
    return session


def outcomes(bench: Bench, session: str) -> list[str]:
    return [str(each.outcome) for each in bench.state(session).run.tool_executions]


def test_the_result_that_a_service_brings_is_the_calls(bench: Bench) -> None:
    later = ResultLater(lambda: NeedsResult("a farm renders"))
    session = run(bench, later)
    request = bench.open_request(session)
    assert (request.kind, request.text) == (RequestKind.EXTERNAL, "a farm renders")
    bench.answer(session, Complete(7))
    bench.run(session)
    assert (later.calls, outcomes(bench, session)) == (1, ["ok"])


def test_a_token_that_is_made_before_the_request_names_it(new_bench: Callable[..., Bench]) -> None:
    later = ResultLater(lambda: NeedsResult("a farm renders"))
    tokens: list[str] = []
    later.before = lambda: tokens.append(later.context.completion_token if later.context else "")
    bench = new_bench(calling(CallTool("start", scene="a"), tools=[later]), token_secret="not-a-secret-but-long-enough")
    session = bench.submit()
    bench.step(session)
    claims = TokenSigner("not-a-secret-but-long-enough").read(tokens[0], TokenPurpose.COMPLETE, bench.clock.now_ms())
    assert (claims.session_id, claims.request_id) == (session, bench.open_request(session).id)


def test_an_expiry_fails_the_call(bench: Bench) -> None:
    session = run(bench, ResultLater(lambda: NeedsResult(expires=timedelta(seconds=30))))
    bench.clock.go_on(31)
    bench.run(session)
    assert outcomes(bench, session) == ["error"]


@pytest.mark.parametrize(
    "needs",
    [
        lambda: NeedsResult("elsewhere"),
        lambda: NeedsTime(datetime(2030, 1, 1, tzinfo=UTC), has_begun=True),
    ],
)
def test_a_stop_while_the_job_is_started_leaves_its_outcome_unknown(
    bench: Bench, needs: Callable[[], NeedsReply]
) -> None:
    session = run(bench, ResultLater(needs), bench.stop)
    assert outcomes(bench, session) == ["unknown"]


def test_a_stop_while_the_result_is_awaited_leaves_its_outcome_unknown(bench: Bench) -> None:
    session = run(bench, ResultLater(lambda: NeedsResult("elsewhere")))
    bench.stop(session)
    bench.run(session)
    assert outcomes(bench, session) == ["unknown"]


def test_a_request_that_cannot_be_made_leaves_the_outcome_unknown_and_says_why(bench: Bench) -> None:
    session = run(bench, ResultLater(lambda: NeedsResult("elsewhere").with_memo({"huge": "x" * 100_000})))
    (call,) = bench.state(session).run.tool_executions
    assert call.outcome == "unknown"
    assert "bytes" in call.as_message()


def test_a_result_that_came_before_a_stop_and_a_lost_reply_is_the_calls(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = ResultLater(lambda: NeedsResult("a farm renders"))
    steps = bench.store.steps
    open_requests = steps.open_requests

    def open_twice(*args: Any, **kwargs: Any) -> Any:
        """As after a lost reply: the worker asks again, and the service and a person were faster."""
        open_requests(*args, **kwargs)
        (session,) = sessions
        bench.answer(session, Complete(7))
        bench.stop(session)
        return open_requests(*args, **kwargs)

    sessions: list[str] = []
    monkeypatch.setattr(steps, "open_requests", open_twice)
    session = run(bench, later, sessions.append)
    assert (later.calls, outcomes(bench, session)) == (1, ["ok"])
    (call,) = bench.state(session).run.tool_executions
    assert call.value == 7


class Cancellable(ResultLater):
    """A tool that can tell the other side that its result is not needed any more."""

    def __init__(self, make: Callable[[], NeedsReply]) -> None:
        super().__init__(make)
        self.abandoned: list[Any] = []

    async def abandon(self, state: AgentState, memo: Any) -> None:
        self.abandoned.append(memo)


@pytest.mark.parametrize("memo", [None, {"job": 7}])
@pytest.mark.parametrize("kind", [ResultLater, Cancellable])
def test_a_stop_tells_the_other_side_where_it_can(
    bench: Bench, caplog: pytest.LogCaptureFixture, kind: type[ResultLater], memo: Any
) -> None:
    later = kind(lambda: NeedsResult() if memo is None else NeedsResult().with_memo(memo))
    session = run(bench, later)
    bench.stop(session)
    bench.run(session)
    if isinstance(later, Cancellable):
        assert later.abandoned == ([] if memo is None else [memo])
    assert "could not be told" not in caplog.text
