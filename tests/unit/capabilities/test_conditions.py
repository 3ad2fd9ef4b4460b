"""Conditions: what each looks at, how they combine, and which reason they give."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_agents.worker.capabilities import (
    AllOf,
    AnyOf,
    Condition,
    ConditionResult,
    ConfidenceMet,
    CustomCondition,
    MaxIterations,
    NoToolCalls,
    TextMention,
    TimeLimit,
    TokenLimit,
    ToolCalled,
)
from celery_agents.worker.capabilities.termination import Termination, observe
from celery_agents.worker.errors import ConfigurationError, InvalidInput
from celery_agents.worker.run_state import RunReason
from celery_agents.worker.state import (
    AgentState,
    AgentStep,
    ExecutionBudget,
    InferenceResponse,
    Message,
    StopReason,
    StopSignal,
    ToolExecution,
)

from support.states import NOON, at, call, executed, failed

GO_ON = ConditionResult(False)


def running(budget: ExecutionBudget | None = None) -> AgentState:
    state = AgentState.fresh(now=NOON).with_execution("x1", budget or ExecutionBudget.unlimited(), now=NOON)
    return state.with_execution_started(now=NOON)


def stepped(state: AgentState, *executions: ToolExecution, text: str = "") -> AgentState:
    number = state.step_count + 1
    answer = InferenceResponse(content=text, tool_calls=tuple(each.tool_call for each in executions))
    step = AgentStep.from_inference(answer, executions, number=number)
    return state.with_current_step(step, now=at(number)).with_current_step_completed(now=at(number))


# --- what each looks at ---------------------------------------------------------------------------------------


def test_iterations_stop_at_their_limit_which_is_20_by_default() -> None:
    assert MaxIterations().limit == 20
    state = stepped(stepped(running(), executed()), executed())
    assert MaxIterations(3).check(state) == GO_ON
    assert MaxIterations(2).check(state) == ConditionResult(True, "max_iterations", RunReason.MAX_ITERATIONS)
    assert MaxIterations(0).check(running()).stop
    assert MaxIterations(5).check(state.run.with_iteration(5)).stop


def test_tokens_stop_at_their_limit_or_at_that_of_the_budget() -> None:
    state = running(ExecutionBudget(max_tokens=400)).run.with_token_usage(312, 87)
    assert TokenLimit(400).check(state) == GO_ON
    assert TokenLimit(399).check(state) == ConditionResult(True, "token_budget", RunReason.TOKEN_BUDGET)
    assert TokenLimit().check(state) == GO_ON
    assert TokenLimit().check(state.run.with_token_usage(1)).stop
    assert not TokenLimit().check(running().run.with_token_usage(10**9)).stop
    assert TokenLimit(0).check(running()).stop  # 0 is a limit


def test_time_counts_from_the_start_of_the_execution_without_the_waiting() -> None:
    state = running()
    assert TimeLimit(10).check(state, at(9.9)) == GO_ON
    assert TimeLimit(10).check(state, at(10)) == ConditionResult(True, "time_budget", RunReason.TIME_BUDGET)
    assert TimeLimit(timedelta(seconds=10)).check(AgentState.from_json(state.to_json()), at(10)).stop
    waited = state.with_execution_waiting(now=at(5)).with_execution_resumed(now=at(65))
    assert not TimeLimit(10).check(waited, at(69)).stop
    assert AllOf(TimeLimit(10)).check(state, at(9.9)) == GO_ON, "at the time that is asked about"
    assert TimeLimit(10).check(waited, at(70)).stop
    for nothing in (0, timedelta(0)):
        assert TimeLimit(nothing).check(state, NOON).stop, "0 ends it before its first step"
    assert TimeLimit(1).check(AgentState.fresh(now=NOON), at(9)) == GO_ON, "nothing has started"


def test_a_text_is_looked_for_in_the_last_text_of_this_execution() -> None:
    state = running().run.with_message(Message.assistant("DONE, said another run"))
    assert TextMention("done").check(state) == GO_ON
    state = stepped(state, executed(), text="All is Done.")
    assert TextMention("done").check(state) == ConditionResult(True, "text_mention:done", RunReason.COMPLETE)
    assert not TextMention("done", case_sensitive=True).check(state).stop
    assert TextMention("done").check(stepped(state, executed())).stop  # a step without a text hides none
    assert not TextMention("done").check(stepped(state, executed(), text="Not yet.")).stop


def test_a_tool_counts_as_called_when_it_succeeded_in_this_execution() -> None:
    state = stepped(running(), failed(), text="")
    assert ToolCalled("weather").check(state) == GO_ON
    state = stepped(stepped(state, executed()), executed(call("other")))
    assert ToolCalled("weather").check(state) == ConditionResult(True, "tool_called:weather", RunReason.TERMINAL_TOOL)
    following = state.with_execution_completed(now=at(9)).for_next_execution(now=at(9))
    assert ToolCalled("weather").check(following.with_execution(now=at(9))) == GO_ON
    assert ToolCalled("weather").check(running().run.with_tool_execution(executed())).stop


def test_a_confidence_is_met_at_its_threshold_or_at_that_of_the_state() -> None:
    state = running().run.with_confidence(0.85)
    assert ConfidenceMet(0.9).check(state) == GO_ON
    assert ConfidenceMet().check(state) == ConditionResult(True, "confidence_met", RunReason.CONFIDENCE_MET)
    assert ConfidenceMet(0.0).check(running()).stop


def test_no_tool_calls_is_about_the_last_step() -> None:
    assert NoToolCalls().check(running()) == GO_ON
    assert NoToolCalls().check(stepped(running(), executed())) == GO_ON
    assert NoToolCalls().check(stepped(running(), text="hm")) == ConditionResult(True, "no_tools", RunReason.NO_TOOLS)


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (True, ConditionResult(True, "custom", RunReason.COMPLETE)),
        (False, GO_ON),
        ((False, "why"), GO_ON),
        ((True, None), ConditionResult(True, "custom", RunReason.COMPLETE)),
        ((True, "my reason"), ConditionResult(True, "my reason", RunReason.COMPLETE)),
        ((True, "grounding_failed"), ConditionResult(True, "grounding_failed", RunReason.GROUNDING_FAILED)),
    ],
)
def test_a_function_answers_a_bool_or_a_pair(answer: Any, result: ConditionResult) -> None:
    assert CustomCondition(lambda state: answer).check(running()) == result


@pytest.mark.parametrize("answer", [None, 1, "yes", (), (True,), (1, "x"), (True, 2), (True, "x", 3)])
def test_a_function_that_answers_something_else_is_named(answer: Any) -> None:
    def is_over(state: AgentState) -> Any:
        return answer

    with pytest.raises(InvalidInput, match="custom:is_over: answer True or False, or a pair"):
        CustomCondition(is_over).check(running())


def test_a_function_gets_the_state_with_its_run() -> None:
    state = running().run.with_confidence(0.5)
    assert CustomCondition(lambda s: s.run.confidence >= 0.5).check(state).stop


# --- bad input ------------------------------------------------------------------------------------------------

BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: MaxIterations(-1), r"MaxIterations\(limit\)=-1: give a whole number, from 0"),
    (lambda: MaxIterations(2.5), r"MaxIterations\(limit\)=2.5"),  # type: ignore[arg-type]
    (lambda: MaxIterations(True), r"MaxIterations\(limit\)=True"),
    (lambda: TokenLimit(-1), r"TokenLimit\(limit\)=-1"),
    (lambda: TimeLimit(-0.1), r"TimeLimit\(limit\)=-0.1: give a timedelta or seconds, from 0"),
    (lambda: TimeLimit(timedelta(seconds=-1)), r"TimeLimit\(limit\)"),
    (lambda: TimeLimit(float("nan")), r"TimeLimit\(limit\)=nan"),
    (lambda: TimeLimit("5"), r"TimeLimit\(limit\)='5'"),  # type: ignore[arg-type]
    (lambda: TimeLimit(True), r"TimeLimit\(limit\)=True"),
    (lambda: TextMention(""), r"TextMention\(text\)=''"),
    (lambda: ToolCalled(""), r"ToolCalled\(tool\)=''"),
    (lambda: ConfidenceMet(1.1), r"ConfidenceMet\(threshold\)=1.1: give a number from 0 to 1"),
    (lambda: ConfidenceMet(-0.1), r"ConfidenceMet\(threshold\)=-0.1"),
    (lambda: CustomCondition(3), "CustomCondition: 3 must be a plain function"),  # type: ignore[arg-type]
    (lambda: MaxIterations(1) & 3, "&: 3 is no condition"),  # type: ignore[operator]
    (lambda: MaxIterations(1) | "x", r"\|: 'x' is no condition"),  # type: ignore[operator]
    (lambda: AnyOf(MaxIterations), "AnyOf: .* is no condition"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "error"), BAD)
def test_a_condition_that_cannot_be_used_is_refused_where_it_is_written(make: Callable[[], Any], error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        make()


def test_an_async_function_is_refused() -> None:
    async def later(state: AgentState) -> bool:
        return True

    with pytest.raises(ConfigurationError, match="must be a plain function of the state"):
        CustomCondition(later)


# --- algebra --------------------------------------------------------------------------------------------------


def fixed(stop: bool, reason: str = "custom") -> Condition:
    return CustomCondition(lambda state: (stop, reason))


leaves = st.builds(fixed, st.booleans(), st.sampled_from([*(each.value for each in RunReason), "a", "b"]))
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        inner.map(lambda a: ~a),
    ),
    max_leaves=8,
)
STATE = running()


def holds(condition: Condition) -> bool:
    return condition.check(STATE, NOON).stop


@given(conditions, conditions)
def test_and_and_or_are_commutative_and_so_is_the_reason_of_and(a: Condition, b: Condition) -> None:
    assert holds(a & b) == holds(b & a) == (holds(a) and holds(b))
    assert holds(a | b) == holds(b | a) == (holds(a) or holds(b))
    assert (a & b).check(STATE).reason is (b & a).check(STATE).reason


@given(conditions, conditions, conditions)
def test_and_and_or_are_associative_in_answer_text_and_reason(a: Condition, b: Condition, c: Condition) -> None:
    assert ((a & b) & c).check(STATE) == (a & (b & c)).check(STATE)
    assert ((a | b) | c).check(STATE) == (a | (b | c)).check(STATE)


@given(conditions, conditions)
def test_de_morgan_and_double_negation_hold(a: Condition, b: Condition) -> None:
    assert holds(~(a & b)) == holds(~a | ~b)
    assert holds(~(a | b)) == holds(~a & ~b)
    assert holds(~~a) == holds(a)


@given(st.lists(conditions, max_size=5))
def test_many_are_the_same_as_one_after_another(given_: list[Condition]) -> None:
    assert holds(AllOf(*given_)) == holds(reduce(lambda a, b: a & b, given_, AllOf()))
    assert holds(AnyOf(*given_)) == holds(reduce(lambda a, b: a | b, given_, AnyOf()))


@given(st.lists(leaves, min_size=1, max_size=5))
def test_or_gives_the_first_reason_that_holds_and_and_joins_all(given_: list[Condition]) -> None:
    results = [each.check(STATE) for each in given_]
    first = next((each for each in results if each.stop), GO_ON)
    assert AnyOf(*given_).check(STATE) == first
    every = AllOf(*given_).check(STATE)
    if all(each.stop for each in results):
        assert every.text == " AND ".join(each.text for each in results)
        assert every.reason.rank == min(each.reason.rank for each in results)


def test_without_conditions_all_hold_and_none_does() -> None:
    assert AllOf().check(STATE) == ConditionResult(True, "all_conditions_met")
    assert AnyOf().check(STATE) == GO_ON


def test_and_binds_tighter_than_or_and_nesting_is_kept() -> None:
    yes, no = fixed(True, "yes"), fixed(False)
    assert (yes | no & no).check(STATE).text == "yes"
    nested = (no | yes) & (yes | no)
    assert nested.check(STATE).text == "yes AND yes"
    assert len(nested.leaves()) == 4


def test_an_earlier_condition_that_decides_spares_the_later_ones() -> None:
    def never(state: AgentState) -> bool:
        raise AssertionError("it was asked")

    assert (fixed(True) | CustomCondition(never)).check(STATE).stop
    assert not (fixed(False) & CustomCondition(never)).check(STATE).stop


def test_a_condition_keeps_nothing_between_executions() -> None:
    condition = TimeLimit(10) & MaxIterations(1)
    assert condition.check(stepped(running(), executed()), at(20)).stop
    fresh = AgentState.fresh(now=at(100)).with_execution(now=at(100)).with_execution_started(now=at(100))
    assert not condition.check(fresh, at(101)).stop


# --- what is remembered ---------------------------------------------------------------------------------------

events = st.lists(st.sampled_from(["a", "b", "a failed", "says done", "says more", "observe", "retry"]), max_size=14)


@given(events)
def test_what_is_remembered_changes_no_answer(happened: list[str]) -> None:
    """Conditions give the same answers whether all steps, some, or none were observed."""
    asked: list[Condition] = [ToolCalled("a"), ToolCalled("b"), TextMention("done"), TextMention("more")]
    plain = remembering = running()
    for each in happened:
        if each == "observe":
            remembering = observe(remembering, ["a", "b"], [TextMention("done")])
            continue
        plain, remembering = (_after(state, each) for state in (plain, remembering))
        for condition in asked:
            assert condition.check(remembering).stop == condition.check(plain).stop


def _after(state: AgentState, event: str) -> AgentState:
    if event == "retry":
        stopped = state.with_stop_signal(StopSignal(reason=StopReason.STOP_REQUESTED), now=NOON)
        return stopped.with_execution_completed(now=NOON).for_retry(now=NOON)
    if event.startswith("says"):
        return stepped(state, executed(call("c")), text=event)
    name, _, outcome = event.partition(" ")
    execution = failed() if outcome else executed()
    return stepped(state, execution.model_copy(update={"tool_call": call(name)}))


def test_a_retry_forgets_what_ended_the_execution() -> None:
    state = observe(stepped(running(), executed(), text="done"), ["weather"], [TextMention("done")])
    assert ToolCalled("weather").check(state).stop
    again = _after(state, "retry")
    assert not ToolCalled("weather").check(again).stop
    assert not TextMention("done").check(again).stop


def test_a_step_is_observed_only_where_a_condition_needs_it() -> None:
    assert list(Termination(MaxIterations(3) | TimeLimit(5)).hooks()) == []
    for condition in (ToolCalled("submit"), TextMention("done"), MaxIterations(3) & ~ToolCalled("submit")):
        assert len(Termination(condition).hooks()) == 1


def test_what_is_observed_already_changes_no_state() -> None:
    state = stepped(running(), executed(), text="done")
    mentions = (TextMention("done"),)
    observed = observe(state, ("weather",), mentions)
    assert observed is not state
    assert observe(observed, ("weather",), mentions) is observed
