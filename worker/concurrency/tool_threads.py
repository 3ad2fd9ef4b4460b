"""Threads in which the plain tools of a step run side by side, and a limit of threads for async code."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import sys
from collections.abc import Callable, Collection
from typing import Any, Protocol

from anyio import CapacityLimiter

from . import fibers

Future = concurrent.futures.Future[Any]


class Threads(Protocol):
    """Runs plain functions side by side, and waits for their futures and those of coroutines."""

    def submit(self, call: Callable[..., Any], /, *args: Any) -> Future:
        """Run `call(*args)`; the future has its result or exception."""
        ...

    def wait(self, futures: Collection[Future], seconds: float) -> tuple[set[Future], set[Future]]:
        """Wait until a future has ended, or `seconds` have passed: those that have ended, and the others."""
        ...


class ToolThreads:
    """A thread pool that grows on demand.

    Slots and the parallel calls of each agent limit what runs. With fewer threads, the time of calls would be over that
    have not begun, and they would begin behind it.
    """

    def __init__(self) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(sys.maxsize, thread_name_prefix="celery-agents-tool")

    def submit(self, call: Callable[..., Any], /, *args: Any) -> Future:
        """Run `call(*args)` in the context of its step, to which its log lines and spans belong."""
        return self._pool.submit(contextvars.copy_context().run, fibers.bounded, call, *args)

    def wait(self, futures: Collection[Future], seconds: float) -> tuple[set[Future], set[Future]]:
        """Wait as `Threads.wait` says; a fiber lets others run meanwhile."""
        return fibers.wait(futures, seconds)


class ThreadLimit:
    """Lets at most `most` calls of one event loop run in threads at the same time.

    Args:
        most: Threads of each loop; anyio's own limit is 40 for all callers together.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limiters: dict[int, CapacityLimiter] = {}

    def of_this_loop(self) -> CapacityLimiter:
        """Get the limiter of the running event loop, which cannot be used in another."""
        loop = id(asyncio.get_running_loop())
        if loop not in self._limiters:
            self._limiters[loop] = CapacityLimiter(self._most)
        return self._limiters[loop]
