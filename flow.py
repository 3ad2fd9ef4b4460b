"""Limits, caps, pauses, schedules, debouncing: the values that a client takes and gives."""

from __future__ import annotations

from .worker.flow.caps import CapSpending, CapStatus, SpendCap
from .worker.flow.concurrency import ConcurrencyLimit, ConcurrencyStatus, PartStatus
from .worker.flow.debounce import Debounce
from .worker.flow.schedules import LastSlot, Schedule, ScheduleStatus, TakenSlot
from .worker.flow.shares import FairShares, SharesStatus, ShareStatus
from .worker.flow.values import BucketStatus, LearnedLimit, ModelEndpoint, Pause, ProviderLimit

__all__ = [
    "BucketStatus",
    "CapSpending",
    "CapStatus",
    "ConcurrencyLimit",
    "ConcurrencyStatus",
    "Debounce",
    "FairShares",
    "LastSlot",
    "LearnedLimit",
    "ModelEndpoint",
    "PartStatus",
    "Pause",
    "ProviderLimit",
    "Schedule",
    "ScheduleStatus",
    "ShareStatus",
    "SharesStatus",
    "SpendCap",
    "TakenSlot",
]
