"""Effect classes: a tool says what it does to the world, and so what happens to a call that a crash interrupts."""

from __future__ import annotations

from enum import StrEnum


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
