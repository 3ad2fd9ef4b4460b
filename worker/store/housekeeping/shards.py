"""The number of shards, which stays the same as long as a Redis holds sessions."""

from __future__ import annotations

from typing import Final

from ...errors import ConfigurationError, StateUnreadable, StoreForbidden
from .. import fields
from ..context import StoreContext
from ..database import Reply
from ..keys import SHARDS

_SHOWN: Final = 20


def check_shards(context: StoreContext) -> None:
    """Compare the number of shards in the settings with the one that this Redis was used with.

    Raises:
        ConfigurationError: They differ, or the stored one cannot be read; sessions would be looked for in the wrong
            place.
    """
    wanted = str(context.settings.shards)
    try:
        (stored,) = context.database.pipeline("shards", [("GET", SHARDS)])
    except StateUnreadable as error:
        raise ConfigurationError(
            f"the key {SHARDS} holds another type than a string: somebody else wrote to it. DEL {SHARDS}; the next "
            f"worker writes the number of shards, {wanted}, again"
        ) from error
    if stored is None:
        stored = _store_shards(context, wanted)
    if fields.name(stored) != wanted:
        raise ConfigurationError(
            f"CELERY_AGENTS_SHARDS={wanted}, but this Redis holds sessions in {fields.name(stored)[:_SHOWN]!r} shards; "
            f"set it to that, or use an empty Redis"
        )


def _store_shards(context: StoreContext, wanted: str) -> Reply:
    """Store the number in an empty Redis; a user who may not write leaves that to the first worker."""
    try:
        return context.database.pipeline("shards.first", [("SET", SHARDS, wanted, "NX"), ("GET", SHARDS)])[1]
    except (ConfigurationError, StoreForbidden):
        return wanted.encode()
