"""Steps that share one thread: each is a greenlet on an event loop, and waits without keeping the others waiting.

Engine and store are written as plain calls that wait: for Redis, for a driver, for a moment. In a thread of its own
such a call blocks the thread. In a fiber it gives the thread to whoever can go on, and comes back when its own turn has
come. Nothing else differs: what waits within a step waits by the functions of this module, in threads and fibers alike.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

from greenlet import getcurrent, greenlet

R = TypeVar("R")
Future = concurrent.futures.Future[Any]

# Who has waited for that long stands in line: a model, or a tool that does something.
_LONG_SECONDS: Final = 0.1
# So many of the line compute at a time; more of them share round trips, and end later.
_AT_ONCE: Final = 2
# Who waits again no longer than that, for a function that returns at once, keeps the place.
_BRIEF_SECONDS: Final = 0.02


class Fibers:
    """The fibers of one loop. Used on its thread only.

    Attributes:
        loop: Set with the first of them: asking asyncio each time takes a call to the kernel.
        threads: Where their plain functions run; at least one for each fiber at a time.
        alive: How many have begun and not ended.
        line: Those that have what they waited for.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self, threads: concurrent.futures.Executor, line: Line | None = None) -> None:
        self.threads = threads
        self.alive = 0
        self.line = line or Line(0)

    def begin(self, *calls: Callable[[], object]) -> None:
        """Run calls as fibers; comes back when each waits for the first time or has ended. Only for callbacks.

        Args:
            calls: They must not raise: there is nobody to tell.
        """
        if not self.alive:
            self.loop = asyncio.get_running_loop()
        self.alive += len(calls)
        for call in calls:
            Fiber(self, call).switch()


class Fiber(greenlet):
    """A call that takes turns with others on the loop of its thread.

    Attributes:
        has_waited: For long, since it came or stood in line.
        is_in_line: Whether it has a place there, or goes on from there.
    """

    def __init__(self, among: Fibers, call: Callable[[], object]) -> None:
        super().__init__(self._carry_out)
        self.among = among
        self.has_waited = False
        self.is_in_line = False
        self._call = call

    def _carry_out(self) -> None:
        try:
            self._call()
        finally:
            self.among.alive -= 1
            self.among.line.leave(self)

    def park(self) -> Any:
        """Let others go on until somebody calls `resume`, and return what they say. Only for the fiber itself."""
        assert self.parent is not None
        return self.parent.switch()

    def resume(self, said: object = None) -> None:
        """Go on; comes back when the fiber parks again or ends. Only for callbacks of the loop."""
        self.switch(said)


class Line:
    """Fibers that have what they waited for, such as their model's answer: first come, first served, a few at a time.

    Where all that can go on take turns, those that came together end together, all of them late, and come together
    again with their next answers. One after the other they end after half that time on average, and drift apart. What
    is left to do takes milliseconds; so that meanwhile others can begin to wait, they need no slot.

    Attributes:
        allowance: So many are in line without a slot. What is beyond goes on at once: who computes all the time is
            faster with everybody taking turns, who share their round trips.
        on_entry: Called when one has come in, which may have freed a slot.
    """

    def __init__(self, allowance: int) -> None:
        self.allowance = allowance
        self.on_entry: Callable[[], object] = _nothing
        self._size = 0  # with a place, be it that they wait for it, go on, or are briefly elsewhere
        self._going = 0
        self._waiting: deque[Fiber] = deque()
        self._is_called = False

    @property
    def without_slot(self) -> int:
        """How many of the fibers that are alive need none."""
        return min(self._size, self.allowance)

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits to go on."""
        return not self._waiting

    def enter(self, fiber: Fiber) -> None:
        """Come in, and wait until those in front are through. Only for the fiber itself, while it has no place."""
        fiber.is_in_line, fiber.has_waited = True, False
        self._size += 1
        self.on_entry()
        if self._waiting or self._going >= self._most:
            self._waiting.append(fiber)
            self._call(fiber.among.loop)
            fiber.park()
        else:
            self._going += 1

    def leave(self, fiber: Fiber) -> None:
        """Have no place any more, if it has one: it has ended."""
        if fiber.is_in_line:
            fiber.is_in_line = False
            self._size -= 1
            self._give_way(fiber)

    def step_aside(self, fiber: Fiber) -> asyncio.TimerHandle:
        """Wait for something else; who does so for longer loses the place, and needs a slot again."""
        self._give_way(fiber)
        return fiber.among.loop.call_later(_BRIEF_SECONDS, self._lose, fiber)

    def come_back(self, fiber: Fiber, until: asyncio.TimerHandle) -> None:
        """Go on after `step_aside`, whoever else does."""
        until.cancel()
        if fiber.is_in_line:
            self._going += 1

    @property
    def _most(self) -> int:
        return max(_AT_ONCE, self._size - self.allowance)

    def _give_way(self, fiber: Fiber) -> None:
        self._going -= 1
        self._call(fiber.among.loop)

    def _lose(self, fiber: Fiber) -> None:
        fiber.is_in_line = False
        self._size -= 1

    def _call(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting and not self._is_called and self._going < self._most:
            self._is_called = True
            loop.call_soon(self._admit)

    def _admit(self) -> None:
        self._is_called = False
        admitted = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._most - self._going))]
        self._going += len(admitted)
        for fiber in admitted:
            fiber.resume()


def _nothing() -> None:
    """Nobody wants to know."""


def current() -> Fiber | None:
    """The fiber that this code runs in; None in an ordinary thread."""
    here = getcurrent()
    return here if type(here) is Fiber else None


def result(future: concurrent.futures.Future[R], timeout: float | None = None) -> R:
    """`future.result(timeout)`, waiting like a fiber in a fiber."""
    fiber = current()
    if fiber is None:
        return future.result(timeout)
    if not future.done():
        _park_until(fiber, (future,), timeout)
    return future.result(0)


def wait(futures: Collection[Future], seconds: float | None) -> tuple[set[Future], set[Future]]:
    """Wait until one of them has ended, no longer than so many seconds: those that have, and the others."""
    fiber = current()
    if fiber is None:
        found = concurrent.futures.wait(futures, seconds, concurrent.futures.FIRST_COMPLETED)
        return found.done, found.not_done
    if not any(future.done() for future in futures):
        _park_until(fiber, futures, seconds)
    done = {future for future in futures if future.done()}
    return done, set(futures) - done


def sleep(seconds: float) -> None:
    """`time.sleep`, waiting like a fiber in a fiber."""
    if current() is None:
        time.sleep(seconds)
    else:
        wait((), seconds)


def apart(call: Callable[..., R], /, *args: Any) -> R:
    """What a function that may block returns or raises: a fiber has it run in a thread and waits."""
    fiber = current()
    if fiber is None:
        return call(*args)
    return result(fiber.among.threads.submit(contextvars.copy_context().run, call, *args))


def line_up() -> None:
    """Where this step has waited for long: let those go on first that have what they waited for since before.

    A step says so when nothing is lost by its waiting a little longer. In a thread of its own it does not wait.
    """
    fiber = current()
    if fiber is not None and fiber.has_waited and not fiber.is_in_line:
        fiber.among.line.enter(fiber)


def _park_until(fiber: Fiber, futures: Collection[Future], seconds: float | None) -> None:
    """Let others go on until one has ended, no longer than so many seconds. None may have ended before."""
    loop, line = fiber.among.loop, fiber.among.line
    waker = _Waker(fiber)
    timer = None if seconds is None else loop.call_later(seconds, waker.wake)
    for future in futures:
        future.add_done_callback(waker)
    aside = line.step_aside(fiber) if fiber.is_in_line else None
    began = loop.time()
    fiber.park()
    if loop.time() - began >= _LONG_SECONDS:
        fiber.has_waited = True
    if aside is not None:
        line.come_back(fiber, aside)
    if timer is not None:
        timer.cancel()


class _Waker:
    """Resumes a fiber once, from whatever thread it is called in."""

    __slots__ = ("_fiber", "_loop", "_thread")

    def __init__(self, fiber: Fiber) -> None:
        self._fiber: Fiber | None = fiber
        self._loop = fiber.among.loop
        self._thread = threading.get_ident()

    def __call__(self, future: Future) -> None:
        """A future has ended. Who completed it may be a fiber itself, or no part of the loop: that goes on first."""
        del future
        if self._fiber is None:
            return
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.wake)
        elif current() is not None or not self._loop.is_running():
            self._loop.call_soon(self.wake)
        else:
            self.wake()

    def wake(self) -> None:
        fiber, self._fiber = self._fiber, None
        if fiber is not None:
            fiber.resume()
