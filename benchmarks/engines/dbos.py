"""DBOS: a workflow whose steps are recorded in PostgreSQL or SQLite.

`entries` of a step: with two, the model's answer and the tool's result are recorded each, as one writes it with
DBOS and as this product journals a keyed tool; with one, both share a record, as this product does for a pure tool.
`agent`: Pydantic AI made durable by its DBOS integration, model requests and tools recorded by it.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from engines.scripted_model import scripted_model
from yardstick.engine import Engine
from yardstick.load import Load, in_waves, serve
from yardstick.work import call_model, call_tool, tool_result

REQUIREMENTS = ("dbos==3.4.0", "pydantic-ai-slim[dbos]==2.68.0", "psycopg[binary]==3.3.9")


def main() -> None:
    from dbos import DBOS, SetWorkflowID

    files = os.environ.get("BENCH_FILES")
    address = os.environ.get("BENCH_POSTGRES") or f"sqlite:///{files}/dbos.sqlite"
    dbos = DBOS(config={"name": "bench", "system_database_url": address, "log_level": "WARNING"})
    entries = os.environ["BENCH_ENTRIES"]

    @DBOS.step()
    def model(number: int, steps: int, latency: float) -> dict[str, Any]:
        return call_model(number, steps, latency)

    @DBOS.step()
    def tool(call: dict[str, Any]) -> dict[str, Any]:
        return call_tool(call)

    @DBOS.step()
    def both(number: int, steps: int, latency: float) -> list[dict[str, Any]]:
        answer = call_model(number, steps, latency)
        return [answer, *(call_tool(call) for call in answer["tool_calls"])]

    @DBOS.workflow()
    def two_entries(steps: int, latency: float) -> str:
        messages: list[dict[str, Any]] = []
        for number in range(1, steps + 1):
            answer = model(number, steps, latency)
            messages += [answer, *(tool(call) for call in answer["tool_calls"])]
        return str(messages[-1]["content"])

    @DBOS.workflow()
    def one_entry(steps: int, latency: float) -> str:
        messages: list[dict[str, Any]] = []
        for number in range(1, steps + 1):
            messages += both(number, steps, latency)
        return str(messages[-1]["content"])

    job = _agent() if entries == "agent" else None
    workflow = one_entry if entries == "1" else two_entries
    DBOS.launch()
    runs = 0

    def run_workflows(load: Load) -> None:
        nonlocal runs
        runs += 1
        handles: list[Any] = []

        def submit(number: int) -> None:
            with SetWorkflowID(f"run{runs}-{number}"):
                handles.append(DBOS.start_workflow(workflow, load.steps, load.latency))

        def wait(_: int) -> None:
            for handle in handles:
                handle.get_result()
            handles.clear()

        in_waves(load, submit, wait)

    async def run_agents(load: Load) -> None:
        handles = [await DBOS.start_workflow_async(job, load.steps, load.latency) for _ in range(load.sessions)]
        await asyncio.gather(*(handle.get_result() for handle in handles))

    with asyncio.Runner() as runner:
        serve(run_workflows if job is None else lambda load: runner.run(run_agents(load)))
    DBOS.destroy()
    del dbos


def _agent() -> Any:
    """A workflow around Pydantic AI's durable agent with the scripted model."""
    from dbos import DBOS
    from pydantic_ai import Agent
    from pydantic_ai.durable_exec.dbos import DBOSAgent
    from pydantic_ai.usage import UsageLimits

    agent = Agent(scripted_model(), name="bench")

    @agent.tool_plain
    @DBOS.step()
    async def look_up(step: int, query: str) -> str:
        assert query
        return tool_result(step)

    durable = DBOSAgent(agent)

    @DBOS.workflow()
    async def job(steps: int, latency: float) -> str:
        result = await durable.run(f"{steps} {latency}", usage_limits=UsageLimits(request_limit=None))
        return str(result.output)

    return job


def dbos(store: str, entries: str) -> Engine:
    """`store` is postgres or files (SQLite); `entries` is 1, 2 or agent."""
    where = {"postgres": "PostgreSQL", "files": "SQLite"}[store]
    what = {"1": "one record a step", "2": "two records a step", "agent": "Pydantic AI agent"}[entries]
    return Engine(
        name=f"dbos_{'pg' if store == 'postgres' else 'sqlite'}_{entries}",
        title=f"DBOS on {where}, {what}",
        module="engines.dbos",
        store=store,
        env={"BENCH_ENTRIES": entries},
        requirements=REQUIREMENTS,
    )


if __name__ == "__main__":
    main()
