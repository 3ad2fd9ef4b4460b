"""Where the plain functions of a step run side by side."""

from __future__ import annotations

import concurrent.futures
import contextvars
from collections.abc import Callable, Collection
from typing import Any, Protocol, Self

from ...config.settings import Settings
from . import fibers

Future = concurrent.futures.Future[Any]


class Threads(Protocol):
    """Runs plain functions beside each other, and waits for them and for coroutines alike."""

    def submit(self, call: Callable[..., Any], /, *args: Any) -> Future:
        """Run `call(*args)`; its result or exception is the future's."""
        ...

    def wait(self, futures: Collection[Future], seconds: float) -> tuple[set[Future], set[Future]]:
        """Wait until one has ended, no longer than so many seconds: those that have, and the others."""
        ...


class ToolThreads:
    """A pool that grows on demand to what all steps of a process can use."""

    def __init__(self, most: int) -> None:
        """
        Args:
            most: Threads at once.
        """
        self._pool = concurrent.futures.ThreadPoolExecutor(most, thread_name_prefix="celery-agents-tool")

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """As many threads as the steps in all slots of a process can use."""
        return cls(settings.concurrency * settings.max_parallel_tools)

    def submit(self, call: Callable[..., Any], /, *args: Any) -> Future:
        """See `Threads.submit`. Log lines and spans of the call belong to its step, so the context goes along."""
        return self._pool.submit(contextvars.copy_context().run, call, *args)

    def wait(self, futures: Collection[Future], seconds: float) -> tuple[set[Future], set[Future]]:
        """See `Threads.wait`."""
        return fibers.wait(futures, seconds)
