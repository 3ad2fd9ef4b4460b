"""The research agent without a model, step by step: driver and tools as a worker would call them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from research import tools
from research.driver import research

from celery_agents.worker.drivers import CallTool
from celery_agents.worker.state import (
    AgentState,
    AgentStep,
    InferenceResponse,
    ToolCall,
    ToolExecution,
    ToolOutcome,
    utcnow,
)
from celery_agents.worker.tools import ToolSet, to_json_value

TOOLS = ToolSet((tools.list_files, tools.search_files, tools.read_file))

GUIDE = """\
# Guide

Welcome. This guide tells how the orchard robot works.

## Charging

The robot charges for 90 minutes. It returns to its dock when the battery is below 20 percent.

## Words

| word | meaning |
|---|---|
| dock | the place where the robot charges |
| row | trees between two paths |

## Failures

If the robot is killed by a storm, another robot carries on at that tree within 10 minutes. No apple is twice picked.

```sh
orchard robot start --row 5
```
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(tools.PATH_VARIABLE, str(tmp_path))
    (tmp_path / "guide.md").write_text(GUIDE)
    (tmp_path / "other.txt").write_text("The kitchen closes at nine.\n\nSoup is made of onions.\n")
    return tmp_path


def executed(call: CallTool, index: int, number: int) -> ToolExecution:
    now = utcnow()
    made = ToolCall(id=f"call_{number}_{index}", name=call.name, args=call.args)
    tool = TOOLS.get(call.name)
    assert tool is not None
    try:
        value: Any = to_json_value(tool.call(None, tool.bind(call.args)), tool.max_result_chars)  # type: ignore[arg-type]
    except ValueError as error:
        return ToolExecution(
            tool_call=made,
            outcome=ToolOutcome.ERROR,
            error={"kind": "x", "message": str(error)},
            index=index,
            started_at=now,
            completed_at=now,
        )
    return ToolExecution(
        tool_call=made, outcome=ToolOutcome.OK, value=value, index=index, started_at=now, completed_at=now
    )


def stepped(state: AgentState) -> AgentState:
    number = state.step_count + 1
    answer = research(state)
    assert research(state).__repr__() == answer.__repr__(), "the same state gives the same answer"
    if isinstance(answer, str):
        step = AgentStep.from_inference(InferenceResponse(content=answer), number=number)
    else:
        made = [executed(call, index, number) for index, call in enumerate(answer)]
        response = InferenceResponse(tool_calls=tuple(each.tool_call for each in made))
        step = AgentStep.from_inference(response, made, number=number)
    return state.with_current_step(step).with_current_step_completed()


def asked(question: str, state: AgentState | None = None) -> AgentState:
    if state is None:
        return AgentState.fresh().with_user_message(question).with_execution().with_execution_started()
    ended = state.with_execution_completed().with_user_message(question)
    return ended.with_execution().with_execution_started()


def finished(state: AgentState) -> AgentState:
    for _ in range(10):
        state = stepped(state)
        if state.should_stop():
            return state
    raise AssertionError("no answer in ten steps")


def called(state: AgentState) -> list[list[str]]:
    return [[call.name for call in step.requested_tool_calls] for step in state.steps]


def first_quote(state: AgentState) -> tuple[str, str]:
    found = re.search(r"1\. “(.*)”\n\s+(\S+:\d+)", state.final_response)
    assert found, state.final_response
    return found[1], found[2]


def test_it_looks_first_then_reads_side_by_side_then_answers(folder: Path) -> None:
    state = finished(asked("What happens when a robot is killed?"))
    looked, read, answered = called(state)
    assert looked[:2] == ["list_files", "search_files"]
    assert read
    assert set(read) == {"read_file"}
    assert answered == []


def test_several_places_are_read_in_one_step(folder: Path) -> None:
    (folder / "more.md").write_text("Storms: a robot that a storm has killed is repaired in spring.\n")
    _, read, _ = called(finished(asked("What happens when a robot is killed by a storm?")))
    assert len(read) > 1


@pytest.mark.parametrize(
    ("question", "quote", "line"),
    [
        ("What happens when a robot is killed?", "another robot carries on", 18),
        ("How long does charging take?", "charges for 90 minutes", 7),
        ("what is a dock?", "the place where the robot charges", 13),
        ("How do I start the robot?", "orchard robot start", 21),
        ("Are apples picked twice?", "No apple is twice picked", 18),
        ("when does the kitchen close", "closes at nine", 1),
    ],
)
def test_an_ordinary_question_gets_the_right_quotation(folder: Path, question: str, quote: str, line: int) -> None:
    text, place = first_quote(finished(asked(question)))
    assert quote in text
    assert place.endswith(f":{line}")


def test_every_quotation_stands_where_the_answer_says(folder: Path) -> None:
    answer = finished(asked("What does the guide say about the robot?")).final_response
    quotes = re.findall(r"“(.*)”\n\s+(\S+):(\d+)", answer)
    assert quotes
    for text, file, number in quotes:
        line = (folder / file).read_text().split("\n")[int(number) - 1]
        assert text.split(" ")[0].strip("`") in line


@pytest.mark.parametrize("question", ["What is the capital of France?", "Tell me about quantum chromodynamics", "zzz"])
def test_it_says_so_when_nothing_is_found(folder: Path, question: str) -> None:
    state = finished(asked(question))
    assert state.final_response.startswith("I found nothing in the 2 files")
    assert "“" not in state.final_response.replace(f"“{question}”", "").split("mentions")[0]


def test_words_that_no_file_holds_are_named(folder: Path) -> None:
    answer = finished(asked("How long does the robot charge its flux battery on the dock?")).final_response
    assert "None of the files mentions “flux”" in answer


@pytest.mark.parametrize("question", ["", "   ", "???", "🙂"])
def test_no_question_gets_an_answer_too(folder: Path, question: str) -> None:
    assert finished(asked(question)).final_response.startswith("Ask me something")


@pytest.mark.parametrize("question", ["what is it", "the", "x" * 5000, "robot " * 2000, "a\x00b\x1b[31m robot"])
def test_odd_questions_do_no_harm(folder: Path, question: str) -> None:
    assert finished(asked(question)).final_response


def test_an_empty_folder_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tools.PATH_VARIABLE, str(tmp_path))
    assert "I found nothing in the 0 files" in finished(asked("Where is the robot?")).final_response


def test_a_missing_folder_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tools.PATH_VARIABLE, str(tmp_path / "none"))
    state = finished(asked("Where is the robot?"))
    assert state.final_response.startswith("I could not look into the files: there is no folder")


def test_a_message_that_arrives_meanwhile_is_answered_as_well(folder: Path) -> None:
    state = stepped(asked("How long does charging take?")).with_user_message("And when does the kitchen close?")
    state = finished(state)
    assert "90 minutes" in state.final_response
    assert "closes at nine" in state.final_response


def test_a_further_question_gets_an_answer_of_its_own(folder: Path) -> None:
    state = finished(asked("When does the kitchen close?", finished(asked("How long does charging take?"))))
    assert "closes at nine" in first_quote(state)[0]
    assert "90 minutes" not in state.final_response


def test_a_short_further_question_is_understood_from_the_one_before(folder: Path) -> None:
    state = finished(asked("And why?", finished(asked("How long does charging take?"))))
    assert "90 minutes" in state.final_response


def test_a_change_of_the_files_is_noticed(folder: Path) -> None:
    finished(asked("How long does charging take?"))
    (folder / "guide.md").write_text("The robot charges for 75 minutes.\n")
    assert "75 minutes" in finished(asked("How long does charging take?")).final_response


def test_a_row_of_measurements_gives_way_to_a_sentence(folder: Path) -> None:
    rows = "".join(f"| charging run {n} takes long | robot | 9{n} | 0 | charging |\n" for n in range(9))
    (folder / "counts.md").write_text(f"# Charging\n\n| what | who | n | lost | again |\n|---|---|---|---|---|\n{rows}")
    assert "charges for 90 minutes" in first_quote(finished(asked("How long does charging of the robot take?")))[0]
