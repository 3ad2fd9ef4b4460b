"""Each limit stops at the right step: before the driver call, and before the next message (B6 to B16, I7)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from celery_agents import CeleryDurability
from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool, FunctionDriver
from celery_agents.worker.engine import Done, RetryLater
from celery_agents.worker.engine.applied_step import start_execution
from celery_agents.worker.errors import DriverError
from celery_agents.worker.guards import PROCEED, GuardPoint, GuardView, Verdict
from celery_agents.worker.state import (
    AgentState,
    ExecutionBudget,
    ExecutionStatus,
    InferenceResponse,
    InferenceUsage,
    LLMConfig,
    StopReason,
    ToolCall,
)
from celery_agents.worker.tools import tool

from support.engine import Bench
from support.pydantic_found import found
from support.trees import asking, children_of, delegating, register, run_tree

NewBench = Callable[..., Bench]

SECONDS_OF_A_STEP = 10
TOKENS_OF_A_STEP = 100
COST_OF_A_STEP = 0.25


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


class Endless:
    """Asks for a tool at every step; each takes ten seconds, a hundred tokens and a quarter of a dollar."""

    def __init__(self) -> None:
        self.bench: Bench | None = None
        self.calls = 0

    def __call__(self, state: AgentState) -> InferenceResponse:
        self.calls += 1
        assert self.bench is not None
        self.bench.clock.go_on(SECONDS_OF_A_STEP)
        return InferenceResponse(
            tool_calls=(ToolCall(id=f"c{state.step_count}", name="look"),),
            usage=InferenceUsage(input=TOKENS_OF_A_STEP - 40, output=20, cache_write=5, cache_read=10, reasoning=5),
            cost=COST_OF_A_STEP,
        )


def endless(new_bench: NewBench, settings: Any = None, **agent: Any) -> tuple[Bench, Endless]:
    driver = Endless()
    bench = new_bench(Agent("endless", driver=driver, tools=[look], **agent), **(settings or {}))
    driver.bench = bench
    return bench, driver


# limit, reason, the names in its context, what it allows for n steps, what a step uses of it
LIMITS = [
    ("max_steps", StopReason.STEPS_LIMIT_REACHED, ("currentSteps", "maxSteps"), 1),
    ("max_tokens", StopReason.TOKEN_LIMIT_REACHED, ("totalTokens", "maxTotalTokens"), TOKENS_OF_A_STEP),
    ("max_cost", StopReason.COST_LIMIT_REACHED, ("totalCost", "maxCost"), COST_OF_A_STEP),
    ("max_seconds", StopReason.TIME_LIMIT_REACHED, ("elapsedSeconds", "maxSeconds"), SECONDS_OF_A_STEP),
    ("deadline", StopReason.TIME_LIMIT_REACHED, ("now", "deadline"), SECONDS_OF_A_STEP),
]
# the boundary, as a share of the step's use, and the steps it allows
BOUNDARIES = [
    pytest.param(0, 0, id="zero"),
    pytest.param(0.5, 1, id="within-the-first-step"),
    pytest.param(1, 1, id="exactly-the-first-step"),
    pytest.param(1.5, 2, id="within-the-second-step"),
    pytest.param(3, 3, id="exactly-the-third-step"),
]


def _limit(bench: Bench, name: str, used: float) -> ExecutionBudget:
    if name == "deadline":
        return ExecutionBudget(deadline=bench.clock.now + timedelta(seconds=used))
    if name in ("max_steps", "max_tokens"):
        # A part of a step does not exist: a limit within a step is the step.
        return ExecutionBudget(**{name: round(used + 0.49)})
    return ExecutionBudget(**{name: used})


@pytest.mark.parametrize("from_agent", [False, True], ids=["of-the-execution", "of-the-agent"])
@pytest.mark.parametrize(("share", "steps"), BOUNDARIES)
@pytest.mark.parametrize(("name", "reason", "context", "use"), LIMITS, ids=[limit[0] for limit in LIMITS])
def test_a_limit_stops_at_its_step_before_the_driver_call_or_before_the_next_message(
    new_bench: NewBench,
    name: str,
    reason: StopReason,
    context: tuple[str, str],
    use: float,
    share: float,
    steps: int,
    from_agent: bool,
) -> None:
    # The clock of the bench stands still, so a deadline can be said before the bench is there.
    budget = _limit(new_bench(), name, share * use)
    bench, driver = endless(new_bench, budget=budget if from_agent else None)
    session_id = bench.submit(budget=None if from_agent else budget)
    outcomes = bench.run(session_id)

    # One task for each step: none is queued only to find that nothing may be done.
    assert [type(outcome) for outcome in outcomes] == [Done] * max(1, steps)
    assert driver.calls == steps
    record = bench.record(session_id)
    assert (record.status, record.stop_reason, record.step_count) == ("stopped", reason.value, steps)
    (signal,) = bench.execution(session_id).continuation.stop_signals
    assert (signal.reason, signal.source, set(signal.context)) == (reason, "BudgetGuard", set(context))
    if name == "max_steps":
        assert dict(signal.context) == {"currentSteps": steps, "maxSteps": budget.max_steps}
    assert bench.events(session_id)[-1] == "execution_stopped"


def test_a_limit_without_room_for_the_first_step_has_no_driver_call_and_no_step(new_bench: NewBench) -> None:
    bench, driver = endless(new_bench, budget=ExecutionBudget(max_steps=0))
    session_id = bench.submit()
    (outcome,) = bench.run(session_id)
    assert isinstance(outcome, Done)
    assert (outcome.next, outcome.publish) == (None, None)
    assert driver.calls == 0
    execution = bench.execution(session_id)
    assert (execution.status, execution.step_count) == (ExecutionStatus.STOPPED, 0)
    (signal,) = execution.continuation.stop_signals
    assert (dict(signal.context), signal.message) == ({"currentSteps": 0, "maxSteps": 0}, "limit of 0 steps reached")


def test_all_limits_that_are_reached_together_are_recorded_and_the_highest_decides(new_bench: NewBench) -> None:
    bench, _ = endless(new_bench)
    budget = ExecutionBudget(
        max_seconds=SECONDS_OF_A_STEP,
        max_cost=COST_OF_A_STEP,
        max_tokens=TOKENS_OF_A_STEP,
        deadline=bench.clock.now + timedelta(seconds=SECONDS_OF_A_STEP),
        max_steps=1,
    )
    session_id = bench.submit(budget=budget)
    bench.run(session_id)
    execution = bench.execution(session_id)
    reasons = [signal.reason for signal in execution.continuation.stop_signals]
    assert sorted(reasons) == sorted(
        [
            StopReason.STEPS_LIMIT_REACHED,
            StopReason.TOKEN_LIMIT_REACHED,
            StopReason.COST_LIMIT_REACHED,
            StopReason.TIME_LIMIT_REACHED,
            StopReason.TIME_LIMIT_REACHED,
        ]
    )
    assert bench.record(session_id).stop_reason == "steps_limit"


def test_a_budget_of_the_submit_can_only_lower_the_limits_of_the_agent(new_bench: NewBench) -> None:
    bench, driver = endless(new_bench, budget=ExecutionBudget(max_steps=3, max_tokens=100_000))
    assert bench.ran(budget=ExecutionBudget(max_steps=50, max_cost=100)).step_count == 3
    assert bench.ran(budget=ExecutionBudget(max_steps=2)).step_count == 2
    assert driver.calls == 5


def test_a_limit_leaves_the_others_unlimited_and_no_budget_limits_nothing(new_bench: NewBench) -> None:
    bench, _ = endless(new_bench)
    partial = bench.submit(budget=ExecutionBudget(max_tokens=30 * TOKENS_OF_A_STEP))
    bench.run(partial)
    assert bench.record(partial).step_count == 30
    nothing = bench.submit()
    assert len(bench.run(nothing, limit=60)) == 60
    assert bench.execution(nothing).status is ExecutionStatus.IN_PROGRESS


def test_the_final_answer_of_the_last_permitted_step_completes_the_execution(new_bench: NewBench) -> None:
    agent = Agent("brief", driver=lambda state: "done" if state.step_count else CallTool("look"), tools=[look])
    record = new_bench(agent).ran(budget=ExecutionBudget(max_steps=2))
    assert (record.status, record.stop_reason, record.step_count) == ("completed", "completed", 2)


def test_the_time_that_has_passed_is_counted_from_the_stored_start_whoever_runs_the_steps(new_bench: NewBench) -> None:
    bench, driver = endless(new_bench, budget=ExecutionBudget(max_seconds=3 * SECONDS_OF_A_STEP))
    session_id = bench.submit()
    bench.clock.go_on(1000)  # nobody had claimed it yet: that does not count
    assert isinstance(bench.step(session_id), Done)
    bench.clock.go_on(SECONDS_OF_A_STEP)  # between two steps it does
    assert isinstance(bench.step(session_id, bench.another_worker(*bench.agents, name="other")), Done)
    assert driver.calls == 2
    assert bench.record(session_id).stop_reason == "time_limit"


def test_counters_begin_anew_for_the_next_execution_of_the_session(new_bench: NewBench) -> None:
    bench, driver = endless(new_bench, budget=ExecutionBudget(max_steps=2, max_tokens=200, max_seconds=20, max_cost=1))
    session_id = bench.submit()
    bench.run(session_id)
    bench.clock.go_on(500)
    assert bench.send(session_id).outcome == "started"
    bench.run(session_id)
    assert driver.calls == 4
    assert bench.record(session_id).step_count == 2
    assert bench.state(session_id).execution_count == 2


def test_a_budget_given_with_a_message_is_the_budget_of_the_execution_it_starts(new_bench: NewBench) -> None:
    bench, driver = endless(new_bench)
    session_id = bench.submit(budget=ExecutionBudget(max_steps=1))
    bench.run(session_id)
    bench.send(session_id, budget=ExecutionBudget(max_steps=3))
    bench.run(session_id)
    assert driver.calls == 4


class Unpriced(FunctionDriver):
    """A driver that knows the price of one model only."""

    def knows_price(self, settings: LLMConfig | None = None) -> bool:
        return settings is not None and settings.model == "priced"


def test_a_cost_limit_on_a_model_of_unknown_price_is_refused_before_the_first_call(new_bench: NewBench) -> None:
    calls: list[int] = []

    def answer(state: AgentState) -> str:
        calls.append(state.step_count)
        return "done"

    bench = new_bench(Agent("unpriced", driver=Unpriced(answer)))
    session_id = bench.submit(budget=ExecutionBudget(max_cost=1.0))
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.stop_reason, record.step_count) == ("failed", "error", 0)
    assert "max_cost" in record.errors[0]
    assert "price" in record.errors[0]
    assert calls == []

    # Without a cost limit, or with a model whose price is known, it answers.
    bench.change_model(session_id, LLMConfig(model="priced"))
    bench.retry(session_id)
    bench.run(session_id)
    assert bench.record(session_id).status == "completed"
    assert bench.ran(budget=ExecutionBudget(max_tokens=10)).status == "completed"


def test_an_answer_that_is_journaled_is_kept_although_its_model_has_no_price(new_bench: NewBench) -> None:
    class Forgetful(FunctionDriver):
        knows = True

        def knows_price(self, settings: LLMConfig | None = None) -> bool:
            return self.knows

    from support.engine import WorkerDied

    @tool(effect="pure")
    def dies() -> str:
        """Die at the first call."""
        if driver.knows:
            driver.knows = False
            raise WorkerDied
        return "alive"

    driver = Forgetful(lambda state: CallTool("dies"))
    bench = new_bench(Agent("forgetful", driver=driver, tools=[dies]))
    session_id = bench.submit(budget=ExecutionBudget(max_cost=1.0))
    bench.worker_died(session_id)
    bench.step(session_id)
    assert bench.execution(session_id).step_count == 1


@pytest.mark.parametrize("limit", ["max_seconds", "deadline"])
def test_a_step_is_given_no_more_time_than_the_budget_has_left(new_bench: NewBench, limit: str) -> None:
    timeouts: list[float] = []

    class Timed(FunctionDriver):
        def infer(self, request: Any) -> Any:
            timeouts.append(request.timeout)
            return super().infer(request)

    bench = new_bench(Agent("timed", driver=Timed(lambda state: "done"), step_timeout=100))
    budget = ExecutionBudget(max_seconds=30) if limit == "max_seconds" else _limit(bench, "deadline", 30)
    assert bench.ran(budget=budget).status == "completed"
    assert bench.ran().status == "completed"
    assert timeouts == [pytest.approx(30), pytest.approx(100)]


@pytest.mark.parametrize("limit", ["max_seconds", "deadline"])
def test_a_call_that_outlasts_the_budget_is_ended_and_the_execution_stopped_by_the_limit(
    new_bench: NewBench, limit: str
) -> None:
    asked: list[int] = []

    def hang(state: AgentState) -> str:
        asked.append(1)
        bench.clock.go_on(31)
        raise DriverError("timeout", transient=True)

    bench = new_bench(Agent("slow", driver=hang))
    budget = ExecutionBudget(max_seconds=30) if limit == "max_seconds" else _limit(bench, "deadline", 30)
    session_id = bench.submit(budget=budget)
    bench.run(session_id)
    record = bench.record(session_id)
    assert (record.status, record.stop_reason) == ("stopped", "time_limit")
    assert asked == [1]


def test_an_outage_is_waited_for_no_longer_than_the_budget_has_time(new_bench: NewBench) -> None:
    def down(state: AgentState) -> str:
        raise DriverError("overloaded", transient=True, status=529, retry_after=3600.0)

    bench = new_bench(Agent("down", driver=down))
    session_id = bench.submit(budget=ExecutionBudget(max_seconds=60))
    (outcome,) = bench.run(session_id)
    assert isinstance(outcome, RetryLater)
    assert outcome.seconds <= 60
    bench.clock.go_on(outcome.seconds + 0.001)
    bench.run(session_id)
    assert bench.record(session_id).stop_reason == "time_limit"


def test_a_stored_limit_is_seen_by_the_guards_of_users(new_bench: NewBench) -> None:
    seen: list[tuple[GuardPoint, int, ExecutionBudget]] = []

    class StepObserver:
        def check(self, view: GuardView) -> Verdict:
            seen.append((view.point, view.execution.step_count, view.execution.budget))
            return PROCEED

    budget = ExecutionBudget(max_steps=2)
    bench, _ = endless(new_bench, guards=[StepObserver()])
    bench.ran(budget=budget)
    before, after = GuardPoint.BEFORE_CALL, GuardPoint.BEFORE_NEXT
    assert seen == [(before, 0, budget), (after, 1, budget), (before, 1, budget), (after, 2, budget)]


# --- nobody gave a budget ---------------------------------------------------------------------------------------

UNLIMITED = ExecutionBudget.unlimited()


def test_an_execution_without_any_budget_ends_after_a_hundred_steps(new_bench: NewBench) -> None:
    bench, driver = endless(new_bench)
    session_id = bench.submit()
    bench.run(session_id, limit=200)
    record = bench.record(session_id)
    assert (record.status, record.stop_reason, driver.calls) == ("stopped", "steps_limit", 100)
    (signal,) = bench.execution(session_id).continuation.stop_signals
    assert dict(signal.context) == {"currentSteps": 100, "maxSteps": 100}
    assert signal.message.startswith("limit of 100 steps reached (default_max_steps): nobody gave a budget; give one")
    assert bench.state(session_id).run.max_iterations == 100


@pytest.mark.parametrize(
    ("of_the_agent", "of_the_submit"),
    [(UNLIMITED, None), (None, UNLIMITED), (None, ExecutionBudget(max_tokens=10**6)), (ExecutionBudget(max_cost=9), None)],
)  # fmt: skip
def test_a_given_budget_stands_as_given(
    new_bench: NewBench, of_the_agent: ExecutionBudget | None, of_the_submit: ExecutionBudget | None
) -> None:
    bench, driver = endless(new_bench, {"default_max_steps": 2}, budget=of_the_agent)
    session_id = bench.submit(budget=of_the_submit)
    bench.run(session_id, limit=5)
    assert driver.calls == 5
    assert bench.execution(session_id).status is ExecutionStatus.IN_PROGRESS


@pytest.mark.parametrize(("most", "calls"), [(3, 3), (0, 105)])
def test_the_default_limit_is_a_setting_and_zero_switches_it_off(new_bench: NewBench, most: int, calls: int) -> None:
    bench, driver = endless(new_bench, {"default_max_steps": most})
    bench.run(bench.submit(), limit=105)
    assert driver.calls == calls


def test_each_execution_of_a_session_counts_its_own_steps(new_bench: NewBench) -> None:
    bench, driver = endless(new_bench, {"default_max_steps": 2})
    session_id = bench.submit()
    bench.run(session_id)
    bench.send(session_id)
    bench.run(session_id)
    assert driver.calls == 4
    bench.send(session_id, budget=UNLIMITED)
    bench.run(session_id, limit=3)
    assert driver.calls == 7


def test_a_retry_with_a_budget_goes_on_behind_the_default_limit(new_bench: NewBench) -> None:
    bench, driver = endless(new_bench, {"default_max_steps": 2})
    session_id = bench.submit()
    bench.run(session_id)
    bench.retry(session_id)
    bench.run(session_id)
    assert driver.calls == 2, "the limit stays where no other one is given"
    bench.retry(session_id, ExecutionBudget(max_steps=3))
    bench.run(session_id)
    assert driver.calls == 3


def test_an_execution_that_an_earlier_version_has_started_keeps_what_it_had(new_bench: NewBench) -> None:
    bench, _ = endless(new_bench)
    running = AgentState.fresh(now=bench.clock.now).with_execution("x1", now=bench.clock.now)
    running = running.with_execution_started(now=bench.clock.now)  # without the field, as it was stored then
    started = start_execution(running, UNLIMITED, bench.clock.now, default_steps=2)
    assert started.execution is not None
    assert started.execution.default_steps is None


def test_a_child_has_the_default_limit_of_its_own_and_takes_nothing_of_its_parents(new_bench: NewBench) -> None:
    busy = Agent("busy", driver=lambda _state: [CallTool("look")], tools=[look])
    lead = delegating("lead", *asking("ask_busy", "a", "b"), tools=[busy.as_tool()])
    bench = new_bench(lead, busy, default_max_steps=4)
    register(bench)
    root = bench.submit(agent=lead)
    run_tree(bench, root)
    children = [bench.record(child) for child in children_of(bench, root)]
    assert [(each.stop_reason, each.step_count) for each in children] == [("steps_limit", 4)] * 2
    assert (bench.record(root).status, bench.record(root).step_count) == ("completed", 2)


def test_an_agent_of_pydantic_ai_has_the_default_limit_too(new_bench: NewBench) -> None:
    def answer(messages: list[Any], info: Any) -> ModelResponse:
        return ModelResponse(parts=[ToolCallPart("seek", {}, tool_call_id=f"c{len(messages)}")])

    agent = PydanticAgent(FunctionModel(answer), name="seeker", capabilities=[CeleryDurability(effect="pure")])

    @agent.tool_plain
    def seek() -> str:
        return "nothing"

    ours = found(agent)
    bench = new_bench(ours, default_max_steps=3)
    session_id = bench.submit(agent=ours)
    bench.run(session_id)
    assert (bench.record(session_id).stop_reason, bench.record(session_id).step_count) == ("steps_limit", 3)
