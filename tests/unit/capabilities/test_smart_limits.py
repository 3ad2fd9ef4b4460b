"""AgentLimits and ToolCache: what is skipped, what ends an execution, and which results are given again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import AgentLimits, Summarization, ToolCache
from celery_agents.worker.capabilities.smart.limits import clamp
from celery_agents.worker.capabilities.smart.tokens import estimate_tokens
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import (
    AgentState,
    ExecutionBudget,
    ExecutionStatus,
    InferenceResponse,
    InferenceUsage,
    LLMConfig,
    Message,
    Role,
    StopReason,
    StopSignal,
    ToolCall,
    ToolOutcome,
)
from celery_agents.worker.state.codec.join import StateParts
from celery_agents.worker.state.past.edits import SetResult
from celery_agents.worker.store.session_records import StoredSession
from celery_agents.worker.store.sessions.copying import edit_entries
from celery_agents.worker.store.sessions.whole_sessions import Copy, without_execution
from celery_agents.worker.tools import tool

from support.engine import Bench
from support.smart import Asked, finished, run_dying
from support.states import NOON, running

NewBench = Callable[..., Bench]


@pytest.fixture
def new_bench() -> Iterator[NewBench]:
    benches: list[Bench] = []

    def make(*agents: Agent, **settings: Any) -> Bench:
        benches.append(Bench(*agents, **settings))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


def looks(count: int = 1, usage: InferenceUsage | None = None) -> Callable[[AgentState], Any]:
    """Asks for so many calls in each step."""

    def answer(state: AgentState) -> Any:
        calls = [ToolCall(id=f"c{n}", name="look", args={"number": 10 * state.step_count + n}) for n in range(count)]
        return InferenceResponse(tool_calls=tuple(calls), usage=usage or InferenceUsage())

    return answer


@tool(effect="pure")
def look(number: int) -> str:
    """Look at a number."""
    return f"seen {number}"


def agent(driver: Any, capability: Any, *tools: Any) -> Agent:
    return Agent("a", driver=driver, tools=[look, *tools], capabilities=[capability])


# --- tool calls (L13) ------------------------------------------------------------------------------------------


def test_l13_calls_beyond_the_limit_are_skipped_and_one_final_turn_follows(new_bench: NewBench) -> None:
    driver = Asked([looks(2), looks(3), "the answer"])
    state = finished(new_bench(agent(driver, AgentLimits(max_tool_calls=3))))
    assert (state.status, state.final_response) == (ExecutionStatus.COMPLETED, "the answer")
    outcomes = [each.outcome for each in state.steps[1].tool_executions]
    assert outcomes == [ToolOutcome.OK, ToolOutcome.BLOCKED, ToolOutcome.BLOCKED]
    assert "Skipped: the limit of 3 tool calls" in state.steps[1].tool_executions[2].as_message()
    assert [len(each.tools) for each in driver.requests] == [1, 1, 0]
    assert driver.read[2][-1].content == "All 3 tool calls are used. Give your final answer now, without tools."
    assert [m.tool_call_id for m in driver.read[2] if m.role is Role.TOOL] == ["c0", "c1", "c0", "c1", "c2"]


def test_l13_a_final_turn_that_asks_for_more_ends_the_execution(new_bench: NewBench) -> None:
    driver = Asked([looks(2)], repeat_last=True)
    bench = new_bench(agent(driver, AgentLimits(max_tool_calls=2)))
    session_id = bench.submit()
    bench.run(session_id)
    state = bench.state(session_id)
    assert (state.status, state.last_stop_reason) == (ExecutionStatus.STOPPED, StopReason.STEPS_LIMIT_REACHED)
    assert state.step_count == 2
    events = [each.data for each in bench.store.sessions.events(session_id) if each.type == "capability"]
    assert [each["type"] for each in events] == ["metadata"]
    assert "2 tool calls" in events[0]["limit_breached"]


def test_l13_the_count_does_not_leak_into_the_next_execution(new_bench: NewBench) -> None:
    driver = Asked([looks(1), "done"])
    bench = new_bench(agent(driver, AgentLimits(max_tool_calls=1)))
    session_id = bench.submit()
    bench.run(session_id)
    bench.send(session_id)
    bench.run(session_id)
    assert bench.state(session_id).steps[0].tool_executions[0].outcome is ToolOutcome.OK
    assert [len(each.tools) for each in driver.requests] == [1, 0, 1, 0]


def test_zero_calls_means_no_tools_and_no_notice(new_bench: NewBench) -> None:
    driver = Asked(["done"])
    finished(new_bench(agent(driver, AgentLimits(max_tool_calls=0))))
    assert (driver.requests[0].tools, driver.read[0][-1].content) == ((), "hello")


@pytest.mark.parametrize("point", ["c2", "c3", "c5", "c7"])
def test_a_crash_counts_no_call_twice(new_bench: NewBench, point: str) -> None:
    driver = Asked([looks(2), looks(2), looks(2), "done"])
    bench = new_bench(agent(driver, AgentLimits(max_tool_calls=6)))
    session_id = bench.submit()
    assert run_dying(bench, session_id, point, at=(1, 3)) >= 3
    outcomes = [each.outcome for each in bench.state(session_id).smart.tool_history]
    assert outcomes == [ToolOutcome.OK] * 6


# --- other limits (L14) ----------------------------------------------------------------------------------------


def test_l14_output_tokens_end_the_execution_with_what_there_is(new_bench: NewBench) -> None:
    usage = InferenceUsage(input=1_000, output=30, reasoning=20)
    state = finished(
        new_bench(agent(Asked([looks(1, usage)], repeat_last=True), AgentLimits(max_total_output_tokens=100)))
    )
    assert (state.status, state.last_stop_reason) == (ExecutionStatus.STOPPED, StopReason.TOKEN_LIMIT_REACHED)
    assert state.step_count == 2


def test_l14_the_cost_is_estimated_over_all_tokens(new_bench: NewBench) -> None:
    seen: list[dict[str, Any]] = []

    def estimate(**tokens: Any) -> float:
        seen.append(tokens)
        return float(tokens["input_tokens"]) / 100

    usage = InferenceUsage(input=60, output=1, cache_read=40, reasoning=2)
    limits = AgentLimits(max_cost_usd=2.0, cost_estimator=estimate)
    state = finished(new_bench(agent(Asked([looks(1, usage)], repeat_last=True), limits)))
    assert (state.last_stop_reason, state.step_count) == (StopReason.COST_LIMIT_REACHED, 2)
    assert seen[-1] == {
        "model_name": "scripted", "input_tokens": 200, "output_tokens": 2, "cached_input_tokens": 80, "reasoning_tokens": 4,
    }  # fmt: skip


def test_an_estimate_that_is_no_number_counts_as_too_much(new_bench: NewBench) -> None:
    limits = AgentLimits(max_cost_usd=2.0, cost_estimator=lambda **_: float("nan"))
    state = finished(new_bench(agent(Asked([looks(1)], repeat_last=True), limits)))
    assert (state.last_stop_reason, state.step_count) == (StopReason.COST_LIMIT_REACHED, 0)


@pytest.mark.parametrize("own", [None, "openai:gpt-5"])
def test_an_estimator_gets_the_name_of_the_model_that_answers(new_bench: NewBench, own: str | None) -> None:
    seen: list[Any] = []

    def estimate(model_name: Any, **_: Any) -> float:
        seen.append(model_name)
        return 5.0  # the limit is reached before anything is asked

    limits = AgentLimits(max_cost_usd=2.0, cost_estimator=estimate)
    bench = new_bench(Agent("a", model="openai:gpt-5-mini", capabilities=[limits]))
    first = AgentState.fresh(now=bench.clock.now)
    session_id = bench.submit(state=first if own is None else first.with_llm_config(LLMConfig(model=own)))
    bench.run(session_id)
    assert bench.state(session_id).last_stop_reason is StopReason.COST_LIMIT_REACHED
    assert set(seen) == {own or "openai:gpt-5-mini"}


def test_l14_cost_and_time_become_limits_of_the_budget() -> None:
    limits = AgentLimits(max_cost_usd=0.5, max_wall_clock_ms=2_500, max_parallel_tools=3)
    made = agent(Asked(["x"]), limits)
    assert made.effective_budget == ExecutionBudget(max_cost=0.5, max_seconds=2.5)
    assert made.max_parallel_tools == 3
    assert Agent("b", driver=Asked(["x"]), capabilities=[limits], max_parallel_tools=7).max_parallel_tools == 7


def test_zero_is_no_limit_where_the_source_says_so() -> None:
    limits = AgentLimits(max_cost_usd=0, max_wall_clock_ms=0, max_total_output_tokens=0, max_context_tokens=0)
    assert agent(Asked(["x"]), limits).effective_budget == ExecutionBudget()


def test_a_cost_limit_without_a_price_is_refused_where_the_agent_is_defined() -> None:
    class Unpriced(Asked):
        def knows_price(self, settings: Any = None) -> bool:
            return False

    with pytest.raises(ConfigurationError, match="AgentLimits limits the cost, and the driver knows no price"):
        agent(Unpriced(["x"]), AgentLimits(max_cost_usd=1))
    agent(Unpriced(["x"]), AgentLimits(max_cost_usd=1, cost_estimator=lambda **_: 0.0))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_tool_calls": -1}, r"AgentLimits\(max_tool_calls\)=-1: give a whole number, from 0"),
        ({"max_parallel_tools": 0}, r"max_parallel_tools\)=0: give a whole number, from 1"),
        ({"max_context_tokens": 1.5}, "max_context_tokens"),
        ({"max_total_output_tokens": "9"}, "max_total_output_tokens"),
        ({"max_cost_usd": -0.01}, "give US dollars, from 0"),
        ({"max_cost_usd": float("nan")}, "give US dollars"),
        ({"max_wall_clock_ms": -5}, "max_wall_clock_ms"),
    ],
)
def test_limits_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        AgentLimits(**wrong)


def test_l10_the_clamp_leaves_pairs_out_together() -> None:
    messages = [Message.system("rules"), Message.user("first")]
    for number in range(5):
        call = ToolCall(id=f"c{number}", name="look")
        messages.append(Message.assistant("x" * 40, [call]))
        messages.append(Message(role=Role.TOOL, content="y" * 40, tool_call_id=call.id))
    kept = clamp(messages, 50, estimate_tokens)
    assert [each.content[:5] for each in kept[:2]] == ["rules", "first"]
    assert [each.tool_call_id for each in kept if each.role is Role.TOOL] == ["c3", "c4"]
    assert clamp(messages, 10_000, estimate_tokens) == tuple(messages)
    assert len(clamp(messages, 1, estimate_tokens)) == 4


def test_the_clamp_leaves_out_no_more_than_it_must() -> None:
    answers = [Message.assistant(letter * 10) for letter in "abcd"]
    for most, kept in ((40, "abcd"), (39, "bcd"), (30, "bcd"), (29, "cd"), (20, "cd"), (19, "d"), (0, "d")):
        assert [each.content[0] for each in clamp(answers, most, len)] == list(kept)
    assert clamp([Message.user("x" * 50), *answers], 60, len)[1:] == (answers[-1],)
    assert clamp([], 0, len) == ()


@pytest.mark.parametrize(
    ("field", "least"),
    [
        ("max_tool_calls", 0), ("max_parallel_tools", 1), ("max_context_tokens", 0), ("max_total_output_tokens", 0),
        ("max_wall_clock_ms", 0),
    ],
)  # fmt: skip
def test_each_limit_has_a_least_number(field: str, least: int) -> None:
    assert getattr(AgentLimits(**{field: least}), field) == least
    with pytest.raises(ConfigurationError, match=rf"{field}\)={least - 1}: give a whole number, from {least}$"):
        AgentLimits(**{field: least - 1})


def test_limits_say_nothing_of_what_is_not_limited() -> None:
    nothing = AgentLimits()
    assert (nothing.hooks(), nothing.budget(), nothing.parallel_tools()) == ((), None, None)
    assert AgentLimits(max_wall_clock_ms=1_500).budget() == ExecutionBudget(max_seconds=1.5)
    assert AgentLimits(max_cost_usd=0.5).budget() == ExecutionBudget(max_cost=0.5)
    assert AgentLimits(max_cost_usd=0.5, cost_estimator=lambda **_: 0.0).budget() is None
    assert "token_counter" not in repr(nothing)


def test_only_the_limit_that_ends_an_execution_is_an_event(new_bench: NewBench) -> None:
    limits = AgentLimits(max_total_output_tokens=10)
    bench = new_bench(
        agent(Asked([looks(usage=InferenceUsage(input=1, output=4, reasoning=1))], repeat_last=True), limits)
    )
    session_id = bench.submit()
    bench.run(session_id)
    found = [each.data for each in bench.store.sessions.events(session_id) if each.type == "capability"]
    assert found == [{"type": "metadata", "limit_breached": "10 of 10 output tokens used", "reason": "token_limit"}]
    state = bench.state(session_id)
    assert list(limits.events(state, state)) == []
    assert list(limits.events(AgentState.fresh(), AgentState.fresh())) == []
    assert len(limits.events(AgentState.fresh(), state)) == 1


def test_a_stop_that_is_no_limit_is_no_event() -> None:
    limits, before = AgentLimits(max_total_output_tokens=10), running()
    for reason, is_event in ((StopReason.TIME_LIMIT_REACHED, True), (StopReason.USER_REQUESTED, False)):
        after = before.with_stop_signal(StopSignal(reason=reason), now=NOON).with_execution_completed(now=NOON)
        assert len(limits.events(before, after)) == is_event


def test_a_limit_of_the_context_beside_a_summarization_counts_what_the_summary_leaves() -> None:
    made = Agent("a", driver=Asked(["x"]), capabilities=[Summarization(1_000), AgentLimits(max_context_tokens=900)])
    assert made.messages_from.compile(AgentState.fresh()) == ()


# --- cache -----------------------------------------------------------------------------------------------------


class Counting:
    """A tool that counts its runs."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def tool(self) -> Any:
        @tool(effect="unsafe")
        def search(text: str, limit: int = 5) -> list[str]:
            """Search."""
            self.ran.append(text)
            if text == "bad":
                raise ValueError("not found")
            return [text, str(limit)]

        return search


def searches(*texts: str) -> list[Any]:
    return [*(CallTool("search", text=text, limit=1) for text in texts), "done"]


def test_an_equal_call_of_the_session_gets_the_kept_result(new_bench: NewBench) -> None:
    counting = Counting()
    bench = new_bench(agent(Asked(searches("a", "b", "a")), ToolCache({"search"}), counting.tool()))
    session_id = bench.submit()
    bench.run(session_id)
    bench.send(session_id)
    bench.run(session_id)
    assert counting.ran == ["a", "b"]
    executions = bench.state(session_id).smart.tool_history
    assert [each.value for each in executions] == [("a", "1"), ("b", "1"), ("a", "1")]
    assert [each.idempotent_cache_hit for each in executions] == [True] * 3


@pytest.mark.parametrize(("seconds", "ran"), [(59.999, 1), (60, 2)])
def test_a_kept_result_ends_with_its_time_to_live(new_bench: NewBench, seconds: float, ran: int) -> None:
    counting = Counting()
    cache = ToolCache({"search"}, ttl=timedelta(seconds=60))
    bench = new_bench(agent(Asked(searches("a", "a")), cache, counting.tool()))
    session_id = bench.submit()
    bench.step(session_id)
    bench.clock.go_on(seconds)
    bench.step(session_id)
    assert len(counting.ran) == ran


def test_a_cache_keeps_200_results_and_values_as_they_were(new_bench: NewBench) -> None:
    @tool(effect="pure")
    def search(text: str, limit: int = 5) -> str:
        """Search."""
        return f"[{text}]"

    assert (ToolCache({"search"}).max_entries, ToolCache({"search"}).ttl) == (200, None)
    state = finished(new_bench(agent(Asked(searches("1", "1")), ToolCache({"search"}), search)))
    assert [each.value for each in state.smart.tool_history] == ["[1]", "[1]"]


def test_errors_and_other_tools_are_not_kept(new_bench: NewBench) -> None:
    counting = Counting()
    finished(new_bench(agent(Asked(searches("bad", "bad")), ToolCache({"search"}), counting.tool())))
    assert counting.ran == ["bad", "bad"]
    counting = Counting()
    finished(new_bench(agent(Asked(searches("a", "a")), ToolCache({"look"}), counting.tool())))
    assert counting.ran == ["a", "a"]


def test_a_result_is_given_again_until_its_time_is_over(new_bench: NewBench) -> None:
    counting = Counting()
    cache = ToolCache({"search"}, ttl=timedelta(seconds=60))
    bench = new_bench(agent(Asked(searches("a", "a", "a")), cache, counting.tool()))
    session_id = bench.submit()
    bench.step(session_id)
    bench.clock.go_on(30)
    bench.step(session_id)
    assert counting.ran == ["a"]
    bench.clock.go_on(31)
    bench.step(session_id)
    assert counting.ran == ["a", "a"]


def test_a_result_of_a_conversation_that_was_replaced_is_not_given(new_bench: NewBench) -> None:
    counting = Counting()

    def forget(context: HookContext) -> HookContext | None:
        said = [
            Message.user("what was searched for is forgotten"),
            Message.assistant("so it is"),
            Message.user("go on"),
        ]
        return context.changed(state=context.state.with_messages(said)) if context.state.step_count == 1 else None

    searching = Agent(
        "a",
        driver=Asked(searches("a", "a")),
        tools=[counting.tool()],
        capabilities=[ToolCache({"search"})],
        hooks=[Hook(HookPoint.BEFORE_STEP, forget)],
    )
    finished(new_bench(searching))
    assert counting.ran == ["a", "a"]


def test_a_result_that_a_fork_has_edited_is_given_as_it_is_there(new_bench: NewBench) -> None:
    counting = Counting()
    bench = new_bench(agent(Asked([*searches("a"), *searches("a")]), ToolCache({"search"}), counting.tool()))
    session_id = bench.submit()
    bench.run(session_id)
    (made,) = bench.state(session_id).smart.tool_history

    def edit(source: StoredSession, parts: StateParts) -> tuple[StoredSession, StateParts]:
        fork, parts = without_execution(source, parts)
        return fork, edit_entries(parts, [SetResult(made.tool_call.id, "nothing is there")])

    bench.store.sessions.fork(session_id, f"{session_id}.f", Copy(change=edit))
    bench.send(f"{session_id}.f")
    bench.run(f"{session_id}.f")
    assert bench.record(f"{session_id}.f").status == "completed"
    (again,) = bench.state(f"{session_id}.f").smart.tool_history
    assert (again.value, again.idempotent_cache_hit) == ("nothing is there", True)


def test_the_oldest_results_make_room(new_bench: NewBench) -> None:
    counting = Counting()
    finished(
        new_bench(agent(Asked(searches("a", "b", "c", "a")), ToolCache({"search"}, max_entries=2), counting.tool()))
    )
    assert counting.ran == ["a", "b", "c", "a"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"names": ()}, "give a set of names"),
        ({"names": "search"}, "give a set of names"),
        ({"names": {"look"}, "ttl": timedelta(0)}, "give a timedelta above 0"),
        ({"names": {"look"}, "max_entries": 0}, "max_entries"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ToolCache(**wrong)


def test_a_tool_that_is_missing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="there is no tool named search"):
        agent(Asked(["x"]), ToolCache({"search"}))
