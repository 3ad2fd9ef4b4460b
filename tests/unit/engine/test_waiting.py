"""A step that waits: its legs, expiries, questions of tools, waits for a time, and its ends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from celery_agents.worker import crash_points
from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import AskUser
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.engine import Done, TakenOver, Waiting
from celery_agents.worker.errors import RequestNotOpen
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.known_secrets import remember_secrets
from celery_agents.worker.state import (
    AgentState,
    Answer,
    Approve,
    Deny,
    ExecutionStatus,
    PartScope,
    RequestKind,
    RequestStatus,
    Role,
    StatePart,
    ToolOutcome,
)
from celery_agents.worker.tools import (
    AnswerRefused,
    Ask,
    NeedsAnswer,
    NeedsApproval,
    PassOn,
    StopExecution,
    ToolContext,
    UseValue,
    tool,
)

from support.engine import Bench, WorkerDied

NewBench = Callable[..., Bench]
SECRET = "not-a-secret-but-long-enough"
MINUTE = timedelta(minutes=1)


class Address(BaseModel):
    street: str
    floor: int = 0


def calling(*calls: Any, tools: Any, **fields: Any) -> Agent:
    """An agent that makes these calls in its first step and answers in its second."""

    def driver(state: AgentState) -> Any:
        return "done" if state.step_count else list(calls)

    return Agent("calling", driver=driver, tools=tools, **fields)


def shown(bench: Bench, session_id: str) -> list[str]:
    store = bench.state(session_id).store.section()
    return [message.content for message in store.messages if message.role is Role.TOOL]


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


# --- expiry ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_expiry", "done", "text", "status"),
    [
        ("deny", [], "Error in tool call: Nobody approved the call in time.", "completed"),
        ("approve", [5], "5 paid", "completed"),
        ("fail", [], "Error in tool call: Nobody approved the call in time.", "failed"),
    ],
)
def test_an_expired_approval_does_what_its_rule_says(
    new_bench: NewBench, on_expiry: Literal["deny", "approve", "fail"], done: list[int], text: str, status: str
) -> None:
    paid: list[int] = []
    pay = paying(paid, approval=Ask(expires=MINUTE, on_expiry=on_expiry))
    bench = new_bench(calling(CallTool("pay", cents=5), tools=[pay]))
    session_id = waiting(bench)
    request = bench.open_request(session_id)
    bench.clock.go_on(59)
    assert bench.due(session_id) is None
    bench.clock.go_on(1)
    with pytest.raises(RequestNotOpen, match="expired"):
        bench.answer(session_id, {request.id: Approve()})
    bench.run(session_id)
    assert (paid, shown(bench, session_id)) == (done, [text])
    record = bench.record(session_id)
    assert record.status == status
    assert "request_expired" in bench.events(session_id)
    if status == "failed":
        assert record.errors[-1] == "nobody answered the request about pay in time"


def test_an_expired_request_is_passed_on_and_the_next_addressee_answers(new_bench: NewBench) -> None:
    paid: list[int] = []
    rule = PassOn("directors", expires=MINUTE, on_expiry="deny")
    pay = paying(paid, approval=Ask(to="managers", expires=MINUTE, on_expiry=rule))
    bench = new_bench(calling(CallTool("pay", cents=5), tools=[pay]))
    session_id = waiting(bench)
    first = bench.open_request(session_id)
    bench.clock.go_on(60)
    assert isinstance(bench.step(session_id), Waiting)
    second = bench.open_request(session_id)
    assert (first.to, second.to, second.round) == ("managers", "directors", 1)
    assert second.id != first.id
    with pytest.raises(RequestNotOpen, match=r"passed on|passed_on"):
        bench.answer(session_id, {first.id: Approve()})
    bench.answer(session_id, {second.id: Approve()}, by="the director")
    bench.run(session_id)
    assert paid == [5]
    (execution,) = bench.state(session_id).steps[0].tool_executions
    assert [each.status for each in execution.resolutions] == [RequestStatus.PASSED_ON, RequestStatus.ANSWERED]


def test_a_request_that_expired_with_no_worker_there_is_closed_by_the_next_leg(new_bench: NewBench) -> None:
    paid: list[int] = []
    pay = paying(paid, approval=Ask(expires=MINUTE, on_expiry="approve"))
    bench = new_bench(calling(CallTool("pay", cents=5), tools=[pay]))
    session_id = waiting(bench)
    bench.clock.go_on(86_400)
    bench.run(session_id)
    assert paid == [5]
    assert bench.record(session_id).status == "completed"


# --- what a tool asks -------------------------------------------------------------------------------------------------


def test_a_tool_asks_for_an_approval_of_its_own_and_goes_on_with_it(new_bench: NewBench) -> None:
    began: list[str] = []

    @tool(effect="unsafe")
    def pay(ctx: ToolContext, cents: int) -> str:
        """Pay."""
        began.append("asked" if ctx.approval is None else "went on")
        if cents > 100 and ctx.approval is None:
            raise NeedsApproval(f"{cents} is much", to="managers", edits=False)
        return f"paid, approved by {ctx.approval.by if ctx.approval else 'nobody'}"

    bench = new_bench(calling(CallTool("pay", cents=500), CallTool("pay", cents=50), tools=[pay]))
    session_id = waiting(bench)
    request = bench.open_request(session_id)
    assert (request.kind, request.text, request.to) == (RequestKind.APPROVAL, "500 is much", "managers")
    bench.answer(session_id, Approve(), by="reviewer")
    bench.run(session_id)
    assert began.count("asked") == 2
    assert shown(bench, session_id) == ["paid, approved by reviewer", "paid, approved by nobody"]


def test_a_secret_of_this_process_is_in_no_text_of_a_request(new_bench: NewBench) -> None:
    secret = "pa-ss-word-of-the-shop"
    remember_secrets([secret])

    @tool(effect="unsafe")
    def ship(ctx: ToolContext) -> str:
        """Ship."""
        schema = {"type": "string", "description": f"as {secret} says"}
        raise NeedsAnswer(f"Where does {secret} go?", schema=schema, to=f"owner of {secret}")

    bench = new_bench(calling(CallTool("ship"), tools=[ship]))
    request = bench.open_request(waiting(bench))
    assert secret not in str(request.to_dict())
    assert request.text == "Where does [redacted] go?"


def test_a_tool_asks_a_question_by_a_model_and_reads_the_answer(new_bench: NewBench) -> None:
    @tool(effect="unsafe")
    def ship(ctx: ToolContext) -> str:
        """Ship."""
        address = ctx.answer(Address)
        if address is None:
            raise NeedsAnswer("Where to?", schema=Address, to="customer")
        express = ctx.answer(bool)
        if express is None:
            raise NeedsAnswer("Express?", schema=bool)
        return f"to {address.street}, floor {address.floor}, express {express}"

    bench = new_bench(calling(CallTool("ship"), tools=[ship]))
    session_id = waiting(bench)
    first = bench.open_request(session_id)
    assert (first.kind, first.text, first.to) == (RequestKind.QUESTION, "Where to?", "customer")
    bench.answer(session_id, Answer({"street": "Main St"}))
    assert isinstance(bench.step(session_id), Waiting)
    bench.answer(session_id, Answer(True))
    bench.run(session_id)
    assert shown(bench, session_id) == ["to Main St, floor 0, express True"]


def test_a_tool_reads_the_answer_to_a_schema_with_lists(new_bench: NewBench) -> None:
    schema = {
        "type": "object",
        "properties": {
            "colour": {"enum": ["black", "steel"]},
            "sizes": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["colour"],
    }

    @tool(effect="unsafe")
    def order(ctx: ToolContext) -> str:
        """Order."""
        answer = ctx.answer(schema)
        if answer is None:
            raise NeedsAnswer("Which?", schema=schema)
        return f"ordered in {answer['colour']}"

    bench = new_bench(calling(CallTool("order"), tools=[order]))
    session_id = waiting(bench)
    bench.answer(session_id, Answer({"colour": "steel"}))
    bench.run(session_id)
    assert shown(bench, session_id) == ["ordered in steel"]


@pytest.mark.parametrize("catches", [False, True])
def test_a_declined_question_is_the_tools_to_handle_or_the_models_to_read(new_bench: NewBench, catches: bool) -> None:
    @tool(effect="pure")
    def ask(ctx: ToolContext) -> str:
        """Ask."""
        try:
            answer = ctx.answer(str)
        except AnswerRefused as refused:
            if catches:
                return f"went on without: {refused.reason}"
            raise
        if answer is None:
            raise NeedsAnswer("Name?", schema=str)
        return str(answer)

    bench = new_bench(calling(CallTool("ask"), tools=[ask]))
    session_id = waiting(bench)
    bench.answer(session_id, Deny("none of your business"))
    bench.run(session_id)
    (text,) = shown(bench, session_id)
    assert "none of your business" in text
    assert text.startswith("went on without" if catches else "Error in tool call")


def test_an_unanswered_question_takes_the_value_of_its_expiry(new_bench: NewBench) -> None:
    questions = [{"question": "Which?", "options": [{"label": "A"}, {"label": "B"}]}]
    ask_user = AskUser(expires=MINUTE, on_expiry=UseValue({"Which?": "B"}))
    bench = new_bench(calling(CallTool("ask_user_question", questions=questions), tools=[], capabilities=[ask_user]))
    session_id = waiting(bench)
    bench.clock.go_on(60)
    bench.run(session_id)
    assert '"values":["B"]' in shown(bench, session_id)[0]


@pytest.mark.parametrize("is_from_now", [False, True], ids=["a time", "from now"])
def test_a_tool_waits_for_a_time_without_a_worker_and_then_goes_on(new_bench: NewBench, is_from_now: bool) -> None:
    began: list[int] = []
    clock: list[Bench] = []

    @tool(effect="unsafe")
    def remind(ctx: ToolContext) -> str:
        """Remind."""
        began.append(len(began))
        for wait in (timedelta(hours=1), timedelta(hours=2)):  # computed anew in each run
            ctx.wait_until(wait if is_from_now else clock[0].clock.now + wait)
        return "reminded"

    bench = new_bench(calling(CallTool("remind"), tools=[remind]))
    clock.append(bench)
    session_id = waiting(bench)
    assert bench.open_request(session_id).to == "clock"
    for hours in (1, 2):
        bench.clock.go_on(hours * 3600 - 1)
        assert bench.due(session_id) is None
        bench.clock.go_on(1)
        bench.step(session_id)
    bench.run(session_id)
    assert began == [0, 1, 2]
    assert shown(bench, session_id) == ["reminded"]


def test_a_tool_that_never_stops_asking_is_refused(new_bench: NewBench) -> None:
    @tool(effect="pure")
    def ask(ctx: ToolContext) -> str:
        """Ask for ever."""
        raise NeedsAnswer(f"Once more? {len(ctx.replies.received)}")

    bench = new_bench(calling(CallTool("ask"), tools=[ask]))
    session_id = waiting(bench)
    for _ in range(20):
        if bench.execution(session_id).status is not ExecutionStatus.WAITING:
            break
        bench.answer(session_id, Answer("yes"))
        bench.run(session_id)
    assert "asked 16 times and never went on" in shown(bench, session_id)[0]


def test_requests_that_are_too_long_or_too_many_become_errors_and_the_others_are_asked(new_bench: NewBench) -> None:
    @tool(effect="unsafe", approval="always")
    def send(text: str) -> str:
        """Send."""
        return "sent"

    calls = [CallTool("send", text="x" * 70_000), *(CallTool("send", text=str(n)) for n in range(66))]
    bench = new_bench(calling(*calls, tools=[send]))
    session_id = waiting(bench)
    requests = bench.open_requests(session_id)
    assert len(requests) == 64
    bench.answer(session_id, {request.id: Approve() for request in requests})
    bench.run(session_id)
    texts = shown(bench, session_id)
    assert texts.count("sent") == 64
    assert "65536 are allowed" in texts[0]
    assert "64 requests at most" in texts[-1]


def starting(tokens: list[str], effect: Any = "keyed", **options: Any) -> Any:
    @tool(effect=effect, result="later", **options)
    def render(ctx: ToolContext, scene: str) -> str:
        """Render elsewhere."""
        tokens.append(ctx.completion_token)
        return "job 7"

    return render


# --- legs -------------------------------------------------------------------------------------------------------------


class Seen(StatePart):
    part_name = "seen"
    scope = PartScope.EXECUTION
    times: int = 0


def test_hooks_before_the_execution_run_in_every_leg_until_the_first_commit(new_bench: NewBench) -> None:
    runs: list[str] = []

    def count(context: HookContext) -> HookContext:
        runs.append(context.point)
        seen = context.state.part(Seen)
        return context.changed(state=context.state.with_part(seen.replace(times=seen.times + 1)))

    paid: list[int] = []
    pay = paying(paid, approval="always")
    bench = new_bench(calling(CallTool("pay", cents=1), tools=[pay], hooks=[Hook(HookPoint.BEFORE_EXECUTION, count)]))
    session_id = waiting(bench)
    assert not bench.state(session_id).has_part(Seen), "a wait stores nothing that hooks did"
    bench.answer(session_id, Approve())
    bench.run(session_id)
    assert bench.state(session_id).part(Seen).times == 1
    assert len(runs) == 2


def test_a_tool_that_ends_the_execution_closes_the_requests_beside_it(new_bench: NewBench) -> None:
    paid: list[int] = []

    @tool(effect="pure")
    def submit_answer() -> str:
        """Submit."""
        raise StopExecution("submitted", result="thanks")

    pay = paying(paid, approval="always")
    bench = new_bench(calling(CallTool("pay", cents=1), CallTool("submit_answer"), tools=[pay, submit_answer]))
    session_id = bench.submit()
    (outcome,) = bench.run(session_id)
    assert isinstance(outcome, Done)
    assert outcomes(bench, session_id) == [ToolOutcome.NOT_RUN, ToolOutcome.OK]
    assert bench.open_requests(session_id) == ()
    assert bench.record(session_id).status == "stopped"


def test_a_stop_of_a_waiting_execution_keeps_what_was_obtained(new_bench: NewBench) -> None:
    paid: list[int] = []
    tokens: list[str] = []
    calls = (CallTool("pay", cents=1), CallTool("render", scene="a"), CallTool("note"))

    @tool(effect="pure")
    def note() -> str:
        """Note."""
        return "noted"

    agent = calling(*calls, tools=[paying(paid, approval="always"), starting(tokens), note])
    bench = new_bench(agent, token_secret=SECRET)
    session_id = waiting(bench)
    request = bench.open_requests(session_id)[0]
    bench.stop(session_id)
    with pytest.raises(RequestNotOpen):
        bench.answer(session_id, {request.id: Approve()})
    bench.run(session_id)
    assert outcomes(bench, session_id) == [ToolOutcome.NOT_RUN, ToolOutcome.UNKNOWN, ToolOutcome.OK]
    assert (bench.record(session_id).status, paid) == ("stopped", [])


def test_a_tool_that_is_gone_when_it_is_approved_is_an_error_that_the_model_reads(new_bench: NewBench) -> None:
    paid: list[int] = []
    agent = calling(CallTool("pay", cents=1), tools=[paying(paid, approval="always")])
    bench = new_bench(agent)
    session_id = waiting(bench)
    bench.answer(session_id, Approve())
    without = bench.another_worker(calling(CallTool("pay", cents=1), tools=[]))
    bench.step(session_id, without)
    assert "There is no tool 'pay'" in shown(bench, session_id)[0]


@pytest.mark.parametrize("point", ["w0", "w1", "w3", "c4", "c5", "c6"])
def test_a_worker_that_dies_at_any_point_of_waiting_costs_nothing_twice(new_bench: NewBench, point: str) -> None:
    paid: list[str] = []
    asked: list[int] = []

    @tool(effect="keyed", approval="always")
    def pay(ctx: ToolContext, cents: int) -> str:
        """Pay."""
        paid.append(ctx.idempotency_key)
        return "paid"

    def driver(state: AgentState) -> Any:
        asked.append(state.step_count)
        return "done" if state.step_count else [CallTool("pay", cents=1), CallTool("pay", cents=2)]

    bench = new_bench(Agent("payer", driver=driver, tools=[pay]))
    session_id = bench.submit()
    died: list[str] = []

    def die(at: str) -> None:
        if at == point and not died:
            died.append(at)
            raise WorkerDied

    crash_points.install(die)
    try:
        for _ in range(12):
            if bench.execution(session_id).status.is_terminal():
                break
            for request in bench.open_requests(session_id):
                bench.answer(session_id, {request.id: Approve()})
            if bench.due(session_id) is None:
                bench.clock.go_on(60)
                continue
            try:
                bench.step(session_id)
            except WorkerDied:
                bench.clock.go_on(60)
    finally:
        crash_points.install(None)
    assert died == [point]
    assert bench.record(session_id).status == "completed"
    assert asked == [0, 1]
    assert len(set(paid)) == 2
    assert not any(isinstance(each, TakenOver) for each in ())
