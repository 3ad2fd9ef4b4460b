"""Equal ids of the calls of one answer, from a driver, from a hook, and from a journal of an earlier build."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_agents.worker.agent import Agent
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import AgentState, Approve, Role, ToolCall
from celery_agents.worker.tools import tool

from support.engine import Bench

NewBench = Callable[..., Bench]
CALLS = [ToolCall(id="x", name="look", args={"text": "A"}), ToolCall(id="x", name="delete", args={"text": "B"})]


def agent_with(ran: list[str], *, hooks: Any = (), approval: Any = "never", calls: Any = tuple(CALLS)) -> Agent:
    @tool(effect="keyed", approval=approval)
    def look(text: str) -> str:
        """Look."""
        ran.append(f"look {text}")
        return f"looked {text}"

    @tool(effect="keyed", approval=approval)
    def delete(text: str) -> str:
        """Delete."""
        ran.append(f"delete {text}")
        return f"deleted {text}"

    def driver(state: AgentState) -> Any:
        return "done" if state.step_count else list(calls)

    return Agent("twins", driver=driver, tools=[look, delete], hooks=hooks)


def pairs(bench: Bench, session: str) -> list[tuple[str, str]]:
    """Each call of the first answer with the result that has its id."""
    messages = bench.state(session).store.section().messages
    (answer,) = (each for each in messages if each.tool_calls)
    results = {each.tool_call_id: each.content for each in messages if each.role is Role.TOOL}
    assert len(results) == len(answer.tool_calls)
    return [(call.name, results[call.id]) for call in answer.tool_calls]


def test_calls_with_one_id_get_their_own_results(new_bench: NewBench) -> None:
    ran: list[str] = []
    bench = new_bench(agent_with(ran))
    session = bench.submit()
    bench.run(session)
    assert sorted(ran) == ["delete B", "look A"]
    assert pairs(bench, session) == [("look", "looked A"), ("delete", "deleted B")]


def test_calls_that_a_hook_gives_one_id_get_their_own_results(new_bench: NewBench) -> None:
    def repeat_ids(context: HookContext) -> HookContext:
        assert context.response is not None
        calls = tuple(call.with_id("y") for call in context.response.tool_calls)
        return context.changed(response=context.response.model_copy(update={"tool_calls": calls}))

    ran: list[str] = []
    bench = new_bench(agent_with(ran, hooks=[Hook(HookPoint.AFTER_INFERENCE, repeat_ids)]))
    session = bench.submit()
    bench.run(session)
    assert pairs(bench, session) == [("look", "looked A"), ("delete", "deleted B")]


def test_requests_that_an_earlier_build_opened_with_one_id_end_with_their_own_results(new_bench: NewBench) -> None:
    ran: list[str] = []
    bench = new_bench(agent_with(ran, approval="always"))
    session = bench.submit()
    bench.run(session)
    context = bench.store.context
    key = context.keys(session).journal(str(bench.execution(session).execution_id), 1)
    (journal,) = context.database.pipeline("test", [("HGETALL", key)])
    fields: Any = [each.replace(b'"x_1"', b'"x"') for each in journal]
    context.database.pipeline("test", [("HSET", key, *fields)])
    assert [request.call_id for request in bench.open_requests(session)] == ["x", "x"]
    for request in bench.open_requests(session):
        bench.answer(session, {request.id: Approve()})
    bench.run(session)
    assert sorted(ran) == ["delete B", "look A"]
    assert pairs(bench, session) == [("look", "looked A"), ("delete", "deleted B")]
