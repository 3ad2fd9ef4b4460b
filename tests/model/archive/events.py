"""Everything that can happen in the model of the archive, in words."""

from __future__ import annotations

from typing import Final

EVENTS: Final[dict[str, str]] = {
    "move.read": "reads the row's revision, then the session",
    "move.stored": "stores the row as pending",
    "move.refused": "may not store the row",
    "move.changed meanwhile": "finds that the session has changed since it was read",
    "move.removed": "removes the session and leaves the mark",
    "move.life given": "gives the mark its life",
    "move.valid": "makes the row valid",
    "restore.read": "a client reads the row",
    "restore.written": "the client writes the session back",
    "restore.refused": "the client finds that the session has changed",
    "message.taken": "the session takes a message",
    "delete.marked": "the session is deleted: deletion mark and outbox entry",
    "delete.tombstone": "a worker makes the row a tombstone",
    "delete.entry removed": "the worker removes the outbox entry",
    "house.pending made valid": "housekeeping makes a pending row valid that the mark names, or whose mark is gone",
    "redis.mark expired": "the life of the mark is over",
    "redis.saved": "Redis makes its writes durable",
    "fault.crash": "dies",
    "fault.loss": "Redis loses its last writes",
}
IMPOSSIBLE: Final = frozenset[str]()
