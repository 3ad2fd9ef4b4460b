"""Looking at a queue of step messages that is in the store's Redis."""

from __future__ import annotations

from ..context import StoreContext


def queue_length(context: StoreContext, queue_key: str) -> int:
    """How many messages wait in a queue."""
    return context.database.pipeline("queue.length", [("LLEN", queue_key)])[0]


def oldest_message(context: StoreContext, queue_key: str) -> bytes | None:
    """Read the message that leaves a queue next."""
    return context.database.pipeline("queue.oldest", [("LINDEX", queue_key, -1)])[0]


def drop_queue(context: StoreContext, queue_key: str) -> None:
    """Delete a queue with its messages."""
    context.database.pipeline("queue.drop", [("DEL", queue_key)])
