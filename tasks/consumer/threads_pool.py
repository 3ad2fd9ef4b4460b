"""A Celery pool that runs each task in a thread, made of `BasePool`, which Celery documents, alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.concurrency.base import BasePool
from celery.exceptions import WorkerLostError, WorkerShutdown, WorkerTerminate


class ThreadsPool(BasePool):
    """As many tasks at a time as the pool has threads.

    Attributes:
        executor: The threads.
    """

    body_can_be_buffer = True
    signal_safe = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.executor = ThreadPoolExecutor(max_workers=self.limit)

    def on_stop(self) -> None:
        """Wait for the tasks that run, and forget those that do not."""
        self.executor.shutdown(cancel_futures=True)
        super().on_stop()

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        **options: Any,
    ) -> Any:
        """Run a task in a thread, and return its future; `BasePool.apply_async` calls this."""
        del options
        return self.executor.submit(run_task, target, args, kwargs, callback, accept_callback)


def run_task(
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
