"""The sessions of bursts: which session takes the messages under a debounce key at present.

The session itself is made and asked by its own transactions: a name here may stand for one that has ended, or that has
not been made yet.
"""

from __future__ import annotations

import contextlib
from typing import Final

from .. import fields
from ..context import StorePart
from ..database import Changed, Command

_LIFE_MS: Final = 30 * 86_400_000
"""A session that is active for longer is not found any more: the next message begins another one beside it."""
_NOTE_MS: Final = 86_400_000
"""How long it is known which session got the message under an idempotency key."""


class BurstVerbs(StorePart):
    """Finding and changing the session of a burst."""

    def burst(self, name: str, operation_id: str = "") -> tuple[str, str]:
        """The session of the present burst, and the one for which an operation was noted; "" where there is none.

        Args:
            operation_id: "": none is asked for.
        """
        fleet = self._context.fleet
        reads: list[Command] = [("HGET", fleet.burst(name), "session")]
        if operation_id:
            reads.append(("HGET", fleet.burst(f"{name}:{operation_id}"), "session"))
        stored, *noted = self._context.database.pipeline("bursts.get", reads)
        return fields.text(stored), fields.text(noted[0]) if noted else ""

    def begin_burst(self, name: str, session_id: str, *, instead_of: str) -> bool:
        """Let a session be that of the present burst, if that is `instead_of` now, as `burst` says; "" is none.

        Returns:
            False: somebody else has begun one; nothing was written.
        """
        return self._replace(name, session_id, instead_of, _LIFE_MS)

    def note_in_burst(self, name: str, operation_id: str, session_id: str, *, instead_of: str) -> bool:
        """Remember for a day which session is about to get an operation: a resend finds it when that has ended.

        Args:
            instead_of: What was noted for it, as `burst` says.
        Returns:
            False: something else is noted by now; nothing was written.
        """
        return self._replace(f"{name}:{operation_id}", session_id, instead_of, _NOTE_MS)

    def _replace(self, name: str, session_id: str, instead_of: str, life_ms: int) -> bool:
        key = self._context.fleet.burst(name)
        read: Command = ("HGET", key, "session")
        writes: list[Command] = [("HSET", key, "session", session_id), ("PEXPIRE", key, life_ms)]
        with (
            contextlib.suppress(Changed),
            self._context.database.watch("bursts.watch", (key,), [read]) as watched,
        ):
            if fields.text(watched.replies[0]) == instead_of:
                watched.commit("bursts.set", writes)
                return True
        return False
