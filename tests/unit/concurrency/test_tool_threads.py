"""Threads for plain tools: one for each call that steps can make at once, so that none waits while its time runs."""

from __future__ import annotations

import threading

from celery_agents.config.settings import Settings
from celery_agents.worker.concurrency.tool_threads import ToolThreads


def test_all_slots_have_threads_for_all_their_tools() -> None:
    threads = ToolThreads.of(Settings.build(concurrency=4, max_parallel_tools=2))
    together = threading.Barrier(8)
    calls = {threads.submit(together.wait, 20) for _ in range(8)}
    while calls:
        done, calls = threads.wait(calls, 20)
        assert {0 <= each.result(0) < 8 for each in done} == {True}
