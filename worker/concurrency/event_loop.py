"""The event loop of a process, in a background thread: it runs async drivers and tools.

The engine is synchronous: it submits a coroutine and waits. An interruption cancels the coroutine. When the step itself
runs on a loop, as a fiber, its coroutines run on the same loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from anyio import to_thread

from . import fibers

R = TypeVar("R")

# On the loop's thread the first two would end the loop; the last one would be taken for the cancellation of the task.
_ENDS: Final = (SystemExit, KeyboardInterrupt, BaseExceptionGroup, concurrent.futures.CancelledError)

# For blocking functions in async tools, of which the steps of all slots have some. asyncio has as many threads as there
# are processors, and four; names of providers are looked up in them, too. anyio, and with it pydantic-ai, has 40.
_THREADS: Final = 1_000


class EventLoopThread:
    """An event loop in its own thread; starts at the first use, and again in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._thread: threading.Thread | None = None

    @property
    def thread_id(self) -> int | None:
        """The `threading.get_ident` of the thread that runs the loop; None before the first use."""
        return None if self._thread is None else self._thread.ident

    def submit(self, call: Callable[[], Awaitable[R]], timeout: float) -> concurrent.futures.Future[R]:
        """Run the coroutine that `call` returns on the loop, no longer than `timeout` seconds.

        Returns:
            A future: `cancel` cancels the coroutine, and `result` raises TimeoutError after the timeout.
        """

        async def run_guarded() -> R:
            try:
                return await call()
            except _ENDS as error:
                if isinstance(error, ExceptionGroup):
                    raise
                raise fibers.ExitAttempt.of(error) from error  # pyright: ignore[reportUnknownArgumentType]

        async def run_bounded() -> R:
            async with asyncio.timeout(timeout):
                return await run_guarded()

        if (fiber := fibers.current()) is not None:
            return _CoroutineFuture(run_guarded(), fiber.among.loop, timeout)
        return asyncio.run_coroutine_threadsafe(run_bounded(), self._ensure_running())

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call back on the loop, in its next turn. Any thread may ask for it."""
        loop = self._ensure_running()
        if threading.get_ident() == self.thread_id:
            loop.call_soon(callback)
        else:
            loop.call_soon_threadsafe(callback)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call back on the loop after `seconds`; at once where it does not run. Any thread may ask for it."""
        with self._lock:
            loop = self._loop
        if loop is None:
            callback()
        else:
            self.call_soon(lambda: loop.call_later(seconds, callback))

    def close(self) -> None:
        """Stop the loop and its thread."""
        with self._lock:
            if self._loop is not None and self._pid == os.getpid():
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _ensure_running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(_THREADS))
                self._pid = os.getpid()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="celery-agents-loop", daemon=True
                )
                self._thread.start()
                asyncio.run_coroutine_threadsafe(_widen_threads(), self._loop)
            return self._loop


class _CoroutineFuture(concurrent.futures.Future[R]):
    """The future of a coroutine on the loop of the fiber that waits for it.

    It has the interface of a thread's future without its locks: only the loop's thread uses it. `cancel` may be called
    in any thread.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, R], loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        """
        Args:
            timeout: Seconds until the coroutine is cancelled. The future raises TimeoutError then, unless the coroutine
                returns a result all the same.
        """
        # The base's constructor is not called: every method that would use its locks is overridden here.
        self._loop = loop
        self._task = loop.create_task(coroutine)
        self._timer = loop.call_later(timeout, self._time_out)
        self._is_late = False
        self._is_done = False
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[concurrent.futures.Future[R]], object]] = []
        self._task.add_done_callback(self._on_end)

    def done(self) -> bool:
        return self._is_done

    def cancel(self) -> bool:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._give_up)
        return True

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[R]], object]) -> None:
        if self._is_done:
            fn(self)
        else:
            self._callbacks.append(fn)

    def result(self, timeout: float | None = None) -> R:
        """The result of a coroutine that has ended; `fibers.result` waits for one that has not."""
        if not self._is_done:
            raise TimeoutError(f"the coroutine has not ended, and this future cannot wait {timeout} s")
        if self._error is not None:
            raise self._error
        return self._task.result()

    def _give_up(self) -> None:
        """Cancel the coroutine and end the future at once, since a coroutine may ignore its cancellation."""
        if not self._is_done:
            self._task.cancel()
            self._end(concurrent.futures.CancelledError())

    def _time_out(self) -> None:
        self._is_late = True
        self._task.cancel()

    def _on_end(self, task: asyncio.Task[R]) -> None:
        self._timer.cancel()
        if task.cancelled():
            error: BaseException | None = TimeoutError() if self._is_late else concurrent.futures.CancelledError()
        else:
            error = task.exception()
        if not self._is_done:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self._is_done, self._error = True, error
        for callback in self._callbacks:
            callback(self)


async def _widen_threads() -> None:
    to_thread.current_default_thread_limiter().total_tokens = _THREADS


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks: set[asyncio.Task[Any]] = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        _wait_for(tasks, loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
        _wait_for(asyncio.all_tasks(loop), loop)  # they close streams whose readers have ended
        loop.close()


def _wait_for(tasks: Iterable[asyncio.Task[Any]], loop: asyncio.AbstractEventLoop) -> None:
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
