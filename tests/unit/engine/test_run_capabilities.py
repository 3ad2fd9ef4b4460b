"""Capabilities behind `state.run` in the engine: how executions end, and what the state shows of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from celery_agents.worker import crash_points
from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import (
    AskUser,
    Condition,
    ConfidenceMet,
    CustomCondition,
    LoopDetection,
    MaxIterations,
    Reasoning,
    Reflexion,
    TerminalTools,
    Termination,
    TextMention,
    TimeLimit,
    ToolCalled,
)
from celery_agents.worker.drivers import CallTool, InferenceRequest, ScriptedDriver
from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.run_state import RunReason
from celery_agents.worker.state import AgentState, ExecutionBudget, ExecutionStatus, Message, ToolOutcome
from celery_agents.worker.store.memory.database import MemoryDatabase
from celery_agents.worker.tools import tool

from support.engine import Bench, WorkerDied
from support.lost_writes import lost_from_memory
from support.states import NOON

NewBench = Callable[..., Bench]


@tool(effect="pure")
def look(number: int = 1) -> str:
    """Look at a number."""
    return f"number {number}"


@tool(effect="pure")
def submit(text: str = "") -> str:
    """Hand it in."""
    if not text:
        raise ValueError("there is nothing to hand in")
    return "handed in"


def every(*more: Any) -> Sequence[Any]:
    """All of the document at once."""
    ends = Termination(
        MaxIterations(50) | ToolCalled("submit") | TextMention("GIVE UP") | TimeLimit(3600) | ConfidenceMet()
    )
    return [Reasoning(), Reflexion(), LoopDetection(), TerminalTools({"submit"}), ends, *more]


def agent(*answers: Any, capabilities: Sequence[Any], **more: Any) -> Agent:
    driver = ScriptedDriver(answers, repeat_last=True)
    return Agent("a", driver=driver, tools=[look, submit], capabilities=capabilities, **more)


def asks(name: str, args: Mapping[str, Any] | None = None, text: str = "") -> Any:
    """An answer that asks for a tool."""
    call = CallTool(name, **(args or {}))
    return [text, call] if text else call


def looks(state: AgentState) -> Any:
    """Each time another number."""
    return asks("look", {"number": state.step_count})


def run(bench: Bench, **options: Any) -> AgentState:
    session_id = bench.submit(**options)
    bench.run(session_id)
    return bench.state(session_id)


# --- ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "reason", "status", "steps"),
    [
        (MaxIterations(3), RunReason.MAX_ITERATIONS, ExecutionStatus.STOPPED, 3),
        (MaxIterations(0), RunReason.MAX_ITERATIONS, ExecutionStatus.STOPPED, 0),
        (ToolCalled("look"), RunReason.TERMINAL_TOOL, ExecutionStatus.COMPLETED, 1),
        (ToolCalled("look") & MaxIterations(2), RunReason.MAX_ITERATIONS, ExecutionStatus.STOPPED, 2),
        (CustomCondition(lambda s: s.iteration == 2), RunReason.COMPLETE, ExecutionStatus.COMPLETED, 2),
        (CustomCondition(lambda s: (s.iteration == 2, "no_tools")), RunReason.NO_TOOLS, ExecutionStatus.STOPPED, 2),
        (~MaxIterations(1), RunReason.COMPLETE, ExecutionStatus.COMPLETED, 0),
    ],
)
def test_a_condition_ends_the_execution_before_a_step_or_after_it(
    new_bench: NewBench, condition: Condition, reason: RunReason, status: ExecutionStatus, steps: int
) -> None:
    state = run(new_bench(agent(looks, capabilities=[Termination(condition)])))
    assert (state.run.reason, state.status, state.run.iteration) == (reason, status, steps)
    assert state.run.success is reason.is_success


def test_a_text_ends_the_execution_although_the_step_calls_a_tool(new_bench: NewBench) -> None:
    def answer(state: AgentState) -> Any:
        return asks("look", text="It is DONE" if state.step_count == 2 else "Not yet")

    state = run(new_bench(agent(answer, capabilities=[Termination(TextMention("done"))])))
    assert (state.run.reason, state.run.iteration) == (RunReason.COMPLETE, 3)


def test_a_final_answer_is_complete_whatever_conditions_there_are(new_bench: NewBench) -> None:
    state = run(new_bench(agent(looks, "done", capabilities=every())))
    assert (state.run.reason, state.final_response) == (RunReason.COMPLETE, "done")


def test_a_terminal_tool_ends_the_execution_when_it_succeeds(new_bench: NewBench) -> None:
    answers = [looks, asks("submit"), asks("submit", {"text": "the report"}), "never"]
    state = run(new_bench(agent(*answers, capabilities=[TerminalTools({"submit"})])))
    assert (state.run.reason, state.run.success, state.status) == (
        RunReason.TERMINAL_TOOL,
        True,
        ExecutionStatus.COMPLETED,
    )
    assert state.run.tool_history == ("look", "submit", "submit")  # the call that failed ended nothing
    assert state.run.terminal_tools == {"submit"}


def test_a_terminal_call_that_a_hook_blocked_ends_nothing(new_bench: NewBench) -> None:
    def block(context: HookContext) -> HookContext:
        return context.changed(blocked="not yet")

    hooks = [Hook(HookPoint.BEFORE_TOOL, block)]
    answers = [asks("submit", {"text": "the report"}), "I may not hand it in"]
    state = run(new_bench(agent(*answers, capabilities=[TerminalTools({"submit"})], hooks=hooks)))
    assert (state.run.reason, state.final_response) == (RunReason.COMPLETE, "I may not hand it in")


def test_an_old_terminal_call_never_ends_the_execution_of_a_new_message(new_bench: NewBench) -> None:
    def answer(state: AgentState) -> Any:
        if state.execution_count == 1:
            return asks("submit", {"text": "the report"}) if state.step_count else asks("look")
        return "as you say"

    bench = new_bench(agent(answer, capabilities=every()))
    session_id = bench.submit()
    bench.run(session_id)
    first = bench.state(session_id)
    assert (first.run.reason, first.run.iteration) == (RunReason.TERMINAL_TOOL, 2)
    bench.send(session_id, "and now?")
    bench.run(session_id)
    second = bench.state(session_id)
    assert (second.run.reason, second.final_response) == (RunReason.COMPLETE, "as you say")
    assert (second.run.iteration, second.run.tool_history, len(second.run.reasoning_steps)) == (1, (), 1)
    assert second.run.confidence == pytest.approx(0.05)


def test_a_loop_ends_the_execution_at_the_threshold(new_bench: NewBench) -> None:
    state = run(new_bench(agent(asks("look"), capabilities=[LoopDetection(threshold=4)])))
    assert (state.run.reason, state.run.success, state.run.iteration) == (RunReason.TOOL_LOOP, False, 4)
    assert state.run.tool_loop_threshold == 4
    assert state.execution is not None
    assert state.execution.stop_signal is not None
    assert state.execution.stop_signal.message == "the last 4 steps made the same calls: look"


def test_other_arguments_are_no_loop(new_bench: NewBench) -> None:
    state = run(new_bench(agent(looks, capabilities=[LoopDetection(), Termination(MaxIterations(9))])))
    assert state.run.reason is RunReason.MAX_ITERATIONS


def test_a_confidence_that_is_enough_completes_the_execution(new_bench: NewBench) -> None:
    state = run(new_bench(agent(looks, capabilities=[Reflexion(threshold=0.3)])))
    assert (state.run.reason, state.run.success, state.run.iteration) == (RunReason.CONFIDENCE_MET, True, 3)
    assert state.run.confidence_threshold == 0.3
    assert len(state.run.confidence_history) == 3


def test_reflexion_may_leave_the_end_to_others(new_bench: NewBench) -> None:
    capabilities = [Reflexion(threshold=0.3, ends_execution=False), Termination(MaxIterations(5))]
    assert run(new_bench(agent(looks, capabilities=capabilities))).run.reason is RunReason.MAX_ITERATIONS


def test_the_strongest_of_several_ends_counts(new_bench: NewBench) -> None:
    capabilities = [TerminalTools({"look"}), Termination(MaxIterations(1))]
    state = run(new_bench(agent(looks, capabilities=capabilities)))
    assert (state.run.reason, state.status) == (RunReason.MAX_ITERATIONS, ExecutionStatus.STOPPED)
    assert state.execution is not None
    assert len(state.execution.continuation.stop_signals) == 2


def test_a_time_limit_counts_across_workers_from_the_start_of_the_execution(new_bench: NewBench) -> None:
    bench = new_bench(agent(looks, capabilities=[Termination(TimeLimit(10))]))
    session_id = bench.submit()
    runners = [bench.runner, bench.another_worker(bench.agents[0], name="other")]
    for number in range(9):
        bench.step(session_id, runners[number % 2])
        bench.clock.go_on(2)
        if bench.due(session_id) is None:
            break
    state = bench.state(session_id)
    assert (state.run.reason, state.run.iteration) == (RunReason.TIME_BUDGET, 5)


def test_a_condition_that_raises_fails_the_execution_and_says_why(new_bench: NewBench) -> None:
    def broken(state: AgentState) -> bool:
        raise LookupError("no such thing")

    state = run(new_bench(agent(looks, capabilities=[Termination(CustomCondition(broken))])))
    assert (state.status, state.run.reason) == (ExecutionStatus.FAILED, RunReason.ERROR)
    assert "no such thing" in state.run.errors[-1]


def test_a_condition_that_answers_something_else_fails_the_execution(new_bench: NewBench) -> None:
    state = run(new_bench(agent(looks, capabilities=[Termination(CustomCondition(lambda s: "maybe"))])))
    assert state.status is ExecutionStatus.FAILED
    assert "answer True or False, or a pair of that and a reason" in state.run.errors[-1]


@pytest.mark.parametrize(
    "capability",
    [TerminalTools({"send"}), Termination(ToolCalled("send") & MaxIterations(3)), Termination(~ToolCalled("send"))],
)
def test_a_tool_that_no_tool_is_is_refused_where_the_agent_is_defined(capability: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"agent 'a': \w+: there is no tool named send; tools: look, submit"):
        agent("done", capabilities=[capability])


def test_a_tool_of_another_capability_may_be_terminal() -> None:
    agent("done", capabilities=[TerminalTools({"ask_user_question"}), AskUser()])


def test_a_budget_and_its_view_end_the_same_execution(new_bench: NewBench) -> None:
    state = run(new_bench(agent(looks, capabilities=[])), budget=ExecutionBudget(max_steps=2))
    assert (state.run.max_iterations, state.run.iteration, state.run.reason) == (2, 2, RunReason.MAX_ITERATIONS)


# --- what is recorded -----------------------------------------------------------------------------------------


def test_a_reasoning_step_has_thought_calls_results_reflection_and_delta(new_bench: NewBench) -> None:
    answers = [asks("look", text="let me see"), asks("submit"), "done"]
    state = run(new_bench(agent(*answers, capabilities=[Reasoning(max_result_chars=6), Reflexion()])))
    one, two, three = state.run.reasoning_steps
    assert (one.iteration, one.thought, one.reflection, one.confidence_delta) == (
        1,
        "let me see",
        "on_track: number 1",
        0.15,
    )
    assert [each.name for each in one.tool_calls] == ["look"]
    assert [(each.name, each.success, each.text) for each in one.tool_results] == [("look", True, "number")]
    assert one.tool_results[0].tool_call_id == one.tool_calls[0].id
    assert (two.iteration, two.thought, two.reflection, two.confidence_delta) == (2, None, "stuck", -0.2)
    assert [each.success for each in two.tool_results] == [False]
    assert (three.iteration, three.thought, three.tool_calls) == (3, "done", ())
    assert one.timestamp <= two.timestamp <= three.timestamp


def test_without_reflexion_a_reasoning_step_has_no_reflection(new_bench: NewBench) -> None:
    state = run(new_bench(agent(looks, "done", capabilities=[Reasoning()])))
    assert [(each.reflection, each.confidence_delta) for each in state.run.reasoning_steps] == [(None, 0.0)] * 2
    assert state.run.confidence_history == ()


class Told(ScriptedDriver):
    """Keeps what the model was told by the system."""

    told: list[list[str]]

    def infer(self, request: InferenceRequest) -> bytes:
        self.told.append([message.content[:22] for message in request.messages if message.role == "system"])
        return super().infer(request)


def test_the_model_reads_the_guidance_in_the_step_after_the_reflection(new_bench: NewBench) -> None:
    driver = Told([asks("submit"), looks, asks("look"), asks("look"), asks("look"), "done"])
    driver.told = []
    state = run(new_bench(Agent("a", driver=driver, tools=[look, submit], capabilities=[Reflexion()])))
    assert state.final_response == "done"
    assert driver.told == [[], ["Your last tool calls m"], [], [], [], ["You repeat the same to"]]
    assert not any(message.role == "system" for message in state.run.messages)  # nothing of it is stored


def test_a_transcript_seeds_a_run(new_bench: NewBench) -> None:
    seen: list[tuple[str, ...]] = []

    def answer(state: AgentState) -> str:
        seen.append(tuple(message.content for message in state.messages))
        return "done"

    bench = new_bench(agent(answer, capabilities=every()))
    transcript = [Message.user("what is 2 + 2?"), Message.assistant("4")]
    run(bench, message="and 3 + 3?", state=AgentState.fresh(now=bench.clock.now).run.with_messages(transcript))
    assert seen == [("what is 2 + 2?", "4", "and 3 + 3?")]


def test_a_retry_goes_on_behind_the_loop_that_had_ended_the_execution(new_bench: NewBench) -> None:
    bench = new_bench(agent(*[asks("look")] * 3, "done", capabilities=every()))
    session_id = bench.submit()
    bench.run(session_id)
    assert bench.state(session_id).run.reason is RunReason.TOOL_LOOP
    bench.retry(session_id)
    bench.run(session_id)
    run_ = bench.state(session_id).run
    assert (run_.reason, len(run_.reasoning_steps), len(run_.confidence_history)) == (RunReason.COMPLETE, 4, 4)


# --- durability -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["c2", "c3", "c5", "c7"])
def test_a_worker_that_dies_loses_and_doubles_nothing(new_bench: NewBench, point: str) -> None:
    passed: list[str] = []

    def die(at: str) -> None:
        passed.extend([at] if at == point else [])
        if at == point and len(passed) in (2, 5):
            raise WorkerDied

    answers = [looks] * 4 + [asks("look", {"number": 99})] * 2 + ["done"]
    bench = new_bench(agent(*answers, capabilities=every()))
    session_id = bench.submit()
    crash_points.install(die)
    try:
        while bench.due(session_id) is not None:
            try:
                bench.step(session_id)
            except WorkerDied:
                bench.clock.go_on(bench.settings.lease_seconds + bench.settings.lease_grace_seconds + 0.1)
    finally:
        crash_points.install(None)
    assert len(passed) > 5, f"no two workers died at {point}"
    undisturbed = run(new_bench(agent(*answers, capabilities=every())))
    state = bench.state(session_id)
    assert state.run.reason is RunReason.COMPLETE
    assert state.run.confidence_history == undisturbed.run.confidence_history
    assert _without_times(state) == _without_times(undisturbed)


def _without_times(state: AgentState) -> list[Any]:
    return [each.model_copy(update={"timestamp": NOON}) for each in state.run.reasoning_steps]


def test_a_worker_without_the_capabilities_leaves_their_parts_untouched(new_bench: NewBench) -> None:
    full = agent(looks, capabilities=every())
    bench = new_bench(full)
    session_id = bench.submit()
    bench.step(session_id)
    before = bench.state(session_id).execution
    bare = bench.another_worker(agent(looks, capabilities=[]), name="bare")
    bench.step(session_id, bare)
    bench.step(session_id, bare)
    after = bench.state(session_id).execution
    assert before is not None
    assert after is not None
    assert after.parts == before.parts
    assert after.step_count == 3
    bench.step(session_id)
    run_ = bench.state(session_id).run
    assert [each.iteration for each in run_.reasoning_steps] == [1, 4]
    assert len(run_.confidence_history) == 2


# --- idempotent tools -----------------------------------------------------------------------------------------


class Ledger:
    """Counts calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def tool(self, **options: Any) -> Any:
        @tool(**{"idempotent": True, "name": "fetch", **options})
        def fetch(url: str, mode: str = "get") -> str:
            """Fetch it."""
            self.calls.append(url)
            if url == "broken" and len(self.calls) == 1:
                raise ConnectionError("no route")
            return f"page {len(self.calls)}"

        return fetch


def fetching(ledger: Ledger, *answers: Any, **more: Any) -> Agent:
    effect = more.pop("effect", "unsafe")
    return Agent("a", driver=ScriptedDriver(answers), tools=[ledger.tool(effect=effect)], **more)


def fetch(url: str = "x", **args: Any) -> Any:
    return asks("fetch", {"url": url, **args})


@pytest.mark.parametrize("effect", ["pure", "keyed", "unsafe"])
def test_an_equal_call_gives_the_recorded_result_marked_as_a_hit(new_bench: NewBench, effect: str) -> None:
    ledger = Ledger()
    state = run(new_bench(fetching(ledger, fetch(mode="a"), fetch("y"), fetch(mode="a"), "done", effect=effect)))
    assert ledger.calls == ["x", "y"]
    hits = [(each.value, each.idempotent_cache_hit, each.duration == 0) for each in state.run.tool_executions]
    assert hits == [("page 1", False, True), ("page 2", False, True), ("page 1", True, True)]
    assert [message.content for message in state.run.messages if message.role == "tool"] == [
        "page 1",
        "page 2",
        "page 1",
    ]
    assert AgentState.from_json(state.to_json()) == state


def test_other_arguments_are_another_call_and_their_order_does_not_matter(new_bench: NewBench) -> None:
    ledger = Ledger()
    first, second = {"url": "x", "mode": "a"}, {"mode": "a", "url": "x"}
    calls = [asks("fetch", first), asks("fetch", second), fetch(mode="b")]
    run(new_bench(fetching(ledger, *calls, "done")))
    assert ledger.calls == ["x", "x"]


def test_arguments_that_only_python_takes_for_equal_are_others(new_bench: NewBench) -> None:
    seen: list[Any] = []

    @tool(effect="pure", idempotent=True)
    def look(at: Any) -> str:
        """Look."""
        seen.append(at)
        return "seen"

    calls = [asks("look", {"at": each}) for each in (1, True, 1.0, 1)]
    run(new_bench(Agent("a", driver=ScriptedDriver([calls, "done"]), tools=[look])))
    assert sorted(map(repr, seen)) == ["1", "1.0", "True"]


def test_equal_calls_of_one_answer_are_one_call(new_bench: NewBench) -> None:
    ledger = Ledger()
    state = run(new_bench(fetching(ledger, [fetch(), fetch(), fetch("y"), fetch()], "done")))
    assert sorted(ledger.calls) == ["x", "y"]
    assert [each.idempotent_cache_hit for each in state.run.tool_executions] == [False, True, False, True]
    assert len({each.tool_call.id for each in state.run.tool_executions}) == 4


def test_an_error_is_not_given_again_in_another_step(new_bench: NewBench) -> None:
    ledger = Ledger()
    state = run(new_bench(fetching(ledger, fetch("broken"), fetch("broken"), fetch("broken"), "done")))
    assert ledger.calls == ["broken", "broken"]
    outcomes = [(each.outcome, each.idempotent_cache_hit) for each in state.run.tool_executions]
    assert outcomes == [(ToolOutcome.ERROR, False), (ToolOutcome.OK, False), (ToolOutcome.OK, True)]


def test_the_next_execution_calls_again(new_bench: NewBench) -> None:
    ledger = Ledger()
    bench = new_bench(fetching(ledger, fetch(), "done"))
    session_id = bench.submit()
    bench.run(session_id)
    bench.send(session_id)
    bench.run(session_id)
    assert ledger.calls == ["x", "x"]


def test_hooks_before_the_call_run_and_decide_the_arguments_and_hooks_after_it_do_not(new_bench: NewBench) -> None:
    ledger, seen = Ledger(), []

    def to_x(context: HookContext) -> HookContext:
        seen.append("before")
        assert context.tool_call is not None
        return context.changed(tool_call=context.tool_call.model_copy(update={"args": {"url": "x"}}))

    hooks = [Hook(HookPoint.BEFORE_TOOL, to_x), Hook(HookPoint.AFTER_TOOL, lambda context: seen.append("after"))]
    run(new_bench(fetching(ledger, fetch("a"), fetch("b"), "done", hooks=hooks)))
    assert ledger.calls == ["x"]
    assert seen == ["before", "after", "before"]


@pytest.mark.parametrize("turns", [(0, 1, 0, 1, 0), (0, 0, 1, 1, 0)], ids=["by turns", "from the third step"])
def test_another_worker_knows_the_recorded_results_too(new_bench: NewBench, turns: Sequence[int]) -> None:
    ledger = Ledger()
    answers = fetch(), fetch("y"), fetch(), fetch("y"), "done"
    bench = new_bench(fetching(ledger, *answers))
    session_id = bench.submit()
    runners = [bench.runner, bench.another_worker(fetching(ledger, *answers), name="other")]
    for turn in turns:
        bench.step(session_id, runners[turn])
    assert ledger.calls == ["x", "y"]
    assert bench.state(session_id).final_response == "done"


def test_a_worker_forgets_the_results_that_redis_has_lost(new_bench: NewBench) -> None:
    ledger, later = Ledger(), ["y", "z", "v", "y"]

    def driver(state: AgentState) -> Any:
        return fetch() if not state.step_count else fetch(later.pop(0)) if later else "done"

    bench = new_bench(Agent("a", driver=driver, tools=[ledger.tool(effect="keyed")]))
    session_id = bench.submit()
    bench.step(session_id)
    database = bench.store.context.database
    assert isinstance(database, MemoryDatabase)
    with lost_from_memory(database):
        bench.step(session_id)
        bench.step(session_id)
    bench.run(session_id)
    assert ledger.calls == ["x", "y", "z", "v", "y"]
    assert [each.idempotent_cache_hit for each in bench.state(session_id).run.tool_executions] == [False] * 3


def test_a_result_that_comes_later_cannot_be_idempotent() -> None:
    with pytest.raises(ConfigurationError, match="a result that comes later cannot be idempotent"):
        Ledger().tool(result="later")
    with pytest.raises(ConfigurationError, match="idempotent='yes' must be True or False"):
        Ledger().tool(effect="pure", idempotent="yes")
