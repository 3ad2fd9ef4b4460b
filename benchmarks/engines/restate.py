"""Restate: a durable handler whose calls of model and tool are journaled by a server of its own, two entries a step."""

from __future__ import annotations

import http.client
import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from yardstick.engine import Engine
from yardstick.load import Load, in_waves, serve
from yardstick.work import call_model, call_tool

if os.environ.get("BENCH_RESTATE"):
    import restate
    from hypercorn.asyncio import serve as serve_http
    from hypercorn.config import Config

    bench = restate.Service("bench")

    async def model(number: int, steps: int, latency: float) -> dict[str, Any]:
        import asyncio

        if latency:
            await asyncio.sleep(latency)
        return call_model(number, steps, 0.0)

    async def tool(call: dict[str, Any]) -> dict[str, Any]:
        return call_tool(call)

    @bench.handler()
    async def job(ctx: restate.Context, asked: dict[str, Any]) -> str:
        messages: list[dict[str, Any]] = []
        for number in range(1, asked["steps"] + 1):
            given = {"number": number, "steps": asked["steps"], "latency": asked["latency"]}
            answer = await ctx.run_typed("model", model, **given)
            messages.append(answer)
            for call in answer["tool_calls"]:
                messages.append(await ctx.run_typed("tool", tool, call=call))
        return str(messages[-1]["content"])

    async def serve_handlers() -> None:
        config = Config()
        config.bind = [f"127.0.0.1:{os.environ['BENCH_RESTATE_SERVICE']}"]
        config.h2_max_concurrent_streams = 10_000
        config.accesslog = None
        await serve_http(restate.app(services=[bench]), config)


def post(port: str, path: str, body: Any) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=300)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    if answer.status >= 300:
        raise RuntimeError(f"Restate answered {answer.status}: {text[:500]}")
    return json.loads(text)


def main() -> None:
    import time

    deadline = time.monotonic() + 30
    while True:
        try:
            address = f"http://127.0.0.1:{os.environ['BENCH_RESTATE_SERVICE']}"
            post(os.environ["BENCH_RESTATE_ADMIN"], "/deployments", {"uri": address})
            break
        except (OSError, RuntimeError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    with ThreadPoolExecutor(1000) as pool:
        waiting: list[Future[Any]] = []

        def run(load: Load) -> None:
            asked = {"steps": load.steps, "latency": load.latency}

            def wait(_: int) -> None:
                for future in waiting:
                    future.result()
                waiting.clear()

            def submit(_: int) -> None:
                waiting.append(pool.submit(post, os.environ["BENCH_RESTATE_INGRESS"], "/bench/job", asked))

            in_waves(load, submit, wait)

        serve(run)


def restate_engine() -> Engine:
    return Engine(
        name="restate",
        title="Restate, two entries a step",
        module="engines.restate",
        store="restate",
        workers=("engines.restate", "handlers"),
        env={"BENCH_RESTATE": "1"},
        requirements=("restate-sdk[serde]==1.3.0", "hypercorn==0.18.0"),
    )


if __name__ == "__main__":
    import sys

    if sys.argv[1:] == ["handlers"]:
        import asyncio

        asyncio.run(serve_handlers())
    else:
        main()
