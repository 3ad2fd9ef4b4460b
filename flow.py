"""Limits of model providers, concurrency limits, and pauses: the values that a client takes and gives."""

from __future__ import annotations

from .worker.flow.concurrency import ConcurrencyLimit, ConcurrencyStatus, PartStatus
from .worker.flow.values import BucketStatus, LearnedLimit, ModelEndpoint, Pause, ProviderLimit

__all__ = [
    "BucketStatus",
    "ConcurrencyLimit",
    "ConcurrencyStatus",
    "LearnedLimit",
    "ModelEndpoint",
    "PartStatus",
    "Pause",
    "ProviderLimit",
]
