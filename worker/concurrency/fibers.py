"""Steps that share one thread: each is a greenlet on an event loop, and lets the others run while it waits.

Engine and store are written as plain calls that wait: for Redis, for a driver, for some time. In an ordinary thread
such a call blocks the thread. In a fiber it gives the thread to another fiber, and returns when its result is there.
The functions of this module wait in threads and in fibers alike; a step uses them wherever it waits.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

from greenlet import getcurrent, greenlet

R = TypeVar("R")
Future = concurrent.futures.Future[Any]

_ENDS: Final = (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, BaseExceptionGroup)


class ExitAttempt(Exception):
    """Code of users has raised what would end more than itself, such as `SystemExit`; the cause is what it raised."""

    @classmethod
    def of(cls, error: BaseException) -> ExitAttempt:
        """Wrap what was raised."""
        return cls(f"{type(error).__name__}: {error}".removesuffix(": "))


class Fibers:
    """The fibers of one loop. Used on its thread only.

    Attributes:
        loop: Set when the first fiber begins: asking asyncio each time takes a call to the kernel.
        threads: Run the plain functions of the fibers; at least one thread for each fiber.
        alive: How many fibers have begun and not ended.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self, threads: concurrent.futures.Executor) -> None:
        self.threads = threads
        self.alive = 0

    def begin(self, *calls: Callable[[], object]) -> None:
        """Run calls as fibers; returns when each waits for the first time or has ended. Only for callbacks of the loop.

        Args:
            calls: They must not raise: no caller is left to catch it.
        """
        if not self.alive:
            self.loop = asyncio.get_running_loop()
        self.alive += len(calls)
        for call in calls:
            Fiber(self, call).switch()


class Fiber(greenlet):
    """A call that takes turns with others on the loop of its thread."""

    def __init__(self, among: Fibers, call: Callable[[], object]) -> None:
        super().__init__(self._run)
        self.among = among
        self._call = call

    def _run(self) -> None:
        try:
            self._call()
        finally:
            self.among.alive -= 1

    def park(self) -> Any:
        """Let other fibers run until `resume` is called, and return its argument. Only the fiber itself calls this."""
        assert self.parent is not None
        return self.parent.switch()

    def resume(self, value: object = None) -> None:
        """Let `park` return `value`; returns when the fiber parks again or ends. Only for callbacks of the loop."""
        self.switch(value)


def current() -> Fiber | None:
    """The fiber that this code runs in; None in an ordinary thread."""
    here = getcurrent()
    return here if type(here) is Fiber else None


def result(future: concurrent.futures.Future[R], timeout: float | None = None) -> R:
    """Wait like `future.result(timeout)`; a fiber lets others run meanwhile."""
    fiber = current()
    if fiber is None:
        return future.result(timeout)
    if not future.done():
        _park_until(fiber, (future,), timeout)
    return future.result(0)


def wait(futures: Collection[Future], seconds: float | None) -> tuple[set[Future], set[Future]]:
    """Wait until a future has ended, or `seconds` have passed: those that have ended, and the others."""
    fiber = current()
    if fiber is None:
        found = concurrent.futures.wait(futures, seconds, concurrent.futures.FIRST_COMPLETED)
        return found.done, found.not_done
    if not any(future.done() for future in futures):
        _park_until(fiber, futures, seconds)
    done = {future for future in futures if future.done()}
    return done, set(futures) - done


def sleep(seconds: float) -> None:
    """Wait like `time.sleep`; a fiber lets others run meanwhile."""
    if current() is None:
        time.sleep(seconds)
    else:
        wait((), seconds)


def run_in_thread(call: Callable[..., R], /, *args: Any) -> R:
    """Call a function that may block; a fiber runs it in a thread and lets others run meanwhile."""
    fiber = current()
    if fiber is None:
        return call(*args)
    return result(fiber.among.threads.submit(contextvars.copy_context().run, call, *args))


def run_users_code(call: Callable[..., R], /, *args: Any) -> R:
    """Call a function of users as `run_in_thread` does; see `bounded`."""
    return run_in_thread(bounded, call, *args)


def bounded(call: Callable[..., R], /, *args: Any) -> R:
    """Call a function of users, which may end nothing but itself.

    Raises:
        ExitAttempt: It tried to.
    """
    try:
        return call(*args)
    except _ENDS as error:
        is_persons = isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
        if is_persons or isinstance(error, ExceptionGroup):
            raise
        raise ExitAttempt.of(error) from error


def _park_until(fiber: Fiber, futures: Collection[Future], seconds: float | None) -> None:
    """Park the fiber until a future ends or `seconds` have passed; none of them may have ended before."""
    loop = fiber.among.loop
    waker = _Waker(fiber)
    timer = None if seconds is None else loop.call_later(seconds, waker.wake)
    for future in futures:
        future.add_done_callback(waker)
    fiber.park()
    if timer is not None:
        timer.cancel()


class _Waker:
    """Resumes a fiber once; any thread may call it."""

    __slots__ = ("_fiber", "_loop", "_thread")

    def __init__(self, fiber: Fiber) -> None:
        self._fiber: Fiber | None = fiber
        self._loop = fiber.among.loop
        self._thread = threading.get_ident()

    def __call__(self, future: Future) -> None:
        """Resume the fiber, as a callback of a future that has ended."""
        del future
        if self._fiber is None:
            return
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.wake)
        elif current() is not None or not self._loop.is_running():
            # The caller is a fiber, or runs outside of the loop, and must return before another fiber runs.
            self._loop.call_soon(self.wake)
        else:
            self.wake()

    def wake(self) -> None:
        fiber, self._fiber = self._fiber, None
        if fiber is not None:
            fiber.resume()
