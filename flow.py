"""Limits of model providers, and pauses: the values that `client.limits` and `client.pauses` take and give."""

from __future__ import annotations

from .worker.flow.values import BucketStatus, LearnedLimit, ModelEndpoint, Pause, ProviderLimit

__all__ = ["BucketStatus", "LearnedLimit", "ModelEndpoint", "Pause", "ProviderLimit"]
