"""The engine: runs one step, from its claim to its commit.

The phases of a step belong here, with leases, sticky sessions and the transitions that a commit applies. What is stored
and how belongs to `worker.store`, whatever knows Celery to `tasks`.
"""

from ..concurrency.event_loop import EventLoopThread
from .active_lease import Interruption
from .leases import LeaseKeeper
from .observer import StepObserver, new_records
from .outcome import Done, NothingToDo, Outcome, Parked, RetryLater, TakenOver
from .runner import StepRunner, schema_version
from .services import EngineServices
from .sticky import LocalDelivery
from .transitions import FirstExecution, first_state, operation_transition, retry_transition, stop_transition

__all__ = [
    "Done",
    "EngineServices",
    "EventLoopThread",
    "FirstExecution",
    "Interruption",
    "LeaseKeeper",
    "LocalDelivery",
    "NothingToDo",
    "Outcome",
    "Parked",
    "RetryLater",
    "StepObserver",
    "StepRunner",
    "TakenOver",
    "first_state",
    "new_records",
    "operation_transition",
    "retry_transition",
    "schema_version",
    "stop_transition",
]
