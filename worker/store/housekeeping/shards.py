"""The number of shards, which stays the same as long as a Redis holds sessions."""

from __future__ import annotations

from ...errors import ConfigurationError
from .. import fields
from ..context import StoreContext
from ..database import Reply
from ..keys import SHARDS


def check_shards(context: StoreContext) -> None:
    """Compare the number of shards in the settings with the one that this Redis was used with.

    Raises:
        ConfigurationError: They differ; sessions would be looked for in the wrong place.
    """
    wanted = str(context.settings.shards)
    (stored,) = context.database.pipeline("shards", [("GET", SHARDS)])
    if stored is None:
        stored = _store_shards(context, wanted)
    if fields.text(stored) != wanted:
        raise ConfigurationError(
            f"CELERY_AGENTS_SHARDS={wanted}, but this Redis holds sessions in {fields.text(stored)} shards; "
            f"set it to {fields.text(stored)}, or use an empty Redis"
        )


def _store_shards(context: StoreContext, wanted: str) -> Reply:
    """Store the number in an empty Redis; a user who may not write leaves that to the first worker."""
    try:
        return context.database.pipeline("shards.first", [("SET", SHARDS, wanted, "NX"), ("GET", SHARDS)])[1]
    except ConfigurationError:
        return wanted.encode()
