"""The loop of a worker ends what runs on it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator

import pytest

from celery_agents.worker.concurrency.event_loop import EventLoopThread


@pytest.mark.parametrize("is_held", [False, True])
def test_a_stream_that_is_left_open_is_closed_with_the_loop(is_held: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Python says of one that is not: "Task was destroyed but it is pending!"."""
    closed, begun, held = threading.Event(), threading.Event(), list[AsyncGenerator[str]]()

    async def stream() -> AsyncGenerator[str]:
        try:
            yield "a piece"
        finally:
            await asyncio.sleep(0)
            closed.set()

    async def read_a_piece() -> None:
        pieces = stream()
        if is_held:
            held.append(pieces)
        await anext(pieces)
        begun.set()
        await asyncio.sleep(60)

    loop = EventLoopThread()
    loop.submit(read_a_piece, 60)
    assert begun.wait(5)
    loop.close()
    assert closed.wait(5)
    gc.collect()
    assert not caplog.records
