"""One event loop a process, in a background thread: where async drivers and tools run.

The engine is synchronous; it hands a coroutine over and waits. An interruption cancels it in flight. Where the step
itself runs on a loop, as a fiber, the coroutine runs beside it on the same one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from .. import fibers

R = TypeVar("R")


class Exited(Exception):
    """A driver or tool on the loop tried to end the process; the cause says how."""


class EventLoopThread:
    """A loop that runs until the process ends; started on first use, and anew in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._thread: threading.Thread | None = None

    @property
    def thread_id(self) -> int | None:
        """Of the thread that runs the loop, as `threading.get_ident` says it; None before the first use."""
        return None if self._thread is None else self._thread.ident

    def submit(self, call: Callable[[], Awaitable[R]], timeout: float) -> concurrent.futures.Future[R]:
        """Run what `call` gives on the loop, no longer than `timeout` seconds.

        Returns:
            A future; cancelling it cancels the coroutine. It raises TimeoutError at the deadline.
        """

        async def bounded() -> R:
            async with asyncio.timeout(timeout):
                try:
                    return await call()
                except (SystemExit, KeyboardInterrupt) as error:  # on the loop's thread they would end the loop
                    raise Exited(f"{type(error).__name__}: {error}") from error

        if (fiber := fibers.current()) is not None:
            return _beside(bounded(), fiber.among.loop)
        return asyncio.run_coroutine_threadsafe(bounded(), self._running())

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Have the loop call this; from any thread."""
        self._running().call_soon_threadsafe(callback)

    def close(self) -> None:
        """End the loop and its thread."""
        with self._lock:
            if self._loop is not None and self._pid == os.getpid():
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._pid = os.getpid()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="celery-agents-loop", daemon=True
                )
                self._thread.start()
            return self._loop


def _beside(coroutine: Coroutine[Any, Any, R], loop: asyncio.AbstractEventLoop) -> concurrent.futures.Future[R]:
    """`run_coroutine_threadsafe` for who is on the loop's thread already: nothing has to be woken."""
    future = concurrent.futures.Future[R]()
    task = loop.create_task(coroutine)

    def on_end(ended: asyncio.Task[R]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        if ended.cancelled():
            future.set_exception(concurrent.futures.CancelledError())
        elif (error := ended.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(ended.result())

    def on_cancel(ended: concurrent.futures.Future[R]) -> None:
        if ended.cancelled():
            loop.call_soon_threadsafe(task.cancel)

    task.add_done_callback(on_end)
    future.add_done_callback(on_cancel)
    return future


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        pending: set[asyncio.Task[Any]] = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.close()
