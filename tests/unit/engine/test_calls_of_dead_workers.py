"""Tool calls whose worker has died: what is made again, what is kept, and what is looked up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from celery_agents.worker.drivers import CallTool
from celery_agents.worker.engine import Done, RetryLater
from celery_agents.worker.engine.leases import Interruption
from celery_agents.worker.engine.tool_calls import _batches
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.tools import LookupResult, ToolContext, tool

from support.engine import Bench, WorkerDied, calling, calls_of, executions, fragile_tool, shown

NewBench = Callable[..., Bench]


@pytest.mark.parametrize(
    ("effect", "times", "outcome"), [("pure", 2, "ok"), ("keyed", 2, "ok"), ("unsafe", 1, "unknown")]
)
def test_a_call_whose_worker_died_is_made_again_as_its_effect_class_allows(
    new_bench: NewBench, effect: str, times: int, outcome: str
) -> None:
    keys: list[str] = []

    @tool(effect=effect)  # type: ignore[call-overload]
    def fragile(ctx: ToolContext) -> str:
        """Die once."""
        keys.append(ctx.idempotency_key)
        if len(keys) == 1:
            raise WorkerDied
        return "whole"

    bench = new_bench(calling(CallTool("fragile"), tools=[fragile]))
    session_id = bench.submit()
    bench.worker_died(session_id)
    bench.run(session_id)
    assert len(keys) == times
    assert len(set(keys)) == 1
    assert executions(bench, session_id)[0].outcome.value == outcome
    assert bench.record(session_id).status == "completed"


@pytest.mark.parametrize("effect", ["keyed", "unsafe", "lookup"])
@pytest.mark.parametrize("why", ["unknown_tool", "invalid_arguments", "too_many_calls", "blocked", "paused"])
def test_a_call_whose_worker_died_and_that_the_next_one_cannot_make_is_unknown_and_no_error(
    new_bench: NewBench, effect: str, why: str
) -> None:
    """Told of an error, the model would make it once more: another version of the agent came in between, for example."""

    @tool(effect=effect, name="pay", lookup=(lambda *_: LookupResult.unknown()) if effect == "lookup" else None)  # type: ignore[call-overload]
    def fragile(amount: int) -> str:
        """Die in it."""
        raise WorkerDied

    @tool(effect=effect, name="pay", lookup=(lambda *_: LookupResult.unknown()) if effect == "lookup" else None)  # type: ignore[call-overload]
    def changed(amount: int, account: str) -> str:
        """Another version."""
        raise AssertionError("it is not called")

    def block(context: HookContext) -> HookContext:
        return context.changed(blocked="not now")

    hooks = [Hook(HookPoint.BEFORE_TOOL, block)] if why == "blocked" else []
    tools = {"unknown_tool": [], "invalid_arguments": [changed]}.get(why, [fragile])
    bench = new_bench(calling(CallTool("pay", amount=1), tools=[fragile]))
    session_id = bench.submit()
    bench.worker_died(session_id)
    if why == "too_many_calls":
        bench.settings = bench.settings.model_copy(update={"max_calls": 0})
    runner = bench.another_worker(calling(CallTool("pay", amount=1), tools=tools, hooks=hooks))
    if why == "paused":
        bench.pause(tool="pay", tell=True)
    bench.step(session_id, runner)
    (made,) = executions(bench, session_id)
    assert (made.outcome.value, why in made.error_message()) == ("unknown", True)


def test_a_check_of_a_tools_arguments_that_raises_is_an_error_that_the_model_reads(new_bench: NewBench) -> None:
    def find(name: str) -> str:
        return {"ann": "7"}[name]

    @tool(effect="unsafe")
    def greet(name: Annotated[str, AfterValidator(find)]) -> str:
        """Greet."""
        return f"hello {name}"

    bench = new_bench(calling(CallTool("greet", name="bob"), CallTool("greet", name="ann"), tools=[greet]))
    session_id = bench.submit()
    bench.run(session_id)
    assert bench.record(session_id).status == "completed"
    refused, made = executions(bench, session_id)
    assert (refused.outcome.value, refused.error_message()) == ("error", "KeyError: 'bob'")
    assert made.value == "hello 7"


def test_results_are_kept_when_the_worker_dies_in_a_later_call_except_of_pure_tools(new_bench: NewBench) -> None:
    """What has no effect may run again, and costs no write."""
    ran: list[str] = []

    @tool(effect="pure")
    def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    @tool(effect="unsafe")
    def pay() -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    calls = (CallTool("look"), CallTool("pay"), CallTool("fragile"))
    bench = new_bench(calling(*calls, tools=[look, pay, fragile_tool()], max_parallel_tools=1))
    session_id = bench.submit()
    bench.worker_died(session_id)
    bench.run(session_id)
    assert sorted(ran) == ["look", "look", "pay"]
    assert [each.value for each in executions(bench, session_id)] == ["seen", "paid", "whole"]


def test_an_effect_class_that_nothing_decides_about_is_an_error_and_no_unknown_outcome(new_bench: NewBench) -> None:
    fragile = fragile_tool()
    bench = new_bench(calling(CallTool("fragile"), tools=[fragile]))
    session_id = bench.submit()
    bench.worker_died(session_id)
    object.__setattr__(fragile, "effect", "transactional")  # what a fifth member of `Effect` would be
    with pytest.raises(AssertionError, match="transactional"):
        bench.step(session_id)
    assert bench.state(session_id).steps == (), "the step is still to be done"


def test_a_lookup_that_raises_or_gives_no_json_does_not_end_the_step(new_bench: NewBench) -> None:
    deaths = [1, 1]

    def lookup_odd(key: str, ctx: ToolContext) -> LookupResult:
        return LookupResult.happened(object())

    def lookup_broken(key: str, ctx: ToolContext) -> LookupResult:
        raise RuntimeError("no answer from the bank")

    def body() -> str:
        if deaths:
            deaths.pop()
            raise WorkerDied
        return "whole"

    @tool(effect="lookup", lookup=lookup_odd)
    def odd() -> str:
        """Die."""
        return body()

    @tool(effect="lookup", lookup=lookup_broken)
    def silent() -> str:
        """Die."""
        return body()

    for name, kind, words in (("odd", "error", "the tool has run"), ("silent", "unknown", "no answer from the bank")):
        bench = new_bench(calling(CallTool(name), tools=[odd, silent]))
        session_id = bench.submit()
        bench.worker_died(session_id)
        bench.run(session_id)
        (made,) = executions(bench, session_id)
        assert made.outcome.value == kind
        assert words in shown(bench, session_id)[0]


def looked_up(new_bench: NewBench, answer: LookupResult) -> tuple[Bench, str]:
    """A session whose worker has died in a call of 10 s at most that can be looked up."""
    deaths = [1]

    @tool(effect="lookup", lookup=lambda key, ctx: answer, timeout=10.0)
    def send() -> str:
        """Send."""
        if deaths:
            deaths.pop()
            raise WorkerDied
        return "sent"

    bench = new_bench(calling(CallTool("send"), tools=[send]))
    session_id = bench.submit()
    bench.worker_died(session_id)
    return bench, session_id


@pytest.mark.parametrize(("passed", "waits"), [(10.0, 2.0), (13.5, 1.5), (14.999, 0.001), (15.0, None)])
def test_a_lookup_that_says_no_is_believed_when_the_first_call_must_be_over(
    new_bench: NewBench, passed: float, waits: float | None
) -> None:
    bench, session_id = looked_up(new_bench, LookupResult.did_not_happen())
    begun = 3600.0
    bench.clock.go_on(begun + passed - bench.clock.passed)
    outcome = bench.step(session_id)
    if waits is None:
        assert isinstance(outcome, Done)
        assert executions(bench, session_id)[0].value == "sent"
    else:
        assert isinstance(outcome, RetryLater)
        assert outcome.seconds == pytest.approx(waits, abs=1e-4)


@pytest.mark.parametrize(
    ("effect", "took", "runs"), [("lookup", 2.4, True), ("lookup", 2.6, False), ("keyed", 2.6, True)]
)
def test_a_call_that_can_be_looked_up_does_not_begin_long_behind_the_time_in_its_begin_record(
    new_bench: NewBench, monkeypatch: pytest.MonkeyPatch, effect: str, took: float, runs: bool
) -> None:
    """Whoever takes over believes "did not happen" when the call must be over, counted from that time."""
    ran: list[str] = []
    lookup = (lambda key, ctx: LookupResult.did_not_happen()) if effect == "lookup" else None

    @tool(effect=effect, lookup=lookup)
    def send() -> str:
        """Send."""
        ran.append("send")
        return "sent"

    bench = new_bench(calling(CallTool("send"), tools=[send]))
    begin = bench.store.steps.begin_calls

    def begin_and_stand_still(*args: Any, **kwargs: Any) -> Any:
        begun = begin(*args, **kwargs)
        bench.clock.go_on(took)
        return begun

    monkeypatch.setattr(bench.store.steps, "begin_calls", begin_and_stand_still)
    outcome = bench.step(bench.submit())
    assert ran == (["send"] if runs else [])
    assert isinstance(outcome, Done if runs else RetryLater)


@pytest.mark.parametrize(("reason", "words"), [("", "its lookup cannot tell"), ("no trace of it", "no trace of it")])
def test_a_lookup_that_cannot_tell_says_why(new_bench: NewBench, reason: str, words: str) -> None:
    bench, session_id = looked_up(new_bench, LookupResult.unknown(reason))
    bench.run(session_id)
    assert executions(bench, session_id)[0].outcome.value == "unknown"
    assert words in shown(bench, session_id)[0]


@pytest.mark.parametrize(
    ("calls", "width", "batches"),
    [
        ("", 2, []),
        ("p", 2, [(0, 1)]),
        ("ppppp", 2, [(0, 2), (2, 4), (4, 5)]),
        ("ppp", 1, [(0, 1), (1, 2), (2, 3)]),
        ("ppsppss", 5, [(0, 2), (2, 3), (3, 5), (5, 6), (6, 7)]),
    ],
)
def test_so_many_calls_run_side_by_side_and_sequential_ones_alone(
    calls: str, width: int, batches: list[tuple[int, int]]
) -> None:
    planned = [SimpleNamespace(is_sequential=each == "s") for each in calls]
    assert list(_batches(planned, width)) == batches  # type: ignore[arg-type]


def test_each_result_is_written_when_its_call_ends_and_the_last_one_with_the_commit(new_bench: NewBench) -> None:
    @tool(effect="unsafe")
    def pay() -> str:
        """Pay."""
        return "paid"

    bench = new_bench(calling(*[CallTool("pay")] * 3, tools=[pay], max_parallel_tools=1))
    written = calls_of(bench.store.steps, "record_results")
    session_id = bench.submit()
    bench.run(session_id)
    assert [sorted(results) for _, results in written] == [[0], [1]]


@pytest.mark.parametrize("why", [Interruption.DRAIN, Interruption.LOST, Interruption.HOLDER])
@pytest.mark.parametrize("numbers", [[1], [1, 2]], ids=str)
def test_a_call_that_is_cut_off_with_its_step_is_finished_by_another_worker(
    new_bench: NewBench, why: Interruption, numbers: list[int]
) -> None:
    keys: list[str] = []
    asked: list[object] = []

    @tool(effect="keyed")
    async def pay(ctx: ToolContext, number: int) -> str:
        """Pay."""
        keys.append(ctx.idempotency_key)
        if len(keys) == 1:
            bench.keeper.interrupt_all(why)
            await asyncio.sleep(20)
        return "paid"

    def ask(context: HookContext) -> None:
        assert context.tool_call is not None
        asked.append(context.tool_call.args["number"])

    calls = [CallTool("pay", number=number) for number in numbers]
    hooks = [Hook(HookPoint.BEFORE_TOOL, ask)]
    bench = new_bench(calling(*calls, tools=[pay], hooks=hooks, max_parallel_tools=1))
    session_id = bench.submit()
    assert not isinstance(bench.step(session_id), Done)
    assert asked == numbers, "this worker does not try them once more"
    bench.clock.go_on(bench.settings.lease_seconds + bench.settings.lease_grace_seconds + 0.1)
    bench.run(session_id)
    assert {each.outcome.value for each in executions(bench, session_id)} == {"ok"}
    assert keys == [keys[0], *dict.fromkeys(keys)]
    assert len(keys) == len(numbers) + 1


def test_a_worker_that_drains_begins_no_further_call(new_bench: NewBench) -> None:
    ran: list[int] = []

    @tool(effect="unsafe")
    def pay(number: int) -> str:
        """Pay."""
        ran.append(number)
        if ran == [1]:
            bench.keeper.interrupt_all(Interruption.DRAIN)
        return "paid"

    calls = [CallTool("pay", number=number) for number in (1, 2)]
    bench = new_bench(calling(*calls, tools=[pay], max_parallel_tools=1))
    session_id = bench.submit()
    outcome = bench.step(session_id)
    assert isinstance(outcome, RetryLater)
    assert (outcome.reason, ran) == ("this worker drains", [1])
    bench.run(session_id)
    assert (ran, [each.outcome.value for each in executions(bench, session_id)]) == ([1, 2], ["ok", "ok"])
