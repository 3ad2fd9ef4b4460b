"""Effect classes: a tool says what it does to the world, and so what happens to a call that a crash interrupts.

The answer of a tool's `lookup` says whether the effect of an idempotency key happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Effect(StrEnum):
    """The four classes of tools; the default is the safe one.

    A call is recorded before it runs and again when its result is there. When a worker dies in between:
    """

    PURE = "pure"
    """No effect anybody could notice twice (a search, a calculation): it runs again."""

    KEYED = "keyed"
    """The tool, or the service behind it, deduplicates by `ToolContext.idempotency_key`: it runs again, same key."""

    LOOKUP = "lookup"
    """The tool's `lookup` is asked whether the effect of that key happened; then it is taken over, or runs again."""

    UNSAFE = "unsafe"
    """It never runs again: its outcome is recorded as unknown, for the model or a person to judge."""


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
