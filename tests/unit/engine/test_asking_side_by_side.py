"""Tools of one answer that ask a model at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool, InferenceRequest, ScriptedDriver
from celery_agents.worker.drivers.function import LocalDriver
from celery_agents.worker.state import InferenceResponse, ToolCall
from celery_agents.worker.tools import ToolContext, tool

from support.engine import Bench, executions

NewBench = Callable[..., Bench]


def test_an_answer_that_comes_while_another_call_counts_those_that_are_there_fails_nothing(new_bench: NewBench) -> None:
    counts, has_come = threading.Event(), threading.Event()
    is_armed: list[bool] = []

    class Driver(ScriptedDriver):
        def infer(self, request: InferenceRequest) -> bytes:
            return InferenceResponse(content="aux", cost=0.5).to_json() if request.purpose else super().infer(request)

        def parse(self, raw: bytes) -> InferenceResponse:
            if is_armed:
                is_armed.pop()
                counts.set()
                assert has_come.wait(10)
            return super().parse(raw)

    @tool(effect="pure")
    def first(ctx: ToolContext) -> str:
        """Ask twice; before the second question, what the first has cost is counted."""
        ctx.ask_model_sync("a", "?")
        is_armed.append(True)
        return ctx.ask_model_sync("b", "?").content

    @tool(effect="pure")
    def second(ctx: ToolContext) -> str:
        """Ask meanwhile."""
        assert counts.wait(10)
        answer = ctx.ask_model_sync("c", "?").content
        has_come.set()
        return answer

    driver = Driver([[CallTool("first"), CallTool("second")], "done"])
    bench = new_bench(Agent("a", driver=driver, tools=[first, second]))
    session = bench.submit()
    bench.run(session)
    assert [each.value for each in executions(bench, session)] == ["aux", "aux"]
    assert bench.execution(session).cost == 1.5


def test_the_same_question_is_asked_once_and_each_gets_the_answer(new_bench: NewBench) -> None:
    asked: list[str] = []

    class Driver(LocalDriver):
        name = "driver"
        is_async = True

        async def infer(self, request: InferenceRequest) -> bytes:
            if not request.purpose:
                calls = () if request.state.step_count else (ToolCall(id="1", name="eager"),)
                return InferenceResponse(content="done", tool_calls=calls, cost=0.0).to_json()
            asked.append(request.purpose)
            await asyncio.sleep(0.05)
            return InferenceResponse(content=f"answer {len(asked)}", cost=0.5).to_json()

    @tool(effect="pure")
    async def eager(ctx: ToolContext) -> list[str]:
        """Ask the same three times at once."""
        answers = await asyncio.gather(*(ctx.ask_model("a", "?") for _ in range(3)))
        return [each.content for each in answers]

    bench = new_bench(Agent("a", driver=Driver(), tools=[eager]))
    session = bench.submit()
    bench.run(session)
    (made,) = executions(bench, session)
    assert (made.value, asked) == (("answer 1",) * 3, ["t0.a"])
    assert bench.execution(session).cost == 0.5
