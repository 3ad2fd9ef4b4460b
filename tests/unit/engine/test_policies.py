"""Policies about calls: each is asked once, what was decided about is what runs, and approvals can be remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel

from celery_agents.worker import crash_points
from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import Approvals, Rule
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.engine import Waiting
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.requests import grants_of
from celery_agents.worker.state import (
    AgentState,
    Approve,
    Deny,
    ExecutionStatus,
    Remember,
    ToolOutcome,
)
from celery_agents.worker.tools import (
    Allow,
    ApprovalContext,
    Ask,
    NeedsApproval,
    ToolContext,
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


# --- policies ---------------------------------------------------------------------------------------------------------


def test_a_policy_is_asked_once_and_what_was_approved_is_what_runs(new_bench: NewBench) -> None:
    asked: list[Mapping[str, Any]] = []
    changes = iter(["first", "second", "third"])
    sent: list[str] = []

    def decide(ctx: ApprovalContext, args: Mapping[str, Any]) -> bool:
        asked.append(dict(args))
        return True

    def change(context: HookContext) -> HookContext:
        assert context.tool_call is not None
        call = type(context.tool_call)(id=context.tool_call.id, name="send", args={"text": next(changes)})
        return context.changed(tool_call=call)

    @tool(effect="unsafe", approval=decide)
    def send(text: str) -> str:
        """Send."""
        sent.append(text)
        return "sent"

    hooks = [Hook(HookPoint.BEFORE_TOOL, change)]
    bench = new_bench(calling(CallTool("send", text="original"), tools=[send], hooks=hooks))
    session_id = waiting(bench)
    assert bench.open_request(session_id).args == {"text": "first"}
    bench.answer(session_id, Approve())
    bench.run(session_id)
    assert (asked, sent) == ([{"text": "first"}], ["first"])


def changing_mind(asked: list[int], first: Ask | Deny) -> Any:
    """A policy that decides like this the first time, and allows the call from then on."""

    def decide(ctx: ApprovalContext, args: Mapping[str, Any]) -> Any:
        asked.append(1)
        return first if len(asked) == 1 else Allow()

    return decide


def test_a_decision_to_ask_stands_when_its_worker_died_right_after_it(new_bench: NewBench) -> None:
    asked: list[int] = []
    paid: list[int] = []
    decide = changing_mind(asked, Ask(to="managers"))
    bench = new_bench(calling(CallTool("pay", cents=3), tools=[paying(paid, approval=decide)]))
    session_id = bench.submit()

    def die(point: str) -> None:
        if point == "w0":
            raise WorkerDied

    crash_points.install(die)
    try:
        bench.worker_died(session_id)
    finally:
        crash_points.install(None)
    assert isinstance(bench.step(session_id), Waiting)
    assert (len(asked), paid, bench.open_request(session_id).to) == (1, [], "managers")


def test_a_decision_to_deny_stands_when_its_worker_died_right_after_it(new_bench: NewBench) -> None:
    asked: list[int] = []
    paid: list[int] = []
    decide = changing_mind(asked, Deny("too much"))
    bench = new_bench(calling(CallTool("pay", cents=3), tools=[paying(paid, approval=decide)]))
    session_id = bench.submit()
    database, transaction = bench.store.context.database, bench.store.context.database.transaction

    def die_after_decision(point: str, commands: Any) -> Any:
        replies = transaction(point, commands)
        if point == "journal.decide":
            raise WorkerDied
        return replies

    database.transaction = die_after_decision  # type: ignore[method-assign]
    bench.worker_died(session_id)
    database.transaction = transaction  # type: ignore[method-assign]
    bench.run(session_id)
    assert (len(asked), paid) == (1, [])
    assert "too much" in shown(bench, session_id)[0]


def test_a_policy_that_raises_keeps_the_call_from_running_and_the_model_reads_it(new_bench: NewBench) -> None:
    paid: list[int] = []

    def decide(ctx: ApprovalContext, args: Mapping[str, Any]) -> bool:
        return args["amount"] > 1

    bench = new_bench(calling(CallTool("pay", cents=3), tools=[paying(paid, approval=decide)]))
    session_id = bench.submit()
    bench.run(session_id)
    assert paid == []
    assert "the policy about it failed" in shown(bench, session_id)[0]


@pytest.mark.parametrize("remember", list(Remember))
def test_a_remembered_approval_counts_for_as_long_as_it_was_given(new_bench: NewBench, remember: Remember) -> None:
    paid: list[int] = []

    def driver(state: AgentState) -> Any:
        count = state.execution.step_count if state.execution else 0
        return "done" if count == 2 else CallTool("pay", cents=count)

    pay = paying(paid, approval=Ask(to="managers"))
    bench = new_bench(Agent("payer", driver=driver, tools=[pay]))
    session_id = bench.submit()
    asked = 0
    for _turn in range(2):
        while not bench.execution(session_id).status.is_terminal():
            bench.run(session_id)
            if bench.execution(session_id).status is ExecutionStatus.WAITING:
                asked += 1
                bench.answer(session_id, Approve(), by="reviewer", remember=remember)
        bench.send(session_id, "again") if _turn == 0 else None
    assert len(paid) == 4
    assert asked == {Remember.CALL: 4, Remember.EXECUTION: 2, Remember.SESSION: 1}[remember]
    grants = grants_of(bench.state(session_id))
    assert [(each.tool, each.to, each.by) for each in grants] == (
        [] if remember is Remember.CALL else [("pay", "managers", "reviewer")]
    )
    if grants:
        bench.revoke_grant(session_id, grants[0].id)
        assert grants_of(bench.state(session_id)) == ()


def test_a_grant_covers_no_other_addressee(new_bench: NewBench) -> None:
    paid: list[int] = []

    def driver(state: AgentState) -> Any:
        count = state.execution.step_count if state.execution else 0
        return "done" if count == 2 else CallTool("pay", cents=5 if count == 0 else 5000)

    rules = [
        Rule("pay", when=lambda ctx, args: args["cents"] > 100, then=Ask(to="directors")),
        Rule("pay", then=Ask(to="managers")),
    ]
    bench = new_bench(Agent("payer", driver=driver, tools=[paying(paid)], capabilities=[Approvals(rules)]))
    session_id = waiting(bench)
    bench.answer(session_id, Approve(), remember=Remember.SESSION)
    bench.run(session_id)
    assert bench.open_request(session_id).to == "directors"
    assert paid == [5]


def test_a_remembered_approval_answers_the_tool_that_asks_by_itself(new_bench: NewBench) -> None:
    approved: list[str] = []

    @tool(effect="unsafe")
    def pay(ctx: ToolContext, cents: int) -> str:
        """Pay."""
        if ctx.approval is None:
            raise NeedsApproval("much", to="managers")
        approved.append(f"{cents} by {ctx.approval.by}")
        return "paid"

    def driver(state: AgentState) -> Any:
        return "done" if state.step_count == 2 else CallTool("pay", cents=state.step_count)

    bench = new_bench(Agent("payer", driver=driver, tools=[pay]))
    session_id = waiting(bench)
    bench.answer(session_id, Approve(), by="reviewer", remember=Remember.EXECUTION)
    bench.run(session_id)
    assert approved == ["0 by reviewer", "1 by reviewer"]
    assert bench.record(session_id).status == "completed"
    resolutions = bench.state(session_id).steps[1].tool_executions[0].resolutions
    assert [(each.status, each.by) for each in resolutions] == [("answered", "reviewer")]


def test_edited_arguments_that_only_the_tool_refuses_are_an_error_that_the_model_reads(new_bench: NewBench) -> None:
    paid: list[int] = []

    def even(cents: int) -> int:
        if cents % 2:
            raise ValueError("only even amounts")
        return cents

    @tool(effect="unsafe", approval="always")
    def pay(cents: Annotated[int, AfterValidator(even)]) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    bench = new_bench(calling(CallTool("pay", cents=2), tools=[pay]))
    session_id = waiting(bench)
    bench.answer(session_id, Approve({"cents": 3}))
    bench.run(session_id)
    assert paid == []
    assert "only even amounts" in shown(bench, session_id)[0]


@pytest.mark.parametrize("decision", [Deny(7), Ask(text=7), Ask(to=7), 7])  # type: ignore[arg-type]
def test_a_decision_with_a_wrong_value_keeps_the_call_from_running(new_bench: NewBench, decision: Any) -> None:
    paid: list[int] = []
    pay = paying(paid, approval=lambda ctx, args: decision)
    bench = new_bench(calling(CallTool("pay", cents=2), tools=[pay]))
    session_id = bench.submit()
    bench.run(session_id)
    assert paid == []
    assert "the policy about it failed" in shown(bench, session_id)[0]
