"""A call that asks several times, and what it finds again of its own in each run; and a call whose claim is gone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool, ScriptedDriver
from celery_agents.worker.engine import TakenOver, Waiting
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import Answer, Approve
from celery_agents.worker.tools import NeedsAnswer, NeedsApproval, NeedsTime, ToolContext, tool

from support.engine import Bench

NewBench = Callable[..., Bench]


def after_answer_and_minute(bench: Bench) -> str:
    """A session whose call has its answer, and has then waited for a time that has come."""
    session = bench.submit()
    assert isinstance(bench.step(session), Waiting)
    bench.answer(session, Answer(3))
    assert isinstance(bench.step(session), Waiting)
    assert bench.due(session) is None
    bench.clock.go_on(60.1)
    return session


def test_a_call_finds_each_memo_with_the_reply_to_what_it_asked_then(new_bench: NewBench) -> None:
    runs: list[list[tuple[Any, Any]]] = []

    @tool(effect="unsafe")
    def measure(ctx: ToolContext) -> str:
        """Measure."""
        runs.append([(each.value, each.reply and (each.reply.kind, each.reply.value)) for each in ctx.replies.memos])
        match len(ctx.replies.memos):
            case 0:
                raise NeedsAnswer("How many?", schema=int).with_memo({"step": "asked"})
            case 1:
                raise NeedsTime(bench.clock.now + timedelta(minutes=1)).with_memo({"step": "measured"})
            case 2:
                raise NeedsApproval("May it be sent?").with_memo({"count": 3})
            case _:
                return "sent"

    bench = new_bench(Agent("lab", driver=ScriptedDriver([CallTool("measure"), "done"]), tools=[measure]))
    session = after_answer_and_minute(bench)
    assert isinstance(bench.step(session), Waiting)
    bench.answer(session, Approve())
    bench.run(session)
    assert bench.record(session).status == "completed"
    asked, measured = ({"step": "asked"}, ("question", 3)), ({"step": "measured"}, None)
    assert runs == [[], [asked], [asked, measured], [asked, measured, ({"count": 3}, ("approval", None))]]


def test_an_answer_does_not_end_a_wait_for_a_time(new_bench: NewBench) -> None:
    @tool(effect="unsafe")
    def measure(ctx: ToolContext) -> str:
        """Ask, and wait a minute."""
        if not ctx.replies.received:
            raise NeedsAnswer("How many?", schema=int)
        ctx.wait_until(bench.clock.now + timedelta(minutes=1))
        return "measured"

    bench = new_bench(Agent("lab", driver=ScriptedDriver([CallTool("measure"), "done"]), tools=[measure]))
    session = after_answer_and_minute(bench)
    bench.run(session)
    assert bench.record(session).status == "completed"


@pytest.mark.parametrize("memo", [None, {"kept": 1}])
def test_a_question_holds_what_its_call_leaves_and_nothing_else(new_bench: NewBench, memo: Any) -> None:
    @tool(effect="unsafe")
    def ask(ctx: ToolContext) -> str:
        """Ask."""
        question = NeedsAnswer("How many?", schema=int)
        raise question if memo is None else question.with_memo(memo)

    bench = new_bench(Agent("lab", driver=ScriptedDriver([CallTool("ask"), "done"]), tools=[ask]))
    session = bench.submit()
    bench.step(session)
    assert bench.open_request(session).options == (None if memo is None else {"memo": memo})


def test_no_call_begins_once_another_worker_has_the_step(new_bench: NewBench) -> None:
    """A pure call has no begin record that the store could refuse; the lease is confirmed before it."""
    ran: list[str] = []

    @tool(effect="pure")
    def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    def lose(context: HookContext) -> HookContext:
        ref = bench.due(context.session_id)
        assert ref is not None
        bench.clock.go_on(bench.settings.lease_seconds + bench.settings.lease_grace_seconds + 0.1)
        bench.store.steps.claim(ref, "another", "another worker", alone=True)
        return context

    hooks = [Hook(HookPoint.BEFORE_TOOL, lose)]
    bench = new_bench(Agent("a", driver=ScriptedDriver([CallTool("look"), "done"]), tools=[look], hooks=hooks))
    assert isinstance(bench.step(bench.submit()), TakenOver)
    assert ran == []


def test_a_lease_is_renewed_before_a_call_that_begins_late(new_bench: NewBench) -> None:
    ran: list[str] = []

    @tool(effect="pure")
    def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    def wait(context: HookContext) -> HookContext:
        bench.clock.go_on(bench.settings.lease_seconds * 0.9)
        return context

    hooks = [Hook(HookPoint.BEFORE_TOOL, wait)]
    bench = new_bench(Agent("a", driver=ScriptedDriver([CallTool("look"), "done"]), tools=[look], hooks=hooks))
    assert bench.ran().status == "completed"
    assert ran == ["look"]


def test_a_stop_that_the_renewal_before_a_late_call_brings_ends_the_step(new_bench: NewBench) -> None:
    ran: list[str] = []

    @tool(effect="pure")
    def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    def stop(context: HookContext) -> HookContext:
        bench.stop(context.session_id)
        bench.clock.go_on(bench.settings.lease_seconds * 0.9)
        return context

    hooks = [Hook(HookPoint.BEFORE_TOOL, stop)]
    bench = new_bench(Agent("a", driver=ScriptedDriver([CallTool("look"), "done"]), tools=[look], hooks=hooks))
    assert bench.ran().status == "stopped"
    assert ran == []
