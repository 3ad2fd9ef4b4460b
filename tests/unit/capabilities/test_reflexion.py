"""Reflexion: its numbers, its verdicts, and loops by sets of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.capabilities import LoopDetection, Reasoning, Reflexion, TerminalTools, Termination
from celery_agents.worker.capabilities.loop_detection import digest_calls
from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.run_state import Assessment
from celery_agents.worker.run_state.parts import Confidence, RepeatedCalls
from celery_agents.worker.state import (
    AgentState,
    AgentStep,
    InferenceResponse,
    Message,
    Role,
    ToolCall,
    ToolExecution,
    ToolOutcome,
)

from support.states import NOON, at, call, executed, failed


def running() -> AgentState:
    return AgentState.fresh(now=NOON).with_execution("x1", now=NOON).with_execution_started(now=NOON)


def reflected(reflexion: Reflexion, *steps: tuple[ToolExecution, ...]) -> AgentState:
    """The state after these steps, each reflected about as a worker does."""
    state = running()
    for number, executions in enumerate(steps, 1):
        state = reflexion.reflect(with_step(state, number, executions)).with_current_step_completed(now=at(number))
    return state


def with_step(state: AgentState, number: int, executions: tuple[ToolExecution, ...]) -> AgentState:
    answer = InferenceResponse(tool_calls=tuple(each.tool_call for each in executions))
    return state.with_current_step(AgentStep.from_inference(answer, executions, number=number), now=at(number))


def other(number: int, outcome: ToolOutcome = ToolOutcome.OK, value: Any = "sunny") -> ToolExecution:
    """A call with arguments of its own."""
    return executed(call(args={"n": number}, id=f"c{number}"), outcome=outcome, value=value)


def bad(number: int) -> ToolExecution:
    return other(number, ToolOutcome.ERROR)


Case = tuple[list[tuple[ToolExecution, ...]], float, Assessment]
CASES: dict[str, Case] = {
    "a success": ([(other(1),)], 0.15, Assessment.ON_TRACK),
    "two successes": ([(other(1), other(2))], 0.30, Assessment.ON_TRACK),
    "an error": ([(bad(1),)], -0.20, Assessment.STUCK),
    "more errors than successes": ([(other(1), bad(2), bad(3))], -0.25, Assessment.STUCK),
    "two successes and two errors": ([(other(1), other(2), bad(3), bad(4))], -0.10, Assessment.STUCK),
    "as many errors as successes": ([(other(1), bad(2))], -0.05, Assessment.ON_TRACK),
    "an unknown outcome is an error": ([(other(1, ToolOutcome.UNKNOWN),)], -0.20, Assessment.STUCK),
    "a call that did not run": ([(other(1, ToolOutcome.NOT_RUN),)], 0.0, Assessment.ON_TRACK),
    "no calls": ([()], 0.05, Assessment.ON_TRACK),
    "long findings": ([(other(1, value="x" * 101),)], 0.15, Assessment.NEW_FINDINGS),
    "findings that are not long": ([(other(1, value="x" * 100),)], 0.15, Assessment.ON_TRACK),
    "a loop": ([(other(1),)] * 3, 0.15 - 0.30, Assessment.LOOP_DETECTED),
    "an alternation": ([(other(1),), (other(2),)] * 2, 0.15 - 0.25, Assessment.LOOP_DETECTED),
    "many errors are cut": ([tuple(bad(n) for n in range(9))], -1.0, Assessment.STUCK),
}


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_of_a_step(name: str) -> None:
    steps, delta, assessment = CASES[name]
    part = reflected(Reflexion(diminishing=False), *steps).part(Confidence)
    assert (round(part.delta, 9), part.assessment) == (round(delta, 9), assessment)


def test_an_increase_is_diminished_once() -> None:
    state = reflected(Reflexion(), (other(1),), (other(2),), (bad(3),))
    first, second = 0.15, 0.15 + 0.15 * (1 - 0.15)
    assert [round(value, 9) for value in state.run.confidence_history] == [
        first,
        round(second, 9),
        round(second - 0.2, 9),
    ]
    assert state.run.confidence == state.run.confidence_history[-1]


def test_twelve_successes_reach_the_default_threshold() -> None:
    state = reflected(Reflexion(), *((other(n),) for n in range(12)))
    assert state.run.confidence_history[-2] < 0.85 <= state.run.confidence
    assert state.run.confidence_threshold == 0.85


def test_the_history_has_a_confidence_for_each_step_or_for_each_nth() -> None:
    steps = [(other(n),) for n in range(5)]
    assert len(reflected(Reflexion(), *steps).run.confidence_history) == 5
    assert len(reflected(Reflexion(every=2), *steps).run.confidence_history) == 2
    loop = reflected(Reflexion(every=2), *[(other(1),)] * 4).part(Confidence)
    assert (loop.step, loop.assessment) == (4, Assessment.LOOP_DETECTED)  # steps in between are seen all the same


def test_a_step_is_reflected_about_once() -> None:
    state = Reflexion().reflect(with_step(running(), 1, (other(1),)))
    assert Reflexion().reflect(state) is state


def test_findings_are_the_first_200_characters_of_what_succeeded() -> None:
    state = reflected(Reflexion(), (other(1, value="x" * 300), bad(2)))
    assert state.part(Confidence).findings == "x" * 200


@pytest.mark.parametrize(
    ("steps", "is_told"),
    [
        ([(other(1),)] * 3, "You repeat the same tool calls"),
        ([(bad(1),)], "Your last tool calls mostly failed"),
        ([(other(1, value="x" * 200),)], ""),
        ([(other(1),)], ""),
        ([], ""),
    ],
)
def test_the_model_is_told_when_it_repeats_itself_or_is_stuck(
    steps: list[tuple[ToolExecution, ...]], is_told: str
) -> None:
    state, before = reflected(Reflexion(), *steps), (Message.user("go"),)
    compiled = Reflexion().compile(state, before)
    if not is_told:
        assert compiled == before
        return
    assert compiled[:-1] == before
    assert (compiled[-1].role, compiled[-1].content[: len(is_told)]) == (Role.SYSTEM, is_told)
    assert Reflexion(guides=False).compile(state, before) == before


# --- loops ----------------------------------------------------------------------------------------------------


def streak(*steps: tuple[ToolExecution, ...]) -> int:
    state = running()
    for number, executions in enumerate(steps, 1):
        state = LoopDetection().count(with_step(state, number, executions)).with_current_step_completed(now=at(number))
    return state.part(RepeatedCalls).streak


def test_equal_calls_one_step_after_another_are_counted() -> None:
    assert streak((other(1),), (other(1),), (other(1),)) == 3
    assert streak((failed(),), (executed(),)) == 2  # what came of them does not matter


def test_other_arguments_are_progress_and_parallel_calls_are_no_loop() -> None:
    assert streak((other(1),), (other(2),)) == 1
    assert streak((other(1), other(1), other(1))) == 1
    assert streak((other(1),), (other(1), other(2))) == 1


def test_a_step_without_calls_begins_anew() -> None:
    assert streak((other(1),), (other(1),), ()) == 0
    assert streak((other(1),), (), (other(1),)) == 1


def test_neither_order_nor_repetition_within_a_step_matters() -> None:
    one = [ToolCall(id="1", name="t", args={"a": 1, "b": 2}), ToolCall(id="2", name="u", args={})]
    other_ = [ToolCall(id="3", name="u", args={}), ToolCall(id="4", name="t", args={"b": 2, "a": 1})]
    assert digest_calls(one) == digest_calls(other_) == digest_calls([*one, one[0]])
    assert digest_calls(one) != digest_calls([one[0].model_copy(update={"args": {"a": 2, "b": 2}}), one[1]])
    assert digest_calls([]) == ""


# --- bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Reflexion(threshold=1.1), r"Reflexion\(threshold\)=1.1: give a number from 0 to 1"),
        (lambda: Reflexion(threshold=-0.1), r"Reflexion\(threshold\)=-0.1"),
        (lambda: Reflexion(threshold=float("nan")), r"Reflexion\(threshold\)=nan"),
        (lambda: Reflexion(threshold="high"), r"Reflexion\(threshold\)='high'"),
        (lambda: Reflexion(every=0), r"Reflexion\(every\)=0: give a whole number of steps, from 1"),
        (lambda: Reflexion(loop_threshold=1), r"Reflexion\(loop_threshold\)=1"),
        (lambda: LoopDetection(threshold=1), r"LoopDetection\(threshold\)=1: give a whole number of steps, from 2"),
        (lambda: LoopDetection(threshold=-3), r"LoopDetection\(threshold\)=-3"),
        (lambda: LoopDetection(threshold=2.5), r"LoopDetection\(threshold\)=2.5"),
        (lambda: Reasoning(max_result_chars=-1), r"Reasoning\(max_result_chars\)=-1: give a whole number, from 0"),
        (lambda: TerminalTools(()), "TerminalTools: give a set of names of tools"),
        (lambda: TerminalTools("submit"), "TerminalTools: give a set of names of tools"),
        (lambda: TerminalTools({3}), "TerminalTools: give a set of names of tools"),
        (lambda: Termination(20), "Termination: 20 is no condition"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_where_it_is_written(make: Callable[[], Any], error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        make()
