"""Sessions of documents in a database in memory, for all verbs that read."""

from __future__ import annotations

from collections.abc import Mapping

from ..cache import SessionCache
from ..clock import RedisClock
from ..context import Publisher, StoreContext
from ..memory.database import MemoryDatabase
from .documents import Document


def open_overlay(context: StoreContext, documents: Mapping[str, Document]) -> StoreContext:
    """Make the context of a store in memory that holds these sessions.

    Args:
        documents: By session id.
    """
    settings = context.settings.model_copy(update={"redis_url": "redis://none", "archive_url": None, "replicas": 0})
    found = StoreContext(
        database=MemoryDatabase(),
        clock=RedisClock(),
        settings=settings,
        publisher=Publisher(),
        cache=SessionCache(0),
    )
    found.layout.shards = context.shards
    for session_id, document in documents.items():
        found.database.transaction("overlay", list(document.write_commands(found.keys(session_id))))
    return found
