"""Auxiliary model calls: journaled before they are read, paid once, charged once, and counted by the guards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from celery_agents.tasks.observability.metrics import Metrics
from celery_agents.worker.agent import Agent
from celery_agents.worker.capability import Capability
from celery_agents.worker.drivers import AuxiliaryRequest, CallTool, InferenceRequest, ScriptedDriver
from celery_agents.worker.engine import Done, RetryLater, TakenOver
from celery_agents.worker.errors import (
    DriverError,
    InvalidInput,
    LoginRefused,
    ModelCallRefused,
    StoreFull,
    StoreUnavailable,
    UnusableAnswer,
)
from celery_agents.worker.guards import PROCEED, Delay, Guard, GuardPoint, GuardView, Verdict
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import (
    AgentState,
    ExecutionBudget,
    ExecutionStatus,
    InferenceResponse,
    InferenceUsage,
    Message,
    StatePart,
    StopReason,
    ToolCall,
)
from celery_agents.worker.tools import ToolContext, tool

from support.engine import Bench, WorkerDied

NewBench = Callable[..., Bench]


def _paid(text: str, tokens: int = 10, cost: float = 0.5) -> InferenceResponse:
    return InferenceResponse(content=text, usage=InferenceUsage(input=tokens), cost=cost)


class CountingDriver(ScriptedDriver):
    """Counts the questions by their purpose."""

    def __init__(self, answers: Sequence[Any], **auxiliary: Any) -> None:
        super().__init__(answers, auxiliary={name.replace("__", "."): answer for name, answer in auxiliary.items()})
        self.asked: list[str] = []
        self.prompts: list[str] = []

    def infer(self, request: InferenceRequest) -> bytes:
        self.asked.append(request.purpose)
        self.prompts.append(request.state.system_prompt)
        return super().infer(request)


class Summary(StatePart):
    part_name = "summary"
    text: str = ""


@dataclass(frozen=True)
class Summing(Capability):
    """Asks for a summary at one point and keeps it in a part."""

    point: HookPoint = HookPoint.AFTER_STEP
    then: Callable[[], None] = lambda: None

    def parts(self) -> Sequence[Any]:
        return [Summary]

    def hooks(self) -> Sequence[Hook]:
        return [Hook(self.point, self._sum)]

    def _sum(self, context: HookContext) -> HookContext:
        request = AuxiliaryRequest((Message.user("sum it up"),), system_prompt="Be brief.")
        answer = context.ask_model("sum", request)
        self.then()
        return context.changed(state=context.state.with_part(Summary(text=answer.content)))


class _Unreadable(CountingDriver):
    """Its auxiliary answers cannot be used, and were paid for."""

    def parse(self, raw: bytes) -> InferenceResponse:
        answer = super().parse(raw)
        if answer.content == "short":
            raise UnusableAnswer("no JSON").paid(answer.usage, answer.cost)
        return answer


def _dies_once() -> Callable[[], None]:
    left = [True]

    def die() -> None:
        if left:
            left.pop()
            raise WorkerDied

    return die


POINTS = [HookPoint.BEFORE_STEP, HookPoint.BEFORE_INFERENCE, HookPoint.AFTER_INFERENCE, HookPoint.AFTER_STEP]


@pytest.mark.parametrize("point", [*POINTS, HookPoint.BEFORE_EXECUTION, HookPoint.ON_STOP, HookPoint.AFTER_EXECUTION])
def test_an_answer_is_kept_and_charged_once(new_bench: NewBench, point: HookPoint) -> None:
    driver = CountingDriver([_paid("done", 1, 0.1)], sum=_paid("short"))
    bench = new_bench(Agent("a", driver=driver, capabilities=[Summing(point)]))
    session_id = bench.submit()
    bench.run(session_id)
    execution = bench.execution(session_id)
    assert sorted(driver.asked) == ["", "sum"]
    assert "Be brief." in driver.prompts
    assert (execution.status, execution.usage.total) == (ExecutionStatus.COMPLETED, 11)
    assert execution.cost == pytest.approx(0.6)
    assert bench.state(session_id).part(Summary).text == "short"
    assert bench.record(session_id).cost == pytest.approx(0.6)


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_dies_after_the_journal_write_costs_nothing_again(new_bench: NewBench, point: HookPoint) -> None:
    driver = CountingDriver([_paid("done", 1, 0.1)], sum=_paid("short"))
    bench = new_bench(Agent("a", driver=driver, capabilities=[Summing(point, then=_dies_once())]))
    session_id = bench.submit()
    bench.worker_died(session_id)
    bench.run(session_id)
    assert sorted(driver.asked) == ["", "sum"]
    assert bench.state(session_id).part(Summary).text == "short"
    assert bench.execution(session_id).usage.total == 11


@pytest.mark.parametrize("error", [StoreFull(), StoreUnavailable(), LoginRefused()], ids=["full", "away", "login"])
@pytest.mark.parametrize("point", [HookPoint.BEFORE_EXECUTION, HookPoint.BEFORE_STEP, HookPoint.BEFORE_INFERENCE])
def test_a_redis_that_does_not_take_the_answer_fails_no_execution(
    new_bench: NewBench, point: HookPoint, error: Exception
) -> None:
    errors = [error]

    def fail_once() -> None:
        if errors:
            raise errors.pop()

    driver = CountingDriver([_paid("done")], sum=_paid("short"))
    bench = new_bench(Agent("a", driver=driver, capabilities=[Summing(point, then=fail_once)]))
    session_id = bench.submit()
    with pytest.raises(type(error)):
        bench.step(session_id)
    bench.clock.go_on(bench.settings.lease_seconds + bench.settings.lease_grace_seconds + 0.1)
    bench.run(session_id)
    assert bench.execution(session_id).status is ExecutionStatus.COMPLETED


@pytest.mark.parametrize("point", POINTS)
def test_an_answer_that_cannot_be_used_is_charged_once(new_bench: NewBench, point: HookPoint) -> None:
    die = _dies_once()

    def ask(context: HookContext) -> HookContext:
        with contextlib.suppress(UnusableAnswer):
            context.ask_model("sum", "?")
        die()
        return context

    driver = _Unreadable([_paid("done", 1, 0.1)], sum=_paid("short"))
    bench = new_bench(Agent("a", driver=driver, hooks=[Hook(point, ask)]))
    session_id = bench.submit()
    bench.worker_died(session_id)
    bench.run(session_id)
    execution = bench.execution(session_id)
    assert (execution.status, execution.usage.total) == (ExecutionStatus.COMPLETED, 11)
    assert execution.cost == pytest.approx(0.6)
    assert sorted(driver.asked) == ["", "sum"]


def test_metrics_count_auxiliary_calls_and_do_not_take_them_for_retries(new_bench: NewBench) -> None:
    """Of two models that are one: its rejected answers count under the name that its other answers have."""

    class Named(CountingDriver):
        def parse(self, raw: bytes) -> InferenceResponse:
            answer = super().parse(raw).model_copy(update={"model": "tiny-1"})
            if answer.content == "short":
                raise UnusableAnswer("no JSON").paid(answer.usage, answer.cost, model=answer.model)
            return answer

    def ask(context: HookContext) -> HookContext:
        assert context.ask_model("note", "?").content == "noted"
        with contextlib.suppress(UnusableAnswer):
            context.ask_model("sum", "?")
        return context

    answers: list[Any] = [_paid("noted", 100, 2.0), DriverError("overloaded", "no", transient=True, retry_after=0.001)]
    driver = Named([_paid("done", 1, 0.1)], sum=_paid("short"), note=lambda _: _raise_or([answers.pop()]))
    agent = Agent("a", driver=driver, hooks=[Hook(HookPoint.BEFORE_STEP, ask)])
    bench, metrics = new_bench(agent), Metrics()
    bench.step(bench.submit(), bench.another_worker(agent, observer=metrics))

    def value(series: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"celery_agents_{series}", {"agent": "a", **labels})

    assert value("tokens_total", model="tiny-1", kind="input") == 111
    assert value("cost_usd_total", model="tiny-1") == pytest.approx(2.6)
    assert (value("driver_seconds_count", outcome="answer"), value("driver_seconds_count", outcome="error")) == (2, 2)
    assert value("driver_errors_total", kind="unusable_answer") == value("driver_errors_total", kind="overloaded") == 1
    assert value("driver_retries_total") == 1


def test_each_step_asks_and_pays_for_itself(new_bench: NewBench) -> None:
    @tool(effect="pure")
    def look() -> str:
        """Look."""
        return "seen"

    driver = CountingDriver([CallTool("look"), CallTool("look"), "done"], sum=_paid("short"))
    bench = new_bench(Agent("a", driver=driver, tools=[look], capabilities=[Summing()]))
    session_id = bench.submit()
    bench.run(session_id)
    assert driver.asked.count("sum") == 3
    assert bench.execution(session_id).usage.total == 30


def test_a_commit_that_starts_over_charges_once(new_bench: NewBench) -> None:
    driver = CountingDriver([_paid("done", 1, 0.1)], sum=_paid("short"))
    benches: list[Bench] = []

    def save_beside() -> None:
        if len(benches) == 1:
            benches[0].save_beside("s1", lambda state: state.with_metadata("beside", 1))
            benches.append(benches[0])

    bench = new_bench(Agent("a", driver=driver, capabilities=[Summing(then=save_beside)]))
    benches.append(bench)
    session_id = bench.submit()
    bench.run(session_id)
    assert bench.state(session_id).metadata["beside"] == 1
    assert driver.asked.count("sum") == 1
    assert bench.execution(session_id).usage.total == 11


def test_the_guards_count_what_an_auxiliary_call_cost(new_bench: NewBench) -> None:
    @tool(effect="pure")
    def look() -> str:
        """Look."""
        return "seen"

    driver = CountingDriver([CallTool("look"), "done"], sum=_paid("short", tokens=100))
    budget = ExecutionBudget(max_tokens=100)
    bench = new_bench(Agent("a", driver=driver, tools=[look], capabilities=[Summing()], budget=budget))
    record = bench.ran()
    assert (record.status, record.stop_reason) == ("stopped", StopReason.TOKEN_LIMIT_REACHED)
    assert driver.asked == ["", "sum"]


@pytest.mark.parametrize("limits", [{"max_steps": 0}, {"max_tokens": 0}, {"max_cost": 0.0}])
def test_a_limit_that_is_reached_refuses_the_call_and_stops_the_execution(
    new_bench: NewBench, limits: dict[str, Any]
) -> None:
    driver = CountingDriver(["done"], sum=_paid("short"))
    agent = Agent("a", driver=driver, capabilities=[Summing(HookPoint.BEFORE_STEP)], budget=ExecutionBudget(**limits))
    bench = new_bench(agent)
    assert bench.ran().status == "stopped"
    assert driver.asked == []


def test_a_stop_that_comes_after_the_call_keeps_and_charges_the_answer(new_bench: NewBench) -> None:
    driver = CountingDriver(["done"], sum=_paid("short"))
    bench = new_bench(Agent("a", driver=driver, capabilities=[Summing(HookPoint.BEFORE_STEP, then=_dies_once())]))
    session_id = bench.submit()
    bench.worker_died(session_id)
    bench.stop(session_id)
    bench.run(session_id)
    execution = bench.execution(session_id)
    assert (execution.status, execution.usage.total, driver.asked) == (ExecutionStatus.STOPPED, 10, ["sum"])


def test_a_delay_is_kept_although_an_auxiliary_answer_is_journaled(new_bench: NewBench) -> None:
    delays = [Delay(5.0), Delay(5.0)]

    class Slow:
        def check(self, view: GuardView) -> Verdict:
            return delays.pop() if delays and view.point is GuardPoint.BEFORE_CALL else PROCEED

    class Delaying(Capability):
        def guards(self) -> Sequence[Guard]:
            return [Slow()]

    driver = CountingDriver(["done"], sum=_paid("short"))
    bench = new_bench(Agent("a", driver=driver, capabilities=[Summing(HookPoint.BEFORE_STEP), Delaying()]))
    session_id = bench.submit()
    for _ in range(2):
        assert isinstance(bench.step(session_id), RetryLater)
        bench.clock.go_on(6)
    assert isinstance(bench.step(session_id), Done)
    assert driver.asked == ["sum", ""]


def test_a_failed_execution_that_is_retried_is_not_charged_again(new_bench: NewBench) -> None:
    broken = DriverError("refused", "no", transient=False)
    answers: list[Any] = [broken]
    driver = CountingDriver([lambda _state: _raise_or(answers)], sum=_paid("short"))
    bench = new_bench(Agent("a", driver=driver, capabilities=[Summing(HookPoint.BEFORE_STEP)]))
    session_id = bench.submit()
    bench.run(session_id)
    assert bench.execution(session_id).status is ExecutionStatus.FAILED
    assert bench.execution(session_id).usage.total == 10
    answers[:] = [_paid("done", 1, 0.1)]
    bench.retry(session_id)
    bench.run(session_id)
    assert bench.execution(session_id).usage.total == 11
    assert driver.asked.count("sum") == 1


def _raise_or(answers: list[Any]) -> Any:
    if isinstance(answers[0], Exception):
        raise answers[0]
    return answers[0]


def test_a_transient_failure_is_tried_again_and_then_later(new_bench: NewBench) -> None:
    failures = [DriverError("overloaded", "busy", transient=True) for _ in range(2)]
    driver = CountingDriver(["done"], sum=lambda _state: _next(failures))
    bench = new_bench(Agent("a", driver=driver, capabilities=[Summing(HookPoint.BEFORE_STEP)]), driver_attempts=2)
    session_id = bench.submit()
    assert isinstance(bench.step(session_id), RetryLater)
    bench.clock.go_on(3600)
    assert isinstance(bench.step(session_id), Done)
    assert driver.asked == ["sum", "sum", "sum", ""]


def _next(failures: list[DriverError]) -> Any:
    if failures:
        raise failures.pop()
    return _paid("short")


@pytest.mark.parametrize("is_async", [False, True])
def test_tools_ask_under_keys_of_their_own_and_adopt_after_a_crash(new_bench: NewBench, *, is_async: bool) -> None:
    die = _dies_once()

    @tool(effect="keyed", name="ask")
    async def ask_async(ctx: ToolContext) -> str:
        """Ask."""
        answer = await ctx.ask_model("why", "Why?")
        die()
        return answer.content

    @tool(effect="keyed", name="ask")
    def ask(ctx: ToolContext) -> str:
        """Ask."""
        answer = ctx.ask_model_sync("why", "Why?")
        die()
        return answer.content

    driver = CountingDriver([CallTool("ask"), "done"], t0__why=_paid("because"), t1__why=_paid("so"))
    bench = new_bench(Agent("a", driver=driver, tools=[ask_async if is_async else ask]))
    session_id = bench.submit()
    bench.worker_died(session_id)
    bench.run(session_id)
    assert bench.state(session_id).steps[0].tool_executions[0].value == "because"
    assert driver.asked.count("t0.why") == 1
    assert bench.execution(session_id).usage.total == 10


def test_without_a_worker_and_with_a_wrong_key_the_call_is_refused(new_bench: NewBench) -> None:
    caught: list[Exception] = []

    def hook(context: HookContext) -> None:
        try:
            context.ask_model("a:b", "?")
        except InvalidInput as error:
            caught.append(error)

    bench = new_bench(Agent("a", driver=CountingDriver(["done"]), hooks=[Hook(HookPoint.BEFORE_STEP, hook)]))
    bench.run(bench.submit())
    assert len(caught) == 1
    with pytest.raises(ModelCallRefused):
        HookContext(HookPoint.BEFORE_STEP, "s", "e", 1, bench.state("s1")).ask_model("key", "?")


# --- when a call may be made -------------------------------------------------------------------------------------------


def asking_with(ask: Callable[[HookContext], object], driver: Any = None, **options: Any) -> Agent:
    """An agent whose hook before its step asks."""

    def hook(context: HookContext) -> HookContext:
        ask(context)
        return context

    driver = driver or CountingDriver(["done"], sum="short", other="long")
    return Agent("a", driver=driver, hooks=[Hook(HookPoint.BEFORE_STEP, hook)], **options)


def test_a_lease_that_is_not_fresh_is_renewed_before_a_call(new_bench: NewBench) -> None:
    def ask(context: HookContext) -> None:
        bench.clock.go_on(8.0)
        assert context.ask_model("sum", "sum it up").content == "short"

    bench = new_bench(asking_with(ask), lease_seconds=10.0)
    assert bench.ran().status == "completed"


def test_no_call_is_made_by_a_step_whose_claim_is_lost(new_bench: NewBench) -> None:
    """The renewal says so, although this worker has heard nothing of it."""

    def ask(context: HookContext) -> None:
        ref = bench.due(context.session_id)
        assert ref is not None
        bench.clock.go_on(10.0 + bench.settings.lease_grace_seconds + 0.1)
        bench.store.steps.claim(ref, "another", "another worker", alone=True)
        with pytest.raises(ModelCallRefused, match="the step was interrupted") as refusal:
            context.ask_model("sum", "sum it up")
        raise refusal.value

    driver = CountingDriver(["done"], sum="short")
    bench = new_bench(asking_with(ask, driver), lease_seconds=10.0)
    assert isinstance(bench.step(bench.submit()), TakenOver)
    assert driver.asked == []


def test_a_call_of_a_hook_does_not_count_as_a_function_that_blocks_its_step(new_bench: NewBench) -> None:
    """The worker would give the step away, and count its slot as lost."""
    ticks: list[int] = []

    class Slow(CountingDriver):
        def infer(self, request: InferenceRequest) -> bytes:
            if request.purpose:
                bench.stop(request.session_id)
                for _ in range(2):
                    bench.keeper.tick()
                    bench.clock.go_on(1.0)
                    ticks.append(bench.keeper.abandoned)
            return super().infer(request)

    bench = new_bench(asking_with(lambda context: context.ask_model("sum", "?"), Slow(["done"], sum="short")))
    assert bench.ran().status == "stopped"
    assert ticks == [0, 0]


@pytest.mark.parametrize("has_price", [True, False])
@pytest.mark.parametrize("budget", [None, ExecutionBudget(max_cost=5.0)])
def test_a_cost_limit_needs_the_price_of_an_auxiliary_call(
    new_bench: NewBench, has_price: bool, budget: ExecutionBudget | None
) -> None:
    class Priced(CountingDriver):
        def knows_price(self, settings: object = None) -> bool:
            return has_price

    driver = Priced(["done"], sum="short")
    bench = new_bench(asking_with(lambda context: context.ask_model("sum", "?"), driver))
    record = bench.ran(budget=budget)
    if has_price or budget is None:
        assert (record.status, driver.asked) == ("completed", ["sum", ""])
    else:
        assert record.errors == ("agent 'a' has max_cost, and its model has no known price",)
        assert driver.asked == []


def test_a_step_keeps_auxiliary_answers_up_to_four_times_the_longest_answer(new_bench: NewBench) -> None:
    answer = InferenceResponse(content="x" * 1_000)
    asked: list[str] = []

    def ask(context: HookContext) -> None:
        for number in range(5):
            asked.append(context.ask_model(f"number-{number}", "?").content)

    driver = CountingDriver(["done"], **{f"number-{number}": answer for number in range(5)})
    size = len(driver.infer(request_for("number-0")))
    record = new_bench(asking_with(ask, driver), max_answer_bytes=size).ran()
    assert asked == ["x" * 1_000] * 4
    assert record.errors == (f"a step keeps 1000 auxiliary answers, of {4 * size} bytes together; ask later",)
    asked.clear()
    new_bench(asking_with(ask, driver), max_answer_bytes=size + 1).ran()
    assert asked == ["x" * 1_000] * 5


def request_for(purpose: str) -> InferenceRequest:
    return InferenceRequest(AgentState.fresh(), "s", "e", 1, purpose=purpose)


def test_a_question_has_the_time_that_is_left_of_its_step(new_bench: NewBench) -> None:
    timeouts: list[float] = []

    class Timed(CountingDriver):
        def infer(self, request: InferenceRequest) -> bytes:
            timeouts.append(request.timeout)
            return super().infer(request)

    def ask(context: HookContext) -> None:
        bench.clock.go_on(40.0)
        context.ask_model("sum", "?")

    bench = new_bench(asking_with(ask, Timed(["done"], sum="short")), step_timeout_seconds=100.0)
    bench.ran()
    assert timeouts == [pytest.approx(60.0)] * 2


def test_a_tool_is_charged_for_the_answer_of_its_step_before_it_asks(new_bench: NewBench) -> None:
    """A budget that the step's own answer has used up covers no call of its tools."""

    @tool(effect="pure")
    def ask(ctx: ToolContext) -> str:
        """Ask."""
        return ctx.ask_model_sync("sum", "?").content

    calls = (ToolCall(id="1", name="ask", args={}),)
    answer = InferenceResponse(tool_calls=calls, usage=InferenceUsage(input=100))
    driver = CountingDriver([answer, "done"], ask__sum="short", sum="short")
    bench = new_bench(Agent("a", driver=driver, tools=[ask]))
    record = bench.ran(budget=ExecutionBudget(max_tokens=100))
    assert (record.status, record.stop_reason) == ("stopped", "token_limit")
    assert driver.asked == [""]
