"""Giving a claim back without a commit, so that the step is tried again."""

from __future__ import annotations

from ..store import Claim, Store
from .outcome import RetryLater
from .run import milliseconds


def release_and_retry(
    store: Store, claim: Claim, why: str, *, delay_seconds: float | None = None, counts: bool = False
) -> RetryLater:
    """Release a claim; the step is due again after the delay.

    Args:
        why: For people, redacted.
        delay_seconds: The step is delayed, which the session counts. None: any worker may have the step at once.
        counts: The attempt counts towards the limit of attempts.
    """
    delay_ms = None if delay_seconds is None else milliseconds(delay_seconds)
    publish = store.steps.release(claim, delay_ms=delay_ms, give_back=not counts, reason=why)
    return RetryLater(ref=claim.ref, seconds=delay_seconds or 0.0, reason=why, publish=publish)
