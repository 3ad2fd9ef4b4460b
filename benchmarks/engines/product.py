"""This product: agents with the scripted model as a function driver, and a tool of each class that is measured."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

from yardstick.engine import Engine
from yardstick.load import Load, in_waves, serve
from yardstick.work import TOOL, answer_text, tool_arguments, tool_result

# Seconds between two looks whether a load has ended.
LOOK = 0.001
LOOK_AT_MANY = 0.02
# The variable with other seconds, where what looking sends to Redis would be counted with the steps.
EACH = "BENCH_LOOK"
# The variable with the number of customers whose sessions these are.
CUSTOMERS = "BENCH_CUSTOMERS"


def agents(driver_of: Callable[[Any], Any] | None = None) -> tuple[Any, ...]:
    """Agents that differ in their tool's class, and in whether driver and tool are plain or async functions.

    Args:
        driver_of: Makes the driver of a function of the state. None: a function driver.
    """
    from celery_agents import Agent, tool
    from celery_agents.worker.drivers import FunctionDriver
    from celery_agents.worker.state import AgentState, InferenceResponse, ToolCall

    def answer(state: AgentState) -> InferenceResponse:
        number, steps = step_number(state), state.context.metadata["steps"]
        if number >= steps:
            return InferenceResponse(content=answer_text(number))
        call = ToolCall(id=f"call_{number}", name=TOOL, args=tool_arguments(number))
        return InferenceResponse(content=answer_text(number), tool_calls=(call,))

    def step_number(state: AgentState) -> int:
        assert state.execution is not None
        return state.execution.step_count + 1

    def model(state: AgentState) -> InferenceResponse:
        if state.context.metadata["latency"]:
            time.sleep(state.context.metadata["latency"])
        return answer(state)

    async def async_model(state: AgentState) -> InferenceResponse:
        if state.context.metadata["latency"]:
            await asyncio.sleep(state.context.metadata["latency"])
        return answer(state)

    def look_up(step: int, query: str) -> str:
        assert query
        return tool_result(step)

    async def look_up_async(step: int, query: str) -> str:
        assert query
        return tool_result(step)

    def agent(name: str, effect: Any, driver: Any, function: Any) -> Agent:
        declared = tool(effect=effect, name=TOOL, description="Look it up.")(function)
        return Agent(name, driver=(driver_of or FunctionDriver)(driver), tools=[declared])

    return (
        agent("keyed", "keyed", async_model, look_up_async),
        agent("pure", "pure", async_model, look_up_async),
        agent("keyed_plain", "keyed", model, look_up),
        agent("pure_plain", "pure", model, look_up),
    )


def main() -> None:
    from celery_agents import AgentClient, ExecutionBudget, ExecutionStatus

    url = os.environ["BENCH_REDIS"]
    client = AgentClient(redis_url=url)
    agent, customers = os.environ["BENCH_AGENT"], int(os.environ.get(CUSTOMERS, 0))

    def run(load: Load) -> Callable[[], None]:
        look = float(os.environ.get(EACH, 0)) or (LOOK_AT_MANY if load.at_once and load.sessions > 1 else LOOK)
        job = {"steps": load.steps, "latency": load.latency}
        prompt = f"{load.steps} {load.latency}" if agent == "pydantic" else "Look it up."
        submitted: list[str] = []

        def submit(number: int) -> None:
            labels = {"customer": f"c{number % customers}"} if customers else None
            found = client.submit(agent, prompt, metadata=job, budget=ExecutionBudget.unlimited(), labels=labels)
            submitted.append(found.session_id)

        def wait(_: int) -> None:
            # A session is in the due index as long as it has work.
            while client.store.housekeeping.backlog()[0]:
                time.sleep(look)

        def check() -> None:
            execution = client.show(submitted[-1]).state.execution
            assert execution is not None
            assert (execution.status, execution.step_count) == (ExecutionStatus.COMPLETED, load.steps), execution

        in_waves(load, submit, wait)
        return check

    serve(run)


def product_of_pydantic_agents() -> Engine:
    """This product, with a durable agent of pydantic-ai."""
    plain = product("keyed")
    return dataclasses.replace(
        plain,
        name="product_pydantic",
        title="celery-agents, durable agent of pydantic-ai",
        env={**plain.env, "BENCH_AGENT": "pydantic", "CELERY_AGENTS_AGENTS": "engines.pydantic_product_agents"},
    )


def product(
    mode: str, slots: int = 100, *, events: bool = False, processes: int = 1, burst: int = 50, **settings: str
) -> Engine:
    """This product.

    Args:
        mode: keyed or pure, the class of the tool; with burst in it several steps a task, with plain in it driver and
            tool are plain functions, else async ones as the clients of models are.
        burst: Steps a task at most in burst mode, however long they take.
        settings: The product's own, by their names.
    """
    agent = ("pure" if "pure" in mode else "keyed") + ("_plain" if "plain" in mode else "")
    steps = str(burst if "burst" in mode else 1)
    what = f"{'pure' if 'pure' in mode else 'keyed'} tool" + (f", burst mode of {steps}" if "burst" in mode else "")
    what += ", plain functions" if "plain" in mode else ""
    several = f", {processes} workers" if processes > 1 else ""
    return Engine(
        name=f"product_{mode}{processes if processes > 1 else ''}{'_events' if events else ''}",
        title=f"celery-agents, {what}{several}{', events' if events else ''}",
        module="engines.product",
        workers=("celery_agents", "worker"),
        processes=processes,
        env={
            "BENCH_AGENT": agent,
            "CELERY_AGENTS_AGENTS": "engines.product_agents",
            "CELERY_AGENTS_CONCURRENCY": str(slots),
            "CELERY_AGENTS_TASK_EVENTS": "true" if events else "false",
            "CELERY_AGENTS_STEPS_PER_TASK": steps,
            "CELERY_AGENTS_BURST_MILLISECONDS": "60000",
            "CELERY_AGENTS_LOG_LEVEL": "WARNING",
            **{f"CELERY_AGENTS_{name.upper()}": value for name, value in settings.items()},
        },
    )


if __name__ == "__main__":
    main()
