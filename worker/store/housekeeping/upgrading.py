"""The step of an operator after which a store of an older version is written as a new one is."""

from __future__ import annotations

from ...errors import ActionRefused
from ...state.agent_fields import PACKED_SCHEMA_VERSION
from ..context import StorePart
from ..shards import PACKED
from .registry import WorkerRegistry

_NAMED = 5


class UpgradeVerbs(StorePart):
    """Leaving a stored form that older builds read."""

    def upgrade(self) -> bool:
        """Have entries packed from now on; workers notice it when they register the next time.

        What is stored stays as it is, and is read all the same. There is no way back: older builds refuse the store
        when they begin, and sessions that are packed while they run.

        Returns:
            False: They were packed already.
        Raises:
            ActionRefused: Workers are alive that could not read packed entries; nothing was written.
            ConfigurationError: The layout cannot be read.
        """
        context = self._context
        context.check_shards()
        if context.layout.packs:
            return False
        workers = WorkerRegistry(context).workers()
        old = sorted(name for name, facts in workers.items() if facts["schema"] < PACKED_SCHEMA_VERSION)
        if old:
            named = ", ".join(old[:_NAMED]) + (f" and {len(old) - _NAMED} more" if len(old) > _NAMED else "")
            raise ActionRefused(
                f"workers of an older version are alive and could not read what would be written: {named}. Stop them, "
                f"wait {context.settings.agents_seen_seconds:.0f} s, and ask again"
            )
        layout = context.layout.text(len(context.shards)) + PACKED
        context.database.pipeline("upgrade", [("SET", context.fleet.shards, layout)])
        context.layout.packs = True
        return True
