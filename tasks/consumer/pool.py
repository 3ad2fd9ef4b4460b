"""A Celery pool whose steps share one thread, each as a fiber on an event loop.

In the threads pool a slot is a thread, and each wait for Redis hands the interpreter to another one: at a hundred slots
that is half of what a worker computes. Here steps take turns on the loop that also runs async drivers and tools, and
commands that they send to Redis at the same time leave together. Plain drivers and tools run in threads beside the
loop, and so does every other task of the app.

In an app of your own: `app.conf.worker_pool = "celery_agents.tasks.consumer.pool:TaskPool"`.
"""

from __future__ import annotations

import concurrent.futures
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from billiard.einfo import ExceptionInfo
from celery.concurrency.base import BasePool
from celery.exceptions import WorkerLostError, WorkerShutdown, WorkerTerminate

from ...worker.concurrency.event_loop import EventLoopThread
from ...worker.concurrency.fibers import Fibers
from ..names import STEP

_WAKE_UP_SECONDS: Final = 0.25
_BESIDE_SECONDS: Final = 2.0


def wait_handling_signals(futures: Iterable[concurrent.futures.Future[Any]]) -> None:
    """Wait until all futures are done, in the main thread, which alone may handle signals.

    A signal that another thread takes does not wake this one, nor does one that comes just before it sleeps. So it
    wakes up several times a second.
    """
    waiting = set(futures)
    while waiting:
        waiting = concurrent.futures.wait(waiting, _WAKE_UP_SECONDS).not_done


class TaskPool(BasePool):
    """Runs as many steps at a time as the worker has slots; others wait, as they do for a thread.

    It is made of `BasePool`, which Celery documents, alone.
    """

    body_can_be_buffer = True
    signal_safe = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loop = EventLoopThread()
        self._threads = concurrent.futures.ThreadPoolExecutor(self.limit)
        self._blocking_threads = concurrent.futures.ThreadPoolExecutor(
            self.limit, thread_name_prefix="celery-agents-plain"
        )
        self._fibers = Fibers(self._blocking_threads)
        self._fibers_beside = Fibers(
            concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="celery-agents-beside")
        )
        self._beside: set[concurrent.futures.Future[None]] = set()
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_begin_scheduled = False
        self._unfinished: set[concurrent.futures.Future[None]] = set()

    @property
    def is_idle(self) -> bool:
        """True when every step that was taken has ended."""
        return not self._unfinished

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        **options: Any,
    ) -> Any:
        """Run a step as a fiber and any other task in a thread, and return its future; `apply_async` calls this.

        One call of the loop begins all steps that wait.
        """
        del options
        if not args or args[0] != STEP:
            return self._threads.submit(_run_task, target, args, kwargs, callback, accept_callback)
        ended = concurrent.futures.Future[None]()
        self._unfinished.add(ended)
        ended.add_done_callback(self._unfinished.discard)

        def run() -> None:
            try:
                _run_task(target, args, kwargs, callback, accept_callback)
            except BaseException as error:  # noqa: BLE001 - Celery has reported it; as in a thread it ends here
                ended.set_exception(error)
            else:
                ended.set_result(None)
            self._begin_soon()

        self._waiting.append(run)
        self._begin_soon()
        return ended

    def run_beside(self, call: Callable[[], object]) -> None:
        """Run a call as a fiber on the loop of the steps; it takes no slot, and must not raise."""
        ended = concurrent.futures.Future[None]()
        self._beside.add(ended)
        ended.add_done_callback(self._beside.discard)

        def run() -> None:
            try:
                call()
            finally:
                ended.set_result(None)

        self.loop.call_soon(lambda: self._fibers_beside.begin(run))

    def on_stop(self) -> None:
        """Wait for the steps that were taken and a moment for what runs besides them, then for the threads."""
        wait_handling_signals(self._unfinished)
        concurrent.futures.wait(self._beside.copy(), _BESIDE_SECONDS)
        self._threads.shutdown(cancel_futures=True)
        self._blocking_threads.shutdown(cancel_futures=True)
        self.loop.close()

    def on_terminate(self) -> None:
        """Close the loop, but not the threads: a running step would take their end for a failure of its tool."""
        self.loop.close()

    def _begin_soon(self) -> None:
        if self._waiting and not self._is_begin_scheduled:
            self._is_begin_scheduled = True
            self.loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Begin steps that wait, as many as there are free slots."""
        self._is_begin_scheduled = False
        free = min(len(self._waiting), self.limit - self._fibers.alive)
        self._fibers.begin(*(self._waiting.popleft() for _ in range(free)))


def _run_task(
    target: Callable[..., Any],
    args: tuple[Any, ...] | None,
    kwargs: dict[str, Any] | None,
    callback: Callable[..., Any] | None,
    accept_callback: Callable[..., Any] | None,
) -> None:
    """Run a task: tell Celery that it begins, call it, and pass on what it returns.

    A task that ends its thread (`SystemExit`) is reported as one whose worker was lost, so that its slot becomes free.
    """
    if accept_callback is not None:
        accept_callback(os.getpid(), time.monotonic())
    try:
        returned = target(*(args or ()), **(kwargs or {}))
    except (Exception, WorkerShutdown, WorkerTerminate):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, this worker goes on
        returned = (True, _describe_loss(error), 0.0)
    if callback is not None:
        callback(returned)


def _describe_loss(error: BaseException) -> Any:
    try:
        raise WorkerLostError(repr(error)) from error
    except WorkerLostError:
        return ExceptionInfo()
