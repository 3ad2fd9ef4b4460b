"""The engine: runs one step, from its claim to its commit.

The phases of a step belong here, with leases, sticky sessions and the transitions that a commit applies. What is stored
and how belongs to `worker.store`, whatever knows Celery to `tasks`. Clients use the transitions only: what runs steps
is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..concurrency.event_loop import EventLoopThread
from .leases import Interruption, LeaseKeeper
from .observer import StepObserver, new_records
from .outcome import Done, Moved, NothingToDo, Outcome, Parked, RetryLater, TakenOver, Waiting
from .transitions import FirstExecution, first_state, operation_transition, retry_transition, stop_transition

if TYPE_CHECKING:
    from .runner import StepRunner, schema_version
    from .services import EngineServices
    from .sticky import StepDelivery

__all__ = [
    "Done",
    "EngineServices",
    "EventLoopThread",
    "FirstExecution",
    "Interruption",
    "LeaseKeeper",
    "Moved",
    "NothingToDo",
    "Outcome",
    "Parked",
    "RetryLater",
    "StepDelivery",
    "StepObserver",
    "StepRunner",
    "TakenOver",
    "Waiting",
    "first_state",
    "new_records",
    "operation_transition",
    "retry_transition",
    "schema_version",
    "stop_transition",
]


_HOME = {
    "EngineServices": ".services",
    "StepDelivery": ".sticky",
    "StepRunner": ".runner",
    "schema_version": ".runner",
}


def __getattr__(name: str) -> Any:
    """Import a name of what runs steps from its module.

    Raises:
        AttributeError: There is no such name.
    """
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home, __name__), name)
    globals()[name] = value
    return value
