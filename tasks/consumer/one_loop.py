"""Running Celery's own loop and the loop of steps in one thread.

A Celery worker turns kombu's hub, which reads messages, hands tasks over and fires timers. Our pool turns an asyncio
loop. In two threads they hand the interpreter to one another with each message and each call to the kernel, which for
steps that only compute costs as much as a core of its own. So while Celery consumes, its loop runs in the thread of
ours. Where it would wait for a file descriptor, it turns our loop instead, until a descriptor of the hub is ready.

The worker's main thread waits meanwhile. There Celery still starts, connects, reconnects and ends, and there signals
arrive: what they raise never lands in a step, and steps go on while Celery reconnects to a lost broker.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

from celery import bootsteps

from ...worker.store.redis.multiplexed import AWAKE_SECONDS
from .celery_internals import buffer_all_events, has_loop
from .features import ONE_LOOP
from .kombu_internals import descriptor_of
from .pool import TaskPool, wait_handling_signals


class OneLoop(bootsteps.StartStopStep):
    """Lets a worker with our pool consume in the thread of its steps."""

    requires = ("celery.worker.consumer.events:Events",)

    def start(self, parent: Any) -> None:
        """Prepare a consumer each time it is connected, before it begins to consume."""
        if not isinstance(parent.pool, TaskPool):
            return
        if parent.event_dispatcher is not None:
            # In Celery the step that adds the 24th event to the buffer sends all of them and waits for the broker.
            # The loop sends them as well, each time it turns.
            buffer_all_events(parent.event_dispatcher, sys.maxsize)
        if parent.hub is None or not has_loop(parent) or not ONE_LOOP.is_available():
            return
        if not isinstance(parent.loop, _SharedLoop):
            parent.loop = _SharedLoop(parent.pool, parent.loop)


class _SharedLoop:
    """Celery's loop, called in the thread of the steps' loop."""

    def __init__(self, pool: TaskPool, celery_loop: Callable[..., Any]) -> None:
        self._pool = pool
        self._celery_loop = celery_loop

    def __call__(self, consumer: Any, connection: Any, task_consumer: Any, blueprint: Any, hub: Any, *rest: Any) -> Any:
        """Consume until the worker ends or its connection is lost; raise what Celery's loop raises."""

        def consume() -> Any:
            return self._celery_loop(consumer, connection, task_consumer, blueprint, hub, *rest)

        def consume_in_thread_of_steps(loop: asyncio.AbstractEventLoop) -> Any:
            poller = _LoopPoller(
                hub=hub,
                descriptor=descriptor_of(hub.poller),
                loop=loop,
                stays_awake=self._pool.expects_next_step,
            )
            self._pool.consumer = task_consumer
            try:
                return consume()
            finally:
                self._pool.consumer = None
                poller.detach()

        if not descriptor_of(hub.poller):
            return consume()
        consumed = self._pool.loop.run_between_turns(consume_in_thread_of_steps)
        wait_handling_signals((consumed,))
        return consumed.result()


class _LoopPoller:
    """A poller for kombu's hub that waits by turning an asyncio loop. Used in the loop's thread."""

    def __init__(
        self, hub: Any, descriptor: int, loop: asyncio.AbstractEventLoop, stays_awake: Callable[[], bool]
    ) -> None:
        """
        Args:
            descriptor: The descriptor of the hub's own poller; it is readable when that poller has events.
            stays_awake: Tells before each wait whether an event will come so soon that sleeping costs more.
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
        hub.call_soon = self._call_soon_and_stop
        loop.add_reader(descriptor, loop.stop)

    def poll(self, timeout: float | None) -> Any:
        """Return the events of the hub's poller, after at most `timeout` seconds; None waits for the next event."""
        loop, timer = self._loop, None
        if self._stays_awake() and (events := self._poll_awake()):
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
        """Close the hub's poller too; the hub makes a new one after this."""
        self.detach()
        self._inner.close()

    def detach(self) -> None:
        """Give the hub its own poller back; a second call does nothing."""
        if self._descriptor:
            self._loop.remove_reader(self._descriptor)
            self._descriptor = 0
            del self._hub.call_soon
            self._hub.poller = self._inner

    def _poll_awake(self) -> Any:
        until = self._loop.time() + AWAKE_SECONDS
        while self._loop.time() < until:
            if events := self._inner.poll(0):
                return events
        return None

    def _call_soon_and_stop(self, callback: Any, *args: Any) -> Any:
        """End the wait: kombu calls such callbacks before it waits, and wakes up for those of other threads only."""
        promise = self._call_soon(callback, *args)
        if self._is_turning and threading.get_ident() == self._thread:
            self._loop.stop()
        return promise
