"""Taking entries out of the dead list."""

from __future__ import annotations

from collections.abc import Collection

from ..context import StorePart
from ..database import Command


class DeadListVerbs(StorePart):
    """Forgetting what was given up."""

    def forget_dead(self, session_ids: Collection[str]) -> int:
        """Remove the entries of the dead list that name one of these sessions, also in the message that was put aside.

        Returns:
            How many there were.
        """
        names = [each.encode() for each in session_ids]
        read = self._context.read_shards("dead.all", lambda shard: [("XRANGE", shard.dead, "-", "+")])
        found = {
            shard: [entry_id for entry_id, flat in entries if any(name in value for value in flat for name in names)]
            for shard, (entries,) in read.items()
        }
        commands: list[Command] = [("XDEL", shard.dead, *ids) for shard, ids in found.items() if ids]
        return sum(self._context.database.pipeline("dead.forget", commands)) if commands else 0
