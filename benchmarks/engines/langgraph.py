"""LangGraph with its PostgreSQL or SQLite checkpointer, a checkpoint after every node, saved before the next one runs.

`nodes` of a step: two are the graph as LangGraph's own agents have it, model and tools each a node with a checkpoint;
one does both in a node, so that a step has one checkpoint.
"""

from __future__ import annotations

import asyncio
import operator
import os
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypedDict

from yardstick.engine import Engine
from yardstick.load import Load, serve
from yardstick.work import call_model, call_tool

REQUIREMENTS = (
    "langgraph==1.2.22",
    "langgraph-checkpoint-postgres==3.2.0",
    "langgraph-checkpoint-sqlite==3.1.2",
    "psycopg[binary,pool]==3.3.9",
)


class State(TypedDict):
    messages: Annotated[list[dict[str, Any]], operator.add]
    step: int
    steps: int
    latency: float


@asynccontextmanager
async def checkpointer() -> Any:
    address = os.environ.get("BENCH_POSTGRES")
    if address:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool

        options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        async with AsyncConnectionPool(address, min_size=4, max_size=20, kwargs=options) as pool:
            saver = AsyncPostgresSaver(pool)  # type: ignore[arg-type]
            await saver.setup()
            yield saver
    else:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncSqliteSaver.from_conn_string(f"{os.environ['BENCH_FILES']}/langgraph.sqlite") as saver:
            await saver.setup()
            yield saver


async def model(state: State) -> dict[str, Any]:
    number = state["step"] + 1
    if state["latency"]:
        await asyncio.sleep(state["latency"])
    return {"messages": [call_model(number, state["steps"], 0.0)], "step": number}


async def tools(state: State) -> dict[str, Any]:
    return {"messages": [call_tool(call) for call in state["messages"][-1]["tool_calls"]]}


async def both(state: State) -> dict[str, Any]:
    answered = await model(state)
    answer = answered["messages"][0]
    return {**answered, "messages": [answer, *(call_tool(call) for call in answer["tool_calls"])]}


def graph(nodes: str, saver: Any) -> Any:
    from langgraph.graph import END, START, StateGraph

    built = StateGraph(State)
    if nodes == "2":
        built.add_node("model", model)
        built.add_node("tools", tools)
        built.add_edge(START, "model")
        built.add_conditional_edges("model", lambda state: "tools" if state["step"] < state["steps"] else END)
        built.add_edge("tools", "model")
    else:
        built.add_node("both", both)
        built.add_edge(START, "both")
        built.add_conditional_edges("both", lambda state: "both" if state["step"] < state["steps"] else END)
    return built.compile(checkpointer=saver)


async def main() -> None:
    async with checkpointer() as saver:
        agent = graph(os.environ["BENCH_NODES"], saver)
        loop = asyncio.get_running_loop()
        runs = 0

        async def session(name: str, load: Load) -> None:
            start = {"messages": [], "step": 0, "steps": load.steps, "latency": load.latency}
            config = {"configurable": {"thread_id": name}, "recursion_limit": 3 * load.steps + 10}
            await agent.ainvoke(start, config, durability="sync")

        async def sessions(load: Load) -> None:
            nonlocal runs
            runs += 1
            jobs = [session(f"run{runs}-{number}", load) for number in range(load.sessions)]
            if load.at_once:
                await asyncio.gather(*jobs)
            else:
                for job in jobs:
                    await job

        def run(load: Load) -> None:
            asyncio.run_coroutine_threadsafe(sessions(load), loop).result()

        await asyncio.to_thread(serve, run)


def langgraph(store: str, nodes: str) -> Engine:
    """`store` is postgres or files (SQLite); `nodes` is 1 or 2."""
    where = {"postgres": "PostgreSQL", "files": "SQLite"}[store]
    return Engine(
        name=f"langgraph_{'pg' if store == 'postgres' else 'sqlite'}_{nodes}",
        title=f"LangGraph on {where}, {'a checkpoint a step' if nodes == '1' else 'two checkpoints a step'}",
        module="engines.langgraph",
        store=store,
        env={"BENCH_NODES": nodes},
        requirements=REQUIREMENTS,
    )


if __name__ == "__main__":
    asyncio.run(main())
