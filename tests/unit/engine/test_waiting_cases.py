"""The cases H1 to H19: a person in the loop, each as one test. H9 is inverted: a decision is taken once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import Approvals, AskUser, Rule
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.engine import Done, NothingToDo, Waiting
from celery_agents.worker.errors import ConfigurationError, InvalidInput, RequestNotFound, RequestNotOpen
from celery_agents.worker.hooks import Hook, HookPoint
from celery_agents.worker.state import (
    AgentState,
    Answer,
    Approve,
    Deny,
    ExecutionBudget,
    ExecutionStatus,
    Message,
    RequestKind,
    Role,
    StopReason,
    ToolOutcome,
)
from celery_agents.worker.store import NotClaimedReason
from celery_agents.worker.store.records import StepRef
from celery_agents.worker.tools import Ask, ToolContext, tool

from support.engine import Bench

NewBench = Callable[..., Bench]
CURRENCY = {"question": "Which currency?", "options": [{"label": "EUR"}, {"label": "USD"}]}
WHEN = {"question": "When?", "header": "Day", "multi_select": True, "options": [{"label": "today"}, {"label": "later"}]}
FREE = {"question": "Anything else?", "required": False, "placeholder": "a remark"}


class Model:
    """A driver that makes these calls in its first step and answers in its second; it counts what it is asked."""

    def __init__(self, *calls: Any) -> None:
        self.calls = list(calls)
        self.asked = 0

    def __call__(self, state: AgentState) -> Any:
        self.asked += 1
        return "done" if state.step_count else list(self.calls)


class Desk:
    """Tools that count what they did."""

    def __init__(self) -> None:
        self.refunds: list[tuple[int, str]] = []
        self.looks: list[str] = []
        desk = self

        @tool(effect="keyed", approval="always")
        def refund(ctx: ToolContext, cents: int) -> str:
            """Pay money back."""
            desk.refunds.append((cents, ctx.idempotency_key))
            return f"{cents} paid back"

        @tool(effect="unsafe")
        def look(name: str) -> str:
            """Look something up."""
            desk.looks.append(name)
            return f"{name} found"

        @tool(effect="keyed", approval="always")
        def broken(cents: int) -> str:
            """Fail."""
            raise RuntimeError(f"the bank refused {cents}")

        self.tools = [refund, look, broken]


def agent_of(model: Model, desk: Desk | None = None, **fields: Any) -> Agent:
    return Agent("desk", driver=model, tools=desk.tools if desk else (), **fields)


def messages(bench: Bench, session_id: str) -> list[Message]:
    return list(bench.state(session_id).store.section().messages)


def shown(bench: Bench, session_id: str) -> list[str]:
    return [message.content for message in messages(bench, session_id) if message.role is Role.TOOL]


def asking(*questions: Any) -> Any:
    return CallTool("ask_user_question", questions=list(questions))


def test_h1_a_question_ends_the_task_and_leaves_the_execution_waiting_with_one_request_and_one_event(
    new_bench: NewBench,
) -> None:
    model = Model(asking(CURRENCY))
    bench = new_bench(agent_of(model, capabilities=[AskUser()]))
    session_id = bench.submit()
    (outcome,) = bench.run(session_id)
    assert isinstance(outcome, Waiting)
    assert outcome.summary == "waits for 1 question · ask_user_question"
    assert bench.execution(session_id).status is ExecutionStatus.WAITING
    request = bench.open_request(session_id)
    assert (request.kind, request.text, request.tool) == (RequestKind.QUESTION, "Which currency?", "ask_user_question")
    assert bench.events(session_id).count("request_opened") == 1
    assert bench.events(session_id).count("execution_waiting") == 1
    assert bench.due(session_id) is None
    assert bench.keeper.running == 0


def test_h2_an_answer_adds_one_tool_message_for_the_call_and_then_the_model_runs(new_bench: NewBench) -> None:
    model = Model(asking(CURRENCY))
    bench = new_bench(agent_of(model, capabilities=[AskUser()]))
    session_id = bench.submit()
    bench.run(session_id)
    assert bench.answer(session_id, Answer({"Which currency?": "EUR"}), note="as always").outcome == "woken"
    bench.run(session_id)
    (result,) = [message for message in messages(bench, session_id) if message.role is Role.TOOL]
    assistant = next(message for message in messages(bench, session_id) if message.tool_calls)
    assert result.tool_call_id == assistant.tool_calls[0].id
    assert '"status":"answered"' in result.content
    assert '"values":["EUR"]' in result.content
    assert '"reviewer_notes":"as always"' in result.content
    assert model.asked == 2
    assert bench.record(session_id).status == "completed"


@pytest.mark.parametrize(
    ("values", "field"),
    [
        pytest.param({}, "Which currency?", id="required and missing"),
        pytest.param({"Which currency?": {"values": []}, "When?": "today"}, "Which currency?", id="required and empty"),
        pytest.param({"Which currency?": ["EUR", "USD"], "When?": "today"}, "Which currency?", id="two of one"),
        pytest.param({"Which currency?": "GBP", "When?": "today"}, "Which currency?", id="unknown option"),
        pytest.param(
            {"Which currency?": {"free_text": "any"}, "When?": "today"}, "Which currency?", id="free text not allowed"
        ),
        pytest.param({"Which currency?": "EUR", "When?": "today", "Who?": "me"}, "Who?", id="unknown question"),
        pytest.param({"Which currency?": {"value": "EUR"}, "When?": "today"}, "Which currency?", id="unknown field"),
        pytest.param({"Which currency?": 7, "When?": "today"}, "Which currency?", id="no text"),
        pytest.param("EUR", "values", id="no dict"),
    ],
)
def test_h3_an_answer_that_does_not_fit_is_refused_with_the_question_and_nothing_is_written(
    new_bench: NewBench, values: Any, field: str
) -> None:
    bench = new_bench(agent_of(Model(asking(CURRENCY, WHEN)), capabilities=[AskUser(allow_free_text=False)]))
    session_id = bench.submit()
    bench.run(session_id)
    before = bench.store.sessions.load(session_id)
    with pytest.raises(InvalidInput) as refused:
        bench.answer(session_id, Answer(values))
    assert field in refused.value.field
    assert bench.store.sessions.load(session_id).version == before.version
    assert len(bench.open_requests(session_id)) == 1


@pytest.mark.parametrize(
    ("values", "read"),
    [
        pytest.param({"Which currency?": "GBP"}, ['"values":["GBP"]'], id="custom value"),
        pytest.param({"Which currency?": {"free_text": "  pounds "}}, ['"free_text":"pounds"'], id="free text trimmed"),
        pytest.param(
            {"Which currency?": "EUR", "Day": ["today", "later"]}, ['"values":["today","later"]'], id="header, multi"
        ),
        pytest.param({"Which currency?": "EUR", "Anything else?": "no"}, ['"free_text":"no"'], id="free question"),
    ],
)
def test_h3_an_answer_that_fits_is_read_by_the_model(new_bench: NewBench, values: Any, read: list[str]) -> None:
    questions = (CURRENCY, {**WHEN, "required": False}, FREE)
    bench = new_bench(agent_of(Model(asking(*questions)), capabilities=[AskUser()]))
    session_id = bench.submit()
    bench.run(session_id)
    bench.answer(session_id, Answer(values))
    bench.run(session_id)
    assert all(text in shown(bench, session_id)[0] for text in read)


def test_h3_a_cancelled_question_is_read_as_cancelled_with_the_reason(new_bench: NewBench) -> None:
    bench = new_bench(agent_of(Model(asking(CURRENCY)), capabilities=[AskUser()]))
    session_id = bench.submit()
    bench.run(session_id)
    bench.answer(session_id, Deny("ask me tomorrow"))
    bench.run(session_id)
    (text,) = shown(bench, session_id)
    assert '"status":"cancelled"' in text
    assert "ask me tomorrow" in text
    assert bench.record(session_id).status == "completed"


def test_h4_a_second_answer_is_refused_and_of_two_at_once_one_wins(new_bench: NewBench) -> None:
    bench = new_bench(agent_of(Model(asking(CURRENCY)), capabilities=[AskUser()]))
    session_id = bench.submit()
    bench.run(session_id)
    request = bench.open_request(session_id)
    refused: list[RequestNotOpen] = []
    won: list[str] = []

    def answer(value: str) -> None:
        try:
            bench.answer(session_id, {request.id: Answer({"Which currency?": value})}, by=value)
            won.append(value)
        except RequestNotOpen as error:
            refused.append(error)

    people = [threading.Thread(target=answer, args=(value,)) for value in ("EUR", "USD")]
    for person in people:
        person.start()
    for person in people:
        person.join()
    assert len(won) == len(refused) == 1
    assert refused[0].by == won[0]
    bench.run(session_id)
    assert f'"values":["{won[0]}"]' in shown(bench, session_id)[0]


def test_h5_an_unknown_request_is_refused_and_the_id_of_the_call_names_it_too(new_bench: NewBench) -> None:
    bench = new_bench(agent_of(Model(asking(CURRENCY)), capabilities=[AskUser()]))
    session_id = bench.submit()
    bench.run(session_id)
    with pytest.raises(RequestNotFound):
        bench.answer(session_id, {"0" * 32: Answer({"Which currency?": "EUR"})})
    bench.answer(session_id, {bench.open_request(session_id).call_id: Answer({"Which currency?": "EUR"})})
    bench.run(session_id)
    assert bench.record(session_id).status == "completed"


def test_h6_an_approval_runs_the_tool_without_a_new_model_call(new_bench: NewBench) -> None:
    model, desk = Model(CallTool("refund", cents=400)), Desk()
    bench = new_bench(agent_of(model, desk))
    session_id = bench.submit()
    bench.run(session_id)
    assert desk.refunds == []
    bench.answer(session_id, Approve())
    assert isinstance(bench.step(session_id), Done)
    assert [cents for cents, _ in desk.refunds] == [400]
    assert model.asked == 1
    bench.run(session_id)
    assert shown(bench, session_id) == ["400 paid back"]


def test_h6_a_denial_is_a_result_that_the_model_reads_and_the_run_goes_on(new_bench: NewBench) -> None:
    model, desk = Model(CallTool("refund", cents=400)), Desk()
    bench = new_bench(agent_of(model, desk))
    session_id = bench.submit()
    bench.run(session_id)
    bench.answer(session_id, Deny("it is a duplicate"))
    bench.run(session_id)
    assert desk.refunds == []
    assert "it is a duplicate" in shown(bench, session_id)[0]
    (execution,) = bench.state(session_id).steps[0].tool_executions
    assert execution.outcome is ToolOutcome.BLOCKED
    assert bench.record(session_id).status == "completed"
    assert model.asked == 2


def test_h7_edited_arguments_are_checked_used_and_recorded(new_bench: NewBench) -> None:
    desk = Desk()
    bench = new_bench(agent_of(Model(CallTool("refund", cents=400)), desk))
    session_id = bench.submit()
    bench.run(session_id)
    for args, field in (({"cents": "400"}, "args.cents"), ({}, "args"), ({"cents": 1, "to": "me"}, "args")):
        with pytest.raises(InvalidInput) as refused:
            bench.answer(session_id, Approve(args))
        assert refused.value.field.endswith(field)
    assert bench.open_requests(session_id)
    bench.answer(session_id, Approve({"cents": 100}))
    bench.run(session_id)
    (execution,) = bench.state(session_id).steps[0].tool_executions
    assert execution.tool_call.args == {"cents": 100}
    assert [cents for cents, _ in desk.refunds] == [100]

    other = new_bench(agent_of(Model(CallTool("refund", cents=400)), unedited := Desk()))
    other_id = other.submit()
    other.run(other_id)
    other.answer(other_id, Approve())
    other.run(other_id)
    assert unedited.refunds[0][1] != desk.refunds[0][1], "the key is made of the arguments that are used"


def test_h8_two_approvals_of_one_turn_are_both_resolved_and_harmless_siblings_run_once(new_bench: NewBench) -> None:
    model, desk = Model(CallTool("refund", cents=1), CallTool("look", name="a"), CallTool("refund", cents=2)), Desk()
    bench = new_bench(agent_of(model, desk))
    session_id = bench.submit()
    bench.run(session_id)
    assert desk.looks == ["a"], "a call that needs nobody runs at once"
    first, second = bench.open_requests(session_id)
    bench.answer(session_id, {first.id: Approve()})
    assert isinstance(bench.step(session_id), Waiting)
    assert [cents for cents, _ in desk.refunds] == [1], "what was approved runs at once"
    assert [each.id for each in bench.open_requests(session_id)] == [second.id]
    bench.answer(session_id, {second.id: Deny("no")})
    bench.run(session_id)
    assert [cents for cents, _ in desk.refunds] == [1]
    assert desk.looks == ["a"]
    assert [message.split(":")[0] for message in shown(bench, session_id)] == [
        "1 paid back",
        "a found",
        "Error in tool call",
    ]


def test_h9_inverted_a_second_decision_is_refused_and_says_by_whom_the_first_was_made(new_bench: NewBench) -> None:
    desk = Desk()
    bench = new_bench(agent_of(Model(CallTool("refund", cents=400)), desk))
    session_id = bench.submit()
    bench.run(session_id)
    request = bench.open_request(session_id)
    bench.answer(session_id, {request.id: Approve()}, by="reviewer")
    for _ in range(2):  # before it has run, and after the step is committed
        with pytest.raises(RequestNotOpen) as refused:
            bench.answer(session_id, {request.id: Deny("rather not")}, by="auditor")
        assert refused.value.by == "reviewer"
        bench.run(session_id)
    assert [cents for cents, _ in desk.refunds] == [400]


def test_h10_a_question_beside_other_tools_leaves_no_call_without_a_result_and_runs_none_twice(
    new_bench: NewBench,
) -> None:
    model, desk = Model(CallTool("look", name="a"), asking(CURRENCY), CallTool("look", name="b")), Desk()
    bench = new_bench(agent_of(model, desk, capabilities=[AskUser()]))
    session_id = bench.submit()
    bench.run(session_id)
    assert desk.looks == ["a", "b"] or desk.looks == ["b", "a"]
    bench.answer(session_id, Answer({"Which currency?": "EUR"}))
    bench.run(session_id)
    assert sorted(desk.looks) == ["a", "b"]
    assert len(shown(bench, session_id)) == 3
    assert bench.record(session_id).status == "completed"


@pytest.mark.parametrize("point", ["asked", "answered", "begun"])
def test_h11_a_pause_survives_another_worker(new_bench: NewBench, point: str) -> None:
    model, desk = Model(CallTool("refund", cents=1), asking(CURRENCY)), Desk()
    agent = agent_of(model, desk, capabilities=[AskUser()])
    bench = new_bench(agent)
    session_id = bench.submit()
    bench.run(session_id)
    other = bench.another_worker(agent, name="other")
    refund, question = bench.open_requests(session_id)
    answers = {refund.id: Approve(), question.id: Answer({"Which currency?": "USD"})}
    if point == "asked":
        bench.answer(session_id, answers)
    else:
        bench.answer(session_id, {refund.id: answers[refund.id]})
        if point == "begun":
            assert isinstance(bench.step(session_id, other), Waiting)
        bench.answer(session_id, {question.id: answers[question.id]})
    assert isinstance(bench.step(session_id, other), Done)
    bench.run(session_id)
    assert [cents for cents, _ in desk.refunds] == [1]
    assert model.asked == 2
    assert bench.record(session_id).status == "completed"


def test_h12_while_it_waits_nothing_calls_the_model_or_a_tool(new_bench: NewBench) -> None:
    seen: list[HookPoint] = []
    hooks = [Hook(point, lambda context: seen.append(context.point)) for point in HookPoint]
    model, desk = Model(CallTool("refund", cents=1)), Desk()
    bench = new_bench(agent_of(model, desk, hooks=hooks))
    session_id = bench.submit()
    bench.run(session_id)
    ref = bench.open_request(session_id)
    assert not {HookPoint.AFTER_TOOL, HookPoint.AFTER_STEP, HookPoint.ON_STOP, HookPoint.AFTER_EXECUTION} & set(seen)
    before = list(seen)
    late = bench.runner.run_step(StepRef(session_id, ref.execution_id, ref.step))
    assert isinstance(late, NothingToDo)
    assert late.reason is NotClaimedReason.WAITING
    assert (seen, model.asked, desk.refunds) == (before, 1, [])


def test_h13_waiting_for_a_person_does_not_count_as_time(new_bench: NewBench) -> None:
    desk = Desk()
    bench = new_bench(agent_of(Model(CallTool("refund", cents=1)), desk))
    session_id = bench.submit(budget=ExecutionBudget(max_seconds=60))
    bench.run(session_id)
    bench.clock.go_on(3600)
    bench.answer(session_id, Approve())
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, [cents for cents, _ in desk.refunds]) == ("completed", [1])
    assert bench.execution(session_id).elapsed_seconds() < 60
    assert bench.execution(session_id).waited_seconds >= 3600


def test_h14_an_approval_serves_only_the_arguments_that_were_asked_about(new_bench: NewBench) -> None:
    desk = Desk()
    bench = new_bench(agent_of(Model(CallTool("refund", cents=400)), desk))
    session_id = bench.submit()
    bench.run(session_id)
    request = bench.open_request(session_id)
    with pytest.raises(InvalidInput, match="other arguments"):
        bench.answer(session_id, {request.id: Approve()}, expect={request.id: "0" * 64})
    bench.answer(session_id, {request.id: Approve()}, expect={request.id: request.digest})
    bench.run(session_id)
    bench.send(session_id, "once more")
    bench.run(session_id)
    second = bench.open_request(session_id)
    assert second.id != request.id, "the same call of a later execution asks anew"
    assert [cents for cents, _ in desk.refunds] == [400]


def test_h15_there_is_exactly_one_tool_to_ask_with_and_none_without_the_capability(new_bench: NewBench) -> None:
    assert agent_of(Model(), Desk(), capabilities=[AskUser()]).toolset.names().count("ask_user_question") == 1
    assert "ask_user_question" not in agent_of(Model(), Desk()).toolset
    with pytest.raises(ConfigurationError, match="ask_user_question"):
        agent_of(Model(), capabilities=[AskUser(), AskUser(to="managers")])


def test_h16_a_question_and_an_approval_keep_the_run_waiting_until_both_are_resolved(new_bench: NewBench) -> None:
    model, desk = Model(CallTool("refund", cents=1), asking(CURRENCY)), Desk()
    bench = new_bench(agent_of(model, desk, capabilities=[AskUser()]))
    session_id = bench.submit()
    bench.run(session_id)
    refund, question = bench.open_requests(session_id)
    bench.answer(session_id, {question.id: Answer({"Which currency?": "EUR"})})
    bench.run(session_id)
    assert bench.execution(session_id).status is ExecutionStatus.WAITING
    assert model.asked == 1
    bench.answer(session_id, {refund.id: Approve()})
    bench.run(session_id)
    assert bench.record(session_id).status == "completed"


def test_h17_results_are_in_the_order_of_the_calls_whatever_was_resolved_first(new_bench: NewBench) -> None:
    calls = (CallTool("refund", cents=1), CallTool("look", name="h"), CallTool("refund", cents=2))
    bench = new_bench(agent_of(Model(*calls), Desk()))
    session_id = bench.submit()
    bench.run(session_id)
    first, second = bench.open_requests(session_id)
    for request in (second, first):
        bench.answer(session_id, {request.id: Approve()})
        bench.run(session_id)
    assert shown(bench, session_id) == ["1 paid back", "h found", "2 paid back"]


def test_h18_an_approved_tool_that_fails_ends_its_approval(new_bench: NewBench) -> None:
    model = Model(CallTool("broken", cents=7))
    bench = new_bench(agent_of(model, Desk()))
    session_id = bench.submit()
    bench.run(session_id)
    request = bench.open_request(session_id)
    bench.answer(session_id, Approve(), by="reviewer")
    bench.run(session_id)
    (execution,) = bench.state(session_id).steps[0].tool_executions
    assert execution.outcome is ToolOutcome.ERROR
    assert [(each.status, each.by) for each in execution.resolutions] == [("answered", "reviewer")]
    assert bench.open_requests(session_id) == ()
    with pytest.raises(RequestNotOpen):
        bench.answer(session_id, {request.id: Approve()})


@pytest.mark.parametrize("end", ["stop", "limit"])
def test_h19_a_turn_after_a_stop_of_a_waiting_one_runs_normally(new_bench: NewBench, end: str) -> None:
    desk = Desk()
    bench = new_bench(agent_of(Model(CallTool("refund", cents=1)), desk))
    deadline = bench.clock.now + timedelta(seconds=60)
    session_id = bench.submit(budget=ExecutionBudget(deadline=deadline) if end == "limit" else None)
    bench.run(session_id)
    if end == "stop":
        bench.stop(session_id)
    else:
        bench.clock.go_on(61)
    bench.run(session_id)
    assert bench.record(session_id).stop_reason == (
        StopReason.USER_REQUESTED if end == "stop" else StopReason.TIME_LIMIT_REACHED
    )
    assert bench.open_requests(session_id) == ()
    bench.send(session_id, "again")
    bench.run(session_id)
    bench.answer(session_id, Approve())
    bench.run(session_id)
    assert bench.record(session_id).status == "completed"
    assert [cents for cents, _ in desk.refunds] == [1]


def test_rules_decide_before_the_tool_and_the_first_that_applies_is_followed(new_bench: NewBench) -> None:
    rules = [
        Rule("look", then=Deny("never by an agent")),
        Rule("refund", when=lambda ctx, args: args["cents"] > 100, then=Ask(to="managers")),
    ]
    desk = Desk()
    bench = new_bench(
        agent_of(
            Model(CallTool("refund", cents=500), CallTool("look", name="a")), desk, capabilities=[Approvals(rules)]
        )
    )
    session_id = bench.submit()
    bench.run(session_id)
    assert bench.open_request(session_id).to == "managers"
    assert desk.looks == []
    bench.answer(session_id, Approve())
    bench.run(session_id)
    assert shown(bench, session_id)[1] == "Error in tool call: The call is not allowed: never by an agent"
