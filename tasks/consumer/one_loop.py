"""Celery's own loop and the loop of steps in one thread.

A worker of Celery turns kombu's hub: it reads messages, hands tasks over, fires timers. Our pool turns an asyncio loop.
In two threads they hand the interpreter to one another with each message and each call to the kernel, which for steps
that only compute costs as much as a core of its own. So while Celery consumes, its loop runs in the thread of ours, and
where it would wait for a file descriptor it turns ours instead, until one of its own has something to say.

The worker's main thread waits meanwhile. There Celery still starts, connects, connects again and ends, and there
signals arrive: what they raise never lands in a step, and steps go on while a lost broker is looked for.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

from celery import bootsteps

from ...worker.store.redis.multiplexed import AWAKE_SECONDS
from .pool import TaskPool, wait_among_signals


class OneLoop(bootsteps.StartStopStep):
    """Lets a worker with our pool consume in the thread of its steps."""

    requires = ("celery.worker.consumer.events:Events",)

    def start(self, parent: Any) -> None:
        """Of a consumer whenever it is connected, before it begins to consume."""
        if not isinstance(parent.pool, TaskPool):
            return
        if parent.event_dispatcher is not None:
            # Celery has whoever adds the 24th event to its buffer send them all, and wait for the broker. A step must
            # not; where the loop turns they are sent as well.
            parent.event_dispatcher.buffer_limit = sys.maxsize
        if parent.hub is not None and not isinstance(parent.loop, _Together):
            parent.loop = _Together(parent.pool, parent.loop)


class _Together:
    """Celery's loop, called in the other loop's thread."""

    def __init__(self, pool: TaskPool, celery_loop: Callable[..., Any]) -> None:
        self._pool = pool
        self._celery_loop = celery_loop

    def __call__(self, consumer: Any, connection: Any, task_consumer: Any, blueprint: Any, hub: Any, *rest: Any) -> Any:
        """Consume until the worker ends or its connection does; raises what that says."""

        def consume() -> Any:
            return self._celery_loop(consumer, connection, task_consumer, blueprint, hub, *rest)

        def consume_together(loop: asyncio.AbstractEventLoop) -> Any:
            poller = _Poller(hub, _descriptor(hub.poller), loop, self._pool.next_may_be_near)
            self._pool.consumer = task_consumer
            try:
                return consume()
            finally:
                self._pool.consumer = None
                poller.detach()

        if not _descriptor(hub.poller):
            return consume()
        consumed = self._pool.loop.run_between_turns(consume_together)
        wait_among_signals((consumed,))
        return consumed.result()


def _descriptor(poller: Any) -> int:
    """Of what kombu waits with; 0 where that has none, as with `poll`."""
    waits_with = getattr(poller, "_epoll", None) or getattr(poller, "_kqueue", None)
    return waits_with.fileno() if waits_with is not None else 0


class _Poller:
    """In the place of a hub's poller: waits by turning a loop. Used in the loop's thread."""

    def __init__(
        self, hub: Any, descriptor: int, loop: asyncio.AbstractEventLoop, stays_awake: Callable[[], bool]
    ) -> None:
        """
        Args:
            descriptor: Of the poller that the hub has; can be read when that one has something to say.
            stays_awake: Asked before each wait: whether something will be there so soon that sleeping costs more.
        """
        self._hub = hub
        self._descriptor = descriptor
        self._loop = loop
        self._stays_awake = stays_awake
        self._inner = hub.poller
        self._thread = threading.get_ident()
        self._is_turning = False
        self._call_soon: Callable[..., Any] = hub.call_soon
        self.register = self._inner.register
        self.unregister = self._inner.unregister
        hub.poller = self
        hub.call_soon = self._call_soon_of_steps
        loop.add_reader(descriptor, loop.stop)

    def poll(self, timeout: float | None) -> Any:
        """What the inner poller has to say, after no more than `timeout` seconds; None: whenever it has."""
        loop, timer = self._loop, None
        if self._stays_awake() and (events := self._soon()):
            return events
        if timeout is not None:
            timer = loop.call_later(timeout, loop.stop) if timeout > 0 else loop.call_soon(loop.stop)
        self._is_turning = True
        try:
            loop.run_forever()
        finally:
            self._is_turning = False
            if timer is not None:
                timer.cancel()
        return self._inner.poll(0)

    def close(self) -> None:
        """The hub makes a new one after this."""
        self.detach()
        self._inner.close()

    def detach(self) -> None:
        """Give the hub back what it had; a second time does nothing."""
        if self._descriptor:
            self._loop.remove_reader(self._descriptor)
            self._descriptor = 0
            del self._hub.call_soon
            self._hub.poller = self._inner

    def _soon(self) -> Any:
        until = self._loop.time() + AWAKE_SECONDS
        while self._loop.time() < until:
            if events := self._inner.poll(0):
                return events
        return None

    def _call_soon_of_steps(self, callback: Any, *args: Any) -> Any:
        """kombu looks at what is to be called before it waits, and takes who says so in its own thread to be awake."""
        made = self._call_soon(callback, *args)
        if self._is_turning and threading.get_ident() == self._thread:
            self._loop.stop()
        return made
