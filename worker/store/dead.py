"""The dead list: parked sessions, quarantined messages and failed callbacks, for an operator to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .context import StoreContext
from .database import Command
from .keys import ShardKeys

# Every sender of messages may call the task that stores an entry, so texts are cut here, where they are stored.
_PAYLOAD_CHARS: Final = 2_000
_REASON_CHARS: Final = 1_000
_ID_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class DeadEntry:
    """A parked step, a quarantined message or a callback that was given up.

    Attributes:
        kind: "step", "message" or "callback".
        payload: The message as it came, cut and escaped.

    Longer texts are cut when they are stored.
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
            "kind", self.kind, "session", _cut(self.session_id, _ID_CHARS),
            "execution", _cut(self.execution_id, _ID_CHARS), "step", self.step,
            "reason", _cut(self.reason, _REASON_CHARS), "payload", _cut(self.payload, _PAYLOAD_CHARS),
        )  # fmt: skip


def _cut(value: object, most: int) -> str:
    """The beginning of a text, as UTF-8 can hold it; a forged value may be of another type."""
    text = value if isinstance(value, str) else repr(value)
    return text[:most].encode("utf-8", "backslashreplace").decode()
