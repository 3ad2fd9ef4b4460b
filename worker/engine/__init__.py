"""The engine: one step, from claim to commit."""

from .event_loop import EventLoopThread
from .leases import Interruption, LeaseKeeper
from .outcome import Done, NothingToDo, Outcome, Parked, PutOffUntil, TakenOver
from .runner import StepRunner
from .settling import first_state, settle_operation, settle_retry, settle_stop
from .watching import Watching, new_records

__all__ = [
    "Done",
    "EventLoopThread",
    "Interruption",
    "LeaseKeeper",
    "NothingToDo",
    "Outcome",
    "Parked",
    "PutOffUntil",
    "StepRunner",
    "TakenOver",
    "Watching",
    "first_state",
    "new_records",
    "settle_operation",
    "settle_retry",
    "settle_stop",
]
