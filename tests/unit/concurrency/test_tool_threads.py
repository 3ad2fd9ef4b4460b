"""Threads for plain tools: one for each call that steps can make at once, so that none waits while its time runs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from anyio import to_thread

from celery_agents.worker.concurrency.event_loop import EventLoopThread
from celery_agents.worker.concurrency.tool_threads import ToolThreads
from celery_agents.worker.state import InferenceResponse
from celery_agents.worker.tools import ToolContext


def test_all_slots_have_threads_for_all_their_tools() -> None:
    threads = ToolThreads()
    together = threading.Barrier(8)
    calls = {threads.submit(together.wait, 20) for _ in range(8)}
    while calls:
        done, calls = threads.wait(calls, 20)
        assert {0 <= each.result(0) < 8 for each in done} == {True}


def test_tools_that_ask_their_model_leave_the_loop_its_own_threads() -> None:
    loop, together = EventLoopThread(), threading.Barrier(300)

    def ask(key: str, request: Any) -> InferenceResponse:
        together.wait(20)
        return InferenceResponse(content="because")

    context = ToolContext(
        session_id="s", execution_id="e", step=1, index=0, idempotency_key="k", deadline=datetime.now(UTC), ask=ask
    )

    async def call() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        to_thread.current_default_thread_limiter().total_tokens = 1
        await asyncio.gather(*(context.ask_model("why", "Why?") for _ in range(299)), look_up())

    async def look_up() -> None:
        await asyncio.sleep(0.5)  # the others have begun
        assert await asyncio.get_running_loop().getaddrinfo("localhost", 80)
        assert await to_thread.run_sync(lambda: True)
        await context.ask_model("why", "Why?")

    loop.submit(call, 30).result(30)
    loop.close()


@pytest.mark.parametrize("run", [asyncio.to_thread, to_thread.run_sync], ids=["asyncio", "anyio"])
def test_a_hundred_blocking_functions_of_async_tools_run_at_the_same_time(run: Any) -> None:
    loop, together = EventLoopThread(), threading.Barrier(100)

    async def call() -> None:
        await asyncio.gather(*(run(partial(together.wait, 20)) for _ in range(100)))

    loop.submit(call, 30).result(30)
    loop.close()
