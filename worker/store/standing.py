"""What the store knows of a session beside its state. It changes with the session's version only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from . import fields

STANDING: Final = ("ops", "executions", "notify")


@dataclass(frozen=True, slots=True)
class Standing:
    """What the store knows of a session beside its state.

    Attributes:
        operations: Recent operation ids, oldest first.
        executions: Executions whose steps are kept, oldest first.
        notify: Whom to tell of an execution's end, by operation; JSON as stored.
    """

    operations: tuple[str, ...] = ()
    executions: tuple[str, ...] = ()
    notify: bytes | None = None

    @classmethod
    def read(cls, operations: bytes | None, executions: bytes | None, notify: bytes | None) -> Standing:
        """From the fields `STANDING` of a session's hash."""
        return cls(fields.strings(operations), fields.strings(executions), notify)
