"""What the request of a call holds, which calls get none, and what the store is told of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool, ScriptedDriver
from celery_agents.worker.engine import Waiting
from celery_agents.worker.requests.questions import UserQuestionItem, UserQuestionOption
from celery_agents.worker.state import Answer, Approve, Deny, Remember, thaw
from celery_agents.worker.tools import Ask, NeedsAnswer, NeedsApproval, NeedsReply, NeedsResult, NeedsTime, tool
from celery_agents.worker.tools.needs import UserQuestions

from support.engine import Bench, calling, calls_of, shown

NewBench = Callable[..., Bench]
MINUTE = timedelta(minutes=1)


def outcomes(bench: Bench, session_id: str) -> list[str]:
    return [str(made.outcome) for made in bench.state(session_id).steps[0].tool_executions]


def asking(*needs: Callable[[Bench], NeedsReply], **options: Any) -> tuple[Any, list[Bench]]:
    """A tool that asks for these, one in each run, the last one again and again; and the list for its bench."""
    benches: list[Bench] = []
    runs = iter([*needs, *needs[-1:] * 100])

    @tool(effect="unsafe", **options)
    def pay(cents: int) -> str:
        """Pay."""
        raise next(runs)(benches[0])

    return pay, benches


def open_one(new_bench: NewBench, tool_of: Any, benches: list[Bench]) -> tuple[Bench, str]:
    bench = new_bench(calling(CallTool("pay", cents=5), tools=[tool_of]))
    benches.append(bench)
    session_id = bench.submit()
    assert isinstance(bench.step(session_id), Waiting)
    return bench, session_id


def in_a_minute(bench: Bench, **options: Any) -> NeedsTime:
    return NeedsTime(bench.clock.now + MINUTE, **options)


def begun(needs: NeedsReply) -> NeedsReply:
    needs.has_begun = True
    return needs


ITEM = UserQuestionItem(question="Which?", options=(UserQuestionOption(label="a"), UserQuestionOption(label="b")))
ITEMS = [{"question": "Which?", "options": [{"label": "a"}, {"label": "b"}]}]


@pytest.mark.parametrize(
    ("needs", "text", "options", "edits", "to", "ends_ms"),
    [
        (lambda _: NeedsApproval(), "May pay go on?", None, True, None, None),
        (
            lambda _: NeedsApproval("Sure?", to="ada", expires=MINUTE, edits=False).with_memo({"n": 1}),
            "Sure?", {"memo": {"n": 1}}, False, "ada", 60_000,
        ),
        (lambda b: in_a_minute(b), "pay goes on at {at}", {"wait_until": "{at}"}, False, "clock", 60_000),
        (
            lambda b: in_a_minute(b, why="the farm renders", has_begun=True).with_memo({"n": 1}),
            "the farm renders; pay goes on at {at}", {"wait_until": "{at}", "begun": True, "memo": {"n": 1}},
            False, "clock", 60_000,
        ),
        (lambda _: NeedsResult(), "A service brings the result.", {"begun": True}, False, None, None),
        (
            lambda _: NeedsResult("a farm", expires=MINUTE).with_memo({"n": 1}),
            "a farm", {"begun": True, "memo": {"n": 1}}, False, None, 60_000,
        ),
        (lambda _: NeedsAnswer("How many?", int, to="ada"), "How many?", None, False, "ada", None),
        (lambda _: begun(NeedsAnswer("How many?", int)), "How many?", {"begun": True}, False, None, None),
        (
            lambda _: NeedsAnswer("Which?", questions=UserQuestions.of([ITEM]), expires=MINUTE),
            "Which?", {"questions": ITEMS, "allow_free_text": True}, False, None, 60_000,
        ),
    ],
)  # fmt: skip
def test_a_request_holds_what_its_tool_asks_for(
    new_bench: NewBench, needs: Any, text: str, options: Any, edits: bool, to: Any, ends_ms: Any
) -> None:
    bench, session_id = open_one(new_bench, *asking(needs))
    at = (bench.clock.now + MINUTE).isoformat(timespec="seconds")
    request = bench.open_request(session_id)
    if options and "wait_until" in options:
        options = {**options, "wait_until": (bench.clock.now + MINUTE).isoformat()}
    assert (request.text, thaw(request.options), request.edits_allowed) == (text.format(at=at), options, edits)
    assert (request.to, request.tool, request.args) == (to, "pay", {"cents": 5})
    assert (request.expires_at_ms and request.expires_at_ms - request.asked_at_ms) == ends_ms
    if edits:
        assert request.answer_schema is not None
        assert list(request.answer_schema["required"]) == ["cents"]


def test_a_time_that_is_over_comes_in_a_millisecond(new_bench: NewBench) -> None:
    _, benches = made = asking(lambda bench: NeedsTime(bench.clock.now - MINUTE))
    bench, session_id = open_one(new_bench, *made)
    assert benches == [bench]
    request = bench.open_request(session_id)
    assert request.expires_at_ms == request.asked_at_ms + 1


def test_a_time_from_now_is_counted_by_the_clock_of_redis(new_bench: NewBench) -> None:
    """The clock of a worker may be another, and so may that of the next one."""
    bench, session_id = open_one(new_bench, *asking(lambda _: NeedsTime(MINUTE)))
    request = bench.open_request(session_id)
    assert request.expires_at_ms == request.asked_at_ms + 60_000
    assert request.options is not None
    assert request.options["wait_until"] == (bench.clock.now + MINUTE).isoformat()


@pytest.mark.parametrize(
    ("approval", "text", "edits"),
    [
        ("always", "May pay be called with these arguments?", True),
        (lambda ctx, args: Ask(text="Really?", edits=False), "Really?", False),
    ],
)
def test_the_request_of_a_policy_has_its_text(new_bench: NewBench, approval: Any, text: str, edits: bool) -> None:
    made = asking(lambda _: NeedsApproval(), approval=approval)
    bench, session_id = open_one(new_bench, *made)
    request = bench.open_request(session_id)
    assert (request.text, request.edits_allowed, request.answer_schema is not None) == (text, edits, edits)


@pytest.mark.parametrize("rule", ["hold", "withdraw"])
@pytest.mark.parametrize(
    "needs",
    [
        lambda rule: NeedsApproval(while_waiting=rule),
        lambda rule: NeedsAnswer("?", while_waiting=rule),
        lambda rule: NeedsAnswer("?", questions=UserQuestions.of([ITEM]), while_waiting=rule),
        lambda rule: Ask(while_waiting=rule),
    ],
)
def test_a_request_says_what_a_message_does(new_bench: NewBench, needs: Any, rule: str) -> None:
    asks = needs(rule)
    made = asking(lambda _: asks, approval=asks) if isinstance(asks, Ask) else asking(lambda _: asks)
    bench, session_id = open_one(new_bench, *made)
    assert bench.open_request(session_id).while_waiting == rule


# --- several calls ----------------------------------------------------------------------------------------------------


def test_a_denied_call_does_not_run_when_the_step_goes_on_after_an_approval(new_bench: NewBench) -> None:
    ran: list[str] = []

    @tool(effect="unsafe")
    def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    @tool(effect="unsafe", approval="always")
    def pay(cents: int) -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    @tool(effect="unsafe", approval=lambda ctx, args: Deny("never"))
    def delete() -> str:
        """Delete."""
        ran.append("delete")
        return "deleted"

    calls = [CallTool("look"), CallTool("pay", cents=5), CallTool("delete")]
    bench = new_bench(calling(*calls, tools=[look, pay, delete]))
    told = calls_of(bench.store.steps, "record_decisions")
    session_id = bench.submit()
    assert isinstance(bench.step(session_id), Waiting)
    assert [each.tool for each in bench.open_requests(session_id)] == ["pay"]
    bench.answer(session_id, Approve())
    bench.run(session_id)
    assert (ran, outcomes(bench, session_id)) == (["look", "pay"], ["ok", "ok", "blocked"])
    assert len(told) == 1, "the refusal, once"


def test_a_policy_that_only_asks_journals_no_decision(new_bench: NewBench) -> None:
    bench = new_bench(
        calling(CallTool("pay", cents=5), tools=[asking(lambda _: NeedsApproval(), approval="always")[0]])
    )
    told = calls_of(bench.store.steps, "record_decisions")
    assert isinstance(bench.step(bench.submit()), Waiting)
    assert told == []


def later_tool(name: str = "render") -> Any:
    @tool(effect="keyed", result="later", name=name)
    def render() -> str:
        """Render elsewhere."""
        return "job 7"

    return render


def test_the_begin_record_of_a_later_result_comes_with_its_request(new_bench: NewBench) -> None:
    @tool(effect="pure")
    def look() -> str:
        """Look."""
        return "seen"

    agent = calling(CallTool("look"), CallTool("render"), tools=[look, later_tool()], tool_timeout=7.0)
    bench = new_bench(agent)
    begins: list[dict[int, int]] = []
    real = bench.store.steps.open_requests

    def note(*args: Any, **kwargs: Any) -> Any:
        begins.append(kwargs["begins"])
        return real(*args, **kwargs)

    bench.store.steps.open_requests = note  # type: ignore[method-assign]
    started = calls_of(bench.store.steps, "record_started_calls")
    session_id = bench.submit()
    assert isinstance(bench.step(session_id), Waiting)
    assert begins == [{1: 7_000}]
    assert len(started) == 1


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("has_begun", "most", "outcome"), [(False, 16, "error"), (True, 48, "unknown")])
def test_a_call_asks_so_often_at_most(new_bench: NewBench, has_begun: bool, most: int, outcome: str) -> None:
    asked: list[int] = []

    def ask(bench: Bench) -> NeedsReply:
        asked.append(1)
        return in_a_minute(bench, has_begun=has_begun)

    bench, session_id = open_one(new_bench, *asking(ask))
    for _ in range(most):
        bench.clock.go_on(60.1)
        bench.step(session_id)
    assert (len(asked), outcomes(bench, session_id)) == (most + 1, [outcome])
    assert f"the tool asked {most} times and never went on" in shown(bench, session_id)[0]


def test_earlier_requests_count_among_those_of_a_step(new_bench: NewBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_agents.worker.engine.request_opening.MAX_REQUESTS_PER_STEP", 2)
    bench, session_id = open_one(new_bench, *asking(in_a_minute))
    for _ in range(2):
        bench.clock.go_on(60.1)
        bench.step(session_id)
    assert shown(bench, session_id) == ["Error in tool call: the call did not run: a step makes 2 requests at most"]


@pytest.mark.parametrize("room", [0, -1])
def test_a_request_may_have_the_size_that_is_allowed(
    new_bench: NewBench, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    bench, session_id = open_one(new_bench, *asking(lambda _: NeedsApproval("Sure?")))
    size = len(bench.open_request(session_id).to_json())
    monkeypatch.setattr("celery_agents.worker.engine.request_opening.MAX_REQUEST_BYTES", size + room)
    tool_of, benches = asking(lambda _: NeedsApproval("Sure?"))
    another = new_bench(calling(CallTool("pay", cents=5), tools=[tool_of]))
    benches.append(another)
    session_id = another.submit()
    another.step(session_id)
    assert len(another.open_requests(session_id)) == 1 + room


# --- remembered approvals ---------------------------------------------------------------------------------------------


def granted(new_bench: NewBench, *needs: Callable[[Bench], NeedsReply]) -> tuple[Bench, str]:
    """A session with a remembered approval of the tool, whose next step calls it."""
    tool_of, benches = asking(lambda _: NeedsApproval(), *needs)
    driver = ScriptedDriver([CallTool("pay", cents=5), CallTool("pay", cents=6), "done"])
    bench = new_bench(Agent("a", driver=driver, tools=[tool_of]))
    benches.append(bench)
    session_id = bench.submit()
    bench.step(session_id)
    bench.answer(session_id, Approve(), by="ada", remember=Remember.SESSION)
    return bench, session_id


def test_a_remembered_approval_answers_the_newest_request_of_a_call(new_bench: NewBench) -> None:
    def fail(_: Bench) -> NeedsReply:
        raise ValueError("the bank is closed")

    question = NeedsAnswer("How many?", int)
    bench, session_id = granted(new_bench, fail, lambda _: question, lambda _: NeedsApproval(), fail)
    bench.step(session_id)
    assert isinstance(bench.step(session_id), Waiting)
    bench.answer(session_id, Answer(3))
    bench.run(session_id)
    assert bench.record(session_id).status == "completed"
    assert ["the bank is closed" in each for each in shown(bench, session_id)] == [True, True]


def test_a_remembered_approval_answers_no_request_that_is_refused(new_bench: NewBench) -> None:
    def fail(_: Bench) -> NeedsReply:
        raise ValueError("the bank is closed")

    bench, session_id = granted(new_bench, fail, lambda _: NeedsApproval().with_memo({"huge": "x" * 100_000}))
    bench.run(session_id)
    assert bench.record(session_id).status == "completed"
    assert "are allowed; pass less" in shown(bench, session_id)[1]
