"""One event loop a process, in a background thread: where async drivers and tools run.

The engine is synchronous; it hands a coroutine over and waits. An interruption cancels it in flight. Where the step
itself runs on a loop, as a fiber, the coroutine runs beside it on the same one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from . import fibers

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
        self._between_turns: deque[Callable[[], None] | None] = deque()  # None: it is over

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
            return _Beside(bounded(), fiber.among.loop)
        return asyncio.run_coroutine_threadsafe(bounded(), self._running())

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Have the loop call this; from any thread."""
        loop = self._running()
        if threading.get_ident() == self.thread_id:
            loop.call_soon(callback)
        else:
            loop.call_soon_threadsafe(callback)

    def lend(self, call: Callable[[asyncio.AbstractEventLoop], R]) -> concurrent.futures.Future[R]:
        """Have the loop's thread call this between two turns; until it returns, the loop turns only when it says so."""
        future = concurrent.futures.Future[R]()
        loop = self._running()

        def carry_out() -> None:
            try:
                future.set_result(call(loop))
            except BaseException as error:  # noqa: BLE001 - raised where the future is asked, which may end the process
                future.set_exception(error)

        self._between_turns.append(carry_out)
        loop.call_soon_threadsafe(loop.stop)
        return future

    def close(self) -> None:
        """End the loop and its thread."""
        with self._lock:
            if self._loop is not None and self._pid == os.getpid():
                self._between_turns.append(None)
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._pid = os.getpid()
                self._between_turns = deque()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop, self._between_turns), name="celery-agents-loop", daemon=True
                )
                self._thread.start()
            return self._loop


class _Beside(concurrent.futures.Future[R]):
    """What comes of a coroutine that runs beside the fiber that waits for it.

    As a future of threads, without its locks: only the loop's thread asks it. `cancel` may be called in any.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, R], loop: asyncio.AbstractEventLoop) -> None:
        # Not the base's: everything that would use its locks is here.
        self._loop = loop
        self._task = loop.create_task(coroutine)
        self._is_over = False
        self._error: BaseException | None = None
        self._told: list[Callable[[concurrent.futures.Future[R]], object]] = []
        self._task.add_done_callback(self._on_end)

    def done(self) -> bool:
        return self._is_over

    def cancel(self) -> bool:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._give_up)
        return True

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[R]], object]) -> None:
        if self._is_over:
            fn(self)
        else:
            self._told.append(fn)

    def result(self, timeout: float | None = None) -> R:
        """Of an ended one; who has to wait does so by `fibers`."""
        if not self._is_over:
            raise TimeoutError(f"the coroutine has not ended, and nobody may wait {timeout} s for it here")
        if self._error is not None:
            raise self._error
        return self._task.result()

    def _give_up(self) -> None:
        """A coroutine that does not heed its cancellation keeps nobody waiting."""
        if not self._is_over:
            self._task.cancel()
            self._end(concurrent.futures.CancelledError())

    def _on_end(self, task: asyncio.Task[R]) -> None:
        error = concurrent.futures.CancelledError() if task.cancelled() else task.exception()
        if not self._is_over:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self._is_over, self._error = True, error
        for tell in self._told:
            tell(self)


def _serve(loop: asyncio.AbstractEventLoop, between_turns: deque[Callable[[], None] | None]) -> None:
    asyncio.set_event_loop(loop)
    try:
        while True:
            loop.run_forever()
            while between_turns:
                call = between_turns.popleft()
                if call is None:
                    return
                call()
    finally:
        pending: set[asyncio.Task[Any]] = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.close()
