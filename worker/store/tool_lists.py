"""Lists of tools of remote servers, shared by all workers: the newest list of each server, and lists by their digest.

A list is kept under its digest for longer than a step may wait, because the journal of a step names it by the digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from . import fields
from .context import StorePart
from .database import Command

KEPT_MS: Final = 40 * 86_400_000
"""Life of a list, renewed when it is used: a step waits for 30 days at most."""


@dataclass(frozen=True, slots=True)
class NewestList:
    """The newest list that any worker got from a server.

    Attributes:
        digest: Its digest.
        raw: The list; None where it is gone.
        fresh_ms: Milliseconds for which it need not be asked for again; 0 when that time is over.
    """

    digest: str
    raw: bytes | None
    fresh_ms: int


class ToolLists(StorePart):
    """Reads and writes lists of tools."""

    def newest(self, server: str) -> NewestList | None:
        """The newest list of a server; None where no worker has got one.

        Args:
            server: The digest that names the server and its credentials.
        Raises:
            StoreUnavailable: No answer in time.
        """
        reads: list[Command] = [
            ("GET", self._context.fleet.newest_tools(server)),
            ("PTTL", self._context.fleet.fresh_tools(server)),
        ]
        stored, fresh_ms = self._context.database.pipeline("tools.newest", reads)
        digest = fields.text(stored)
        if not digest:
            return None
        return NewestList(digest, self.get(digest), max(0, int(fresh_ms)))

    def get(self, digest: str) -> bytes | None:
        """The list with this digest; None where it is gone."""
        return self._context.database.pipeline("tools.get", [("GET", self._context.fleet.tool_list(digest))])[0]

    def save(self, server: str, digest: str, raw: bytes, fresh_ms: int) -> None:
        """Make a list the newest of its server.

        Args:
            fresh_ms: Milliseconds for which it need not be asked for again.
        """
        self._context.database.pipeline(
            "tools.save",
            [
                ("SET", self._context.fleet.tool_list(digest), raw, "PX", KEPT_MS),
                ("SET", self._context.fleet.newest_tools(server), digest, "PX", KEPT_MS),
                ("SET", self._context.fleet.fresh_tools(server), "1", "PX", max(1, fresh_ms)),
            ],
        )

    def keep(self, digest: str) -> None:
        """Renew the life of a list that a step is pinned to."""
        self._context.database.pipeline("tools.keep", [("PEXPIRE", self._context.fleet.tool_list(digest), KEPT_MS)])

    def forget_freshness(self, server: str) -> None:
        """Let the next worker ask the server again: its list has changed."""
        self._context.database.pipeline("tools.stale", [("DEL", self._context.fleet.fresh_tools(server))])
