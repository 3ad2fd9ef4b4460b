"""The list of dead steps: what was put aside for an operator to look at."""

from __future__ import annotations

from dataclasses import dataclass

from .context import StoreContext
from .database import Command
from .keys import ShardKeys


@dataclass(frozen=True, slots=True)
class DeadEntry:
    """A parked step, a quarantined message or a callback that was given up.

    Attributes:
        kind: "step", "message" or "callback".
        payload: The message as it came, cut and escaped.
    """

    kind: str
    reason: str
    session_id: str = ""
    execution_id: str = ""
    step: int = 0
    payload: str = ""

    def command(self, context: StoreContext, shard: ShardKeys) -> Command:
        """The command that appends it; the oldest entries make room."""
        return (
            "XADD", shard.dead, "MAXLEN", "~", context.settings.dead_kept, "*",
            "kind", self.kind, "session", self.session_id, "execution", self.execution_id, "step", self.step,
            "reason", self.reason, "payload", self.payload,
        )  # fmt: skip
