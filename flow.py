"""Limits of model providers, concurrency limits, pauses and schedules: the values that a client takes and gives."""

from __future__ import annotations

from .worker.flow.concurrency import ConcurrencyLimit, ConcurrencyStatus, PartStatus
from .worker.flow.schedules import LastSlot, Schedule, ScheduleStatus, TakenSlot
from .worker.flow.values import BucketStatus, LearnedLimit, ModelEndpoint, Pause, ProviderLimit

__all__ = [
    "BucketStatus",
    "ConcurrencyLimit",
    "ConcurrencyStatus",
    "LastSlot",
    "LearnedLimit",
    "ModelEndpoint",
    "PartStatus",
    "Pause",
    "ProviderLimit",
    "Schedule",
    "ScheduleStatus",
    "TakenSlot",
]
