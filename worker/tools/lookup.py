"""The answer of a tool's `lookup`: did the effect of an idempotency key happen?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class LookupStatus(StrEnum):
    """The three answers of a lookup."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LookupResult:
    """One of `LookupResult.happened(value)`, `LookupResult.did_not_happen()` and `LookupResult.unknown(why)`.

    Attributes:
        status: Which of the three.
        value: What the call would have returned, when it happened; None otherwise.
        reason: Why it is unknown; empty otherwise.
    """

    status: LookupStatus
    value: Any = None
    reason: str = ""

    @classmethod
    def happened(cls, value: Any = None) -> LookupResult:
        """The effect took place; `value` becomes the result of the call."""
        return cls(LookupStatus.HAPPENED, value=value)

    @classmethod
    def did_not_happen(cls) -> LookupResult:
        """The effect did not take place. Believed only once the interrupted call cannot be running any more."""
        return cls(LookupStatus.DID_NOT_HAPPEN)

    @classmethod
    def unknown(cls, reason: str = "") -> LookupResult:
        """It cannot be found out; the call is recorded as unknown and never runs again."""
        return cls(LookupStatus.UNKNOWN, reason=reason)
