"""Everything of Celery that is used and not documented.

Nobody else touches it. `PROBES` lists what a worker looks for when it starts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import celery.concurrency.base as celery_pools
from celery.worker import control, state

from . import probes

RESERVED: Final = ("celery.worker.state:reserved_requests",)
REVOKING: Final = (
    "celery.worker.control:Panel.data",
    "celery.worker.state:active_requests",
    "celery.worker.state:revoked",
)
COMMANDS: Final = ("celery.worker.control:Panel.data",)
POOL: Final = ("celery.concurrency.base:apply_target",)
PROBES: Final = (*RESERVED, *REVOKING, *COMMANDS, *POOL)

_state: Final[Any] = state
_control: Final[Any] = control
_pools: Final[Any] = celery_pools
_LOOP: Final = "celery.worker.consumer:Consumer.loop"
_BUFFER_LIMIT: Final = "celery.events.dispatcher:EventDispatcher.buffer_limit"
_FUTURE: Final = "celery.concurrency.thread:ApplyResult.f"


def reserved_count() -> int:
    """Return how many tasks this worker has received and not finished."""
    return len(_state.reserved_requests)


def active_requests() -> list[Any]:
    """Return the requests of tasks that run in this worker."""
    return list(_state.active_requests)


def forget_revoked(task_id: str) -> None:
    """Accept a task id again that was revoked."""
    _state.revoked.discard(task_id)


def wrap_remote_command(name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a remote control command of this process, if it has it, by what `wrap` makes of it."""
    commands = _control.Panel.data
    if name in commands:
        commands[name] = wrap(commands[name])


def buffer_all_events(dispatcher: Any, limit: int) -> None:
    """Let an event dispatcher buffer `limit` events; the sender of the next one sends them all."""
    if probes.has(dispatcher, "buffer_limit", _BUFFER_LIMIT, "a step that sends the 24th event sends all of them"):
        dispatcher.buffer_limit = limit


def has_loop(consumer: Any) -> bool:
    """Tell whether the loop of a consumer can be replaced."""
    return probes.has(consumer, "loop", _LOOP, "Celery's loop and the steps run in two threads")


def future_of(result: Any) -> Any:
    """Return the future behind what a pool of threads or fibers returns for a task; None where it has none."""
    if probes.has(result, "f", _FUTURE, "a full worker notices free slots with its next timer"):
        return result.f
    return None


def apply_target(
    target: Callable[..., Any],
    args: Iterable[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    callback: Callable[..., Any] | None = None,
    accept_callback: Callable[..., Any] | None = None,
) -> None:
    """Run a task in a pool: tell Celery that it begins, call it, and pass on what it returns."""
    _stock_apply_target(target, args or (), kwargs, callback, accept_callback)


def _apply_target(
    target: Callable[..., Any], args: Iterable[Any], kwargs: dict[str, Any] | None, callback: Any, accept_callback: Any
) -> None:
    """Do what Celery does, but for reporting the end of a process as a lost worker."""
    if accept_callback:
        accept_callback(os.getpid(), time.monotonic())
    callback(target(*args, **(kwargs or {})))


_stock_apply_target: Final[Any] = getattr(_pools, "apply_target", None) or _apply_target
