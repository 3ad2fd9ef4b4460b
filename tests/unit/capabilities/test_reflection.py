"""Reflection: levels and cadences, what is kept of a note, and who pays for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from celery_agents.worker import crash_points
from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import (
    Cadence,
    NativeReasoning,
    ReasoningConfig,
    Reflection,
    ReflectionConfig,
    ReflectionEvent,
    ReflectionUsage,
    smart_event,
)
from celery_agents.worker.capabilities.smart.reflection import says_the_same
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.errors import ConfigurationError, DriverError
from celery_agents.worker.state import (
    AgentState,
    ExecutionBudget,
    ExecutionStatus,
    InferenceResponse,
    InferenceUsage,
    LLMConfig,
    Role,
    StopReason,
    ToolCall,
)
from celery_agents.worker.tools import tool

from support.engine import Bench, WorkerDied
from support.smart import Asked, run_dying

NewBench = Callable[..., Bench]
USAGE = InferenceUsage(input=7, output=2, cache_read=1, reasoning=3, requests=1)


@pytest.fixture
def new_bench() -> Iterator[NewBench]:
    benches: list[Bench] = []

    def make(*agents: Agent, **settings: Any) -> Bench:
        benches.append(Bench(*agents, **settings))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


@tool(effect="pure")
def think() -> str:
    """Think."""
    return "thought"


class Reflecting(Asked):
    """Makes these calls, step by step; its notes are numbered."""

    def __init__(self, *steps: str, note: Callable[[int], Any] | None = None) -> None:
        made = note or (lambda n: InferenceResponse(content=f"note number {n}", usage=USAGE))
        super().__init__(
            [[CallTool(name) for name in step.split()] if step.islower() else step for step in (*steps, "Done")],
            repeat_last=True,
            auxiliary={
                "Reflection.note": lambda state: made(len(self.auxiliary)),
                "Reflection.summary": "all of it in short",
            },
        )


def agent(driver: Any, **config: Any) -> Agent:
    reflection = Reflection(ReasoningConfig(reflection=ReflectionConfig(**config)))
    return Agent("a", driver=driver, tools=[look, think], capabilities=[reflection])


def run(bench: Bench, **options: Any) -> AgentState:
    session_id = bench.submit("the task", **options)
    bench.run(session_id, limit=200)
    return bench.state(session_id)


def turns(state: AgentState) -> list[int]:
    return [each.turn for each in state.smart.reflections]


STEPS = ("look", "look", "think look", "look think", "Saying something", "look")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"cadence": "off"}, []),
        ({"cadence": "every_turn"}, [1, 2, 3, 4]),
        ({"cadence": "after_tool"}, [1, 2, 3, 4]),
        ({"cadence": "on_branch"}, [1, 3]),
        ({"cadence": "initial_then_after_tool"}, [0, 1, 2, 3, 4]),
        ({}, [0, 1, 2, 3, 4]),
        ({"cadence": "after_tool", "max_per_run": 0}, []),
        ({"cadence": "after_tool", "max_per_run": 1}, [1]),
        ({"cadence": "after_tool", "max_per_run": 2}, [1, 2]),
        ({"cadence": "after_tool", "every_n_turns": 2}, [1, 3]),
        ({"cadence": "after_tool", "every_n_turns": 3}, [1, 4]),
        ({"cadence": "every_turn", "every_n_turns": 4}, [1]),
        ({"enabled": False}, []),
    ],
)
def test_l5_the_cadence_and_its_throttles(new_bench: NewBench, config: dict[str, Any], expected: list[int]) -> None:
    driver = Reflecting(*STEPS[:4])
    state = run(new_bench(agent(driver, **config)))
    assert turns(state) == expected
    assert len(driver.auxiliary) == len(expected)
    assert state.final_response == "Done"


def test_l5_the_limit_counts_in_each_execution(new_bench: NewBench) -> None:
    bench = new_bench(agent(Reflecting("look", "look"), cadence="after_tool", max_per_run=1))
    session_id = bench.submit()
    bench.run(session_id)
    bench.send(session_id)
    bench.run(session_id)
    assert turns(bench.state(session_id)) == [1, 1]


@pytest.mark.parametrize("note", ["", "  \n", "always the same words here", "Always the SAME words here"])
def test_l5_an_empty_note_or_one_that_repeats_is_dropped(new_bench: NewBench, note: str) -> None:
    driver = Reflecting(*["look"] * 3, note=lambda n: note)
    state = run(new_bench(agent(driver, cadence="after_tool")))
    assert len(state.smart.reflections) == (1 if note.strip() else 0)
    assert len(driver.auxiliary) == 3


def test_l5_an_error_of_the_provider_makes_no_note_and_stops_nothing(new_bench: NewBench) -> None:
    def refuse(number: int) -> Any:
        raise DriverError("overloaded", "try again", transient=False)

    state = run(new_bench(agent(Reflecting("look", note=refuse), cadence="after_tool")))
    assert (state.smart.reflections, state.final_response) == ((), "Done")


def test_words_in_common() -> None:
    assert says_the_same("a b c d e f g h i j", "a b c d e f g h i j k")
    assert not says_the_same("a b c d", "a b c x")


# --- records ---------------------------------------------------------------------------------------------------


def test_a_record_says_what_it_is_about_and_its_tokens_are_charged(new_bench: NewBench) -> None:
    bench = new_bench(agent(Reflecting("look", "think look"), cadence="after_tool"))
    session_id = bench.submit()
    bench.run(session_id)
    state = bench.state(session_id)
    first, second = state.smart.reflections
    assert (first.turn, first.text, first.trigger) == (1, "note number 1", Cadence.AFTER_TOOL)
    assert first.usage == ReflectionUsage(
        input_tokens=8, output_tokens=2, cached_input_tokens=1, total_tokens=13, reasoning_tokens=3
    )
    assert (first.anchor_message_index, second.anchor_message_index) == (3, 6)
    assert first.tool_call_ids == tuple(call.id for call in state.steps[0].requested_tool_calls)
    assert len(second.tool_call_ids) == 2
    assert first.duration_ms is not None
    assert state.usage == USAGE + USAGE
    assert len({each.id for each in state.smart.reflections}) == 2
    found = [smart_event(e.data) for e in bench.store.sessions.events(session_id) if e.type == "capability"]
    assert [each.text for each in found if isinstance(each, ReflectionEvent)] == ["note number 1", "note number 2"]


def test_events_can_be_switched_off(new_bench: NewBench) -> None:
    bench = new_bench(agent(Reflecting("look"), cadence="after_tool", emit_events=False))
    session_id = bench.submit()
    bench.run(session_id)
    assert [e for e in bench.store.sessions.events(session_id) if e.type == "capability"] == []


def test_the_model_sees_the_last_notes_and_none_is_a_turn_of_the_conversation(new_bench: NewBench) -> None:
    driver = Reflecting(*["look"] * 5)
    state = run(new_bench(agent(driver, cadence="after_tool", keep_last=2)))
    seen = [[m.content for m in messages if m.role is Role.SYSTEM] for messages in driver.read]
    assert seen[0] == []
    assert seen[1] == ["Note after step 1: note number 1"]
    assert seen[5] == ["Note after step 4: note number 4", "Note after step 5: note number 5"]
    assert all("note number" not in message.content for message in state.smart.messages)


def test_older_notes_are_summarized(new_bench: NewBench) -> None:
    driver = Reflecting(*["look"] * 6)
    run(new_bench(agent(driver, cadence="after_tool", keep_last=2, summarize=True)))
    assert [each.purpose for each in driver.auxiliary].count("Reflection.summary") == 2
    assert "- note number 1\n- note number 2" in driver.auxiliary[4].messages[0].content
    systems = [m.content for m in driver.read[-1] if m.role is Role.SYSTEM]
    assert systems[0] == "Older notes in short: all of it in short"
    assert len(systems) == 3


def test_a_long_note_is_cut_and_the_question_is_the_template(new_bench: NewBench) -> None:
    driver = Reflecting("look", note=lambda n: "x" * 50)
    template = "{task}|{turn}|{results}|{other}"
    config = {"cadence": "after_tool", "max_chars": 9, "max_tokens": 77, "prompt_template": template}
    state = run(new_bench(agent(driver, **config)))
    assert state.smart.reflections[0].text == "x" * 9
    assert driver.auxiliary[0].messages[0].content == "the task|1|- look({}): seen|{other}"
    assert driver.auxiliary[0].settings == LLMConfig(settings={"max_tokens": 77})  # type: ignore[arg-type]


def test_before_the_first_step_the_template_has_the_step_0_and_no_results(new_bench: NewBench) -> None:
    driver = Reflecting()
    run(new_bench(agent(driver, cadence="initial_then_after_tool", prompt_template="{task}|{turn}|{results}|")))
    assert driver.auxiliary[0].messages[0].content == "the task|0||"


def test_piggyback_takes_the_note_out_of_the_answer_and_asks_nothing_else(new_bench: NewBench) -> None:
    driver = Asked([CallTool("look"), "<reflection>enough is known</reflection>\nDone"])
    state = run(new_bench(agent(driver, cadence="after_tool", mode="piggyback")))
    (record,) = state.smart.reflections
    assert (record.turn, record.text, record.usage) == (1, "enough is known", None)
    assert state.final_response == "Done"
    assert driver.auxiliary == []
    asked = ["<reflection>" in messages[-1].content for messages in driver.read]
    assert asked == [False, True]


def test_piggyback_asks_the_question_of_the_template(new_bench: NewBench) -> None:
    driver = Asked([CallTool("look"), "<reflection>fine</reflection>Done"])
    run(new_bench(agent(driver, cadence="after_tool", mode="piggyback", prompt_template="{task}|{turn}|{results}")))
    assert "</reflection>: the task|1|- look({}): seen " in driver.read[1][-1].content


def test_piggyback_summarizes_older_notes(new_bench: NewBench) -> None:
    def noted(number: int) -> InferenceResponse:
        text = f"<reflection>note number {number}</reflection>"
        return InferenceResponse(content=text, tool_calls=(ToolCall(id=f"c{number}", name="look"),))

    driver = Asked(
        [CallTool("look"), *(lambda _, n=n: noted(n) for n in range(1, 6)), "Done"],
        auxiliary={"Reflection.summary": "all of it in short"},
    )
    run(new_bench(agent(driver, cadence="after_tool", mode="piggyback", keep_last=2, summarize=True)))
    assert "- note number 1\n- note number 2" in driver.auxiliary[0].messages[0].content
    assert "Older notes in short: all of it in short" in [m.content for m in driver.read[-1]]


def test_an_answer_without_a_note_stays_as_it_is(new_bench: NewBench) -> None:
    state = run(new_bench(agent(Asked([CallTool("look"), "Done"]), cadence="after_tool", mode="piggyback")))
    assert (state.smart.reflections, state.final_response) == ((), "Done")


# --- levels (L6) -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "numbers"),
    [
        ("minimal", None),
        ("low", (200, 600, Cadence.ON_BRANCH)),
        ("medium", (350, 1_200, Cadence.INITIAL_THEN_AFTER_TOOL)),
        ("high", (600, 2_000, Cadence.INITIAL_THEN_AFTER_TOOL)),
        (None, (350, 1_200, Cadence.INITIAL_THEN_AFTER_TOOL)),
    ],
)
def test_l6_the_numbers_of_a_level(level: Any, numbers: Any) -> None:
    config = ReasoningConfig(level=level)
    resolved = config.resolved
    assert (resolved and (resolved.max_tokens, resolved.max_chars, resolved.cadence)) == numbers
    assert config.native_settings == ({} if level is None else {"thinking": level})


def test_l6_explicit_fields_beat_the_level() -> None:
    given = ReflectionConfig(max_chars=5, cadence=Cadence.EVERY_TURN)
    config = ReasoningConfig(level="low", native=NativeReasoning(effort="high"), reflection=given)
    assert config.resolved is not None
    assert (config.resolved.max_tokens, config.resolved.max_chars) == (200, 5)
    assert config.resolved.cadence is Cadence.EVERY_TURN
    assert config.native_settings == {"thinking": "high"}
    assert Reflection(config, cadence="after_tool").resolved == ReflectionConfig(
        max_chars=5, max_tokens=200, cadence="after_tool"
    )


def test_l6_false_switches_one_off_and_keeps_the_other() -> None:
    without_native = ReasoningConfig(level="high", native=False)
    assert without_native.native_settings == {}
    assert without_native.resolved is not None
    without_notes = ReasoningConfig(level="high", reflection=False)
    assert (without_notes.native_settings, without_notes.resolved) == ({"thinking": "high"}, None)
    assert (ReasoningConfig(enabled=False, level="high").native_settings, ReasoningConfig(enabled=False).resolved) == (
        {},
        None,
    )


def test_native_fields_become_the_settings_of_each_provider(new_bench: NewBench) -> None:
    native = NativeReasoning(
        effort="low", budget_tokens=900, include_thoughts=True, provider_extras={"openai_store": False}
    )
    settings = {
        "thinking": "low",
        "anthropic_thinking": {"type": "enabled", "budget_tokens": 900},
        "google_thinking_config": {"thinking_budget": 900, "include_thoughts": True},
        "openai_reasoning_summary": "auto",
        "openai_store": False,
    }
    assert native.as_settings() == settings
    driver = Asked(["Done"])
    capability = Reflection(ReasoningConfig(native=native, reflection=False))
    bench = new_bench(Agent("a", driver=driver, capabilities=[capability]))
    state = AgentState.fresh(now=bench.clock.now).with_llm_config(
        LLMConfig(model="m:x", settings={"thinking": "high"})  # type: ignore[arg-type]
    )
    run(bench, state=state)
    asked = driver.requests[0].settings
    assert asked == LLMConfig(model="m:x", settings={**settings, "thinking": "high"})  # type: ignore[arg-type]


WRONG: Sequence[tuple[Callable[[], Any], str]] = [
    (lambda: ReasoningConfig(level="extreme"), r"ReasoningConfig\(level\)='extreme': there are minimal, low"),  # type: ignore[arg-type]
    (lambda: ReasoningConfig(native="high"), "give a NativeReasoning, or False"),  # type: ignore[arg-type]
    (lambda: NativeReasoning(effort="much"), "effort"),  # type: ignore[arg-type]
    (lambda: NativeReasoning(provider_extras={"openai_stroe": 1}), "openai_stroe: .*did you mean openai_store"),
    (lambda: NativeReasoning(provider_extras={"temprature": 1}), "temprature: .*did you mean temperature"),
    (lambda: NativeReasoning(provider_extras={"nobody_knows": 1}), "there is no such setting"),
    (lambda: NativeReasoning(budget_tokens=-1), r"budget_tokens\)=-1"),
    (lambda: ReflectionConfig(cadence="hourly"), "there are off, every_turn, after_tool, on_branch"),
    (lambda: ReflectionConfig(mode="aloud"), "there are separate, piggyback"),  # type: ignore[arg-type]
    (lambda: ReflectionConfig(every_n_turns=0), "every_n_turns"),
    (lambda: ReflectionConfig(max_per_run=-1), "max_per_run"),
    (lambda: ReflectionConfig(keep_last="3"), "keep_last"),  # type: ignore[arg-type]
    (lambda: Reflection("high"), r"Reflection\(config\)='high': give a ReasoningConfig"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_l6_what_does_not_exist_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_keep_last_below_one_acts_as_one() -> None:
    assert ReflectionConfig(keep_last=-4).keep_last == 1


# --- durability ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["c1", "c2", "c3", "c5", "c7"])
def test_a_crash_neither_pays_a_note_twice_nor_loses_one(new_bench: NewBench, point: str) -> None:
    driver = Reflecting(*["look"] * 6)
    bench = new_bench(agent(driver, cadence="initial_then_after_tool"))
    session_id = bench.submit()
    assert run_dying(bench, session_id, point, at=(1, 3, 4)) > 6
    state = bench.state(session_id)
    assert turns(state) == [0, 1, 2, 3, 4, 5, 6]
    assert len(driver.auxiliary) == 7
    assert [each.type for each in bench.store.sessions.events(session_id)].count("capability") == 7


def test_a_note_of_a_step_whose_worker_died_is_kept_when_the_execution_is_stopped(new_bench: NewBench) -> None:
    driver = Reflecting("look")
    bench = new_bench(agent(driver, cadence="initial_then_after_tool"))
    session_id = bench.submit()

    def die(name: str) -> None:
        if name == "c5":
            raise WorkerDied

    crash_points.install(die)
    try:
        bench.worker_died(session_id)
    finally:
        crash_points.install(None)
    bench.stop(session_id)
    bench.run(session_id)
    state = bench.state(session_id)
    assert (state.status, state.step_count, len(driver.auxiliary)) == (ExecutionStatus.STOPPED, 1, 1)
    assert [each.text for each in state.smart.reflections] == ["note number 1"]


def test_a_limit_that_notes_have_used_up_ends_the_execution(new_bench: NewBench) -> None:
    driver = Reflecting(*["look"] * 9)
    state = run(new_bench(agent(driver, cadence="after_tool")), budget=ExecutionBudget(max_tokens=30))
    assert (state.status, state.last_stop_reason) == (ExecutionStatus.STOPPED, StopReason.TOKEN_LIMIT_REACHED)
    assert len(driver.auxiliary) == 3
