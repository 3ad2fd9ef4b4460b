"""Threads for plain tools: one for each call that steps can make at once, so that none waits while its time runs."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest
from anyio import to_thread

from celery_agents.config.settings import Settings
from celery_agents.worker.concurrency.event_loop import EventLoopThread
from celery_agents.worker.concurrency.tool_threads import ToolThreads, run_apart


def test_all_slots_have_threads_for_all_their_tools() -> None:
    threads = ToolThreads.of(Settings.build(concurrency=4, max_parallel_tools=2))
    together = threading.Barrier(8)
    calls = {threads.submit(together.wait, 20) for _ in range(8)}
    while calls:
        done, calls = threads.wait(calls, 20)
        assert {0 <= each.result(0) < 8 for each in done} == {True}


def test_functions_that_wait_for_the_loop_leave_its_own_threads_to_it() -> None:
    loop, together = EventLoopThread(), threading.Barrier(300)

    async def call() -> None:
        await asyncio.gather(*(run_apart(lambda: together.wait(20)) for _ in range(299)), look_up())

    async def look_up() -> None:
        await asyncio.sleep(0.5)  # the others have begun
        assert await asyncio.get_running_loop().getaddrinfo("localhost", 80)
        await run_apart(lambda: together.wait(20))

    loop.submit(call, 30).result(30)
    loop.close()


@pytest.mark.parametrize("run", [asyncio.to_thread, to_thread.run_sync], ids=["asyncio", "anyio"])
def test_a_hundred_blocking_functions_of_async_tools_run_at_the_same_time(run: Any) -> None:
    loop, together = EventLoopThread(), threading.Barrier(100)

    async def call() -> None:
        await asyncio.gather(*(run(partial(together.wait, 20)) for _ in range(100)))

    loop.submit(call, 30).result(30)
    loop.close()
