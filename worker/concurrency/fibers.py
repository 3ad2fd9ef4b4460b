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
# Who waits in line for longer goes on beside those that have slots.
_PATIENCE_SECONDS: Final = 0.25
# Who waits again no longer than that, for a function that returns at once, still needs no slot.
_BRIEF_SECONDS: Final = 0.02
# For each so many slots there is one place in line.
_SLOTS_FOR_A_PLACE: Final = 2


class Fibers:
    """The fibers of one loop. Used on its thread only.

    Attributes:
        loop: Set with the first of them: asking asyncio each time takes a call to the kernel.
        threads: Where their plain functions run; at least one for each fiber at a time.
        alive: How many have begun and not ended.
        turns: How often one of them has begun or gone on.
        line: Those that have what they waited for.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self, threads: concurrent.futures.Executor, line: Line | None = None) -> None:
        self.threads = threads
        self.alive = 0
        self.turns = 0
        self.line = line or Line(0)

    def begin(self, *calls: Callable[[], object]) -> None:
        """Run calls as fibers; comes back when each waits for the first time or has ended. Only for callbacks.

        Args:
            calls: They must not raise: there is nobody to tell.
        """
        if not self.alive:
            self.loop = asyncio.get_running_loop()
        self.alive += len(calls)
        self.turns += len(calls)
        for call in calls:
            Fiber(self, call).switch()


class Fiber(greenlet):
    """A call that takes turns with others on the loop of its thread.

    Attributes:
        has_waited: For long, since it came or stood in line.
        is_in_line: Whether it waits there, or goes on from there.
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
        self.among.turns += 1
        self.switch(said)


class Line:
    """Fibers that have what they waited for, such as their model's answer: first come, first served, in quiet moments.

    Where all that can go on take turns, those that came together end together, all of them late, and come together
    again with their next answers. What these have left to do delays nobody but themselves. So they need no slot, in
    which others can begin to wait meanwhile, and go on when nobody else can.

    Attributes:
        places: So many may wait here, and so many need no slot. Who is beyond goes on at once.
        on_entry: Called when one has come in, which may have freed a slot.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self.on_entry: Callable[[], object] = _nothing
        self._size = 0  # be it that they wait, or go on from here
        self._waiting: deque[tuple[Fiber, float]] = deque()  # since when, by the loop's clock
        self._is_called = False

    @property
    def without_slot(self) -> int:
        """How many of the fibers that are alive need none."""
        return min(self._size, self.places)

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits to go on."""
        return not self._waiting

    def enter(self, fiber: Fiber) -> None:
        """Wait for the fiber's turn. Only for the fiber itself, while it is not in line."""
        fiber.is_in_line, fiber.has_waited = True, False
        self._size += 1
        self.on_entry()
        self._waiting.append((fiber, fiber.among.loop.time()))
        self._look_in_next_turn(fiber.among)
        fiber.park()

    def leave(self, fiber: Fiber) -> None:
        """Need a slot again, or have ended."""
        if fiber.is_in_line:
            fiber.is_in_line = False
            self._size -= 1

    def _look_in_next_turn(self, among: Fibers) -> None:
        if self._waiting and not self._is_called:
            self._is_called = True
            among.loop.call_soon(self._look, among, among.turns)

    def _look(self, among: Fibers, turns: int) -> None:
        """Whether it is anybody's turn: when none has gone on since this was asked to be done."""
        self._is_called = False
        beyond = len(self._waiting) - self.places
        one = among.turns == turns or among.loop.time() - self._waiting[0][1] >= _PATIENCE_SECONDS
        for fiber in [self._waiting.popleft()[0] for _ in range(max(one, beyond))]:
            fiber.resume()
        self._look_in_next_turn(among)


def places_in_line(slots: int) -> int:
    """How many fibers may be alive without a slot, beside those in so many slots."""
    return slots // _SLOTS_FOR_A_PLACE


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


def run_in_thread(call: Callable[..., R], /, *args: Any) -> R:
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
    loop = fiber.among.loop
    waker = _Waker(fiber)
    timer = None if seconds is None else loop.call_later(seconds, waker.wake)
    for future in futures:
        future.add_done_callback(waker)
    elsewhere = loop.call_later(_BRIEF_SECONDS, fiber.among.line.leave, fiber) if fiber.is_in_line else None
    began = loop.time()
    fiber.park()
    if loop.time() - began >= _LONG_SECONDS:
        fiber.has_waited = True
    if elsewhere is not None:
        elsewhere.cancel()
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
