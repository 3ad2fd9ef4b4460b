"""Tool calls whose worker has died: what is made again, what is kept, and what is looked up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_agents.worker.drivers import CallTool
from celery_agents.worker.tools import ToolContext, tool

from support.engine import Bench, WorkerDied, calling, executions, fragile_tool, shown

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
    from celery_agents.worker.tools import LookupResult

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
