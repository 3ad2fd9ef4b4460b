"""Everything of Celery that is used and not documented.

Nobody else touches it. `PROBES` lists what a worker looks for when it starts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from celery.worker import control, state

from . import probes

RESERVED: Final = ("celery.worker.state:reserved_requests",)
REVOKING: Final = (
    "celery.worker.control:Panel.data",
    "celery.worker.state:active_requests",
    "celery.worker.state:revoked",
)
COMMANDS: Final = ("celery.worker.control:Panel.data",)
PROBES: Final = (*RESERVED, *REVOKING, *COMMANDS)

_state: Final[Any] = state
_control: Final[Any] = control
_STRATEGY: Final = "celery.worker.strategy:default"
_STRATEGY_ARGUMENTS: Final = ("message", "body", "ack", "reject", "callbacks")
_BUFFER_LIMIT: Final = "celery.events.dispatcher:EventDispatcher.buffer_limit"


def reserved_count() -> int:
    """Return how many tasks this worker has received and not finished; 0 where Celery does not tell."""
    return len(getattr(_state, "reserved_requests", ()))


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


def has_known_strategy(consumer: Any, task: str) -> bool:
    """Tell whether a consumer has a function that takes a task's message as we hand it over."""
    try:
        inspect.signature(consumer.strategies[task]).bind(*_STRATEGY_ARGUMENTS)
    except (AttributeError, KeyError, TypeError, ValueError):
        probes.note_missing(_STRATEGY, "kombu fetches the steps")
        return False
    return True
